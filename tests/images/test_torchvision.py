"""torchvision's transforms run unmodified on lazy images: equal pixels, and equal states of the generators."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

from stoker import images
from stoker.images import kernel
from stoker.images.plugin import LazyImage
from tests.images.pictures import BILINEAR, encoded, photo
from tests.images.tv import datasets, torch, v2
from tests.images.tv import transforms as v1

BICUBIC = v1.InterpolationMode.BICUBIC


class UpperCrop(v1.RandomResizedCrop):
    """A subclass with draws of its own."""

    @staticmethod
    def get_params(img: Any, scale: list[float], ratio: list[float]) -> tuple[int, int, int, int]:
        top, left, height, width = v1.RandomResizedCrop.get_params(img, scale, ratio)
        return top // 2, left, height, width


def stacked(crops: Any) -> Any:
    return torch.stack([v1.functional.pil_to_tensor(crop) for crop in crops])


def own_calls(image: Image.Image) -> Any:
    return torch.from_numpy(np.array(image.crop((3, 5, 103, 99)).resize((99, 77), BILINEAR).transpose(0)))


PIPELINES: dict[str, Callable[[Image.Image], Any]] = {
    "v1 train": v1.Compose([v1.RandomResizedCrop(64), v1.RandomHorizontalFlip(), v1.PILToTensor()]),
    "v2 train": v2.Compose([v2.RandomResizedCrop(64), v2.RandomHorizontalFlip(), v2.PILToTensor()]),
    "v2 train to image": v2.Compose(
        [v2.RandomResizedCrop((48, 64), antialias=True), v2.RandomHorizontalFlip(), v2.ToImage()]
    ),
    "v1 train float": v1.Compose(
        [v1.RandomResizedCrop(64), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize([0.5], [0.2])]
    ),
    "v1 validation": v1.Compose([v1.Resize(72), v1.CenterCrop(64), v1.PILToTensor()]),
    "v2 validation": v2.Compose([v2.Resize(72), v2.CenterCrop(64), v2.PILToTensor()]),
    "v1 bicubic": v1.Compose(
        [v1.RandomResizedCrop(64, interpolation=BICUBIC), v1.RandomHorizontalFlip(), v1.PILToTensor()]
    ),
    "v1 crop with padding": v1.Compose(
        [v1.RandomCrop(120, padding=4, pad_if_needed=True), v1.RandomHorizontalFlip(), v1.PILToTensor()]
    ),
    "v1 crop, colours, grey": v1.Compose(
        [v1.RandomCrop(64), v1.ColorJitter(0.4, 0.4, 0.4), v1.RandomGrayscale(0.3), v1.PILToTensor()]
    ),
    "v1 flip first": v1.Compose([v1.RandomHorizontalFlip(), v1.RandomResizedCrop(64), v1.PILToTensor()]),
    "v1 rand augment": v1.Compose([v1.RandomResizedCrop(64), v1.RandAugment(), v1.PILToTensor()]),
    "v2 trivial augment": v2.Compose([v2.RandomResizedCrop(64), v2.TrivialAugmentWide(), v2.PILToTensor()]),
    "v1 five crops": v1.Compose([v1.Resize(72), v1.FiveCrop(64), v1.Lambda(stacked)]),
    "v1 rotation": v1.Compose([v1.RandomRotation(20), v1.CenterCrop(64), v1.PILToTensor()]),
    "v2 scale jitter": v2.Compose([v2.ScaleJitter((64, 64)), v2.RandomCrop(64, pad_if_needed=True), v2.PILToTensor()]),
    "v2 random resize": v2.Compose([v2.RandomResize(66, 99), v2.CenterCrop(64), v2.PILToTensor()]),
    "subclass": v1.Compose([UpperCrop(64), v1.RandomHorizontalFlip(), v1.PILToTensor()]),
    "two resizes": v1.Compose([v1.Resize(90), v1.RandomResizedCrop(64), v1.PILToTensor()]),
    "grey": v1.Compose([v1.Grayscale(3), v1.RandomResizedCrop(64), v1.PILToTensor()]),
    "own calls": own_calls,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders of some photographs: wide, high, grey and progressive ones."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(12):
        path = root / ("cats", "dogs")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        width, height = [(150, 110), (110, 150), (131, 117)][number % 3]
        image = photo(width, height, number, "L" if number == 7 else "RGB")
        path.write_bytes(encoded(image, subsampling=number % 3, progressive=number == 5))
    return root


def seeded(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


@pytest.mark.parametrize("name", PIPELINES)
def test_pipeline_gives_equal_pixels_and_draws(name: str, folder: Path, compiled: kernel.Kernel) -> None:
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))):
        for load in (lambda path: images.open(path).convert("RGB"), images.open):
            seeded(number)
            with Image.open(path) as image:
                expected = PIPELINES[name](image.convert("RGB") if load is not images.open else image)
            after = states()
            seeded(number)
            found = PIPELINES[name](load(path))
            assert states() == after
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            assert torch.equal(found, expected), path.name


def test_transforms_keep_images_lazy(folder: Path, compiled: kernel.Kernel) -> None:
    image = images.open(next(folder.rglob("0.jpg"))).convert("RGB")
    for module in (v1, v2):
        shown = module.Compose([module.RandomResizedCrop(64), module.RandomHorizontalFlip()])(image)
        assert type(shown) is LazyImage
        assert type(module.Compose([module.Resize(72), module.CenterCrop(64)])(image)) is LazyImage


def test_image_folder_is_faster_without_a_change(folder: Path, compiled: kernel.Kernel) -> None:
    """An unmodified dataset, with the registry and with a `loader`."""
    seeded(3)
    expected = [(sample, label) for sample, label in datasets.ImageFolder(folder, PIPELINES["v1 train"])]
    seeded(3)
    with images.register():
        registered = [(sample, label) for sample, label in datasets.ImageFolder(folder, PIPELINES["v1 train"])]
    seeded(3)
    loaded = datasets.ImageFolder(folder, PIPELINES["v1 train"], loader=lambda path: images.open(path).convert("RGB"))
    for one, other, third in zip(expected, registered, loaded, strict=True):
        assert one[1] == other[1] == third[1]
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[0], third[0])
