"""Pillow, imported in this file only: with an error that names the extra where it is missing."""

from __future__ import annotations

from stoker.errors import MissingExtraError

try:
    import PIL
    from PIL import Image, ImageEnhance, ImageOps, JpegImagePlugin, UnidentifiedImageError
    from PIL import _imaging as imaging
except ImportError as error:
    raise MissingExtraError("images need Pillow, which is not installed: pip install 'stoker[images]'") from error

__all__ = ["PIL", "Image", "ImageEnhance", "ImageOps", "JpegImagePlugin", "UnidentifiedImageError", "imaging"]
