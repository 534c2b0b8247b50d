"""Operations on batches give torchvision's results for equal parameters, image by image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.device.transforms import colours, geometry, mixing
from stoker.device.transforms.geometry import TRIES
from stoker.loader._random.batch_draws import batch_draws, of_batch
from tests.images.tv import torch, transforms, v2

F = v2.functional


def pictures(dtype: Any = torch.uint8, last: bool = False, count: int = 6) -> Any:
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, 3, 40, 52), np.uint8))
    smooth = torch.nn.functional.avg_pool2d(noise.float(), 5, 1, 2)
    images = smooth.to(torch.uint8) if dtype == torch.uint8 else (smooth / 255).to(dtype)
    return images.contiguous(memory_format=torch.channels_last) if last else images


def boxes_of(images: Any) -> Any:
    with of_batch(5, range(len(images))):
        return geometry.drawn_boxes(batch_draws(len(images)), *images.shape[2:], (0.08, 1.0), (3 / 4, 4 / 3))


def expected(images: Any, boxes: Any, size: Any, **options: Any) -> Any:
    return torch.stack(
        [F.resized_crop(image, *box, list(size), **options) for image, box in zip(images, boxes.tolist(), strict=True)]
    )


def largest_difference(ours: Any, theirs: Any) -> float:
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    return float((ours.double() - theirs.double()).abs().max())


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(12, 17), (64, 48)])
def test_crops_on_the_cpu_are_torchvisions(last: bool, interpolation: str, size: Any) -> None:
    mode = v2.InterpolationMode(interpolation)
    for dtype in (torch.uint8, torch.float32):
        images = pictures(dtype, last)
        boxes = boxes_of(images)
        ours = geometry.resized(images, boxes, size, interpolation)
        assert largest_difference(ours, expected(images, boxes, size, interpolation=mode)) == 0
        assert ours.is_contiguous(memory_format=torch.channels_last) == last


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(12, 17), (64, 48)])
def test_products_of_matrices_are_the_same_crops(interpolation: str, size: Any) -> None:
    mode = v2.InterpolationMode(interpolation)
    images = pictures(torch.float32)
    boxes = boxes_of(images)
    theirs = expected(images, boxes, size, interpolation=mode)
    assert largest_difference(geometry.multiplied(images, boxes, size, interpolation), theirs) < 1e-5
    whole = pictures()
    ours = geometry.multiplied(whole, boxes, size, interpolation)
    assert largest_difference(ours, expected(whole, boxes, size, interpolation=mode)) <= 1


@pytest.mark.parametrize("size", [(12, 17), (64, 48)])
def test_a_grid_sample_gives_crops_without_antialias(size: Any) -> None:
    images = pictures(torch.float32)
    boxes = boxes_of(images)
    theirs = expected(images, boxes, size, antialias=False)
    assert largest_difference(geometry.sampled(images, boxes, size), theirs) < 1e-4
    whole = pictures(last=True)
    assert largest_difference(geometry.sampled(whole, boxes, size), expected(whole, boxes, size, antialias=False)) <= 1


def test_boxes_are_spread_as_torchvisions() -> None:
    count = 2000
    with of_batch(1, range(count)):
        ours = geometry.drawn_boxes(batch_draws(count), 200, 300, (0.08, 1.0), (3 / 4, 4 / 3))
    image, transform = torch.zeros(3, 200, 300), v2.RandomResizedCrop(8)
    torch.manual_seed(0)
    theirs = np.array(
        [[*map(transform.make_params([image]).get, ("top", "left", "height", "width"))] for _ in range(count)]
    )
    np.testing.assert_allclose(ours.mean(0), theirs.mean(0), rtol=0.1)
    np.testing.assert_allclose(ours.std(0), theirs.std(0), rtol=0.1)
    assert (
        (ours[:, :2] >= 0).all() and (ours[:, 0] + ours[:, 2] <= 200).all() and (ours[:, 1] + ours[:, 3] <= 300).all()
    )


def test_a_box_that_never_fits_is_the_largest_in_the_middle() -> None:
    with of_batch(1, range(4)):
        boxes = geometry.drawn_boxes(batch_draws(4), 10, 1000, (0.9, 1.0), (3 / 4, 4 / 3))
    assert boxes.tolist() == [[0, (1000 - 13) // 2, 10, 13]] * 4 and TRIES == 10


CASES = {
    "brightness": (0, F.adjust_brightness, [0.4, 0.9, 1.0, 1.3, 1.9, 0.0]),
    "contrast": (1, F.adjust_contrast, [0.4, 0.9, 1.0, 1.3, 1.9, 0.0]),
    "saturation": (2, F.adjust_saturation, [0.4, 0.9, 1.0, 1.3, 1.9, 0.0]),
    "hue": (3, F.adjust_hue, [-0.5, -0.2, 0.0, 0.1, 0.3, 0.5]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("last", [False, True])
def test_colours_are_torchvisions(name: str, last: bool) -> None:
    number, function, factors = CASES[name]
    for dtype, most in ((torch.uint8, 1), (torch.float32, 1e-5)):
        images = pictures(dtype, last)
        theirs = torch.stack([function(image, factor) for image, factor in zip(images, factors, strict=True)])
        ours = colours.CHANGES[number](images, np.array(factors))
        assert largest_difference(ours, theirs) <= most
        assert ((ours.double() - theirs.double()).abs() > 1e-5).double().mean() < 0.01


def test_each_image_has_its_changes_in_its_own_order() -> None:
    images, random = pictures(torch.float32), np.random.default_rng(1)
    order = np.stack([random.permutation(4) for _ in images])
    factors = [random.uniform(0.5, 1.5, len(images)) for _ in range(3)] + [random.uniform(-0.5, 0.5, len(images))]
    transform = v2.ColorJitter(1, 1, 1, 0.5)
    names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
    theirs = torch.stack(
        [
            transform.transform(
                image, {"fn_idx": order[row], **{n: f[row] for n, f in zip(names, factors, strict=True)}}
            )
            for row, image in enumerate(images)
        ]
    )
    assert largest_difference(colours.changed(images, order, factors), theirs) < 1e-4


def test_normalised_images_are_torchvisions_bit_for_bit() -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    images = pictures(last=True)
    tensors = torch.stack([transforms.ToTensor()(image.numpy()) for image in images.permute(0, 2, 3, 1)])
    theirs = transforms.Normalize(mean, std)(tensors)
    ours = colours.Normalize(mean, std)(images.permute(0, 2, 3, 1))
    assert torch.equal(ours, theirs) and ours.is_contiguous(memory_format=torch.channels_last)
    half = colours.Normalize(mean, std, dtype="bfloat16", channels_last=False)(images)
    assert torch.equal(half, theirs.to(torch.bfloat16)) and half.is_contiguous()


@pytest.mark.parametrize("kind", ["numbers", "shares"])
def test_mixed_images_and_labels_are_torchvisions(kind: str) -> None:
    images, numbers = pictures(torch.float32), torch.tensor([3, 1, 4, 1, 5, 0])
    labels = numbers if kind == "numbers" else torch.nn.functional.one_hot(numbers, 6).float()
    share = 0.3
    ours, left = mixing.MixUp(num_classes=6).mixed(images, share, np.random.default_rng(0))
    theirs = v2.MixUp(num_classes=6)
    params = {"lam": share, "labels": labels, "batch_size": 6}
    assert torch.equal(ours, theirs.transform(images, params)) and left == share
    assert torch.equal(mixing.mixed_labels(labels, share, 6), theirs.transform(labels, params))


def test_cut_images_are_torchvisions_for_an_equal_box() -> None:
    images, random = pictures(last=True), np.random.default_rng(3)
    ours, share = mixing.CutMix(num_classes=6).mixed(images, 0.4, random)
    again = np.random.default_rng(3)
    x, y = int(again.integers(52)), int(again.integers(40))
    half = 0.5 * 0.6**0.5
    box = (
        max(0, x - int(half * 52)),
        max(0, y - int(half * 40)),
        min(52, x + int(half * 52)),
        min(40, y + int(half * 40)),
    )
    params = {"box": box, "labels": torch.zeros(6), "batch_size": 6}
    assert torch.equal(ours, v2.CutMix(num_classes=6).transform(images, params))
    assert share == 1 - (box[2] - box[0]) * (box[3] - box[1]) / (52 * 40)
