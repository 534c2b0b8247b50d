"""Torch's classes as nominal bases of Stoker's classes, if torch is wanted.

Frameworks test `isinstance(x, torch.utils.data.DataLoader)`, so Stoker's classes inherit from torch's if torch is
installed. The modules that define such classes are imported on first use (`stoker.__getattr__`), never by
`import stoker`.

`STOKER_TORCH=0` in the environment keeps a program free of torch. A clean worker process calls `prefer_none()` first,
because it needs no `isinstance`: it then imports torch only if the dataset does.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)

_avoid = False
_decided: list[bool] = []  # all classes of a process must have bases of one kind


class PlainBase(Generic[T_co]):
    """The base class used if torch's is not wanted."""


def prefer_none() -> None:
    """Makes this process use plain bases, unless torch is imported already."""
    global _avoid
    _avoid = True


def torch_is_wanted() -> bool:
    """Returns whether new classes get torch's as bases, and batches are tensors by default."""
    if os.environ.get("STOKER_TORCH") == "0":
        return False
    return ("torch" in sys.modules or not _avoid) and torch_is_installed()


def torch_is_installed() -> bool:
    """Returns whether torch is imported or can be."""
    if "torch" in sys.modules:
        return sys.modules["torch"] is not None
    return importlib.util.find_spec("torch") is not None


def base(name: str) -> Any:
    """Returns `torch.utils.data.<name>`, or `PlainBase` if torch was not wanted at the first call in this process."""
    if not _bases_are_torchs():
        return PlainBase
    import torch.utils.data

    return getattr(torch.utils.data, name)


def iterator_base() -> Any:
    """Returns the class of which torch's iterators are, or `PlainBase`. Lightning leaves them out of its pickles.

    The name is private: a torch without it has no such class to offer.
    """
    if not _bases_are_torchs():
        return PlainBase
    from torch.utils.data import dataloader

    return getattr(dataloader, "_BaseDataLoaderIter", PlainBase)


def _bases_are_torchs() -> bool:
    if not _decided:
        _decided.append(torch_is_wanted())
    return _decided[0]
