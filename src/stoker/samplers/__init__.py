"""Samplers: the order of the samples of an epoch.

The classes are nominal subclasses of torch's, so they are imported on first use; `permutation` needs no torch. The
names are those of `stoker/__init__.pyi`.
"""

from typing import Any

from stoker._core import first_use

_HOMES = first_use.homes_in(__name__)
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return first_use.loaded(__name__, name, _HOMES)
