"""Images: decoding of the part that is needed, and Pillow images that decode when their pixels are read.

Pixels are those of Pillow, value for value. Where the compiled part can use Pillow's own libjpeg (`backend()` says
whether), JPEGs are decoded only as far as a crop needs them. Needs the extra `images` (Pillow). The names are those of
`__init__.pyi` beside this file, each loaded on first use.
"""

from stoker._core import first_use

_HOMES = first_use.homes_of("images/__init__.pyi")
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    return first_use.loaded(__name__, name, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
