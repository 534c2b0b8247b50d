"""Batches on their way to a device: pinned memory, and operations on whole batches.

The operations take tensors on the CPU or a device, and are for `DataLoader(batch_transform=...)`. Random numbers are
drawn for each sample, by `stoker.batch_draws()`. Names and parameters are torchvision's. Needs torch. Loaded on first
use.
"""

from typing import TYPE_CHECKING

from stoker._core import first_use

if TYPE_CHECKING:
    from stoker.device.transforms.adapters import Kornia as Kornia
    from stoker.device.transforms.adapters import TorchVision as TorchVision
    from stoker.device.transforms.colours import ColorJitter as ColorJitter
    from stoker.device.transforms.colours import Normalize as Normalize
    from stoker.device.transforms.geometry import RandomErasing as RandomErasing
    from stoker.device.transforms.geometry import RandomHorizontalFlip as RandomHorizontalFlip
    from stoker.device.transforms.geometry import RandomResizedCrop as RandomResizedCrop
    from stoker.device.transforms.mixing import CutMix as CutMix
    from stoker.device.transforms.mixing import MixUp as MixUp
    from stoker.device.transforms.operation import BatchOperation as BatchOperation
    from stoker.device.transforms.operation import Compose as Compose
    from stoker.device.transforms.views import TestTimeViews as TestTimeViews

_HOMES = {
    "BatchOperation": "transforms.operation",
    "ColorJitter": "transforms.colours",
    "Compose": "transforms.operation",
    "CutMix": "transforms.mixing",
    "Kornia": "transforms.adapters",
    "MixUp": "transforms.mixing",
    "Normalize": "transforms.colours",
    "RandomErasing": "transforms.geometry",
    "RandomHorizontalFlip": "transforms.geometry",
    "RandomResizedCrop": "transforms.geometry",
    "TestTimeViews": "transforms.views",
    "TorchVision": "transforms.adapters",
}
__all__ = sorted(_HOMES)
__getattr__ = first_use.loading(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
