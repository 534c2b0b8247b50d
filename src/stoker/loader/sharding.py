"""Streams that do not share themselves out among workers: the loader does, so that no sample is read twice.

Every stream that a worker reads here is numbered, and knows where it stands: see `stoker.datasets.stream`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from stoker._worker_info import current
from stoker.datasets import ChainDataset
from stoker.datasets.stream import State, StreamIterator, resume
from stoker.errors import ShardingError, StateFormatError, StateMismatchError

OTHERS = object()
"""Stands in a worker's stream for a sample that another worker gives."""

Tell = Callable[[str], None]


class Numbered(StreamIterator[tuple[int, Any]]):
    """A stream that belongs to one worker alone: (position, sample)."""

    def __init__(self, dataset: Any, state: State | None) -> None:
        self._position = 0 if state is None else state["position"]
        self._stream = resume(dataset, None if state is None else state["stream"])

    def __next__(self) -> tuple[int, Any]:
        sample = next(self._stream)
        self._position += 1
        return self._position - 1, sample

    def state_dict(self) -> State:
        return {"position": self._position, "stream": self._stream.state_dict()}


class _Strided(StreamIterator[tuple[int, Any]]):
    """Every n-th sample of a stream that does not ask who reads it.

    After a resume with another number of workers some samples from its first on were given before: `left` holds the
    positions of those that were not, below `tail`, from where on none was. Every n-th of what is left is this worker's.
    """

    def __init__(self, stream: Numbered, first: list[Any], worker: int, workers: int, state: State | None) -> None:
        self._stream = stream
        self._first = first
        self._worker = worker
        self._workers = workers
        self._left: list[int] = [] if state is None else state.get("left", [])
        self._tail: int = 0 if state is None else state.get("tail", 0)
        self._places = {position: place for place, position in enumerate(self._left)}

    def __next__(self) -> tuple[int, Any]:
        current.asked = False
        position, sample = self._first.pop() if self._first else next(self._stream)
        if current.asked:
            raise ShardingError(
                "the dataset called get_worker_info() after its first sample, when the loader had begun to share its "
                "samples out among the workers: both together would lose samples. Call it at the start of __iter__, or "
                "pass shard='none'."
            )
        place = self._places.get(position) if position < self._tail else position - self._tail + len(self._left)
        return position, sample if place is not None and place % self._workers == self._worker else OTHERS

    def state_dict(self) -> State:
        state = {"strided": True, **self._stream.state_dict()}
        return state | {"left": self._left, "tail": self._tail} if self._tail else state


class _Asked(StreamIterator[tuple[int, Any]]):
    """A stream that shares itself out, whose first sample was read to find that out."""

    def __init__(self, stream: Numbered, first: list[Any]) -> None:
        self._stream = stream
        self._first = first

    def __next__(self) -> tuple[int, Any]:
        return self._first.pop() if self._first else next(self._stream)

    def state_dict(self) -> State:
        return self._stream.state_dict()


class _Chained(StreamIterator[tuple[int, Any]]):
    """The streams of a `ChainDataset`, each shared out for itself when those before it are through."""

    def __init__(self, streams: Iterator[Any], worker: int, workers: int, tell: Tell, state: State | None) -> None:
        self._part = 0 if state is None else state["part"]
        self._position = 0 if state is None else state["position"]
        self._streams = itertools.islice(streams, self._part, None)
        self._share = (worker, workers, tell)
        self._stream = None if state is None or state["in"] is None else self._next_stream(state["in"])

    def _next_stream(self, state: State | None) -> StreamIterator[Any] | None:
        dataset = next(self._streams, None)
        return None if dataset is None else shared_out(dataset, *self._share, state)[0]

    def __next__(self) -> tuple[int, Any]:
        while True:
            if self._stream is None:
                self._stream = self._next_stream(None)
                if self._stream is None:
                    raise StopIteration
            for _, sample in self._stream:
                self._position += 1
                return self._position - 1, sample
            self._part, self._stream = self._part + 1, None

    def state_dict(self) -> State:
        inner = None if self._stream is None else self._stream.state_dict()
        return {"part": self._part, "position": self._position, "in": inner}


def shared_out(
    dataset: Any, worker: int, workers: int, tell: Tell, state: State | None
) -> tuple[StreamIterator[tuple[int, Any]], bool]:
    """The worker's share of a stream.

    A dataset that asks `get_worker_info()` before its first sample shares itself out, and is left alone. One with a
    method `shard(num_shards=, index=)` is asked for its shard. Of any other, worker i takes samples i, i + n, …

    Returns:
        An iterator over (position in the stream that is read, sample or `OTHERS`), and whether that stream is the
        whole one, the same in each worker. An error of the stream's passes through, and the next sample may follow.
    """
    current.asked = False
    if callable(getattr(dataset, "shard", None)) and getattr(dataset, "num_shards", workers) >= workers:
        return Numbered(dataset.shard(num_shards=workers, index=worker), state), False
    if type(dataset).__iter__ is ChainDataset.__iter__:
        return _Chained(iter(dataset.datasets), worker, workers, tell, state), False
    stream = Numbered(dataset, state)
    first = list(itertools.islice(stream, 1))
    if current.asked:
        if state is not None and state.get("strided"):
            raise StateMismatchError(
                "the state is of a stream that the loader shared out, but this dataset calls get_worker_info() and "
                "shares itself out. Use as many workers as saved the state."
            )
        return _Asked(stream, first), False
    if workers > 1:
        tell(_told(dataset, workers))
    return _Strided(stream, first, worker, workers, state), True


def reshared(states: list[Any], workers: int) -> list[Any]:
    """States of streams, as they were saved by some number of workers, for another number of workers.

    Raises:
        StateMismatchError: they are of a dataset that shares itself out and does not name its shards.
        StateFormatError: they are no states of streams.
    """
    if not all(state is None or (isinstance(state, dict) and "ended" in state) for state in states):
        raise StateFormatError(f"the state is damaged: its streams are {str(states)[:200]}")
    if len(states) == workers:
        return states
    begun = [state for state in states if state is not None]
    if not begun:
        return [None] * workers
    if all(state["ended"] for state in begun) and len(begun) == len(states):
        return [{"ended": True}] * workers
    named = [state["stream"] for state in begun]
    if all(isinstance(stream, dict) and "shards" in stream for stream in named):
        shards = dict(itertools.chain.from_iterable(stream["shards"].items() for stream in named))
        return [{"ended": False, "position": 0, "stream": {"shards": shards}}] * workers
    if len(states) == 1:
        begun[0] |= {"strided": True}
    if all(state.get("strided") for state in begun):
        return [_strided_anew(states)] * workers
    raise StateMismatchError(
        f"the state has the streams of {len(states)} workers, and this loader has {workers}: a dataset that shares "
        f"itself out can be resumed only with as many workers as saved it. Use num_workers={len(states)}, or let its "
        "state name its shards (see the guide on resuming)."
    )


def _strided_anew(states: list[Any]) -> State:
    """Where any number of workers can go on with a stream that was shared out by stride."""
    unread = [0 if state is None else math.inf if state["ended"] else state["position"] for state in states]
    some = next(state for state in states if state is not None)
    left, tail = some.get("left", []), some.get("tail", 0)
    behind = [state["position"] for state in states if state is not None]
    new_tail = max(tail, *behind)
    places = itertools.chain(enumerate(left), ((q - tail + len(left), q) for q in range(tail, new_tail)))
    earliest = states[unread.index(min(unread))]
    return {
        **({"position": 0, "stream": None} if earliest is None else earliest),
        **{"ended": False, "strided": True, "tail": new_tail},
        "left": [position for place, position in places if position >= unread[place % len(states)]],
    }


def _told(dataset: Any, workers: int) -> str:
    return (
        f"{type(dataset).__name__} does not share its samples out among workers (it never calls get_worker_info()), so "
        f"each of the {workers} workers would have read all of it. The loader shares them out: worker i reads the "
        f"whole stream and keeps samples i, i + {workers}, i + {2 * workers}, …. To save that reading, give the "
        "dataset a method shard(num_shards, index), or let it read its share; shard='none' turns this off."
    )
