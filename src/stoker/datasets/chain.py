"""Datasets one after another: `ConcatDataset` by index, `ChainDataset` for streams."""

from __future__ import annotations

import itertools
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from stoker._core import nominal
from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.combining import filled_shards_of, pass_epoch, shard_of, shards_of
from stoker.datasets.gather import Indices, common_layout, describe, gather_parts, inside
from stoker.datasets.stream import State, Stream, StreamIterator, count, part
from stoker.datasets.worker_share import resume_and_report
from stoker.errors import StateMismatchError

# Datasets one after another, by index.


T_co = TypeVar("T_co", covariant=True)


class ConcatDataset(Dataset[T_co], nominal.base("ConcatDataset")):  # type: ignore[misc]
    """The samples of the first dataset, then those of the second, and so on.

    Lengths are read once, at construction. A sample is found in O(log k) among k datasets.

    Args:
        datasets: at least one; each has `__len__` and `__getitem__`.

    Attributes:
        datasets: the datasets, as a list.
        cumulative_sizes: the end of each dataset in the whole.

    Raises:
        AssertionError: there is no dataset, or one is an `IterableDataset`.
    """

    datasets: list[Any]
    cumulative_sizes: list[int]

    @staticmethod
    def cumsum(sequence: Iterable[Any]) -> list[int]:
        """Returns the running sum of the lengths."""
        return list(itertools.accumulate(map(len, sequence)))

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        if any(map(is_stream, self.datasets)):
            raise AssertionError("ConcatDataset does not support IterableDataset")
        self.cumulative_sizes = self.cumsum(self.datasets)

    def __len__(self) -> int:
        """Returns the number of samples of all datasets, as it was at construction."""
        return self.cumulative_sizes[-1]

    def __getitem__(self, idx: int) -> T_co:
        """Returns the sample at `idx`; a negative index counts from the end.

        Raises:
            ValueError: `idx` is negative and beyond the beginning.
            IndexError: `idx` is beyond the end.
        """
        if idx < 0:
            if -idx > len(self):
                raise ValueError("absolute value of index should not exceed dataset length")
            idx = idx + len(self)  # not `+=`, which would change the caller's tensor
        place = bisect_right(self.cumulative_sizes, idx)
        start = self.cumulative_sizes[place - 1] if place else 0
        sample: T_co = self.datasets[place][idx - start]
        return sample

    def describe(self, idx: int) -> Any:
        """Returns the description of the sample at `idx` by the dataset that holds it, if that offers `describe`; else
        None.
        """
        if not -len(self) <= idx < len(self):  # `__getitem__` raises for it
            return None
        idx = idx % len(self)
        place = bisect_right(self.cumulative_sizes, idx)
        return describe(self.datasets[place], idx - (self.cumulative_sizes[place - 1] if place else 0))

    def gather_layout(self) -> Any:
        """Returns the layout of a sample, if all datasets can gather and have the same layout."""
        return common_layout(self.datasets)

    def gather(self, indices: Indices, out: Any) -> Any:
        """Makes each dataset write its part of the batch, unless each part would be only a few samples."""
        ends = np.asarray(self.cumulative_sizes)
        positions = inside(indices, int(ends[-1]))
        datasets = np.searchsorted(ends, positions, side="right")
        local = positions - np.concatenate([[0], ends])[datasets]
        return gather_parts(self.datasets, datasets, local, out)

    @property
    def cummulative_sizes(self) -> Sequence[int]:
        """Deprecated: `cumulative_sizes` under its former, misspelt name."""
        warnings.warn(
            "`cummulative_sizes` attribute is renamed to `cumulative_sizes`", category=FutureWarning, stacklevel=2
        )
        return self.cumulative_sizes


class _Shards:
    """`chain.num_shards`: the number of shards into which every stream can be cut; 1 for a subclass, whose shards would
    be plain chains.

    Not a property, because a subclass written for torch's class may set an attribute of this name.
    """

    def __get__(self, chain: ChainDataset[Any] | None, kind: type | None = None) -> Any:
        if chain is None:
            return self
        if type(chain) is not ChainDataset:
            return 1
        return min((shards_of(dataset) if is_stream(dataset) else 1 for dataset in chain._kept()), default=1)


class ChainDataset(Stream[T_co], nominal.base("ChainDataset")):  # type: ignore[misc]
    """The samples of the first stream, then those of the second, and so on.

    A stream is opened, and its type checked, at its turn. A chain is resumable: the streams before the one named in the
    state are not opened again.

    Args:
        datasets: `IterableDataset`s, Stoker's or torch's. If `datasets` can be iterated over only once, so can the
            chain, and `len` iterates over it too.
    """

    stoker_protocol = False  # torch has a class of this name
    datasets: Iterable[Any]
    _in_step = True

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = datasets

    def __iter__(self) -> StreamIterator[T_co]:
        """Returns an iterator over the samples in order.

        The iterator raises `AssertionError` at a dataset that is not an `IterableDataset`.

        Raises:
            StateError: the loaded state does not belong to this chain.
        """
        return super().__iter__()  # own method: the loader recognizes by it a class that is sharded by its parts

    def __len__(self) -> int:
        """Returns the sum of the streams' lengths.

        Raises:
            AssertionError: one of the datasets is not an `IterableDataset`.
            TypeError: one of the streams has no length.
        """
        return sum(map(len, self._streams()))

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to the streams, unless `datasets` can be iterated over only once."""
        for dataset in self._kept():
            pass_epoch(dataset, epoch)

    num_shards = _Shards()

    @property
    def _filled_shards(self) -> int:
        return max(map(filled_shards_of, self._kept()), default=1)

    def shard(self, num_shards: int, index: int) -> ChainDataset[T_co]:
        """Returns the chain of the streams' shards."""
        return ChainDataset([shard_of(dataset, num_shards, index) for dataset in self._kept()])

    def _kept(self) -> Sequence[Any]:
        return self.datasets if isinstance(self.datasets, Sequence) else []

    def _begin(self, state: State | None) -> StreamIterator[T_co]:
        return _Chained(self._streams(), count(state, "stream"), part(state, "at") if state and "at" in state else None)

    def _streams(self) -> Iterator[Any]:
        for dataset in self.datasets:
            if not is_stream(dataset):
                raise AssertionError("ChainDataset only supports IterableDataset")
            yield dataset


class _Chained(StreamIterator[Any]):
    def __init__(self, streams: Iterator[Any], number: int, at: State | None) -> None:
        self._streams = streams
        self._number = number
        self._open: StreamIterator[Any] | None = None
        passed = sum(1 for _ in itertools.islice(streams, number))
        if passed < number:
            raise StateMismatchError(f"the state stands in stream {number} of a chain that has {passed}")
        if at is not None:  # now: samples that are read again must not use the next sample's random numbers
            stream = next(streams, None)
            if stream is None:
                raise StateMismatchError(f"the state stands in stream {number} of a chain that has {passed}")
            self._open = resume_and_report(stream, at, "ChainDataset")

    def __next__(self) -> Any:
        while True:
            if self._open is None:
                stream = next(self._streams)
                try:
                    self._open = resume_and_report(stream, None, "ChainDataset")
                except Exception:  # a stream that cannot be opened is not tried again
                    self._number += 1
                    raise
            try:
                return next(self._open)
            except StopIteration:
                self._open = None
                self._number += 1

    def state_dict(self) -> State:
        return {"stream": self._number} | ({} if self._open is None else {"at": self._open.state_dict()})
