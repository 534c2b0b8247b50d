"""Augmentations of Kornia and torchvision as transforms of a batch, seeded by Stoker.

Both draw from torch's global generator. It is seeded within a call and has its state back after it; threads share it,
so a loader with `worker_method="thread"` is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stoker._core.worker_info import current
from stoker.device.transforms.operation import BatchOperation
from stoker.errors import BatchError, StokerError
from stoker.loader._random.batch_draws import batch_draws

_OF_BATCH = frozenset({"order", "forward_input_shape"})
"""Parameters of Kornia that are drawn once for a batch: the first sample's count."""


class Kornia(BatchOperation):
    """Applies an augmentation of Kornia, each image with parameters of its own that follow from its position.

    The parameters are drawn image by image (`forward_parameters`), joined, and passed as `params=`. What Kornia draws
    once for a batch (the order of the changes of `ColorJiggle`) is that of the first image, and augmentations that mix
    images are drawn once for the batch. uint8 images become float32 from 0 to 1.

    Args:
        augmentation: one of `kornia.augmentation`, or an `AugmentationSequential` without `random_apply`, for images.
        field: see `BatchOperation`.
    """

    def __init__(self, augmentation: Any, field: Hashable | None = None) -> None:
        super().__init__(field)
        if not callable(getattr(augmentation, "forward_parameters", None)):
            raise TypeError(f"Kornia takes an augmentation with forward_parameters(), but got {augmentation!r}")
        self.augmentation = augmentation

    def apply(self, images: Any) -> Any:
        import torch

        images = images.float().div(255) if images.dtype == torch.uint8 else images
        mixes = any(base.__name__.startswith("MixAugmentationBase") for base in type(self.augmentation).__mro__)
        draws, count = batch_draws(len(images)), 1 if mixes else len(images)
        drawn = []
        with _torchs_generator(type(self).__name__) as generator:
            for row in range(count):
                generator.manual_seed(int(draws.generator(row).integers(2**63)))
                shape = torch.Size((len(images) // count, *images.shape[1:]))
                drawn.append(self.augmentation.forward_parameters(shape))
            generator.manual_seed(int(draws.generator(0).integers(2**63, size=2)[1]))  # noise is drawn in the call
            return self.augmentation(images, params=joined(drawn, images.shape))


class TorchVision(BatchOperation):
    """Applies a transform of torchvision v2 to the images of a batch: one draw for the whole batch.

    By its nature a transform of v2 gives all images of a batch the same crop, flip or factor. It is seeded from the
    position of the batch's first sample, so it repeats with any number of workers; on another number of ranks the
    batches begin elsewhere. For draws of each image, use the operations of `stoker.device`.

    Args:
        transform: of images (N, C, H, W).
        field: see `BatchOperation`.
    """

    def __init__(self, transform: Callable[[Any], Any], field: Hashable | None = None) -> None:
        super().__init__(field)
        if not callable(transform):
            raise TypeError(f"TorchVision takes a transform of images, but got {transform!r}")
        self.transform = transform

    def apply(self, images: Any) -> Any:
        draws = batch_draws(len(images))
        with _torchs_generator(type(self).__name__) as generator:
            generator.manual_seed(int(draws.generator(0).integers(2**63)))
            return self.transform(images)


@contextmanager
def _torchs_generator(name: str) -> Iterator[Any]:
    """Gives torch's global generator of the CPU, and its state back afterwards."""
    import torch

    if current.info is not None and not current.is_worker_process:
        raise StokerError(
            f"{name} draws from torch's global generator, which all threads share: use worker_method='process', or the "
            "operations of stoker.device, which draw from their own"
        )
    generator = torch.default_generator
    before = generator.get_state()
    try:
        yield generator
    finally:
        generator.set_state(before)


def joined(drawn: Sequence[Any], shape: Sequence[int]) -> Any:
    """Returns the parameters of a batch of Kornia's, joined of those of its samples, or of the batch itself.

    Args:
        drawn: results of `forward_parameters`: mappings of tensors, and lists of named ones.
        shape: of the batch.
    """
    import torch

    first = drawn[0]
    if isinstance(first, dict):
        whole = {
            key: value if key in _OF_BATCH else _rows([each[key] for each in drawn]) for key, value in first.items()
        }
        if "forward_input_shape" in whole:
            whole["forward_input_shape"] = torch.tensor(tuple(shape))
        return whole
    if hasattr(first, "name") and hasattr(first, "data"):
        if len({each.name for each in drawn}) > 1:
            raise BatchError(
                "the samples of a batch drew different steps of an AugmentationSequential: leave out random_apply, or "
                "wrap each augmentation in Kornia() alone"
            )
        return type(first)(first.name, joined([each.data for each in drawn], shape))
    if isinstance(first, list | tuple):
        return [joined(each, shape) for each in zip(*drawn, strict=True)]
    return first


def _rows(parts: Sequence[Any]) -> Any:
    import torch

    return torch.cat(list(parts)) if isinstance(parts[0], torch.Tensor) and parts[0].ndim else parts[0]
