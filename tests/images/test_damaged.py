"""Damaged files: pixels, sizes, modes and exceptions are Pillow's, of `decode` and of lazy images; nothing crashes."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image, ImageFile

import stoker
from stoker import images
from stoker.images import kernel
from tests.images.pictures import BILINEAR, some_jpegs

PICTURES = dict(some_jpegs())


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randint(3, len(data) - 1)]


def without_end(data: bytes, rng: random.Random) -> bytes:
    return data[: -rng.randint(1, 12)]


def bits_flipped(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 20])):
        damaged[rng.randrange(2, len(data))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def bits_flipped_in_the_scan(data: bytes, rng: random.Random) -> bytes:
    damaged, begin = bytearray(data), data.rindex(b"\xff\xda")
    damaged[rng.randrange(begin, len(data))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def bytes_lost(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(2, len(data))
    return data[:at] + data[at + rng.randint(1, 40) :]


def bytes_added(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(2, len(data))
    return data[:at] + rng.randbytes(rng.randint(1, 40)) + data[at:]


def marker_added(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(2, len(data))
    return data[:at] + bytes([0xFF, rng.randrange(256)]) + data[at:]


def video_behind(data: bytes, rng: random.Random) -> bytes:
    return data + rng.randbytes(500)


DAMAGES = [
    cut,
    without_end,
    bits_flipped,
    bits_flipped_in_the_scan,
    bytes_lost,
    bytes_added,
    marker_added,
    video_behind,
]


def outcome(make: Any) -> tuple[Any, ...]:
    """Shape and bytes of a result, or the class of the exception."""
    try:
        pixels = np.asarray(make())
    except Exception as error:
        return (type(error),)
    return pixels.shape, pixels.tobytes()


def damaged(name: str, times: int) -> Iterator[tuple[str, bytes, random.Random]]:
    for damage in DAMAGES:
        rng = random.Random(f"{name} {damage.__name__}")
        for _ in range(times):
            yield damage.__name__, damage(PICTURES[name], rng), rng


def assert_as_pillow(data: bytes, rng: random.Random, what: str) -> None:
    try:
        opened = Image.open(io.BytesIO(data))
    except Exception as error:
        with pytest.raises(type(error)):
            images.open(data)
        with pytest.raises(stoker.errors.ImageError):
            images.decode(data)
        return
    lazy = images.open(data)
    assert (lazy.size, lazy.mode, lazy.format, lazy.info) == (opened.size, opened.mode, opened.format, opened.info)
    width, height = opened.size
    if width * height > 4_000_000:  # a damaged header: Pillow would take long
        return
    left, upper = rng.randrange(width), rng.randrange(height)
    crop = (left, upper, rng.randint(left + 1, width), rng.randint(upper + 1, height))
    expected = outcome(lambda: opened.convert("RGB").crop(crop).resize((23, 17), BILINEAR))
    assert outcome(lambda: lazy.convert("RGB").crop(crop).resize((23, 17), BILINEAR)) == expected, f"lazy: {what}"
    found = outcome(lambda: images.decode(data, crop, (23, 17)))
    if len(expected) == 1:
        assert issubclass(found[0], stoker.errors.ImageError), what
    else:
        assert found == expected, what


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PICTURES)
def test_damaged_files_are_as_with_pillow(name: str, compiled: kernel.Kernel) -> None:
    for damage, data, rng in damaged(name, 4):
        assert_as_pillow(data, rng, f"{name}, {damage}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PICTURES)
def test_many_damaged_files_are_as_with_pillow(name: str, compiled: kernel.Kernel) -> None:
    for damage, data, rng in damaged(name, 60):
        assert_as_pillow(data, rng, f"{name}, {damage}")


@pytest.mark.filterwarnings("ignore")
def test_damage_below_a_crop_is_an_error_as_with_pillow(either_way: str) -> None:
    """The rows above the cut could be decoded, and Pillow refuses the file."""
    data = PICTURES["4:2:0"]
    for part in (data[: len(data) // 2], data[:-2], data[:-1]):
        with pytest.raises(stoker.errors.ImageError, match="truncated"):
            images.decode(part, (0, 0, 9, 3))


def test_truncated_files_are_loaded_where_pillow_may(monkeypatch: pytest.MonkeyPatch, either_way: str) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = PICTURES["4:2:0"][: len(PICTURES["4:2:0"]) // 2]
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(images.decode(data), expected)
    assert np.array_equal(images.open(data).convert("RGB"), expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cases", [400, pytest.param(40_000, marks=pytest.mark.long)])
def test_no_bytes_crash_the_decoder(cases: int, compiled: kernel.Kernel) -> None:
    """Straight into the kernel, also with the check of markers left out."""
    rng, pictures = random.Random(cases), list(PICTURES.values())
    done = 0
    for _ in range(cases):
        data = rng.choice(pictures)
        for _ in range(rng.randint(1, 3)):
            data = rng.choice(DAMAGES)(data, rng) if len(data) > 60 and b"\xff\xda" in data else rng.randbytes(60)
        header = kernel.jpeg.DecodeHeader()
        kernel.look(compiled, data, header)
        out = np.empty((20, 30, 3), np.uint8)
        request = kernel.Request((0, 0, 0, 0), (30, 20), (0, 0, 30, 20), is_checked=rng.random() < 0.5)
        request = request._replace(most_pixels=4_000_000)
        done += kernel.decode_from(compiled, data, request, out, header) == kernel.jpeg.DONE
    assert 0 < done < cases


def test_value_error_of_pillow_is_an_image_error_too(tmp_path: Path) -> None:
    path = tmp_path / "a.ppm"
    path.write_bytes(b"P6\n" + b"1" * 20 + b" 2\n255\n")
    with pytest.raises(ValueError, match="Token too long"):
        Image.open(path)
    for read in (lambda: images.open(path), lambda: images.decode(b"P2\n2 2\n255\n1 2 x 4\n")):
        with pytest.raises(ValueError, match="is truncated or damaged") as caught:
            read()
        assert isinstance(pickle.loads(pickle.dumps(caught.value)), stoker.errors.ImageError)
