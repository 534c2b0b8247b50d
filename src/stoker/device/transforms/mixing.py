"""CutMix and MixUp: each image of a batch with a part of its neighbour, and labels to match, as in torchvision."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal

import numpy as np

from stoker.device.transforms.operation import BatchOperation, back_to, is_last, swapped
from stoker.errors import ImageArgumentError
from stoker.loader._random.batch_draws import batch_draws

LabelsGetter = Callable[[Any], Any] | Literal["default"]


class MixingOperation(BatchOperation):
    """What CutMix and MixUp share. A partner is the image before it in the batch, and that of the first is the last.

    The share is drawn once for each batch, as in torchvision, from the position of its first sample. It repeats with
    any number of workers; on another number of ranks the batches have other partners.

    Args:
        alpha: of the Beta distribution of the share, above 0.
        num_classes: number of classes, for labels that are class numbers.
        labels_getter: "default" takes the second item of a tuple or list, and of a mapping the key "labels", or the
            first that contains "label". Or a function of the batch that returns its tensor of labels.
        field: see `BatchOperation`.
    """

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        num_classes: int | None = None,
        labels_getter: LabelsGetter = "default",
        field: Hashable | None = None,
    ) -> None:
        super().__init__(field)
        if not alpha > 0:
            raise ImageArgumentError(f"alpha={alpha!r} is not positive")
        if not (callable(labels_getter) or labels_getter == "default"):
            raise ImageArgumentError(f"labels_getter={labels_getter!r} is neither 'default' nor a function of a batch")
        self.alpha, self.num_classes, self.labels_getter = float(alpha), num_classes, labels_getter

    def __call__(self, batch: Any) -> Any:
        """Returns the batch with its images mixed, and labels as shares of classes, float (N, num_classes).

        Raises:
            ImageArgumentError: the batch has no images, or no labels of class numbers (N,) or shares (N, num_classes).
        """
        images = self._images(batch)
        labels = self._labels(batch, len(images))
        generator = batch_draws(len(images)).generator(0)
        first = images.permute(0, 3, 1, 2) if is_last(images) else images
        mixed, share = self.mixed(first, float(generator.beta(self.alpha, self.alpha)), generator)
        mixed = mixed.permute(0, 2, 3, 1) if is_last(images) else mixed
        return swapped(batch, {id(images): mixed, id(labels): mixed_labels(labels, share, self.num_classes)})

    def apply(self, images: Any) -> Any:
        raise ImageArgumentError(f"{type(self).__name__} mixes labels too: call it with the batch")

    @abstractmethod
    def mixed(self, images: Any, share: float, generator: np.random.Generator) -> tuple[Any, float]:
        """Returns the mixed images, and the share of each image in the result.

        Args:
            images: (N, C, H, W).
            share: of each image, as drawn.
            generator: for further numbers of the batch.
        """

    def _labels(self, batch: Any, count: int) -> Any:
        import torch

        name = type(self).__name__
        labels = self.labels_getter(batch) if callable(self.labels_getter) else _usual_labels(batch, name)
        if not isinstance(labels, torch.Tensor) or labels.ndim not in (1, 2) or len(labels) != count:
            found = tuple(labels.shape) if isinstance(labels, torch.Tensor) else type(labels).__name__
            raise ImageArgumentError(
                f"{name} needs a tensor of labels, class numbers ({count},) or shares ({count}, num_classes), and the "
                f"batch has {found}: correct labels_getter="
            )
        if labels.ndim == 1 and self.num_classes is None:
            raise ImageArgumentError(f"{name} needs num_classes= for labels that are class numbers")
        if labels.ndim == 2 and self.num_classes not in (None, labels.shape[1]):
            raise ImageArgumentError(f"{name}: num_classes={self.num_classes}, and labels have {labels.shape[1]}")
        return labels


class MixUp(MixingOperation):
    """Mixes each image with the one before it: `share` of the image, and the rest of its partner."""

    def mixed(self, images: Any, share: float, generator: np.random.Generator) -> tuple[Any, float]:
        import torch

        values = images if images.is_floating_point() else images.to(torch.float32)
        return back_to(images.dtype, values.roll(1, 0).mul_(1.0 - share).add_(values.mul(share))), share


class CutMix(MixingOperation):
    """Replaces a box of each image, the same for the whole batch, by that of the image before it."""

    def mixed(self, images: Any, share: float, generator: np.random.Generator) -> tuple[Any, float]:
        height, width = images.shape[2:]
        x, y, half = int(generator.integers(width)), int(generator.integers(height)), 0.5 * math.sqrt(1.0 - share)
        left, right = max(0, x - int(half * width)), min(width, x + int(half * width))
        top, bottom = max(0, y - int(half * height)), min(height, y + int(half * height))
        mixed = images.clone()
        mixed[..., top:bottom, left:right] = images[..., top:bottom, left:right].roll(1, 0)
        return mixed, 1.0 - (right - left) * (bottom - top) / (width * height)


def mixed_labels(labels: Any, share: float, num_classes: int | None) -> Any:
    """Returns labels as shares of classes: `share` of an image's own, and the rest of its partner's."""
    if labels.ndim == 1:
        from torch.nn.functional import one_hot

        labels = one_hot(labels, num_classes=-1 if num_classes is None else num_classes)
    values = labels if labels.is_floating_point() else labels.float()
    return values.roll(1, 0).mul_(1.0 - share).add_(values.mul(share))


def _usual_labels(batch: Any, name: str) -> Any:
    inside = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else batch
    if not isinstance(inside, Mapping):
        return inside if inside is not batch else None
    keys = [key for key in inside if isinstance(key, str)]
    found = [key for key in keys if key.lower() == "labels"] or [key for key in keys if "label" in key.lower()]
    if not found:
        raise ImageArgumentError(f"{name} finds no labels among the keys {list(inside)}: pass labels_getter=")
    return inside[found[0]]
