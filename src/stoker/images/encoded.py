"""JPEGs that a GPU decodes: a worker reads the file and draws the crop, and the device makes the pixels.

A worker notes crop, resize, window and flip as without a device, from the same random numbers, so a sample has the same
box. The batch holds the files, one behind the other; `decoded_on` a device gives uint8 (N, height, width, 3), the shape
of the same batch without `decode_device=`. What nvJPEG does not decode as Pillow does (other formats, grey and CMYK
pictures, damaged ones) is decoded in the worker and travels as pixels.

The file is long because the notes of a worker, and what a device makes of them, have one form.
"""

from __future__ import annotations

import functools
import importlib.metadata
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import BatchError, DeviceError, ImageArgumentError, MissingExtraError, StokerWarning
from stoker.extend import register_collate_fn
from stoker.images.decoding import Corners, Path, decode
from stoker.images.kernel import Pixels, backend, bound
from stoker.images.scaling import PendingImage
from stoker.images.transforms import (
    CenterCrop,
    Compose,
    ImageTransform,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)

Decoder = Callable[[Sequence[Any], Any], Sequence[Any]]
"""Decodes files (uint8 tensors on the CPU) on a device, in its current stream: uint8 tensors (3, height, width)."""

GEOMETRY = (CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize)
"""Transforms that need no pixels."""

LEAST_TORCHCODEC = (0, 17)
"""Before it, nvJPEG's hardware engine wrote over memory that the program's stream still used."""

PIXELS_AT_ONCE = 1 << 26
"""Pixels of whole pictures that lie on the device at once: 192 MiB. Large photographs are decoded in parts."""

_FILTERS = ("bilinear", "bicubic")
_FATAL = ("out of memory", "cuda error", "cuda stream", "cuda device")
"""In messages of errors that no file is to blame for."""

_TOLD: set[str] = set()  # devices of which a warning said that they decode nothing


class DevicePlan(NamedTuple):
    """What is to be made of a picture; corners are left, upper, right and lower.

    Attributes:
        is_file: whether the data is a JPEG file, else pixels that are finished.
        size: width and height to which the crop is resized.
        filter: of the resize, a place in `_FILTERS`.
    """

    is_file: bool
    width: int
    height: int
    crop: Corners
    size: tuple[int, int]
    window: Corners
    filter: int = 0
    flip: bool = False

    @classmethod
    def of_row(cls, row: Sequence[int]) -> DevicePlan:
        """Returns the plan of these numbers."""
        a, b, c, *numbers, filter_, flip = row
        return cls(bool(a), b, c, tuple(numbers[:4]), tuple(numbers[4:6]), tuple(numbers[6:]), filter_, bool(flip))  # type: ignore[arg-type]

    @property
    def row(self) -> list[int]:
        """The plan as numbers."""
        return [self.is_file, self.width, self.height, *self.crop, *self.size, *self.window, self.filter, self.flip]

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the result."""
        return self.window[3] - self.window[1], self.window[2] - self.window[0], 3


@dataclass(frozen=True)
class EncodedImage:
    """A sample: a JPEG file and what is to be made of it, or pixels that are finished."""

    data: NDArray[np.uint8]
    plan: DevicePlan

    def __len__(self) -> int:
        """Returns the number of images: 1."""
        return 1

    @property
    def by_cpu(self) -> set[int]:
        """As of a batch of this image alone."""
        return self._alone.by_cpu

    def decoded_on(self, device: Any, decoder: Decoder | None = None) -> Any:
        """Returns the image as uint8 (height, width, 3), decoded on a device: of a loader with `batch_size=None`."""
        return self._alone.decoded_on(device, decoder)[0]

    @functools.cached_property
    def _alone(self) -> EncodedImages:
        return collated([self])


@dataclass(frozen=True)
class EncodedImages:
    """A batch of images that are not decoded. `to(device)` gives the pixels.

    Attributes:
        data: the bytes of all images, one behind the other.
        ends: where each ends.
        rows: the numbers of a `DevicePlan` for each.
        by_cpu: numbers of those that a CPU has decoded, in the worker or since.
    """

    data: NDArray[np.uint8]
    ends: NDArray[np.int64]
    rows: NDArray[np.int32]
    by_cpu: set[int]

    def __len__(self) -> int:
        """Returns the number of images."""
        return len(self.ends)

    def __getattr__(self, name: str) -> Any:
        said = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name.startswith("_"):
            raise AttributeError(said)
        raise AttributeError(
            f"{said}: decode_device= has left the images encoded. Pass DataLoader(device='cuda'), which decodes them "
            "while the last batch is computed, or decode this batch: images.to('cuda')."
        )

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        """Returns the images as uint8 (N, height, width, 3), decoded on a device: a GPU, or the CPU.

        Args:
            device: a CUDA device, or the CPU, whose pixels are Pillow's.
            non_blocking: accepted because tensors have it; the call returns when the files are decoded.

        Raises:
            MissingExtraError: TorchCodec is not installed, is older than 0.17, or is built without CUDA.
            DeviceError: images cannot be decoded on such a device.
            ImageError: a picture is damaged.
        """
        return self.decoded_on(device)

    def decoded_on(self, device: Any, decoder: Decoder | None = None) -> Any:
        """Returns what `to` does.

        Args:
            device: the device, whose current stream does the work.
            decoder: decodes the files. None for TorchCodec's, and on the CPU for `stoker.images.decode`.
        """
        import torch

        device = torch.device(device)
        plans = [DevicePlan.of_row(row) for row in self.rows.tolist()]
        made = torch.empty((len(self), *plans[0].shape), dtype=torch.uint8, device=device)
        if decoder is None and device.type == "cpu":
            for place, plan in enumerate(plans):
                made[place] = torch.from_numpy(self._by_cpu(place, plan))
            return made
        decoder = decoder or decoder_of(device)
        refused: dict[int, RuntimeError] = {}
        for part in _parts(plans):
            for place, picture in zip(part, self._pictures(part, device, decoder, refused), strict=True):
                made[place] = shaped(picture, plans[place])
        if refused and len(refused) == sum(plan.is_file for plan in plans):
            _tell_of_refusals(str(device), len(refused), next(iter(refused.values())))
        for place, plan in enumerate(plans):
            if not plan.is_file:
                made[place] = torch.from_numpy(self._by_cpu(place, plan)).to(device)
        return made

    def _of(self, place: int) -> NDArray[np.uint8]:
        return self.data[self.ends[place - 1] if place else 0 : self.ends[place]]

    def _by_cpu(self, place: int, plan: DevicePlan) -> Pixels:
        data = self._of(place)
        if not plan.is_file:
            return data.reshape(plan.shape)
        return decode(data, plan.crop, plan.size, plan.flip, window=plan.window, resample=_FILTERS[plan.filter])

    def _pictures(
        self, places: Sequence[int], device: Any, decoder: Decoder, refused: dict[int, RuntimeError]
    ) -> Iterator[Any]:
        """Yields whole pictures, (3, height, width). A file that the decoder refuses is decoded by the CPU."""
        import torch

        files = [torch.from_numpy(self._of(place)) for place in places]
        try:
            yield from decoder(files, device)
            return
        except RuntimeError as error:
            _raise_if_fatal(error)
        for place, file in zip(places, files, strict=True):
            try:
                yield decoder([file], device)[0]
            except RuntimeError as error:
                _raise_if_fatal(error)
                refused[place] = error
                self.by_cpu.add(place)
                yield torch.from_numpy(self._refused(place, device)).permute(2, 0, 1).to(device)

    def _refused(self, place: int, device: Any) -> Pixels:
        try:
            return decode(self._of(place))
        except Exception as error:
            error.add_note(f"image {place} of a batch of {len(self)}; TorchCodec on {device} had refused it before")
            raise


def _tell_of_refusals(device: str, number: int, first: RuntimeError) -> None:
    """Warns once for a device that decoded no file of a batch."""
    if device not in _TOLD:
        _TOLD.add(device)
        text = (
            f"TorchCodec decoded none of a batch's {number} JPEG files on {device}, so the CPU decoded them "
            f"({first}). If loader.report() counts many, leave decode_device= out: workers decode them then."
        )
        warnings.warn(text, StokerWarning, stacklevel=2)


def encoded(source: Path | bytes, transform: Any) -> EncodedImage:
    """Returns an image that a device decodes, with what a transform notes.

    Raises:
        ImageArgumentError: the transform needs pixels.
        ImageError, OSError: the image cannot be read, as for the transform itself.
    """
    steps = steps_of(transform)
    picture = PendingImage.of(source)
    whole = picture.width, picture.height
    for step in steps:
        step.note(picture)
    noted, kernel = picture.noted(), bound()
    is_sound = noted is not None and kernel is not None and kernel.functions.sound(noted.source, len(noted.source))
    if noted is not None and is_sound and (file := for_device(noted.source)) is not None:
        crop = noted.crop or (0, 0, *whole)
        size = noted.size or (crop[2] - crop[0], crop[3] - crop[1])
        filter_ = _FILTERS.index(noted.resample)
        plan = DevicePlan(True, *whole, crop, size, noted.window or (0, 0, *size), filter_, noted.flip)
        return EncodedImage(np.frombuffer(file, np.uint8), plan)
    pixels = picture.result()
    height, width = pixels.shape[:2]
    box = (0, 0, width, height)
    return EncodedImage(pixels.reshape(-1), DevicePlan(False, width, height, box, (width, height), box))


def steps_of(transform: Any) -> list[ImageTransform]:
    """Returns the steps of a transform that needs no pixels; none for None."""
    if transform is None:
        return []
    if type(transform) is Compose:
        return [step for each in transform.transforms for step in steps_of(each)]
    if isinstance(transform, GEOMETRY):
        return [transform]
    names = ", ".join(each.__name__ for each in GEOMETRY)
    raise ImageArgumentError(
        f"decode_device= has the images decoded after the worker, and {transform!r} needs their pixels in the worker. "
        f"Here transform= takes {names} of stoker.images and a Compose of them; what follows goes into "
        "DataLoader(batch_transform=), as stoker.device.Normalize does."
    )


def checked_device(device: Any, transform: Any, has_loader: bool) -> str | None:
    """Returns a dataset's `decode_device=`: "cuda", or None where workers decode.

    Raises:
        ImageArgumentError: it is another device, or the dataset has a `loader=` or a transform that needs pixels.
    """
    name = None if device is None else str(device)
    if name in (None, "cpu"):
        return None
    if name != "cuda":
        raise ImageArgumentError(
            f"decode_device={name!r}: images are decoded by the CPU (None) or by 'cuda', without a number: the GPU is "
            "the one of DataLoader(device=)."
        )
    if has_loader:
        raise ImageArgumentError("decode_device= reads the files itself: leave loader= out, or decode_device=.")
    steps_of(transform)
    if bound() is None:
        raise MissingExtraError(
            "decode_device='cuda' reads the headers of JPEGs by Stoker's compiled part, which is missing here: "
            f"{backend()}. Install Stoker where there is a C compiler, or leave decode_device= out."
        )
    _check_torchcodec()
    return name


def decoder_of(device: Any) -> Decoder:
    """Returns TorchCodec's decoder. Never torchvision's, which overwrites memory that is in use."""
    if device.type != "cuda":
        raise DeviceError(
            f"images are decoded on CUDA devices, and this batch goes to {device}: leave decode_device= out."
        )
    _check_torchcodec()
    return _torchcodec()


@functools.cache
def _torchcodec() -> Decoder:
    try:
        from torchcodec.decoders import decode_jpeg
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingExtraError(
            "decode_device='cuda' needs TorchCodec (the extra stoker[decode]) built for this torch and its CUDA, and "
            f"the one that is installed cannot be loaded: {error}"
        ) from error
    return lambda files, device: decode_jpeg(list(files), mode="RGB", device=device)


def _check_torchcodec() -> None:
    try:
        version = importlib.metadata.version("torchcodec")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError(
            "decode_device='cuda' needs TorchCodec, which is not installed: pip install 'stoker[decode]', or leave "
            "decode_device= out."
        ) from error
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < LEAST_TORCHCODEC:
        raise MissingExtraError(
            f"decode_device='cuda' needs TorchCodec 0.17 or newer (the extra stoker[decode]), and {version} is "
            "installed: before, it could write over memory of the GPU that the program still used."
        )


def _raise_if_fatal(error: RuntimeError) -> None:
    """Raises an error that no file is to blame for."""
    import torch

    said = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        raise error
    if "not compiled with nvJPEG" in said:
        raise MissingExtraError(
            "this TorchCodec is built without CUDA, and decode_device='cuda' needs one with it (the extra "
            f"stoker[decode], from the index of your torch): {said}"
        ) from error
    if "out of memory" in said.lower():
        raise torch.OutOfMemoryError(said) from error
    if any(text in said.lower() for text in _FATAL):
        raise error


def _parts(plans: Sequence[DevicePlan]) -> Iterator[list[int]]:
    """Yields the places of files, as many at once as memory is there for."""
    part: list[int] = []
    pixels = 0
    for place, plan in enumerate(plans):
        if not plan.is_file:
            continue
        pixels += plan.width * plan.height
        if part and pixels > PIXELS_AT_ONCE:
            yield part
            part, pixels = [], plan.width * plan.height
        part.append(place)
    if part:
        yield part


def shaped(picture: Any, plan: DevicePlan) -> Any:
    """Returns what a plan makes of a picture (3, height, width): uint8 (height, width, 3)."""
    import torch
    from torch.nn.functional import interpolate

    if tuple(picture.shape) != (3, plan.height, plan.width):
        raise DeviceError(
            f"a picture of {plan.width} x {plan.height} pixels was decoded to the shape {tuple(picture.shape)}"
        )
    left, upper, right, lower = plan.crop
    box = picture[:, upper:lower, left:right]
    if plan.size != (right - left, lower - upper):
        size = plan.size[1], plan.size[0]
        mode = _FILTERS[plan.filter]
        resized = interpolate(box[None].to(torch.float32), size, mode=mode, align_corners=False, antialias=True)[0]
        box = resized.round_().clamp_(0, 255).to(torch.uint8)
    left, upper, right, lower = plan.window
    box = box[:, upper:lower, left:right]
    return (box.flip(2) if plan.flip else box).permute(1, 2, 0)


_SAMPLINGS = {(1, 1), (2, 1), (2, 2), (1, 2), (4, 1)}
"""Of the first component of three, the others at (1, 1): those that nvJPEG names."""


def for_device(data: bytes) -> bytes | None:
    """Returns a sound JPEG without its metadata, or None if a GPU would not give Pillow's colours.

    Without EXIF data, as TorchCodec would turn the picture; Pillow and torchvision do not.
    """
    kept, at = [data[:2]], 2
    has_frame = False
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        segment = data[at + 4 : end]
        if marker == 0xDA:
            return b"".join([*kept, data[at:]]) if has_frame else None
        if marker in (0xC0, 0xC2):
            has_frame = True
            ids, factors = segment[6::3], [divmod(each, 16) for each in segment[7::3]]
            if segment[5] != 3 or factors[0] not in _SAMPLINGS or set(factors[1:]) != {(1, 1)} or ids == b"RGB":
                return None
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return None  # a frame of another kind
        elif marker == 0xEE and segment[:5] == b"Adobe" and segment[11:12] != b"\1":
            return None  # no YCbCr
        if not (0xE1 <= marker <= 0xED or marker in (0xEF, 0xFE)):
            kept.append(data[at:end])
        at = end
    return None


def collated(batch: Sequence[EncodedImage], *, collate_fn_map: Any = None) -> EncodedImages:
    """Returns the images of a batch."""
    shapes = {each.plan.shape[:2] for each in batch}
    if len(shapes) > 1:
        raise BatchError(
            f"images of different sizes (height x width): {', '.join(f'{h} x {w}' for h, w in sorted(shapes)[:4])}. "
            "Give the dataset a transform= that ends in one size, as stoker.images.RandomResizedCrop does."
        )
    return EncodedImages(
        np.concatenate([each.data for each in batch]),
        np.cumsum([len(each.data) for each in batch]),
        np.array([each.plan.row for each in batch], np.int32),
        {place for place, each in enumerate(batch) if not each.plan.is_file},
    )


register_collate_fn(EncodedImage, collated)
