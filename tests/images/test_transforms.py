"""Transforms of images: Pillow's pixels, torchvision's parameters, numbers of the loader's seed."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

import stoker
from stoker.images import (
    CenterCrop,
    Compose,
    Normalize,
    PILToTensor,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToTensor,
    decode,
    normalize,
    scaling,
)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = (75, 60)


def photograph(seed: int = 0, size: tuple[int, int] = SIZE, **saving: Any) -> bytes:
    """A JPEG with structure and noise."""
    rng = np.random.default_rng(seed)
    rough = Image.fromarray(rng.integers(0, 256, (8, 9, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)
    pixels = np.clip(np.asarray(rough).astype(int) + rng.integers(-9, 9, (size[1], size[0], 3)), 0, 255)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=85, **saving)
    return file.getvalue()


def pillow(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


@pytest.fixture(params=["bytes", "path", "Pillow image", "array", "PNG"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Gives an image in each form that transforms take."""

    def given(data: bytes) -> Any:
        match request.param:
            case "bytes":
                return data
            case "path":
                (tmp_path / "image.jpg").write_bytes(data)
                return tmp_path / "image.jpg"
            case "PNG":
                file = io.BytesIO()
                pillow(data).save(file, "PNG")
                return file.getvalue()
            case "array":
                return np.asarray(pillow(data))
        return pillow(data)

    return given


def test_resize_gives_pillows_pixels(kind: Any) -> None:
    data = photograph()
    expected = np.asarray(pillow(data).resize((40, 32), Image.Resampling.BILINEAR))
    assert np.array_equal(Resize(32)(kind(data)), expected)
    assert np.array_equal(Resize((32, 40))(kind(data)), expected)


def test_resize_and_centre_crop_are_one_step(kind: Any) -> None:
    data = photograph()
    resized = pillow(data).resize((40, 32), Image.Resampling.BICUBIC)
    result = Compose([Resize(32, "bicubic"), CenterCrop(24)])(kind(data))
    assert np.array_equal(result, np.asarray(resized.crop((8, 4, 32, 28))))


def test_centre_crop_pads_a_smaller_image(kind: Any) -> None:
    result = CenterCrop((70, 61))(kind(photograph()))
    assert result.shape == (70, 61, 3)
    assert not result[:5].any() and not result[-5:].any()
    assert np.array_equal(result[5:-5], np.asarray(pillow(photograph()))[:, 7:68])


def test_steps_in_any_order_give_pillows_pixels(kind: Any) -> None:
    """A crop behind a flip, a second resize and a second crop do not fit into one step."""
    chance = random.Random(3)
    data = photograph()
    for _ in range(20):
        steps = [chance.choice(["crop", "resize", "flip"]) for _ in range(4)]
        image, transforms = pillow(data), list[Any]()
        for step in steps:
            width, height = image.size
            if step == "flip":
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
                transforms.append(RandomHorizontalFlip(1.0))
            elif step == "crop":
                w, h = width - 5, height - 3
                left, upper = round((width - w) / 2), round((height - h) / 2)
                image = image.crop((left, upper, left + w, upper + h))
                transforms.append(CenterCrop((h, w)))
            else:
                image = image.resize((width - 7, height - 9), Image.Resampling.BILINEAR)
                transforms.append(Resize((height - 9, width - 7)))
        assert np.array_equal(Compose(transforms)(kind(data)), np.asarray(image)), steps


def test_compose_draws_as_the_transforms_one_by_one() -> None:
    transforms = [RandomResizedCrop(32), RandomHorizontalFlip(), RandomCrop(28, padding=2)]
    for seed in range(20):
        random.seed(seed)
        together = Compose(transforms)(photograph(seed))
        random.seed(seed)
        image: Any = photograph(seed)
        for transform in transforms:
            image = transform(image)
        assert np.array_equal(together, image)


def test_random_resized_crop_boxes_have_the_scale_and_ratio() -> None:
    transform = RandomResizedCrop(10, scale=(0.2, 0.5), ratio=(0.5, 2.0))
    areas, ratios = [], []
    for _ in range(300):
        left, upper, width, height = transform._box(400, 300)
        assert 0 <= left <= 400 - width and 0 <= upper <= 300 - height
        areas.append(width * height / 120_000)
        ratios.append(width / height)
    assert 0.19 < min(areas) < 0.25 and 0.45 < max(areas) < 0.51
    assert 0.49 < min(ratios) < 0.6 and 1.7 < max(ratios) < 2.02


@pytest.mark.parametrize(("size", "box"), [((300, 10), (143, 0, 13, 10)), ((10, 300), (0, 143, 10, 13))])
def test_random_resized_crop_falls_back_to_the_middle(size: tuple[int, int], box: tuple[int, ...]) -> None:
    assert RandomResizedCrop(8, scale=(0.9, 1.0))._box(*size) == box


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_random_crop_pads(mode: str) -> None:
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    fill = {"constant_values": 0} if mode == "constant" else {}
    padded = np.pad(pixels, ((2, 2), (1, 1), (0, 0)), mode=mode, **fill)  # type: ignore[call-overload]
    result = RandomCrop((8, 7), padding=(1, 2), padding_mode=mode)(pixels)
    assert np.array_equal(result, padded)


def test_random_crop_fills_and_pads_if_needed() -> None:
    result = RandomCrop(6, pad_if_needed=True, fill=(9, 8, 7))(np.zeros((6, 3, 3), np.uint8))
    assert result.shape == (6, 6, 3)
    assert set(map(tuple, result.reshape(-1, 3).tolist())) == {(9, 8, 7), (0, 0, 0)}


class Pictures(stoker.Dataset[Any]):
    """Each sample is one photograph, transformed."""

    def __init__(self, transform: Any) -> None:
        self.photographs = [photograph(seed) for seed in range(4)]
        self.transform = transform

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.photographs[index % 4])


@pytest.mark.parametrize(
    "backend",
    [
        {"num_workers": 2, "multiprocessing_context": "fork"},
        {"num_workers": 2, "worker_method": "thread"},
        {"num_workers": 1, "threads_per_worker": 3},
    ],
)
def test_crops_repeat_with_the_seed_in_every_backend(backend: dict[str, Any]) -> None:
    dataset = Pictures(Compose([RandomResizedCrop(64), RandomHorizontalFlip()]))
    common = {"batch_size": 8, "seed": 5, "output": "numpy"}
    serial = list(stoker.DataLoader(dataset, **common))
    batches = list(stoker.DataLoader(dataset, **common, **backend))
    assert all(map(np.array_equal, serial, batches))
    assert len({batch.tobytes() for batch in np.concatenate(serial)}) == 24


def test_to_tensor_and_normalize_are_one_pass() -> None:
    torch = pytest.importorskip("torch")
    pixels = np.asarray(pillow(photograph()))
    planes = torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous().to(torch.float32).div(255)
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    expected = planes.clone().sub_(mean).div_(std)
    assert torch.equal(ToTensor()(pixels), planes)
    assert torch.equal(Normalize(MEAN, STD)(planes), expected)
    assert torch.equal(Compose([CenterCrop((60, 75)), ToTensor(), Normalize(MEAN, STD)])(pixels), expected)
    assert torch.equal(Compose([ToTensor(), Normalize(MEAN, STD)])(photograph()), expected)
    batch = torch.from_numpy(np.stack([pixels, pixels[:, ::-1]]))
    whole = normalize(batch, MEAN, STD)
    assert torch.equal(whole[0], expected) and torch.equal(whole[1], expected.flip(2))
    out = torch.empty_like(whole)
    assert normalize(batch, MEAN, STD, out=out) is out and torch.equal(out, whole)


@pytest.mark.parametrize(
    "layout", [lambda pixels: pixels, lambda pixels: pixels[:, ::-1], lambda pixels: pixels[1:, 2:]]
)
def test_pil_to_tensor_has_channels_first_in_new_memory(layout: Any) -> None:
    pixels = layout(decode(photograph()))
    pixels.flags.writeable = False
    planes = np.asarray(PILToTensor()(pixels))
    assert np.array_equal(planes, pixels.transpose(2, 0, 1)) and not np.shares_memory(planes, pixels)
    before = pixels.copy()
    ToTensor()(pixels)
    assert np.array_equal(pixels, before)


def test_lookup_without_the_compiled_part_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = np.stack([decode(photograph(seed)) for seed in range(2)])
    compiled = normalize(batch, MEAN, STD)
    monkeypatch.setattr(scaling.native, "functions", None)
    assert np.array_equal(normalize(batch, MEAN, STD), compiled)


def test_callables_in_compose_receive_arrays() -> None:
    seen = []

    def look(image: Any) -> Any:
        seen.append(image.copy())
        return 255 - image

    result = Compose([Resize((20, 30)), look, CenterCrop(10)])(photograph())
    assert seen[0].shape == (20, 30, 3) and seen[0].dtype == np.uint8
    assert np.array_equal(result, (255 - seen[0])[5:15, 10:20])


@pytest.mark.parametrize("unfit", ["bad", "cut"])
def test_damaged_files_raise_with_their_name(unfit: str, tmp_path: Path) -> None:
    path = tmp_path / "bird.jpg"
    path.write_bytes(b"no image at all" if unfit == "bad" else photograph()[:900])
    with pytest.raises(stoker.errors.ImageError, match=r"bird\.jpg"):
        Compose([RandomResizedCrop(8), RandomHorizontalFlip()])(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomResizedCrop(0),
        lambda: RandomResizedCrop((3, 4, 5)),
        lambda: RandomResizedCrop(3.5),
        lambda: RandomResizedCrop(8, scale=(0.5, 0.1)),
        lambda: RandomResizedCrop(8, interpolation="nearest"),
        lambda: Resize((8, 8), max_size=20),
        lambda: Resize(20, max_size=20),
        lambda: RandomCrop(8, padding=(1, 2, 3)),
        lambda: RandomCrop(8, padding_mode="wrap"),
        lambda: RandomCrop(800)(photograph()),
        lambda: RandomHorizontalFlip(1.5),
        lambda: Normalize((0.5, 0.5), (0.5, 0.5)),
        lambda: Normalize(MEAN, (0.0, 1.0, 1.0)),
        lambda: Normalize(MEAN, STD)(np.zeros((8, 8, 3), np.uint8)),
        lambda: Resize(8)(np.zeros((8, 8, 3), np.float32)),
        lambda: Resize(8)(17),
        lambda: normalize(np.zeros((2, 3, 8, 8), np.uint8), MEAN, STD),
        lambda: normalize(np.zeros((2, 8, 8, 3), np.uint8), MEAN, STD, out=np.zeros((2, 3, 8, 9), np.float32)),
        lambda: Compose([Resize(8), 3]),
    ],
)
def test_bad_arguments_are_refused(make: Any) -> None:
    with pytest.raises(stoker.errors.ImageArgumentError):
        make()


def test_reprs_show_the_parameters() -> None:
    compose = Compose([RandomResizedCrop(224), RandomHorizontalFlip(0.3), ToTensor(), Normalize(MEAN, STD)])
    assert "size=(224, 224)" in repr(compose) and "p=0.3" in repr(compose) and "0.485" in repr(compose)
