"""What is to be made of a sound JPEG, noted step by step and decoded at once: crop, first resize, mirror, grey.

A plan never changes. A step that cannot be noted exactly gives None, and Pillow does it with pixels.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from stoker._core.native import jpeg
from stoker.images.decoding import CHANNELS
from stoker.images.kernel import Pixels, Request, bound, decode_from
from stoker.images.pillow import Image, JpegImagePlugin

PARTIAL_DECODES = 2
"""Results that are decoded for themselves from one image: for the next, the image is decoded once, and Pillow goes on
from its pixels. Five crops of an image would else be five times the work."""

FILTERS = {Image.Resampling.BILINEAR: jpeg.BILINEAR, Image.Resampling.BICUBIC: jpeg.BICUBIC}
_KNOWN_FILTERS = frozenset(Image.Resampling)
Box = tuple[int, int, int, int]


class Picture(NamedTuple):
    """A JPEG file whose markers are where they belong.

    Attributes:
        mode: "RGB" or "L", as Pillow opens it.
        is_declined: set when the kernel has left it to Pillow.
    """

    data: bytes
    size: tuple[int, int]
    mode: str
    is_declined: threading.Event


class PlanStep(NamedTuple):
    """One call of a method of Pillow's images."""

    method: str
    arguments: tuple[Any, ...]


class Geometry(NamedTuple):
    """Where pixels come from: boxes are left, top, width and height.

    Attributes:
        box: in the picture.
        resized: width and height to which it is then resized, or None.
        filter: of the resize, the kernel's number.
        window: the part of that, or None for all.
    """

    box: Box
    mirrored: bool = False
    resized: tuple[int, int] | None = None
    filter: int = jpeg.BILINEAR
    window: Box | None = None
    flip: bool = False

    @property
    def size(self) -> tuple[int, int]:
        return self.window[2:] if self.window else self.resized or self.box[2:]

    def cropped(self, left: int, upper: int, right: int, lower: int) -> Geometry:
        """Returns the geometry of a crop, which must be inside."""
        width, height = right - left, lower - upper
        if self.flip if self.resized else self.mirrored:
            left = self.size[0] - right
        if self.resized is None:
            return self._replace(box=(self.box[0] + left, self.box[1] + upper, width, height))
        x, y = self.window[:2] if self.window else (0, 0)
        return self._replace(window=(x + left, y + upper, width, height))

    def turned(self) -> Geometry:
        """Returns the geometry of the mirror image."""
        return self._replace(mirrored=not self.mirrored) if self.resized is None else self._replace(flip=not self.flip)


class DecodePlan:
    """The steps from a picture to one result.

    Attributes:
        mode: of the result, "RGB" or "L".
    """

    __slots__ = ("_above", "_decodes", "_image", "_pixels", "_step", "geometry", "mode", "picture")

    def __init__(
        self, picture: Picture, geometry: Geometry, mode: str, above: DecodePlan | None, step: PlanStep | None
    ) -> None:
        self.picture = picture
        self.geometry = geometry
        self.mode = mode
        self._above = above
        self._step = step
        self._decodes = 0
        self._pixels: Pixels | None = None
        self._image: Image.Image | None = None

    @classmethod
    def of(cls, picture: Picture) -> DecodePlan:
        """Returns the plan of the whole picture."""
        return cls(picture, Geometry((0, 0, *picture.size)), picture.mode, None, None)

    @property
    def size(self) -> tuple[int, int]:
        return self.geometry.size

    def cropped(self, corners: tuple[float, float, float, float]) -> DecodePlan | None:
        """Returns the plan of a crop; None if it reaches outside."""
        left, upper, right, lower = map(int, map(round, corners))
        if not (0 <= left < right <= self.size[0] and 0 <= upper < lower <= self.size[1]):
            return None
        return self._then(self.geometry.cropped(left, upper, right, lower), "crop", corners)

    def resized(self, size: tuple[int, int], resample: int) -> DecodePlan | None:
        """Returns the plan of a resize; None for a second one, another filter, or sizes that Pillow refuses."""
        if size == self.size and resample in _KNOWN_FILTERS:
            return self.copied()
        is_plain = len(size) == 2 and all(type(side) is int and 0 < side < 1 << 20 for side in size)
        if self.geometry.resized is not None or resample not in FILTERS or not is_plain:
            return None
        geometry = self.geometry._replace(resized=size, filter=FILTERS[Image.Resampling(resample)])
        return self._then(geometry, "resize", size, resample)

    def turned(self) -> DecodePlan:
        """Returns the plan of the mirror image."""
        return self._then(self.geometry.turned(), "transpose", Image.Transpose.FLIP_LEFT_RIGHT)

    def converted(self, mode: str) -> DecodePlan | None:
        """Returns the plan of a conversion; None if it does not commute with the steps before it."""
        if mode == self.mode:
            return self.copied()
        is_exact = mode == "RGB" if self.picture.mode == "L" else mode == "L" and self.geometry.resized is None
        return self._then(self.geometry, "convert", mode, to=mode) if is_exact else None

    def copied(self) -> DecodePlan:
        """Returns the plan of a copy."""
        return self._then(self.geometry, "copy")

    def pixels(self) -> Pixels:
        """Returns the pixels, decoded at the first call: do not write into them. Errors are those of Pillow."""
        if self._pixels is None:
            base = next((plan for plan in self._all_above() if plan._decodes >= PARTIAL_DECODES), None)
            pixels = self._decoded() if base is None else None
            self._pixels = np.asarray(self._shared()) if pixels is None else pixels
        return self._pixels

    def _then(self, geometry: Geometry, method: str, *arguments: Any, to: str | None = None) -> DecodePlan:
        return DecodePlan(self.picture, geometry, to or self.mode, self, PlanStep(method, arguments))

    def _all_above(self) -> Iterator[DecodePlan]:
        plan = self._above
        while plan is not None:
            yield plan
            plan = plan._above

    def _shared(self) -> Image.Image:
        """Returns these pixels as an image that no program gets: later results are made of it."""
        if self._image is None:
            pixels = self._decoded() if self._above is None or self._decodes >= PARTIAL_DECODES else None
            if pixels is not None:
                self._image = Image.fromarray(pixels)
            elif self._above is None or self._step is None:
                image = JpegImagePlugin.JpegImageFile(io.BytesIO(self.picture.data))
                image.load()
                self._image = image
            else:
                self._image = getattr(self._above._shared(), self._step.method)(*self._step.arguments)
        return self._image

    def _decoded(self) -> Pixels | None:
        """Returns the pixels as the kernel decodes them, or None if Pillow should."""
        kernel = bound()
        if kernel is None or self.picture.is_declined.is_set():
            return None
        geometry, size = self.geometry, self.geometry.resized or self.geometry.box[2:]
        channels = CHANNELS[self.mode]
        request = Request(
            geometry.box,
            size,
            geometry.window or (0, 0, *size),
            flip=geometry.flip,
            mirrored=geometry.mirrored,
            channels=channels,
            filter=geometry.filter,
            is_checked=True,
        )
        pixels = np.empty((self.size[1], self.size[0], channels)[: 2 if channels == 1 else 3], np.uint8)
        header = jpeg.DecodeHeader()
        outcome = decode_from(kernel, self.picture.data, request, pixels, header)
        if outcome != jpeg.DONE or (header.width, header.height) != self.picture.size:
            self.picture.is_declined.set()
            return None
        for plan in self._all_above():
            plan._decodes += 1
        return pixels
