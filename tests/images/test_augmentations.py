"""Colours, rotations, erased boxes and policies: torchvision's pixels on Pillow images for the parameters drawn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

import stoker
from stoker.images import (
    ColorJitter,
    Compose,
    Grayscale,
    Normalize,
    PILToTensor,
    RandAugment,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    ToTensor,
    TrivialAugmentWide,
    augmentations,
    scaling,
)
from tests.images.pictures import encoded, photo
from tests.images.tv import torch
from tests.images.tv import transforms as v1

functional = v1.functional
NEAREST = v1.InterpolationMode.NEAREST
PHOTO = photo(61, 47)
PIXELS = np.asarray(PHOTO)


class Drawn(list[Any]):
    """The numbers that transforms draw: what `random` draws, noted."""

    def uniform(self, low: float, high: float) -> float:
        self.append(random.uniform(low, high))
        return float(self[-1])

    def sample(self, population: Any, count: int) -> Any:
        self.append(random.sample(population, count))
        return self[-1]

    def choice(self, population: Any) -> Any:
        self.append(random.choice(population))
        return self[-1]

    def randrange(self, end: int) -> int:
        self.append(random.randrange(end))
        return int(self[-1])

    def randint(self, low: int, high: int) -> int:
        self.append(random.randint(low, high))
        return int(self[-1])

    def random(self) -> float:
        self.append(random.random())
        return float(self[-1])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[Drawn]:
    numbers = Drawn()
    random.seed(7)

    class RNG:
        random_generator = numbers
        numpy_generator = np.random.default_rng(3)

    monkeypatch.setattr(augmentations, "sample_rng", RNG)
    yield numbers


ADJUST = {
    "Brightness": functional.adjust_brightness,
    "Contrast": functional.adjust_contrast,
    "Color": functional.adjust_saturation,
    "Hue": functional.adjust_hue,
}


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_jitter_gives_torchvisions_pixels(mode: str, drawn: Drawn) -> None:
    jitter = ColorJitter(0.4, (0.5, 1.5), 0.7, 0.5)
    for _ in range(20):
        drawn.clear()
        found = jitter(PHOTO.convert(mode))
        image = PHOTO.convert(mode).convert("RGB")
        for name, factor in zip(drawn[0], drawn[1:], strict=True):
            image = ADJUST[name](image, factor)
        assert np.array_equal(found, np.asarray(image)), drawn


def test_jitter_without_a_range_draws_no_factor(drawn: Drawn) -> None:
    assert np.array_equal(ColorJitter()(PHOTO), PIXELS)
    assert len(drawn) == 1
    assert ColorJitter(brightness=3).brightness == v1.ColorJitter(brightness=3).brightness == (0.0, 4.0)
    assert ColorJitter(hue=0.25).hue == v1.ColorJitter(hue=0.25).hue


@pytest.mark.parametrize("kind", [RandAugment, TrivialAugmentWide])
@pytest.mark.parametrize("size", [(61, 47), (500, 375)])
def test_magnitudes_are_torchvisions(kind: Any, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every operation and number, as torchvision keeps them: float32."""
    theirs = getattr(v1, kind.__name__)
    noted: list[Any] = []
    for bins in (31, 10, 2):
        policy = kind(num_magnitude_bins=bins, **({"magnitude": 1} if kind is RandAugment else {}))
        arguments = (bins, (size[1], size[0])) if kind is RandAugment else (bins,)
        space = theirs()._augmentation_space(*arguments)
        assert tuple(space) == augmentations.OPERATIONS
        assert {name for name, (_, signed) in space.items() if signed} == set(augmentations.SIGNED)
        monkeypatch.setattr(augmentations, "operation", lambda name, value, *how: noted.append((name, value)) or _as_is)
        for name, (magnitudes, signed) in space.items():
            for place in range(bins):
                monkeypatch.setattr(augmentations, "sample_rng", lambda name=name, place=place: _Fixed(name, place))
                if kind is RandAugment:
                    policy.magnitude = place
                    policy.num_ops = 1
                policy(Image.new("RGB", size))
                expected = float(magnitudes[place]) if magnitudes.ndim else 0.0
                if name != "Identity":
                    found, value = noted.pop()
                    expected = -expected if signed else expected
                    assert (found, value) == (name, pytest.approx(expected, rel=1e-6))


def _as_is(image: Image.Image) -> Image.Image:
    return image


class _Fixed:
    """Draws one operation, one magnitude, and the negative direction."""

    def __init__(self, name: str, place: int) -> None:
        self.random_generator, self.name, self.place = self, name, place

    def choice(self, population: Any) -> str:
        return self.name

    def randrange(self, end: int) -> int:
        return self.place

    def random(self) -> float:
        return 0.0


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("name", augmentations.OPERATIONS[1:])
def test_operations_give_torchvisions_pixels(name: str, interpolation: str) -> None:
    from torchvision.transforms.autoaugment import _apply_op

    mode = v1.InterpolationMode(interpolation)
    values = {"Posterize": (1, 4, 8), "Solarize": (0.0, 127.5, 255.0), "Rotate": (-135.0, 4.7, 30.0)}
    values |= dict.fromkeys(("TranslateX", "TranslateY"), (-33.0, 7.9, 20.3))
    for magnitude in values.get(name, (-0.99, 0.03, 0.61)):
        for fill in (None, (10, 20, 30)):
            expected = _apply_op(PHOTO, name, magnitude, mode, None if fill is None else [*fill])
            change = augmentations.operation(name, magnitude, interpolation, augmentations._colour(fill))
            assert np.array_equal(np.asarray(change(PHOTO)), np.asarray(expected)), magnitude


def test_a_repr_names_interpolation_and_fill() -> None:
    assert repr(RandAugment(fill=9)).endswith("interpolation='nearest', fill=(9, 9, 9))")
    assert "num_magnitude_bins=31, interpolation='bilinear'" in repr(TrivialAugmentWide(interpolation="bilinear"))
    assert repr(RandomRotation(5, fill=(1, 2, 3))).endswith("fill=(1, 2, 3))")


def test_a_transform_of_torchvisions_behind_an_array() -> None:
    with pytest.raises(TypeError) as told:
        stoker.images.Compose([stoker.images.Resize(32, antialias=None), v1.ColorJitter(0.5)])(encoded(PHOTO))
    assert told.value.__notes__ == ["ColorJitter was given an array: put PIL.Image.fromarray before it."]


@pytest.mark.parametrize("transform", [stoker.images.Resize, stoker.images.RandomResizedCrop])
def test_antialias_cannot_be_switched_off(transform: Any) -> None:
    transform(32, antialias=True)
    with pytest.raises(stoker.ImageArgumentError, match="antialias=False is not possible"):
        transform(32, antialias=False)


def test_policies_apply_what_they_draw() -> None:
    random.seed(5)
    for policy in (RandAugment(num_ops=3, fill=9), TrivialAugmentWide(interpolation=NEAREST)):
        results = {policy(encoded(PHOTO)).tobytes() for _ in range(20)}
        assert len(results) > 5


@pytest.mark.parametrize("options", [{}, {"expand": True, "fill": (1, 2, 3)}, {"center": (3, 9), "fill": 7}])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_rotation_gives_torchvisions_pixels(interpolation: str, options: Any, drawn: Drawn) -> None:
    rotation = RandomRotation((-90, 170), interpolation, **options)
    for _ in range(5):
        drawn.clear()
        found = rotation(PHOTO)
        mode = v1.InterpolationMode(interpolation)
        assert np.array_equal(found, np.asarray(functional.rotate(PHOTO, drawn[0], mode, **options)))
    assert RandomRotation(30).degrees == (-30.0, 30.0)


def test_grey_images_have_one_channel_or_three() -> None:
    for channels in (1, 3):
        grey = v1.Grayscale(channels)(PHOTO)
        expected = v1.PILToTensor()(grey)
        transform = Compose([Grayscale(channels), RandomHorizontalFlip(0.0), PILToTensor()])
        assert torch.equal(transform(PHOTO), expected)
        behind = Compose([Grayscale(channels), lambda pixels: pixels, Resize(20), ToTensor()])
        assert torch.equal(behind(PHOTO), v1.ToTensor()(v1.Resize(20)(grey)))
    one = Compose([Grayscale(), ToTensor(), Normalize((0.4,), (0.2,))])
    assert torch.equal(one(PHOTO), v1.Normalize((0.4,), (0.2,))(v1.ToTensor()(PHOTO.convert("L"))))
    with pytest.raises(stoker.errors.ImageArgumentError, match="1 channels"):
        Compose([Grayscale(), ToTensor(), Normalize((0.4,) * 3, (0.2,) * 3)])(PHOTO)


@pytest.mark.parametrize("value", [0, 0.5, (0.1, 0.2, 0.3), "random"])
@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_erasing_gives_torchvisions_values(kind: str, value: Any, drawn: Drawn) -> None:
    image = ToTensor()(PHOTO) if kind == "tensor" else np.asarray(ToTensor()(PHOTO))
    before, erasing = np.asarray(image).copy(), RandomErasing(1.0, value=value)
    for _ in range(10):
        drawn.clear()
        found = erasing(image)
        upper, left = drawn[-2:]
        changed = np.asarray(found) != before
        assert np.array_equal(np.asarray(image), before) and changed.any()
        h, w = (int(np.ptp(np.flatnonzero(changed.any((0, axis))))) + 1 for axis in (2, 1))
        box = np.asarray(found)[:, upper : upper + h, left : left + w]
        filling = box if value == "random" else np.broadcast_to(np.float32(value).reshape(-1, 1, 1), box.shape)
        expected = functional.erase(torch.as_tensor(before), upper, left, h, w, torch.as_tensor(filling.copy()))
        assert np.array_equal(np.asarray(found), np.asarray(expected))
    erasing = RandomErasing(1.0, inplace=True)
    assert erasing(image) is image and not np.array_equal(np.asarray(image), before)


def test_erasing_takes_bytes_and_may_do_nothing() -> None:
    random.seed(1)
    pixels = np.full((40, 30, 3), 200, np.uint8)
    erased = RandomErasing(1.0, value=(1, 2, 3))(pixels)
    assert set(map(tuple, erased.reshape(-1, 3).tolist())) == {(1, 2, 3), (200, 200, 200)} and pixels.min() == 200
    assert RandomErasing(0.0)(pixels) is pixels
    assert RandomErasing(1.0, scale=(1.0, 1.0))(pixels) is pixels  # no box was smaller than the image


def test_draws_repeat_with_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    transform = Compose(
        [
            *(RandomResizedCrop(32), RandAugment(), TrivialAugmentWide(), ColorJitter(0.4, 0.4, 0.4, 0.1)),
            *(RandomRotation(20), Grayscale(3), ToTensor(), RandomErasing(0.5)),
        ]
    )
    data = stoker.MapDataset([encoded(photo(60, 50, seed)) for seed in range(6)], transform)

    def epoch(**arguments: Any) -> Any:
        return np.concatenate([np.asarray(batch) for batch in stoker.DataLoader(data, 3, seed=5, **arguments)])

    serial = epoch()
    assert np.array_equal(serial, epoch(num_workers=2, multiprocessing_context="fork"))
    assert np.array_equal(serial, epoch(num_workers=2, worker_method="thread"))


def test_magnitude_table_without_the_compiled_part(monkeypatch: pytest.MonkeyPatch) -> None:
    grey = Grayscale()(PHOTO)
    compiled = np.asarray(ToTensor()(grey))
    monkeypatch.setattr(scaling.native, "functions", None)
    assert np.array_equal(np.asarray(ToTensor()(grey)), compiled)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ColorJitter(-1),
        lambda: ColorJitter((0.5, 0.1)),
        lambda: ColorJitter(hue=0.6),
        lambda: Grayscale(2),
        lambda: RandomRotation(-3),
        lambda: RandomRotation(3, "box"),
        lambda: RandomRotation(3, center=(1, 2, 3)),
        lambda: RandomRotation(3, fill=(1, 2)),
        lambda: RandAugment(magnitude=31),
        lambda: TrivialAugmentWide(1),
        lambda: RandomErasing(2),
        lambda: RandomErasing(scale=(0.5, 1.5)),
        lambda: RandomErasing(ratio=(0, 1)),
        lambda: RandomErasing(value="noise"),
        lambda: RandomErasing(1.0)(PHOTO),
        lambda: RandomErasing(1.0, value="random")(PIXELS),
        lambda: RandomErasing(1.0, value=(1, 2))(PIXELS),
    ],
)
def test_bad_arguments_are_refused(make: Any) -> None:
    with pytest.raises(stoker.errors.ImageArgumentError):
        make()


def test_reprs_show_parameters() -> None:
    transforms = (
        ColorJitter(0.4),
        Grayscale(),
        RandomRotation(5),
        RandomErasing(),
        RandAugment(),
        TrivialAugmentWide(),
    )
    for transform in transforms:
        assert repr(transform).startswith(type(transform).__name__ + "(")


def test_guide_shows_torchvisions_within_a_compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block that the docs' tests leave out: they have no torchvision that loads beside any torch."""
    text = (Path(__file__).parents[2] / "docs/guides/image-transforms.md").read_text()
    block = text.partition("## torchvision's within")[2].partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    PHOTO.save("photo.jpg")
    names = {"Compose": Compose, "RandomResizedCrop": RandomResizedCrop, "ToTensor": ToTensor, "Image": Image}
    exec(block, names)
    assert "blur" in names and "solarized" in names and "erased" in names
