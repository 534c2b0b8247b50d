"""`decode` gives the pixels of Pillow, value for value."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

from stoker import images
from stoker._core.native import jpeg as native
from stoker.images import kernel
from stoker.images.decoding import CHANNELS, _request, checked, target
from tests.images.pictures import FILES, KINDS, Case, encoded, jpeg, photo

SIZES = [(1, 1), (1, 40), (37, 1), (8, 8), (16, 16), (17, 33), (97, 61), (150, 113)]


def assert_equal(data: bytes, case: Case, name: str) -> None:
    with Image.open(io.BytesIO(data)) as image:
        expected = case.by_pillow(image)
    found = images.decode(data, **case.arguments())
    assert found.shape == expected.shape
    different = np.count_nonzero(found != expected)
    assert different == 0, f"{different} of {found.size} values differ: {name}, {case}"


def is_taken(found: kernel.Kernel, data: bytes, case: Case) -> bool:
    """Whether the kernel decodes it, instead of leaving it to Pillow."""
    wanted = checked(case.crop, case.size, case.window, case.flip, case.mode, case.resample, False)
    request = _request(wanted, (0, 0))
    out = target(None, *request.window[2:], case.mode)
    return kernel.decode_from(found, data, request, out, native.DecodeHeader()) == native.DONE


@pytest.mark.parametrize("kind", KINDS)
def test_decode_equals_pillow(kind: str, either_way: str) -> None:
    rng = random.Random(kind)
    for size in SIZES:
        data = jpeg(kind, *size)
        for _ in range(6):
            assert_equal(data, Case(rng, size), kind)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_decode_equals_pillow_in_rare_kinds(path: Path, either_way: str) -> None:
    rng, data = random.Random(path.stem), path.read_bytes()
    for _ in range(30):
        assert_equal(data, Case(rng, images.info(data).size), path.stem)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_decode_equals_pillow_thousands_of_times(kind: str, compiled: kernel.Kernel) -> None:
    rng = random.Random(f"many {kind}")
    for seed in range(30):
        size = rng.choice([(rng.randint(1, 500), rng.randint(1, 400)), (rng.randint(1, 60), rng.randint(1, 60))])
        data = jpeg(kind, *size, seed)
        for _ in range(40):
            assert_equal(data, Case(rng, size), kind)


def test_kernel_takes_every_sound_kind(compiled: kernel.Kernel) -> None:
    """Else the tests of agreement would compare Pillow with itself. Arithmetic coding is left to Pillow."""
    rng = random.Random(1)
    pictures = [(kind, jpeg(kind, 61, 47)) for kind in KINDS] + [(path.stem, path.read_bytes()) for path in FILES]
    left = [name for name, data in pictures if not is_taken(compiled, data, Case(rng, (45, 47)))]
    assert left == [name for name, _ in pictures if name.startswith("arithmetic")]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_levels_of_vector_instructions_agree(level: int, compiled: kernel.Kernel) -> None:
    if level > compiled.level:
        pytest.skip("this processor has no such instructions")
    rng, size = random.Random(level), (211, 173)
    for kind in ("4:2:0", "grey"):
        data = jpeg(kind, *size)
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            for _ in range(40):
                case = Case(rng, size)
                wanted = checked(case.crop, case.size, case.window, case.flip, case.mode, case.resample, False)
                request = _request(wanted, size)
                out = target(None, *request.window[2:], case.mode)
                one = compiled._replace(level=level)
                assert kernel.decode_from(one, data, request, out, native.DecodeHeader()) == native.DONE
                assert np.array_equal(out, case.by_pillow(image)), case


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    "size", [(3, 301, 2, 100), (2, 250, 5, 100), (200, 3, 20, 3), (40, 300, 38, 8), (90, 90, 9, 9)]
)
def test_order_of_passes_is_that_of_pillow(size: tuple[int, int, int, int], resample: str, either_way: str) -> None:
    width, height, *to = size
    data = encoded(photo(width, height), subsampling=0)
    with Image.open(io.BytesIO(data)) as image:
        filter = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[resample]
        expected = np.asarray(image.resize((to[0], to[1]), filter))
    assert np.array_equal(images.decode(data, size=to, resample=resample), expected)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_decode_of_other_formats(format: str, either_way: str) -> None:
    data = encoded(photo(70, 50), format)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert("RGB").crop((3, 4, 60, 44)).resize((20, 30), Image.Resampling.BILINEAR))
    assert np.array_equal(images.decode(data, (3, 4, 60, 44), (20, 30)), expected)


@pytest.mark.parametrize("mode", ["1", "P", "LA", "RGBA", "I;16", "CMYK", "YCbCr"])
def test_decode_of_other_modes(mode: str, either_way: str) -> None:
    if mode == "I;16":
        image = Image.fromarray((np.arange(600, dtype=np.uint16) * 90).reshape(20, 30))
    else:
        image = photo(30, 20).convert(mode)
    data = encoded(image, "JPEG" if mode in ("CMYK", "YCbCr") else "PNG")
    for wanted in CHANNELS:
        with Image.open(io.BytesIO(data)) as opened:
            expected = np.asarray(opened.convert(wanted).resize((9, 8), Image.Resampling.BILINEAR))
        assert np.array_equal(images.decode(data, size=(9, 8), mode=wanted), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_on_request(orientation: int, either_way: str) -> None:
    image = photo(50, 30)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(image, exif=exif)
    with Image.open(io.BytesIO(data)) as opened:
        stored = opened.convert("RGB")
    upright = {
        1: stored,
        2: stored.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: stored.transpose(Image.Transpose.ROTATE_180),
        4: stored.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: stored.transpose(Image.Transpose.TRANSPOSE),
        6: stored.transpose(Image.Transpose.ROTATE_270),
        7: stored.transpose(Image.Transpose.TRANSVERSE),
        8: stored.transpose(Image.Transpose.ROTATE_90),
    }[orientation]
    assert np.array_equal(images.decode(data), np.asarray(stored))
    assert np.array_equal(images.decode(data, exif=True), np.asarray(upright))
    assert np.array_equal(images.decode(data, (2, 3, 22, 27), exif=True), np.asarray(upright.crop((2, 3, 22, 27))))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, "array", "path", "string"])
def test_decode_takes_bytes_and_paths(kind: object, tmp_path: Path, either_way: str) -> None:
    data = jpeg("4:2:0", 40, 30)
    path = tmp_path / "ein Bild \N{LATIN SMALL LETTER O WITH DIAERESIS}.jpg"
    path.write_bytes(data)
    source: object = {"array": np.frombuffer(data, np.uint8), "path": path, "string": str(path)}.get(str(kind))
    if source is None:
        source = kind(data)  # type: ignore[operator]
    for arguments in ({}, {"crop": (1, 2, 30, 20)}, {"size": (9, 9)}):
        expected = images.decode(data, **arguments)
        assert np.array_equal(images.decode(source, **arguments), expected)  # type: ignore[arg-type]


def test_decode_writes_into_strided_memory_only(either_way: str) -> None:
    data = jpeg("4:2:0", 90, 70)
    for arguments in ({"size": (30, 20)}, {"crop": (7, 8, 37, 28)}, {"crop": (7, 8, 37, 28), "flip": True}):
        for mode, channels in CHANNELS.items():
            memory = np.full((22, 40, channels), 77, np.uint8)
            out = memory[1:21, 5:35] if channels == 3 else memory[1:21, 5:35, 0]
            expected = images.decode(data, mode=mode, **arguments)
            assert images.decode(data, mode=mode, out=out, **arguments) is out
            assert np.array_equal(out, expected)
            out[...] = 77
            assert (memory == 77).all()


def test_dct_scaling_stays_within_its_bound(compiled: kernel.Kernel) -> None:
    rng, differences = random.Random(3), []
    for seed in range(3):
        data = encoded(photo(600, 450, seed).resize((2400, 1800), Image.Resampling.BICUBIC), quality=90)
        for _ in range(8):
            width, height = rng.randint(800, 2400), rng.randint(700, 1800)
            left, upper = rng.randint(0, 2400 - width), rng.randint(0, 1800 - height)
            crop = (left, upper, left + width, upper + height)
            exact = images.decode(data, crop, (112, 96)).astype(int)
            scaled = images.decode(data, crop, (112, 96), dct_scaling=True).astype(int)
            differences.append(np.abs(exact - scaled).mean())
    assert max(differences) < 1.1
    assert 0 < np.mean(differences) < 0.2


def test_dct_scaling_changes_no_small_picture(compiled: kernel.Kernel) -> None:
    data = jpeg("4:2:0", 500, 375)
    assert np.array_equal(images.decode(data, size=(224, 224), dct_scaling=True), images.decode(data, size=(224, 224)))


@pytest.mark.parametrize("kind", ["progressive", "progressive 4:4:4", "grey progressive"])
def test_progressive_picture_without_all_scans(kind: str, compiled: kernel.Kernel) -> None:
    """The library smooths blocks of such a picture, from more blocks than a crop has: Pillow decodes it."""
    rng, data = random.Random(kind), jpeg(kind, 90, 70)
    scans = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
    for end in scans[1:]:
        part = data[:end] + b"\xff\xd9"
        for _ in range(6):
            assert_equal(part, Case(rng, (90, 70)), f"{kind} up to byte {end}")
