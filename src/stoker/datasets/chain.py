"""Streams one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from stoker import _nominal
from stoker.datasets.base import IterableDataset, is_stream

T_co = TypeVar("T_co", covariant=True)


class ChainDataset(IterableDataset[T_co], _nominal.base("ChainDataset")):  # type: ignore[misc]
    """The samples of the first stream, then those of the second, and so on.

    A stream is opened when its turn comes. What is no stream is found out then, not before.

    Args:
        datasets: `IterableDataset`s, ours or torch's.
    """

    datasets: Iterable[Any]

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[T_co]:
        """Yields the samples in order.

        Raises:
            AssertionError: one of the datasets is no `IterableDataset`.
        """
        for stream in self._streams():
            yield from stream

    def __len__(self) -> int:
        """Returns the sum of the streams' lengths.

        Raises:
            AssertionError: one of the datasets is no `IterableDataset`.
            TypeError: one of them does not know its length.
        """
        return sum(map(len, self._streams()))

    def _streams(self) -> Iterator[Any]:
        for dataset in self.datasets:
            if not is_stream(dataset):
                raise AssertionError("ChainDataset only supports IterableDataset")
            yield dataset
