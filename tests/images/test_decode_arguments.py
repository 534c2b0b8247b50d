"""What `decode` and `info` refuse: each with an error that says which file and what to change."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image, UnidentifiedImageError

import stoker
from stoker import images
from tests.images.pictures import encoded, jpeg, photo

DATA = jpeg("4:2:0", 60, 40)


def refusal(**arguments: Any) -> str:
    with pytest.raises(stoker.errors.ImageArgumentError) as caught:
        images.decode(arguments.pop("data", DATA), **arguments)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"crop": (0, 0, 61, 10)}, "crop=(0, 0, 61, 10) is not inside the image, which has 60 x 40 pixels"),
        ({"crop": (0, 30, 10, 41), "size": (5, 5)}, "crop=(0, 30, 10, 41) is not inside the image"),
        ({"crop": (-1, 0, 10, 10)}, "crop=(-1, 0, 10, 10) is empty or negative"),
        ({"crop": (5, 5, 5, 10)}, "crop=(5, 5, 5, 10) is empty or negative"),
        ({"crop": (0, 0, 10)}, "crop=(0, 0, 10) is not 4 integers"),
        ({"crop": (0, 0, 10.5, 3)}, "crop=(0, 0, 10.5, 3) is not 4 integers"),
        ({"size": (0, 10)}, "size=(0, 10) has no pixels"),
        ({"size": (10, -1)}, "size=(10, -1) has no pixels"),
        ({"size": 224}, "size=224 is not 2 integers"),
        ({"size": (9, 9), "window": (0, 0, 10, 9)}, "window=(0, 0, 10, 9) is not inside the resized image"),
        ({"window": (0, 0, 61, 9)}, "window=(0, 0, 61, 9) is not inside the resized image, which has 60 x 40"),
        ({"mode": "RGBA"}, "mode='RGBA' is neither 'RGB' nor 'L'"),
        ({"resample": "lanczos"}, "resample='lanczos' is none of 'bilinear', 'bicubic'"),
    ],
)
def test_arguments_that_cannot_be_meant(arguments: dict[str, Any], said: str, either_way: str) -> None:
    assert said in refusal(**arguments)


def _read_only() -> np.ndarray:
    out = np.zeros((5, 4, 3), np.uint8)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ([[0]], "out is a list, not a NumPy array"),
        (np.zeros((5, 4, 3), np.float32), "out has the dtype float32, and pixels are uint8"),
        (np.zeros((4, 5, 3), np.uint8), "out has the shape (4, 5, 3), and the result (5, 4, 3)"),
        (np.zeros((5, 4), np.uint8), "out has the shape (5, 4), and the result (5, 4, 3)"),
        (np.zeros((3, 5, 4), np.uint8).transpose(1, 2, 0), "out has the strides (4, 1, 20)"),
        (np.zeros((5, 4, 3), np.uint8)[::-1], "out has the strides (-12, 3, 1)"),
        (np.zeros((5, 8, 3), np.uint8)[:, ::2], "out has the strides (24, 6, 1)"),
        (
            np.lib.stride_tricks.as_strided(np.zeros(60, np.uint8), (5, 4, 3), (6, 3, 1)),
            "out has the strides (6, 3, 1)",
        ),
        (_read_only(), "out is read-only"),
    ],
)
def test_out_that_does_not_fit(out: Any, said: str, either_way: str) -> None:
    assert said in refusal(out=out, size=(4, 5))


def test_arguments_are_refused_before_the_file_is_read() -> None:
    assert "size=(0, 3)" in refusal(data="no such file.jpg", size=(0, 3))


@pytest.mark.parametrize("call", [images.decode, images.info, images.open])
def test_errors_of_the_system_are_raised_as_they_are(call: Any, tmp_path: Path, either_way: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jpg"):
        call(tmp_path / "nowhere.jpg")
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        call(tmp_path)
    with pytest.raises(ValueError, match="null"):
        call(str(tmp_path / "a\0b.jpg"))


def test_missing_file_names_its_path_with_a_crop_too(tmp_path: Path, either_way: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        images.decode(tmp_path / "nowhere.jpg", (0, 0, 9, 9), (4, 4))
    assert caught.value.filename == str(tmp_path / "nowhere.jpg")
    with pytest.raises(IsADirectoryError):
        images.decode(tmp_path, (0, 0, 9, 9), (4, 4))


@pytest.mark.parametrize("call", [images.decode, images.info, images.open])
@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "it is empty"), (b"What is a picture?\n", r"it begins with b'What is a pictur'"), (b"\xff\xd8\xff", "xff")],
)
def test_file_that_is_no_image(call: Any, content: bytes, said: str, tmp_path: Path, either_way: str) -> None:
    path = tmp_path / "picture.jpg"
    path.write_bytes(content)
    for source in (path, content):
        with pytest.raises(stoker.errors.ImageFormatError, match=said) as caught:
            call(source)
        assert isinstance(caught.value, UnidentifiedImageError)
        assert (str(path) if source is path else f"an image of {len(content)} bytes") in str(caught.value)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("arguments", [{}, {"crop": (0, 0, 9, 9)}, {"size": (9, 9)}])
def test_truncated_file(format: str, arguments: dict[str, Any], tmp_path: Path, either_way: str) -> None:
    data = encoded(photo(60, 50), format)
    path = tmp_path / "cut.jpg"
    path.write_bytes(data[: len(data) * 3 // 5])
    with pytest.raises(stoker.errors.ImageError, match=r"cut\.jpg is truncated or damaged") as caught:
        images.decode(path, **arguments)
    assert isinstance(caught.value, OSError)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("call", [images.decode, images.info, images.open])
def test_decompression_bomb(call: Any, monkeypatch: pytest.MonkeyPatch, either_way: str) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1199)
    with pytest.raises(stoker.errors.ImageTooLargeError, match="2400 pixels") as caught:
        call(DATA)
    assert isinstance(caught.value, Image.DecompressionBombError)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1201)
    with pytest.warns(Image.DecompressionBombWarning):
        call(DATA)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    call(DATA)


def _with_size(data: bytes, width: int, height: int) -> bytes:
    """The file with other numbers in its header."""
    at = data.index(b"\xff\xc2")
    return data[: at + 5] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + data[at + 9 :]


def test_progressive_picture_has_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch, either_way: str) -> None:
    data = _with_size(jpeg("progressive", 60, 40), 20_000, 15_000)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(stoker.MemoryLimitError, match=r"20000 x 15000 pixels needs 858 MB .* the limit is 512 MB"):
        images.decode(data, (0, 0, 9, 9))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_info_reads_the_header_only(format: str, mode: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(photo(60, 40, mode=mode), format, exif=exif)
    path = tmp_path / "picture"
    path.write_bytes(data[:-100] if format == "JPEG" else data)
    expected = images.ImageInfo((60, 40), "RGB" if format == "WEBP" else mode, format, 6)
    assert images.info(path) == expected == images.info(path.read_bytes())


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_orientation_that_exif_does_not_define_is_none(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(photo(20, 10), exif=exif)
    assert images.info(data).orientation == 1
    assert images.decode(data, exif=True).shape == (10, 20, 3)


def test_file_like_objects_are_no_source() -> None:
    with pytest.raises((TypeError, ValueError)):
        images.decode(io.BytesIO(DATA))  # type: ignore[arg-type]
