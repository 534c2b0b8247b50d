"""Images: decoding of the part that is needed, and Pillow images that decode when their pixels are read.

Pixels are those of Pillow, value for value. Where the compiled part can use Pillow's own libjpeg (`backend()` says
whether), JPEGs are decoded only as far as a crop needs them. Needs the extra `images` (Pillow). Loaded on first use.
"""

from typing import TYPE_CHECKING

from stoker._core import first_use

if TYPE_CHECKING:
    from stoker.images.augmentations import ColorJitter as ColorJitter
    from stoker.images.augmentations import Grayscale as Grayscale
    from stoker.images.augmentations import RandAugment as RandAugment
    from stoker.images.augmentations import RandomErasing as RandomErasing
    from stoker.images.augmentations import RandomRotation as RandomRotation
    from stoker.images.augmentations import TrivialAugmentWide as TrivialAugmentWide
    from stoker.images.decoding import ImageInfo as ImageInfo
    from stoker.images.decoding import decode as decode
    from stoker.images.decoding import info as info
    from stoker.images.kernel import backend as backend
    from stoker.images.plugin import Registration as Registration
    from stoker.images.plugin import open as open
    from stoker.images.plugin import register as register
    from stoker.images.scaling import Normalize as Normalize
    from stoker.images.scaling import ToTensor as ToTensor
    from stoker.images.scaling import normalize as normalize
    from stoker.images.transforms import CenterCrop as CenterCrop
    from stoker.images.transforms import Compose as Compose
    from stoker.images.transforms import PILToTensor as PILToTensor
    from stoker.images.transforms import RandomCrop as RandomCrop
    from stoker.images.transforms import RandomHorizontalFlip as RandomHorizontalFlip
    from stoker.images.transforms import RandomResizedCrop as RandomResizedCrop
    from stoker.images.transforms import Resize as Resize

_HOMES = {
    "ImageInfo": "decoding",
    "Registration": "plugin",
    "backend": "kernel",
    "decode": "decoding",
    "info": "decoding",
    "open": "plugin",
    "register": "plugin",
    "CenterCrop": "transforms",
    "ColorJitter": "augmentations",
    "Grayscale": "augmentations",
    "RandAugment": "augmentations",
    "RandomErasing": "augmentations",
    "RandomRotation": "augmentations",
    "TrivialAugmentWide": "augmentations",
    "Compose": "transforms",
    "Normalize": "scaling",
    "PILToTensor": "transforms",
    "RandomCrop": "transforms",
    "RandomHorizontalFlip": "transforms",
    "RandomResizedCrop": "transforms",
    "Resize": "transforms",
    "ToTensor": "scaling",
    "normalize": "scaling",
}
__all__ = sorted(_HOMES)
__getattr__ = first_use.loading(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
