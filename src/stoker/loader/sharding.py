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
from stoker.datasets.combining import shard_of
from stoker.datasets.stream import State, Stream, StreamIterator, resume
from stoker.datasets.worker_share import OfWorker
from stoker.errors import ShardingError, StateMismatchError
from stoker.loader import asking

OTHERS = object()
"""Stands in a worker's stream for a sample that another worker gives."""

Share = tuple[int, int, Callable[[str], None]]
"""A worker's number, how many there are, and where to tell the user something."""


class Numbered(StreamIterator[tuple[int, Any]]):
    """A stream that belongs to one worker alone: (position, sample). A sample that fails has a position as well.

    Attributes:
        position: of the next sample.
    """

    def __init__(self, dataset: Any, state: State | None) -> None:
        self.position = 0 if state is None else state["position"]
        self._stream = resume(dataset, None if state is None else state["stream"])

    def __next__(self) -> tuple[int, Any]:
        self.position += 1
        try:
            return self.position - 1, next(self._stream)
        except StopIteration:
            self.position -= 1
            raise

    def state_dict(self) -> State:
        return {"position": self.position, "stream": self._stream.state_dict()}


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
        self._resumed = state is not None
        self._asked = False
        self._places = {position: place for place, position in enumerate(self._left)}

    def __next__(self) -> tuple[int, Any]:
        current.asked = self._asked
        try:
            item = _taken(self._first) if self._first else next(self._stream, None)
        except ShardingError:
            raise
        except Exception:
            position = self._stream.position - 1
            if self._is_ours(position):
                raise
            item = position, OTHERS
        finally:
            self._asked = current.asked
        if self._asked and self._resumed:
            raise StateMismatchError(
                "the state is of a stream that was shared out sample by sample, or read by one worker, but this "
                "dataset calls get_worker_info() and shares itself out. Use as many workers as saved the state."
            )
        if self._asked:
            raise ShardingError(
                "the dataset called get_worker_info() after its first sample, when the loader had begun to share its "
                "samples out among the workers: both together would lose samples. Call it at the start of __iter__, or "
                "pass shard='none'."
            )
        if item is None:
            raise StopIteration
        position, sample = item
        return position, sample if self._is_ours(position) else OTHERS

    def _is_ours(self, position: int) -> bool:
        place = self._places.get(position) if position < self._tail else position - self._tail + len(self._left)
        return place is not None and place % self._workers == self._worker

    def state_dict(self) -> State:
        state = {"strided": True, **self._stream.state_dict()}
        return state | {"left": self._left, "tail": self._tail} if self._tail else state


class _Asked(StreamIterator[tuple[int, Any]]):
    """A stream that shares itself out, whose first sample was read to find that out."""

    def __init__(self, stream: Numbered, first: list[Any]) -> None:
        self._stream = stream
        self._first = first

    def __next__(self) -> tuple[int, Any]:
        return _taken(self._first) if self._first else next(self._stream)

    def state_dict(self) -> State:
        return self._stream.state_dict()


def other_dataset(dataset: Any) -> StateMismatchError:
    """What to raise where a state cannot be this one's."""
    return StateMismatchError(f"the state is of another dataset than this {type(dataset).__name__}")


def is_chain(dataset: Any, workers: int) -> bool:
    """Whether so many workers share out the streams of a chain, each for itself, when those before it are through."""
    return type(dataset).__iter__ is ChainDataset.__iter__ and not _is_cut(dataset, workers)


def _is_cut(dataset: Any, workers: int) -> bool:
    """Whether each worker gets a shard that the stream itself cuts."""
    return callable(getattr(dataset, "shard", None)) and most_shares(dataset) >= workers


def shared_out(
    dataset: Any, share: Share, state: State | None, opened: Callable[[], None]
) -> tuple[StreamIterator[tuple[int, Any]], bool]:
    """The worker's share of a stream. `opened` is called between its opening and its first sample, if both are done
    here.

    A dataset that asks `get_worker_info()` before its first sample shares itself out, and is left alone. One with a
    method `shard(num_shards=, index=)` that does not is asked for its shard. Of any other, worker i takes samples i,
    i + n, …

    Returns:
        An iterator over (position in the stream that is read, sample or `OTHERS`), and whether that stream is the
        whole one, the same in each worker. An error of the stream's passes through, and the next sample may follow.
    """
    worker, workers, tell = share
    current.reading.on_part = asking.all_or_none() if workers > 1 else None
    if state is not None and state.get("strided"):
        return _Strided(Numbered(dataset, state), [], worker, workers, state), True
    if state is not None and "part" in state:
        raise other_dataset(dataset)
    if _is_cut(dataset, workers):
        current.reading.on_part = asking.in_a_shard if workers > 1 else None
        return Numbered(shard_of(dataset, workers, OfWorker(worker)), state), False
    current.asked = False
    stream = Numbered(dataset, state)
    if state is not None and not state.get("merged"):
        return stream, False  # it has shared itself out when the state was saved
    opened()
    first = _first_of(stream)
    if current.asked:
        return _Asked(stream, first), False
    if workers > 1:
        tell(_told(dataset, workers))
    return _Strided(stream, first, worker, workers, state), True


def _first_of(stream: Iterator[Any]) -> list[Any]:
    """The first sample, or what was raised instead, in a list; nothing of an empty stream."""
    try:
        return list(itertools.islice(stream, 1))
    except Exception as error:  # the sample's, and raised where it is asked for
        return [error]


def _taken(first: list[Any]) -> Any:
    item = first.pop()
    if isinstance(item, Exception):
        raise item
    return item


def read_again(dataset: Any, state: State | None) -> int:
    """How many samples have to be read again to come to where a worker's stream stands: it cannot say so itself."""
    if state is None or state.get("ended") or isinstance(dataset, Stream):
        return 0
    stream = state.get("stream")
    return int(state["position"]) if isinstance(stream, dict) and "seen" in stream else 0


def is_counted(state: Any, held: bool = False) -> bool:
    """Whether a stream that has to be read again is in this state, below others too; or, where samples are `held` by
    the one that reads it, will be."""
    if isinstance(state, list):
        return any(is_counted(inner, held) for inner in state)
    if not isinstance(state, dict):
        return False
    if "seen" in state:
        return held or bool(state["seen"])
    held = held or "again" in state
    if held and "source" not in state:  # at its start, of which nothing is known
        return True
    apart = ("own", "iterator", "again")  # as the user's say it, and what is held
    return any(is_counted(inner, held) for name, inner in state.items() if name not in apart)


def most_shares(dataset: Any) -> float:
    """How many workers a stream can be shared out among by its own method; with more, each reads the whole stream."""
    return float(getattr(dataset, "num_shards", math.inf)) if callable(getattr(dataset, "shard", None)) else math.inf


def _told(dataset: Any, workers: int) -> str:
    if 1 < (shares := most_shares(dataset)) < workers:
        return (
            f"{type(dataset).__name__} has {shares:.0f} shards, too few for {workers} workers, so each of them reads "
            f"all of it: worker i keeps samples i, i + {workers}, i + {2 * workers}, …. Cut the data into more "
            f"shards, or use num_workers={shares:.0f}; shard='none' turns this off."
        )
    return (
        f"{type(dataset).__name__} does not share its samples out among workers (it never calls get_worker_info()), so "
        f"each of the {workers} workers would have read all of it. The loader shares them out: worker i reads the "
        f"whole stream and keeps samples i, i + {workers}, i + {2 * workers}, …. To save that reading, give the "
        "dataset a method shard(num_shards, index), or let it read its share; shard='none' turns this off."
    )
