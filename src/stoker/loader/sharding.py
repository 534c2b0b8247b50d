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
from stoker.errors import ShardingError, StateFormatError, StateMismatchError
from stoker.loader import asking
from stoker.loader.generators import GLOBALS

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


def reshared(states: list[Any], workers: int) -> list[Any]:
    """States of streams, as they were saved by some number of workers, for another number of workers.

    Raises:
        StateMismatchError: they are of a dataset that shares itself out and does not name its shards, or has forgotten
            some.
        StateFormatError: they are no states of streams.
    """
    begun = _begun(states)
    if not begun:
        return [None] * workers
    if len(states) == workers:
        return states if _know_draws(begun) else [_as_begun(begun[0]) if state is None else state for state in states]
    merged = _merged(begun)
    if all(state["ended"] for state in begun) and len(begun) == len(states):
        return [{**(merged or {}), "ended": True}] * workers
    if merged is not None:
        return [merged] * workers
    if len(states) == 1:
        states = begun = [{**begun[0], "strided": True}]
    if any(state.get("strided") for state in begun):  # so will those that have not begun since states were put together
        states = [
            {**state, "strided": True} if state is not None and state.get("merged") else state for state in states
        ]
        begun = _begun(states)
    if all(state.get("strided") for state in begun):
        return [_strided_anew(states)] * workers
    raise StateMismatchError(
        f"the state has the streams of {len(states)} workers, and this loader has {workers}: a dataset that shares "
        f"itself out can be resumed only with as many workers as saved it. Use num_workers={len(states)}, or let its "
        "state name its shards (see the guide on resuming)."
    )


def together(states: list[Any]) -> list[Any]:
    """The streams of all ranks, as one worker of one rank would have left them.

    Raises:
        StateMismatchError: they do not name their shards, so nobody can know whose is what.
        StateFormatError: they are no states of streams.
    """
    begun = _begun(states)
    if not begun:
        return [None]
    merged = _merged(begun)
    if merged is None:
        raise StateMismatchError(
            "the streams of the ranks do not name their shards, so nobody can tell what another number of ranks has "
            "still to read: go on with as many ranks, each with its own state. Streams that are interleaved or made of "
            "text files name them where they have a shard for each worker, and yours may (see the guide on resuming)."
        )
    return [{**merged, "ended": len(begun) == len(states) and all(state["ended"] for state in begun)}]


def _begun(states: list[Any]) -> list[State]:
    """Those who have begun."""
    if not all(state is None or _is_state(state) for state in states):
        raise StateFormatError(f"the state is damaged: its streams are {str(states)[:200]}")
    return [state for state in states if state is not None]


def _is_state(state: Any) -> bool:
    if not isinstance(state, dict) or "ended" not in state:
        return False
    drawn = state.get("drawn", {})
    if not isinstance(drawn, dict) or not all(isinstance(position, int) for position in drawn.values()):
        return False
    known = "part" in state or isinstance(state.get("stream", 0), (dict, type(None)))
    return bool(state["ended"]) or (known and isinstance(state.get("position"), int))


def since(before: State | None, state: State) -> State:
    """A worker's state, with the shards that it names and has not read from since it began there: they may be another
    worker's, whose word on them then counts.

    Args:
        before: where the worker began; None for the start.
        state: where it stands now.
    """
    was, now = _shards(before or {})[0], _shards(state)[0]
    if state["ended"] and now == {} and state["position"] > (before["position"] if before else 0):
        return {**state, "forgot": True}
    if before is None or not was or not now:
        return state
    handed = was if before.get("merged") else before.get("unread", ())
    unread = [name for name in handed if name in now and now[name] == was.get(name)]
    return {**state, "unread": unread} if unread else state


def _merged(states: list[State]) -> State | None:
    """The shards that all workers name, in one state for each of them; None if they name none, or if each has read all
    of the stream and kept samples by stride: then a shard's place says nothing of what was kept.

    Positions go on behind all that came before: what is drawn for a sample then is not drawn again.
    """
    if any(state.get("strided") for state in states):
        return None
    states = sorted(states, key=lambda state: not state.get("merged"))  # what a worker has not begun yet is the oldest
    unread: dict[str, Any] = {}
    read: dict[str, Any] = {}
    wrap = None
    for state in states:
        shards, wrap = _shards(state)
        if shards is None:
            return None
        if state.get("forgot"):
            raise StateMismatchError(
                "a worker's stream had come to its end, and its state no longer named the shards that it had read: "
                "with another number of workers they would be read again. Let the dataset name them until its next "
                "iteration begins (see the guide on resuming), or use as many workers as saved the state."
            )
        old = shards if state.get("merged") else state.get("unread", ())
        for name, place in shards.items():
            (unread if name in old else read)[name] = place
    whole: State = {"shards": {**unread, **read}}
    position = max(state["position"] for state in states)
    drawn: dict[str, int] = {}
    for whose, first in (item for state in states for item in drawn_in(state).items()):
        drawn[whose] = min(first, drawn.get(whose, first))
    return {
        **{"ended": False, "merged": True, "position": position, "drawn": drawn},
        "stream": whole if wrap is None else {wrap: whole},
    }


def _shards(state: State) -> tuple[dict[str, Any] | None, str | None]:
    """The shards that a worker's state names, None if it names none; and under which name they are kept there."""
    stream = state.get("stream") or {}
    kept_by = [name for name in ("own", "iterator") if name in stream]
    wrap = kept_by[0] if kept_by and len(kept_by) == len(stream) else None
    named = stream if wrap is None else stream[wrap]
    if not isinstance(named, dict) or named.keys() != {"shards"} or not isinstance(named["shards"], dict):
        return None, wrap
    return named["shards"], wrap


def _strided_anew(states: list[Any]) -> State:
    """Where any number of workers can go on with a stream that was shared out by stride."""
    unread = [0 if state is None else math.inf if state["ended"] else state["position"] for state in states]
    some = next(state for state in states if state is not None)
    left, tail = some.get("left", []), some.get("tail", 0)
    new_tail = max(tail, *(state["position"] for state in states if state is not None))
    places = itertools.chain(enumerate(left), ((q - tail + len(left), q) for q in range(tail, new_tail)))
    earliest = states[unread.index(min(unread))]
    return {
        **((_as_begun(some) or {}) if earliest is None else earliest),
        **{"ended": False, "strided": True, "tail": new_tail},
        "left": [position for place, position in places if position >= unread[place % len(states)]],
    }


def _as_begun(other: State) -> State | None:
    """Where a worker has not begun, beside another that has: as one of its version, if they read one stream."""
    if not other.get("strided"):
        return None
    start: State = {"position": 0, "stream": None, "ended": False, "strided": True}
    return {**start, "drawn": {}} if _know_draws([other]) else start


def _know_draws(states: list[State]) -> bool:
    """Whether they are of a version that says what was drawn from."""
    return all("drawn" in state or "position" not in state for state in states)


def drawn_in(state: State) -> dict[str, int]:
    """Whose global generators a stream has drawn from, and where first. In former versions, which do not say it, all
    were seeded for each sample."""
    return dict(state.get("drawn", dict.fromkeys(GLOBALS, -1)))


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
