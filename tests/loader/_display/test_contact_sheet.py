from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from stoker.errors import PreviewError
from stoker.loader._display.preview import sheet, to_pixels

COUNT, HEIGHT, WIDTH = 5, 120, 160
MARGIN, LINE = 6, 16
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def colours() -> Any:
    """Uniform images, channels last: each of its own colour."""
    values = np.arange(COUNT * 3, dtype=np.uint8).reshape(COUNT, 1, 1, 3) * 15
    return np.broadcast_to(values, (COUNT, HEIGHT, WIDTH, 3)).copy()


def shown(image: Any, captions: bool, columns: int, height: int = HEIGHT, width: int = WIDTH) -> list[list[int]]:
    """The colours in the middle of the tiles of a sheet."""
    array = np.asarray(image)
    steps = height + MARGIN + LINE * captions, width + MARGIN
    middle = MARGIN + height // 2, MARGIN + width // 2
    return [
        array[middle[0] + number // columns * steps[0], middle[1] + number % columns * steps[1]].tolist()
        for number in range(COUNT)
    ]


@dataclass
class Batch:
    picture: Any
    kind: Any


@pytest.mark.parametrize(
    "arranged",
    [
        lambda pixels: pixels,
        lambda pixels: pixels.transpose(0, 3, 1, 2),
        lambda pixels: (pixels / np.float32(255)).transpose(0, 3, 1, 2),
        lambda pixels: pixels.astype(np.float64),
        lambda pixels: pixels.astype(np.int64),
        lambda pixels: np.concatenate([pixels, pixels[..., :1]], axis=3),
        lambda pixels: list(pixels),
        lambda pixels: {"id": [1, 2, 3, 4, 5], "deep": [{"picture": pixels}]},
        lambda pixels: Batch(pixels, None),
    ],
    ids=["HWC", "CHW", "floats", "floats to 255", "integers", "alpha", "list", "nested", "dataclass"],
)
def test_images_are_shown_in_their_order(arranged: Any) -> None:
    image = sheet(arranged(colours()), COUNT)
    captions = image.height == 2 * (HEIGHT + MARGIN + LINE) + MARGIN
    assert image.width == 2 * (WIDTH + MARGIN) + MARGIN or image.width == 3 * (WIDTH + MARGIN) + MARGIN
    columns = (image.width - MARGIN) // (WIDTH + MARGIN)
    assert shown(image, captions, columns) == colours()[:, 0, 0].tolist()


def test_tensors_and_half_precision() -> None:
    torch = pytest.importorskip("torch")
    pixels = torch.from_numpy(colours())
    expected = np.asarray(sheet(pixels, COUNT))
    assert (np.asarray(sheet((pixels.permute(0, 3, 1, 2) / 255).half(), COUNT)) == expected).all()
    assert np.asarray(sheet((pixels / 255).bfloat16(), COUNT)).shape == expected.shape
    assert (np.asarray(sheet([pixels.requires_grad_(False), torch.arange(COUNT)], COUNT)).shape[1]) == expected.shape[1]


def test_mean_and_deviation_undo_a_normalisation() -> None:
    plain = colours().transpose(0, 3, 1, 2) / 255
    normal = (plain - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    again = sheet(normal.astype(np.float32), COUNT, mean=MEAN, std=STD)
    assert (np.asarray(again) == np.asarray(sheet(colours(), COUNT))).all()
    assert (np.asarray(sheet(normal, COUNT)) != np.asarray(again)).any()
    assert (np.asarray(sheet(colours(), COUNT, mean=0.5)) == np.asarray(again)).all()  # bytes are no normalised floats
    with pytest.raises(ValueError, match="a number for each channel: 3 for images of 1"):
        sheet(normal[:, :1], COUNT, mean=MEAN)


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (np.array([0.0, 0.5, 1.0]), [0, 128, 255]),
        (np.array([-1.0, 0.0, 1.0]), [0, 128, 255]),
        (np.array([0.0, 2.0, 255.0]), [0, 2, 255]),
        (np.array([0.0, 500.0, 1000.0]), [0, 128, 255]),
        (np.array([7.0, 7.0, 7.0]) - 10, [0, 0, 0]),
        (np.array([np.nan, 0.0, 1.0]), [0, 0, 255]),
        (np.array([-np.inf, 0.5, np.inf]), [128, 128, 128]),
        (np.array([-2.0, np.inf, 2.0]), [0, 255, 255]),
        (np.array([0, 1, 255], np.uint8), [0, 1, 255]),
        (np.array([0, 1, 255], np.int32), [0, 1, 255]),
        (np.array([0, 1 << 15, (1 << 16) - 1], np.uint16), [0, 128, 255]),
        (np.array([False, True, True]), [0, 255, 255]),
    ],
)
def test_values_become_bytes(images: Any, expected: list[int]) -> None:
    with np.errstate(all="raise"):
        (made,) = to_pixels([images.reshape(1, 3, 1)])
    assert made.dtype == np.uint8 and made.ravel().tolist() == expected


def test_images_are_scaled_alike() -> None:
    dark, bright = to_pixels([np.full((1, 1, 1), 0.1), np.full((1, 1, 1), 1.0)])
    assert (dark.item(), bright.item()) == (26, 255)


def test_grey_images_without_channels() -> None:
    image = np.asarray(sheet(np.full((1, 128, 128), 200, np.uint8), 4))
    assert image[MARGIN + 64, MARGIN + 64].tolist() == [200] * 3
    one = np.asarray(sheet(np.full((1, 1, 128, 128), 200, np.uint8), 4))
    assert (one == image).all()


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "LA", "P", "1", "RGBA"])
def test_pillow_images_of_any_mode(mode: str) -> None:
    pil = pytest.importorskip("PIL.Image")
    grey = pil.new("RGB", (128, 128), (255, 255, 255)).convert(mode)
    image = np.asarray(sheet([grey, grey], 1))
    assert image[MARGIN + 64, MARGIN + 64].tolist() == [255] * 3


def test_small_images_are_enlarged_and_large_ones_reduced() -> None:
    assert sheet(np.zeros((1, 32, 16, 3), np.uint8), 1).size == (48 + 2 * MARGIN, 96 + 2 * MARGIN)
    assert sheet(np.zeros((1, 1000, 500, 3), np.uint8), 1).size == (112 + 2 * MARGIN, 224 + 2 * MARGIN)


def test_images_of_different_sizes_have_tiles_of_one_size() -> None:
    images = [np.zeros((3, 100, 50), np.uint8), np.zeros((3, 100, 200), np.uint8)]
    image = sheet((images, ["a", "b"]), 9)
    assert image.width in (2 * (200 + MARGIN) + MARGIN, 200 + 2 * MARGIN)


@pytest.mark.parametrize(
    ("labels", "classes", "same_as"),
    [
        (np.array([1, 0, 2, 1, 7]), ["ant", "bee", "cow"], ["bee", "ant", "cow", "bee", "7"]),
        ([1, 0, 2, 1, 7], None, ["1", "0", "2", "1", "7"]),
        (np.array([1.5, 2, 3, 4, 5]), None, ["1.5", "2", "3", "4", "5"]),
        (["a" * 300, "ü\n日本", "", "x", "y"], None, ["a" * 200, "ü 日本", "", "x", "y"]),
        (np.array([True, False] * 2 + [True]), ["ant", "bee"], ["True", "False"] * 2 + ["True"]),
    ],
)
def test_labels_stand_below_their_images(labels: Any, classes: Any, same_as: list[str]) -> None:
    image = np.asarray(sheet((colours(), labels), COUNT, classes))
    assert (image == np.asarray(sheet((colours(), same_as), COUNT))).all()
    without = np.asarray(sheet(colours(), COUNT))
    assert image.shape[0] == without.shape[0] + (image.shape[0] - MARGIN) // (HEIGHT + MARGIN + LINE) * LINE
    below = image[MARGIN + HEIGHT : MARGIN + HEIGHT + LINE, MARGIN : MARGIN + WIDTH]
    assert (below < 128).any()


def test_a_few_of_many_images() -> None:
    assert sheet((colours(), [1, 2, 3, 4, 5]), 1).size == (WIDTH + 2 * MARGIN, HEIGHT + 2 * MARGIN + LINE)


@pytest.mark.parametrize("batch", [[], {}, np.zeros((4, 7)), (np.zeros((2, 5, 9, 9)), 1), "text", None], ids=repr)
def test_a_batch_without_images(batch: Any) -> None:
    with pytest.raises(PreviewError, match="the batch holds no images"):
        sheet(batch, 4)
