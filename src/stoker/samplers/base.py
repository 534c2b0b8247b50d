"""The contract of a sampler."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from typing import Generic, TypeVar

from stoker._core import nominal

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 160

T_co = TypeVar("T_co", covariant=True)


class Sampler(nominal.base("Sampler"), Generic[T_co]):  # type: ignore[misc]  # the base is chosen at run time
    """Yields the samples of an epoch in order: indices, or lists of indices for a batch sampler.

    A subclass has `__iter__`, which starts again at each call, and `__len__` if its length is known. The loader does
    not require this class: it accepts any iterable. With the class attribute `stoker_protocol = True`, the loader also
    calls `set_epoch(epoch)`, and `order(key)` or `batches(key)` in place of `__iter__`.
    """

    def __iter__(self) -> Iterator[T_co]:
        """Yields indices, or lists of them.

        Raises:
            NotImplementedError: the subclass does not define it.
        """
        raise NotImplementedError


def described(sampler: object, *names: str, lengths: bool = False) -> str:
    """Returns the `repr` of a sampler, from those of these attributes that are there and not None."""
    own = vars(sampler)
    parts = [f"{len(own['lengths']):,} lengths"] if lengths and "lengths" in own else []
    parts += [f"{name}={_short.repr(own[name])}" for name in names if own.get(name) is not None]
    return f"{type(sampler).__name__}({', '.join(parts)})"
