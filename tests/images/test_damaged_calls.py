"""The call at which a damaged file raises, and the error, are Pillow's: of every step of lazy images."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from stoker import images
from stoker.images import kernel
from tests.images.pictures import BILINEAR, jpeg
from tests.images.test_damaged import DAMAGES, PICTURES

SOUND = PICTURES | {f"large {kind}": jpeg(kind, 700, 500) for kind in ("quality 100", "progressive 4:4:4")}
"""Large ones have over 64 KiB, which is what Pillow hands to libjpeg at once."""

if kernel.bound() is None:
    pytest.skip(kernel.backend(), allow_module_level=True)


def segments(data: bytes) -> list[tuple[int, int]]:
    """Where the markers with a length begin and end."""
    at, found = 2, []
    while at + 4 <= len(data):
        if data[at] != 0xFF or data[at + 1] in (0x00, 0xFF) or 0xD0 <= data[at + 1] <= 0xD9:
            at += 1
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((at, min(end, len(data))))
        at = end
    return found


def a_marker_changed(data: bytes, rng: random.Random) -> bytes:
    begin, end = rng.choice(segments(data))
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 1, 2])):
        damaged[rng.randrange(begin, end)] = rng.choice([rng.randrange(256), 0, 255, 1, 4, 0x11, 0x22, 0x44])
    return bytes(damaged)


def a_marker_twice(data: bytes, rng: random.Random) -> bytes:
    (begin, end), (at, _) = rng.choice(segments(data)), rng.choice(segments(data))
    return data[:at] + data[begin:end] + data[at:]


def a_marker_lost(data: bytes, rng: random.Random) -> bytes:
    begin, end = rng.choice(segments(data))
    return data[:begin] + data[end:]


def a_marker_of_another(data: bytes, rng: random.Random) -> bytes:
    other = rng.choice(list(PICTURES.values()))
    (begin, end), (at, _) = rng.choice(segments(other)), rng.choice(segments(data))
    return data[:at] + other[begin:end] + data[at:]


MARKER_DAMAGES = [a_marker_changed, a_marker_changed, a_marker_twice, a_marker_lost, a_marker_of_another]
STEPS: dict[str, list[Callable[[Image.Image], Any]]] = {
    "load": [lambda image: image.load() and None],
    "RGB": [lambda image: image.convert("RGB"), lambda image: image.crop((0, 0, 4, 4))],
    "grey": [lambda image: image.convert("L")],
    "crop": [lambda image: image.crop((0, 0, 5, 5))],
    "resize": [lambda image: image.resize((7, 7), BILINEAR)],
}


def told(open_image: Callable[[io.BytesIO], Any], data: bytes, steps: list[Callable[[Image.Image], Any]]) -> list[Any]:
    """What each call gives: the error's class and text, or that there is none; at last the pixels."""
    try:
        image = open_image(io.BytesIO(data))
    except Exception as error:
        return [type(error)]
    calls: list[Any] = [(image.size, image.mode)]
    if image.size[0] * image.size[1] > 1_000_000:  # a damaged header: Pillow would take long
        return calls
    for step in [*steps, lambda image: np.asarray(image).tobytes()]:
        try:
            result = step(image)
            calls.append(result if isinstance(result, bytes) else "fine")
            image = result if isinstance(result, Image.Image) else image
        except Exception as error:
            calls.append((type(error), str(error)))
    return calls


def lazily(file: io.BytesIO) -> Any:
    with images.register():
        return Image.open(file)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOUND)
@settings(max_examples=12)
@given(st.data())
def test_calls_raise_where_pillows_do(name: str, data: st.DataObject) -> None:
    picture, steps = SOUND[name], data.draw(st.sampled_from(sorted(STEPS)))
    for damage in data.draw(st.lists(st.sampled_from([*DAMAGES, *MARKER_DAMAGES]), min_size=1, max_size=3)):
        if b"\xff\xda" in picture and len(picture) > 60 and segments(picture):
            picture = damage(picture, random.Random(data.draw(st.integers(0, 2**32))))
    assert told(lazily, picture, STEPS[steps]) == told(Image.open, picture, STEPS[steps])


def a_full_code(data: bytes, kind: int) -> bytes:
    """A Huffman table whose last code has ones alone, which libjpeg refuses."""
    (begin, end), *_ = [(at, to) for at, to in segments(data) if data[at + 1] == 0xC4 and data[at + 4] == kind]
    counts, values = bytearray(data[begin + 5 : begin + 21]), data[begin + 21 : end]
    last = max(place for place in range(16) if counts[place])
    code = 0
    for count in counts[: last + 1]:
        code = 2 * code + count
    room = (2 << last) - code
    counts[last] += room
    table = bytes([kind, *counts]) + values + bytes(room)
    return data[: begin + 2] + (len(table) + 2).to_bytes(2, "big") + table + data[end:]


def a_side(data: bytes, at: int, pixels: int) -> bytes:
    ((begin, _),) = [segment for segment in segments(data) if data[segment[0] + 1] == 0xC0]
    frame = bytearray(data[begin : begin + 9])
    frame[5:9] = (8).to_bytes(2, "big") * 2
    frame[at : at + 2] = pixels.to_bytes(2, "big")
    return data[:begin] + frame + data[begin + 9 :]


UNUSUAL = {
    **{f"full code {kind:#x}": a_full_code(jpeg("4:2:0", 64, 64), kind) for kind in (0x00, 0x10)},
    **{
        f"{pixels} {at}": a_side(jpeg("4:2:0", 64, 64), at, pixels) for at in (5, 7) for pixels in (65500, 65501, 65535)
    },
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("steps", sorted(STEPS))
@pytest.mark.parametrize("name", UNUSUAL)
def test_what_libjpeg_refuses_is_refused_at_pillows_call(name: str, steps: str) -> None:
    assert told(lazily, UNUSUAL[name], STEPS[steps]) == told(Image.open, UNUSUAL[name], STEPS[steps])
    if name.startswith("full"):
        assert any(type(call) is tuple and call[0] is OSError for call in told(Image.open, UNUSUAL[name], STEPS[steps]))
