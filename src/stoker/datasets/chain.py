"""Streams one after another."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from stoker._core import nominal
from stoker.datasets._stream.listening import listened
from stoker.datasets.base import is_stream
from stoker.datasets.combining import pass_epoch, shard_of, shards_of
from stoker.datasets.stream import State, Stream, StreamIterator, count, part
from stoker.errors import StateMismatchError

T_co = TypeVar("T_co", covariant=True)


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
        found = sum(1 for _ in itertools.islice(streams, number))
        if found < number:
            raise StateMismatchError(f"the state stands in stream {number} of a chain that has {found}")
        if at is not None:  # now: samples that are read again must not use the next sample's random numbers
            stream = next(streams, None)
            if stream is None:
                raise StateMismatchError(f"the state stands in stream {number} of a chain that has {found}")
            self._open = listened(stream, at, "ChainDataset")

    def __next__(self) -> Any:
        while True:
            if self._open is None:
                stream = next(self._streams)
                try:
                    self._open = listened(stream, None, "ChainDataset")
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
