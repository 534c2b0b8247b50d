"""Streams that know where they are: the base of all that is iterated over and resumed.

The state belongs to an iterator: it says where that iterator stands, in plain values, and grows with the number of
streams below it, not with the samples. A stream hands out the state of its latest iterator, and begins its next one
where a loaded state says. What is below is asked in the same way, whatever it is: see `resume`.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

from stoker.datasets.base import IterableDataset, is_stream
from stoker.errors import StateFormatError

T_co = TypeVar("T_co", covariant=True)

State = dict[str, Any]
"""Plain values only, as JSON has them: it must survive `json.dumps` unchanged."""


class StreamIterator(Iterator[T_co]):
    """An iterator that knows where it stands. A subclass has `__next__` and `state_dict`."""

    @abstractmethod
    def state_dict(self) -> State:
        """Where this iterator stands: behind the last sample it gave, however far it has read ahead. Quick, no I/O."""


class Stream(IterableDataset[T_co]):
    """An `IterableDataset` that can be resumed. A subclass has `_begin(state)`.

    Its state is that of its latest iterator, so one iteration at a time can be resumed. Each worker has its own copy.
    """

    _latest: StreamIterator[T_co] | None = None
    _loaded: State | None = None

    @abstractmethod
    def _begin(self, state: State | None) -> StreamIterator[T_co]:
        """A new iterator, at its start or where a `state_dict()` of an earlier one says."""

    def __iter__(self) -> StreamIterator[T_co]:
        """Returns a new iterator; the first one after `load_state_dict` begins where that state says."""
        state, self._loaded = self._loaded, None
        self._latest = self._begin(state)
        return self._latest

    def state_dict(self) -> State:
        """Where the latest iterator stands, in plain values (JSON); empty before the first."""
        if self._loaded is not None:
            return self._loaded
        return {} if self._latest is None else self._latest.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Makes the next `iter()` begin there; an empty state is the start."""
        self._loaded = state or None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None}


def resume(dataset: Any, state: State | None) -> StreamIterator[Any]:
    """Iterates over any dataset from where `state` says, and knows from then on where it stands.

    Args:
        dataset: map-style: walked by index, resumed in constant time. With `state_dict` and `load_state_dict`, on the
            dataset or on its iterator (as torchdata has them): asked for its own. Any other stream: its samples are
            counted, and on resume read again and thrown away.
        state: of an earlier iterator of this function over the same dataset; None for the start.
    """
    if isinstance(dataset, Stream):
        if state is not None:
            dataset.load_state_dict(state)
        return iter(dataset)
    if not is_stream(dataset) and hasattr(dataset, "__getitem__"):
        return _ByIndex(dataset, _count(state, "index"))
    if hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict"):
        return _OfDataset(dataset, state)
    return _Counted(dataset, state)


def _count(state: State | None, name: str) -> int:
    if state is None:
        return 0
    count = state.get(name)
    if not isinstance(count, int) or count < 0:
        raise StateFormatError(f"a state with a count {name!r} was expected, not {state!r}: it is another dataset's")
    return count


class _ByIndex(StreamIterator[Any]):
    """A map-style dataset, walked from its first index to its last."""

    def __init__(self, dataset: Any, index: int) -> None:
        self._dataset = dataset
        self._index = index

    def __next__(self) -> Any:
        if self._index >= len(self._dataset):
            raise StopIteration
        sample = self._dataset[self._index]
        self._index += 1
        return sample

    def state_dict(self) -> State:
        return {"index": self._index}


class _OfDataset(StreamIterator[Any]):
    """A stream of somebody else's that keeps its own state."""

    def __init__(self, dataset: Any, state: State | None) -> None:
        if state is not None:
            dataset.load_state_dict(state["own"])
        self._dataset = dataset
        self._iterator = iter(dataset)

    def __next__(self) -> Any:
        return next(self._iterator)

    def state_dict(self) -> State:
        return {"own": self._dataset.state_dict()}


class _Counted(StreamIterator[Any]):
    """A stream of which nothing is known, or whose iterator keeps its own state."""

    def __init__(self, dataset: Any, state: State | None) -> None:
        self._iterator = iter(dataset)
        self._seen = 0
        if state is not None and "iterator" in state:
            self._iterator.load_state_dict(state["iterator"])
        else:
            self._seen = _count(state, "seen")
            for _ in itertools.islice(self._iterator, self._seen):
                pass

    def __next__(self) -> Any:
        sample = next(self._iterator)
        self._seen += 1
        return sample

    def state_dict(self) -> State:
        own = getattr(self._iterator, "state_dict", None)
        if own is not None and hasattr(self._iterator, "load_state_dict"):
            return {"iterator": own()}
        return {"seen": self._seen}
