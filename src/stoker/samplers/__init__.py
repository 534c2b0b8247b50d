"""Samplers: the order of the samples of an epoch.

The classes are nominal subclasses of torch's, so they are imported on first use; `permutation` needs no torch. The
names are those of `stoker/__init__.pyi`.
"""

from typing import Any

from stoker import _first_use

_HOMES = _first_use.homes_in(__name__)
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return _first_use.loaded(__name__, name, _HOMES)
