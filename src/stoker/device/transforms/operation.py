"""What operations on batches share: the field with the images, the layout of their pixels, and `Compose`."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from stoker._core.protocol import asked
from stoker.errors import ImageArgumentError

IMAGE_KEYS = ("images", "image", "pixel_values")
"""Keys under which the images of a mapping are found without `field=`."""

CHANNELS = (1, 3, 4)
"""Numbers of channels that tell (N, height, width, channels) from (N, channels, height, width)."""


class BatchOperation(ABC):
    """An operation on the images of a batch, uint8 or floats, (N, C, H, W) or (N, H, W, C), on any device.

    The batch is a tensor, a tuple or list that begins with it, or a mapping. The result has the form of the batch, and
    its images the layout of the images. What it is given is not changed. It can be pickled.

    Args:
        field: key or place of the images. None takes the batch itself, its first item, or the key "images", "image" or
            "pixel_values".
    """

    def __init__(self, field: Hashable | None = None) -> None:
        self.field = field

    def __call__(self, batch: Any) -> Any:
        """Returns the batch with its images changed.

        Raises:
            ImageArgumentError: the batch has no such field, or it holds no images.
        """
        images = self._images(batch)
        if is_last(images):
            return swapped(batch, {id(images): self.apply(images.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)})
        return swapped(batch, {id(images): self.apply(images)})

    @abstractmethod
    def apply(self, images: Any) -> Any:
        """Returns the changed images, in memory of their own.

        Args:
            images: a tensor (N, C, H, W), of any memory format.
        """

    def _images(self, batch: Any) -> Any:
        """Returns the tensor with the images, as it lies in the batch."""
        name, images = type(self).__name__, batch
        if self.field is not None:
            try:
                images = batch[self.field]
            except (LookupError, TypeError) as error:
                has = list(batch) if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
                raise ImageArgumentError(f"{name}(field={self.field!r}): the batch is {has}. Correct field=") from error
        elif isinstance(batch, Mapping):
            found = [key for key in IMAGE_KEYS if key in batch]
            if len(found) != 1:
                raise ImageArgumentError(
                    f"{name}: the batch has the keys {list(batch)}, of which {found or 'none'} of {list(IMAGE_KEYS)}: "
                    "name the key of the images by field="
                )
            images = batch[found[0]]
        elif isinstance(batch, Sequence) and batch:
            images = batch[0]
        import torch

        if hasattr(type(images), "decoded_on"):
            raise ImageArgumentError(
                f"{name} was given images that decode_device= has left encoded: pass DataLoader(device='cuda'), which "
                "decodes them and then calls batch_transform=, or leave decode_device= out"
            )
        if not isinstance(images, torch.Tensor) or images.ndim != 4:
            shape = f" of shape {tuple(images.shape)}" if hasattr(images, "shape") else ""
            raise ImageArgumentError(
                f"{name} was given {type(images).__name__}{shape}, no tensor of images with 4 dimensions: name their "
                "field by field=, and make tensors in the loader (output='torch')"
            )
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise ImageArgumentError(f"{name} was given {images.dtype}: images are uint8 or floats")
        return images

    def __repr__(self) -> str:
        said = [f"{name}={value!r}" for name, value in vars(self).items() if value is not None]
        return f"{type(self).__name__}({', '.join(said)})"


class Compose:
    """Applies operations on batches one after another.

    Args:
        transforms: callables of a batch: operations of `stoker.device`, or any function.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        for transform in transforms:
            if not callable(transform):
                raise ImageArgumentError(f"Compose was given {transform!r}, which cannot be called")
        self.transforms = list(transforms)

    def __call__(self, batch: Any) -> Any:
        """Returns the transformed batch. An error has a note that names the step."""
        for place, transform in enumerate(self.transforms):
            try:
                batch = transform(batch)
            except Exception as error:
                name = asked(transform, "__name__", type(transform).__name__)
                error.add_note(f"raised by step {place} of the Compose, {name}")
                raise
        return batch

    def __repr__(self) -> str:
        return "\n".join(["Compose(", *(f"    {transform!r}" for transform in self.transforms), ")"])


def is_last(images: Any) -> bool:
    """Returns whether the channels are the last dimension of a tensor with 4: only the last has 1, 3 or 4."""
    return images.shape[3] in CHANNELS and images.shape[1] not in CHANNELS


def swapped(batch: Any, new: Mapping[int, Any]) -> Any:
    """Returns a batch of the same form with some of its objects replaced.

    Args:
        batch: an object, a list, a tuple or a mapping, also nested.
        new: the replacements by the `id` of the objects.
    """
    if id(batch) in new:
        return new[id(batch)]
    if isinstance(batch, tuple):
        items = [swapped(item, new) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    if isinstance(batch, list):
        return [swapped(item, new) for item in batch]
    if isinstance(batch, dict):
        fields = copy.copy(batch)
        fields.update({key: swapped(value, new) for key, value in batch.items()})
        return fields
    return batch


def on(images: Any, numbers: Any, ndim: int = 4) -> Any:
    """Returns numbers of each image as a float32 tensor beside the images, of shape (N, 1, …), `ndim` dimensions."""
    import torch

    return sent(torch.as_tensor(numbers, dtype=torch.float32), images.device).reshape(-1, *[1] * (ndim - 1))


def sent(tensor: Any, device: Any) -> Any:
    """Returns a small tensor of the host on a device. Does not wait for the device: a transform runs behind the step
    that is computed, and `next()` would wait for that too.
    """
    if device.type in ("cpu", "mps"):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def pair(name: str, value: Any, least: float, most: float) -> tuple[float, float]:
    """Returns (least, greatest) of a range, checked to be ascending and within bounds."""
    values = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if len(values) != 2 or not least <= values[0] <= values[1] <= most:
        raise ImageArgumentError(f"{name}={value!r} is no pair (least, greatest) from {least:g} to {most:g}")
    return float(values[0]), float(values[1])


def probability(p: float) -> float:
    """Returns a probability, checked."""
    if not 0 <= p <= 1:
        raise ImageArgumentError(f"p={p} is no probability: it must be from 0 to 1")
    return float(p)


def back_to(dtype: Any, values: Any) -> Any:
    """Returns floats in the dtype of the images they were made of; for uint8 they are rounded, and cut to 0 to 255."""
    import torch

    if values.dtype == dtype:
        return values
    return values.round_().clamp_(0, 255).to(dtype) if dtype == torch.uint8 else values.to(dtype)
