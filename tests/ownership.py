"""Classes of Stoker's in another file, as far as `__module__` tells, and users' classes that are named like ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest

ELSEWHERE = "elsewhere.now"


@contextlib.contextmanager
def moved(*kinds: type) -> Iterator[None]:
    """Gives classes, and the functions in them, another `__module__`."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in kinds:
            for thing in (kind, *(value for value in vars(kind).values() if isinstance(value, FunctionType))):
                patch.setattr(thing, "__module__", ELSEWHERE)
        yield


def named_like(kind: type, *bases: type, **members: Any) -> Any:
    """Returns a class with the name and the module of a class of Stoker's, as are its functions.

    Args:
        kind: the class of Stoker's.
        *bases: of the new class; `kind` if there are none.
        **members: attributes of the new class.
    """
    for value in members.values():
        if isinstance(value, FunctionType):
            value.__module__ = kind.__module__
    return type(kind.__name__, bases or (kind,), {"__module__": kind.__module__, **members})
