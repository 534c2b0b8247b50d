"""Images that decode when their pixels are read: nothing that a program can see differs from Pillow's images."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image, ImageDraw, ImageOps, JpegImagePlugin

from stoker import images
from stoker.images import kernel
from stoker.images.plan import PARTIAL_DECODES, DecodePlan
from stoker.images.plugin import LazyImage, LazyJpegFile
from tests.images.pictures import BICUBIC, BILINEAR, FILES, FLIP, KINDS, encoded, jpeg, photo

DATA = jpeg("4:2:0", 90, 70)
Step = Callable[[Image.Image], Any]


@pytest.fixture(autouse=True)
def with_a_kernel(compiled: kernel.Kernel) -> None:
    """These tests need the compiled decoder."""


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The sizes of what was decoded, in order."""
    sizes: list[tuple[int, int]] = []
    whole = DecodePlan._decoded

    def counted(plan: DecodePlan) -> Any:
        sizes.append(plan.size)
        return whole(plan)

    monkeypatch.setattr(DecodePlan, "_decoded", counted)
    return sizes


def plain(data: bytes = DATA) -> Image.Image:
    return Image.open(io.BytesIO(data))


def random_step(rng: random.Random, image: Image.Image) -> Step:
    width, height = image.size
    left, upper = rng.randint(0, width - 1), rng.randint(0, height - 1)
    crop = (left, upper, rng.randint(left + 1, width), rng.randint(upper + 1, height))
    size, filter = (rng.randint(1, 60), rng.randint(1, 60)), rng.choice([BILINEAR, BICUBIC, None, Image.Resampling.BOX])
    steps: list[Step] = [
        *[lambda image: image.crop(crop)] * 3,
        *[lambda image: image.resize(size, filter)] * 2,
        *[lambda image: image.transpose(FLIP)] * 2,
        lambda image: image.convert("RGB"),
        lambda image: image.convert("L"),
        lambda image: image.copy(),
        lambda image: image.crop((left - 3.4, upper - 2.5, left + 20.5, upper + 9.6)),
        lambda image: image.transpose(Image.Transpose.ROTATE_90),
        lambda image: image.resize(size, BILINEAR, box=(0, 0, width, height / 2)),
        lambda image: image.resize(size, BICUBIC, reducing_gap=2.0),
    ]
    return rng.choice(steps)


def assert_same(lazy: Image.Image, pillow: Image.Image, what: str = "") -> None:
    assert (lazy.mode, lazy.size, lazy.info, lazy.format) == (pillow.mode, pillow.size, pillow.info, pillow.format), (
        what
    )
    assert np.array_equal(np.asarray(lazy), np.asarray(pillow)), what
    assert lazy.tobytes() == pillow.tobytes(), what
    assert lazy == pillow, what
    assert pillow == lazy, what
    assert type(lazy) is type(pillow), what


@pytest.mark.parametrize("chains", [30, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [*KINDS, *FILES], ids=lambda kind: getattr(kind, "stem", kind))
def test_chains_of_steps_equal_pillow(kind: Any, chains: int) -> None:
    rng = random.Random(f"{kind}")
    data = kind.read_bytes() if isinstance(kind, Path) else jpeg(kind, 75, 58)
    for number in range(chains):
        lazy, pillow = images.open(data), plain(data)
        for _ in range(rng.randint(1, 6)):
            step = random_step(rng, pillow)
            lazy, pillow = step(lazy), step(pillow)
        assert_same(lazy, pillow, f"chain {number}")


def test_usual_chain_decodes_once_and_only_the_crop(decodes: list[tuple[int, int]]) -> None:
    image = images.open(DATA).convert("RGB").crop((5, 6, 45, 46)).resize((20, 24), BILINEAR).transpose(FLIP)
    assert type(image) is LazyImage
    assert decodes == []
    np.asarray(image), np.array(image), image.load(), image.tobytes()
    assert decodes == [(20, 24)]
    assert type(image) is Image.Image


def test_many_results_of_one_image_decode_it_once(decodes: list[tuple[int, int]]) -> None:
    image, expected = images.open(DATA).convert("RGB"), plain().convert("RGB")
    for number in range(10):
        crop = (number, number, number + 30, number + 20)
        assert np.array_equal(np.asarray(image.crop(crop)), np.asarray(expected.crop(crop)))
    assert decodes == [(30, 20)] * PARTIAL_DECODES + [(90, 70)]


def test_results_keep_the_pixels_of_their_moment() -> None:
    image = images.open(DATA).convert("RGB")
    crop, again = image.crop((0, 0, 20, 20)), image.copy()
    ImageDraw.Draw(image).rectangle((0, 0, 50, 50), fill=(1, 2, 3))
    expected = plain().convert("RGB")
    assert_same(crop, expected.crop((0, 0, 20, 20)))
    assert_same(again, expected)
    assert image.getpixel((3, 3)) == (1, 2, 3)
    for _ in range(4):  # and where results are made of shared pixels
        again = images.open(DATA)
        results = [again.crop((0, 0, 9, 9)) for _ in range(5)]
        for result in results:
            result.load()
            result.paste((0, 0, 0), (0, 0, 9, 9))
        assert_same(again.crop((0, 0, 9, 9)), plain().crop((0, 0, 9, 9)))


def loaded(image: Image.Image) -> Image.Image:
    image.getpixel((0, 0))
    return image


USES: dict[str, Callable[[Image.Image], Any]] = {
    "getpixel": lambda image: image.getpixel((3, 4)),
    "access": lambda image: image.load()[3, 4],
    "histogram": lambda image: image.histogram(),
    "getbbox": lambda image: image.getbbox(),
    "split": lambda image: [band.tobytes() for band in image.split()],
    "point": lambda image: image.point(lambda value: 255 - value).tobytes(),
    "rotate": lambda image: image.rotate(20).tobytes(),
    "reduce": lambda image: image.reduce(3).tobytes(),
    "quantize": lambda image: image.quantize(8).tobytes(),
    "blend": lambda image: Image.blend(image, image.copy(), 0.5).tobytes(),
    "merge": lambda image: Image.merge(image.mode, image.split()).tobytes(),
    "save": lambda image: encoded(image, "PNG"),
    "save jpeg": lambda image: encoded(image, quality=70),
    "fit": lambda image: ImageOps.fit(image, (20, 20)).tobytes(),
    "equalize": lambda image: ImageOps.equalize(image).tobytes(),
    "exif": lambda image: (dict(image.getexif()), ImageOps.exif_transpose(image).tobytes()),
    "array interface": lambda image: {k: v for k, v in image.__array_interface__.items() if k != "data"},
    "writeable": lambda image: np.asarray(image).flags.writeable,
    "repr": lambda image: repr(image).partition(" at ")[0],
    "getbands": lambda image: image.getbands(),
    "crop inside out": lambda image: image.crop((9, 9, 3, 12)),
    "crop of nothing": lambda image: image.crop((3, 3, 3, 9)).size,
    "resize to nothing": lambda image: image.resize((0, 4)).size,
    "resize by floats": lambda image: image.resize((4.5, 4)),  # type: ignore[arg-type]
    "resize with an unknown filter": lambda image: image.resize((4, 4), 99),
    "no resize with an unknown filter": lambda image: image.resize(image.size, 99),
    "resize by an array": lambda image: image.resize(np.array([4, 5]), BILINEAR).tobytes(),
    "convert to nonsense": lambda image: image.convert("XYZ"),
    "convert with a palette": lambda image: image.convert("P", palette=Image.Palette.ADAPTIVE, colors=9).tobytes(),
    "pickle": lambda image: pickle.loads(pickle.dumps(image)) == image,
    "pickled class": lambda image: type(pickle.loads(pickle.dumps(image))),
    "copied class": lambda image: type(loaded(copy.copy(image))),
    "deep copy": lambda image: copy.deepcopy(image).tobytes(),
    "hash": lambda image: image.__hash__,
    "thumbnail": lambda image: (image.thumbnail((20, 20)), image.size, image.tobytes())[1:],
    "paste": lambda image: (image.paste(3, (2, 2, 9, 9)), image.tobytes())[1:],
    "putpixel": lambda image: (image.putpixel((1, 1), 200), image.tobytes())[1:],
    "putalpha": lambda image: (image.putalpha(9), image.mode, image.tobytes())[1:],
    "write by access": lambda image: (image.load().__setitem__((0, 0), 5), image.tobytes())[1:],
    "close": lambda image: (image.close(), image.getpixel((0, 0))),
    "context": lambda image: [image.__enter__() is image, image.__exit__(None, None, None)],
    "draft": lambda image: (image.draft("L", (20, 20)), image.size, image.mode, image.tobytes()),
    "seek": lambda image: (image.seek(0), image.tell()),
    "seek beyond": lambda image: image.seek(1),
    "verify": lambda image: image.verify(),
    "readonly": lambda image: image.readonly,
    "is file": lambda image: isinstance(image, JpegImagePlugin.JpegImageFile),
}
SOURCES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "file": lambda image: image,
    "loaded file": lambda image: (image.load(), image)[1],
    "converted": lambda image: image.convert("RGB"),
    "cropped": lambda image: image.crop((3, 3, 60, 60)),
    "resized": lambda image: image.resize((40, 30), BILINEAR),
    "grey": lambda image: image.convert("L"),
}


def result_of(use: Step, image: Image.Image) -> Any:
    try:
        return use(image)
    except Exception as error:
        return type(error), str(error)


PAINTED: dict[str, Callable[[Image.Image], Any]] = {
    "paste": lambda image: image.paste(3, (2, 2, 9, 9)),
    "putpixel": lambda image: image.putpixel((1, 1), 200 if image.mode == "L" else (200, 0, 0)),
    "draw": lambda image: ImageDraw.Draw(image).rectangle((0, 0, 5, 5), fill=0),
    "access": lambda image: image.load().__setitem__((0, 0), 5 if image.mode == "L" else (5, 5, 5)),
}


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("paint", PAINTED)
def test_array_stays_when_its_image_is_painted(paint: str, mode: str) -> None:
    for made in (lambda i: i, lambda i: i.copy(), lambda i: i.crop((1, 1, 30, 30)), lambda i: i.resize((20, 20))):
        image, expected = (made(opened.convert(mode)) for opened in (images.open(DATA), plain()))
        before = np.asarray(image)
        PAINTED[paint](image)
        PAINTED[paint](expected)
        assert image.tobytes() == expected.tobytes()
        assert before.tobytes() == made(plain().convert(mode)).tobytes()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("use", USES)
def test_every_use_gives_what_pillow_gives(use: str, source: str) -> None:
    lazy = result_of(USES[use], SOURCES[source](images.open(DATA)))
    assert lazy == result_of(USES[use], SOURCES[source](plain()))


def test_load_closes_the_file_and_decodes_nothing(tmp_path: Path, decodes: list[tuple[int, int]]) -> None:
    path = tmp_path / "picture.jpg"
    path.write_bytes(DATA)
    image = images.open(path)
    file = image.fp
    assert image.filename == str(path)
    image.load()
    assert file.closed
    assert image.fp is None
    path.unlink()
    assert (image.crop((0, 0, 30, 20)).size, decodes) == ((30, 20), [])
    assert_same(image, plain())


def test_steps_close_the_file_as_with_pillow(tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"
    path.write_bytes(DATA)
    for step in (lambda i: i.convert("RGB"), lambda i: i.crop((0, 0, 9, 9)), lambda i: i.resize((9, 9))):
        image = images.open(path)
        file = image.fp
        step(image)
        assert file.closed
    with path.open("rb") as file:
        image = images.open(file.read()).convert("RGB")
    assert_same(image, plain().convert("RGB"))


def test_file_of_the_program_stays_open_and_may_be_closed() -> None:
    file = io.BytesIO(DATA)
    with images.register():
        image = Image.open(file).convert("RGB")
    assert not file.closed
    file.close()
    assert_same(image, plain().convert("RGB"))


def test_bytes_are_freed_once_pixels_are_there() -> None:
    image = images.open(DATA).convert("RGB").crop((0, 0, 9, 9))
    plan = weakref.ref(images.open)  # something that stays, to show that the next one goes
    assert plan() is not None
    pending = [thing for thing in gc.get_objects() if issubclass(type(thing), LazyJpegFile | LazyImage)]
    assert image in pending
    image.load()
    del pending
    gc.collect()
    assert [thing for thing in gc.get_objects() if type(thing) is DecodePlan] == []


def test_pillow_decodes_what_the_kernel_declines(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.images import plan

    monkeypatch.setattr(plan, "decode_from", lambda *arguments: kernel.jpeg.DECLINED)
    image = images.open(DATA).convert("RGB").crop((5, 6, 45, 46)).resize((20, 24), BILINEAR).transpose(FLIP)
    expected = plain().convert("RGB").crop((5, 6, 45, 46)).resize((20, 24), BILINEAR).transpose(FLIP)
    assert_same(image, expected)


@pytest.mark.parametrize("mode", ["CMYK"])
def test_other_modes_are_left_to_pillow(mode: str) -> None:
    data = encoded(photo(40, 30).convert(mode))
    assert type(images.open(data).convert("RGB")) is Image.Image
    assert_same(images.open(data).convert("RGB"), plain(data).convert("RGB"))


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF"])
def test_other_formats_are_left_to_pillow(format: str) -> None:
    data = encoded(photo(40, 30), format)
    assert type(images.open(data)) is type(plain(data))


# The registry


@pytest.fixture
def openers() -> Iterator[None]:
    before = Image.OPEN["JPEG"]
    yield
    assert Image.OPEN["JPEG"] == before


def test_register_makes_pillow_open_lazy_images(openers: None, tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"
    path.write_bytes(DATA)
    registration = images.register()
    with Image.open(path) as image:
        assert isinstance(image, LazyJpegFile)
    assert isinstance(Image.open(io.BytesIO(DATA), formats=["JPEG"]), LazyJpegFile)
    registration.undo()
    registration.undo()
    with Image.open(path) as image:
        assert type(image) is JpegImagePlugin.JpegImageFile


def test_registrations_are_counted(openers: None) -> None:
    first, second = images.register(), images.register()
    first.undo()
    assert isinstance(plain(), LazyJpegFile)
    second.undo()
    assert type(plain()) is JpegImagePlugin.JpegImageFile
    with images.register(), pytest.raises(KeyError):
        raise KeyError


def test_opener_that_came_later_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    opener, accept = Image.OPEN["JPEG"]
    monkeypatch.setitem(Image.OPEN, "JPEG", (opener, accept))
    with images.register():
        ours = Image.OPEN["JPEG"][0]
        Image.register_open("JPEG", lambda *arguments: ours(*arguments), accept)
        assert isinstance(plain(), LazyJpegFile)
    assert Image.OPEN["JPEG"][0] not in (ours, opener)
    assert type(plain()) is JpegImagePlugin.JpegImageFile


def test_register_changes_nothing_without_a_kernel(by_pillow: None) -> None:
    with images.register():
        image = plain()
        assert type(image.convert("RGB")) is Image.Image
        assert type(image) is JpegImagePlugin.JpegImageFile
        assert_same(plain().crop((1, 2, 30, 40)), images.open(DATA).crop((1, 2, 30, 40)))
