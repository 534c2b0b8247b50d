"""Datasets by index, streams, and classes that join, split and cache them.

Each is loaded on first use: most are nominal subclasses of torch's. The names are those of `stoker/__init__.pyi`.
"""

from typing import Any

from stoker._core import first_use

_HOMES = first_use.homes_in(__name__)
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return first_use.loaded(__name__, name, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
