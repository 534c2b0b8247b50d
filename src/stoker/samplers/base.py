"""The contract of a sampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from stoker import _nominal

T_co = TypeVar("T_co", covariant=True)


class Sampler(_nominal.base("Sampler"), Generic[T_co]):  # type: ignore[misc]  # the base is chosen at run time
    """Says which samples come, in which order: indices, or lists of indices for a batch sampler.

    A subclass has `__iter__`, which starts again each time, and `__len__` if it knows how many come. The loader does
    not require this class: any iterable will do.
    """

    def __iter__(self) -> Iterator[T_co]:
        """Yields indices, or lists of them.

        Raises:
            NotImplementedError: the subclass has not written it.
        """
        raise NotImplementedError
