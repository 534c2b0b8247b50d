"""torch's classes as bases of ours, in name only, and only where torch is wanted.

Frameworks ask `isinstance(x, torch.utils.data.DataLoader)`, so ours inherit from torch's where torch is installed. The
modules that define such classes are loaded on first use (`stoker.__getattr__`), never by `import stoker`.

A program that never needs torch stays without it by `STOKER_TORCH=0` in its environment; a clean worker process calls
`prefer_none()` first, because nobody asks `isinstance` there: it then imports torch only if the dataset does.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)

_avoid = False
_decided: list[bool] = []  # all classes of a process must have bases of one kind


class Plain(Generic[T_co]):
    """The base where torch's is not wanted."""


def prefer_none() -> None:
    """Makes this process use plain bases, unless something has imported torch already."""
    global _avoid
    _avoid = True


def torch_is_wanted() -> bool:
    """Whether classes made from now on get torch's as bases, and batches are tensors by default."""
    if os.environ.get("STOKER_TORCH") == "0":
        return False
    return ("torch" in sys.modules or not _avoid) and torch_is_installed()


def torch_is_installed() -> bool:
    """Whether it can be imported, or has been."""
    if "torch" in sys.modules:
        return sys.modules["torch"] is not None
    return importlib.util.find_spec("torch") is not None


def base(name: str) -> Any:
    """The class `torch.utils.data.<name>`, or `Plain` where torch is not wanted when this is first asked."""
    if not _decided:
        _decided.append(torch_is_wanted())
    if not _decided[0]:
        return Plain
    import torch.utils.data

    return getattr(torch.utils.data, name)
