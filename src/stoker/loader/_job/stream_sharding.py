"""Shares out streams among workers if they do not share themselves out, so that no sample is read twice.

Every stream that a worker reads here is numbered, and has a position: see `stoker.datasets.stream`.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from stoker._core.protocol import offers
from stoker._core.worker_info import current
from stoker.datasets.chain import ChainDataset
from stoker.datasets.combining import shard_of, shards_of
from stoker.datasets.declared import declared_by_all, undeclared
from stoker.datasets.stream import State, Stream, StreamIterator, resume
from stoker.datasets.worker_share import OfWorker
from stoker.errors import ShardingError, StateMismatchError
from stoker.loader._job.stream_guesses import FirstSamples
from stoker.loader._random.find_generators import find_objects

OTHERS = object()
"""Stands in a worker's stream for a sample that another worker gives."""


class Share(NamedTuple):
    """The part of a stream that a worker gives.

    Attributes:
        worker: its number.
        workers: number of workers.
        tell: reports a text to the user once.
        guess: receives the possible cause of a stream sharing itself out, and the reason of the loader's guess.
        shares: receives the warning of a stream that the loader shares out, and the first samples of all of it.
    """

    worker: int
    workers: int
    tell: Callable[[str], None]
    guess: Callable[[str, str], None]
    shares: FirstSamples


class Numbered(StreamIterator[tuple[int, Any]]):
    """A stream that belongs to one worker alone: (position, sample). A sample that fails has a position as well.

    Attributes:
        position: of the next sample.
        stream: the samples.
    """

    def __init__(self, dataset: Any, state: State | None) -> None:
        self.position = 0 if state is None else state["position"]
        self.stream = resume(dataset, None if state is None else state["stream"])

    def __next__(self) -> tuple[int, Any]:
        self.position += 1
        try:
            return self.position - 1, next(self.stream)
        except StopIteration:
            self.position -= 1
            raise

    def state_dict(self) -> State:
        return {"position": self.position, "stream": self.stream.state_dict()}


class _Strided(StreamIterator[tuple[int, Any]]):
    """Every n-th sample of a stream that does not ask which worker it is in.

    After a resume with another number of workers some samples from its first on were given before: `left` holds the
    positions of those that were not, below `tail`, from where on none was. Every n-th of what is left is this worker's.

    Args:
        stream: all of it.
        first: its first sample, if it was read, or its error.
        share: the worker's.
        state: where it goes on.
        refuses_questions: whether to refuse a stream that asks which worker it is in. False if it declares that this
            means nothing.
        seen: receives the first samples of the stream, those of other workers too; or None.
    """

    def __init__(
        self,
        stream: Numbered,
        first: list[Any],
        share: Share,
        state: State | None,
        refuses_questions: bool,
        seen: FirstSamples | None = None,
    ) -> None:
        self._seen = seen
        self._stream = stream
        self._first = first
        self._worker, self._workers = share.worker, share.workers
        self._left: list[int] = [] if state is None else state.get("left", [])
        self._tail: int = 0 if state is None else state.get("tail", 0)
        self._resumed = state is not None
        self._refuses_questions = refuses_questions
        self._asked = refuses_questions and current.asked
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
            self._asked = self._refuses_questions and current.asked
        if self._asked and self._resumed:
            raise StateMismatchError(
                "the state is of a stream that was shared out sample by sample, or read by one worker, but this "
                "dataset calls get_worker_info() and shares itself out. Use as many workers as saved the state, or "
                "declare shards_itself = False where it does not share itself out."
            )
        if self._asked:
            raise ShardingError(
                "the dataset called get_worker_info() after its first sample, when the loader had begun to share its "
                "samples out among the workers: both together would lose samples. Call it at the start of __iter__; or "
                "declare the attribute shards_itself: False where it does not share itself out, True where it does."
            )
        if item is None:
            raise StopIteration
        position, sample = item
        if self._seen is not None:
            self._seen.take(sample)
            self._seen = None if self._seen.is_full else self._seen
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
    """Returns the error for a state that belongs to another dataset."""
    return StateMismatchError(f"the state is of another dataset than this {type(dataset).__name__}")


def is_chain(dataset: Any, workers: int) -> bool:
    """Returns whether the workers share out the streams of a chain, each stream after the one before it ends."""
    return type(dataset).__iter__ is ChainDataset.__iter__ and not _is_cut(dataset, workers)


def _is_cut(dataset: Any, workers: int) -> bool:
    """Returns whether each worker gets a shard from the stream's own `shard()`."""
    if declared_by_all(dataset) is True:
        return False
    return offers(dataset, "shard") and most_shares(dataset) >= workers


def shared_out(
    dataset: Any, share: Share, state: State | None, opened: Callable[[], None]
) -> tuple[StreamIterator[tuple[int, Any]], bool]:
    """The worker's share of a stream. `opened` is called between its opening and its first sample, if both are done
    here.

    A dataset that declares so by `shards_itself`, that holds a queue, or that asks `get_worker_info()` before its first
    sample, shares itself out, and is left alone. One that offers `shard(num_shards=, index=)` is asked for its shard.
    Of any other, worker i takes samples i, i + n, …

    Returns:
        An iterator over (position in the stream that is read, sample or `OTHERS`), and whether that stream is the
        whole one, the same in each worker. An error of the stream's passes through, and the next sample may follow.
    """
    worker, workers, tell, guess, shares = share
    declaration = declared_by_all(dataset)
    current.reading.on_part = all_or_none() if workers > 1 else None
    current.asked = False
    if state is not None and state.get("strided"):
        return _Strided(Numbered(dataset, state), [], share, state, refuses_questions=declaration is not False), True
    if state is not None and "part" in state:
        raise other_dataset(dataset)
    if _is_cut(dataset, workers) or (state is not None and state.get("cut")):
        current.reading.on_part = in_a_shard if workers > 1 else None
        current.reading.on_guess = (lambda *asked: tell(_cut_and_asked(*asked))) if workers > 1 else None
        current.reading.on_idle = tell
        return Numbered(shard_of(dataset, workers, OfWorker(worker)), state), False
    if workers > 1 and declaration is None and (source := shared_source(dataset)) is not None:
        guess(undeclared(dataset) or type(dataset).__name__, f"it holds {source}")
        if current.reading.on_asked is not None:
            current.reading.on_asked()
        return Numbered(dataset, state), False
    stream = Numbered(dataset, state)
    if state is not None and not state.get("merged"):
        return stream, False  # it has shared itself out when the state was saved
    opened()
    first = _first_of(stream)
    if current.asked and declaration is not False:
        if workers > 1 and (streams := undeclared(dataset)):
            guess(streams, f"it {current.question} before its first sample")
        return _Asked(stream, first), False
    seen = None
    if workers > 1 and declaration is None:
        seen = shares if shares.shared_out(warning := _sharing_warning(dataset, workers)) else None
        if seen is None:  # another part of a chain came before
            tell(warning)
    return _Strided(stream, first, share, state, refuses_questions=declaration is not False, seen=seen), True


def _first_of(stream: Iterator[Any]) -> list[Any]:
    """Returns a list of the first sample, or of its error; an empty list for an empty stream."""
    try:
        return list(itertools.islice(stream, 1))
    except Exception as error:  # the sample's error, raised when the sample is requested
        return [error]


def _taken(first: list[Any]) -> Any:
    item = first.pop()
    if isinstance(item, Exception):
        raise item
    return item


def read_again(dataset: Any, state: State | None) -> int:
    """Returns the number of samples to read again to reach a saved position of a stream without its own state."""
    if state is None or state.get("ended") or isinstance(dataset, Stream):
        return 0
    stream = state.get("stream")
    return int(state["position"]) if isinstance(stream, dict) and "seen" in stream else 0


def is_counted(state: Any, holds_samples: bool = False) -> bool:
    """Whether this state, or one below it, is of a stream that has to be read again; with `holds_samples`, whether one
    will be, because the stream that reads it holds samples.
    """
    if isinstance(state, list):
        return any(is_counted(inner, holds_samples) for inner in state)
    if not isinstance(state, dict):
        return False
    if "seen" in state:
        return holds_samples or bool(state["seen"])
    holds_samples = holds_samples or "again" in state
    if holds_samples and "source" not in state:  # at its start, of which nothing is known
        return True
    apart = ("own", "iterator", "again")  # states of the user's own, and held samples
    return any(is_counted(inner, holds_samples) for name, inner in state.items() if name not in apart)


def _cut_and_asked(stream: str, asked: str) -> str:
    return (
        f"{stream} has a method shard(), so each worker reads its shard; but it {asked} as well. The loader guesses "
        "that it does not share itself out by that too, which would lose samples. If it does, declare the attribute "
        "shards_itself = True, and shard() is not called; if not, declare shards_itself = False."
    )


def most_shares(dataset: Any) -> float:
    """Returns the number of workers that a stream's own method can serve; with more, each reads the whole stream."""
    if not offers(dataset, "shard"):
        return math.inf
    number = shards_of(dataset)
    return math.inf if number == sys.maxsize else number


def _sharing_warning(dataset: Any, workers: int) -> str:
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
        "dataset a method shard(num_shards, index) and the class attribute stoker_protocol = True, or let it read its "
        "share; shard='none' turns this off."
    )


# Checks of streams that share themselves out, by `get_worker_info()` (see `stoker.datasets.worker_share`) or by a queue
# that they hold.


OnPart = Callable[[str, bool], None]

_CLASSES = {
    "multiprocessing.queues": ("Queue", "SimpleQueue"),  # torch's are derived from these
    "multiprocessing.connection": ("_ConnectionBase",),
    "multiprocessing.managers": ("BaseProxy",),
}
_CLOSED = ("multiprocessing", "concurrent")
"""Packages whose pools, executors and managers hold queues of their own."""
_PROXIES = ("Queue", "JoinableQueue")
"""The class that a manager's proxy of a queue stands for."""


def in_a_shard(reader: str, asked: bool) -> None:
    """Raises if a stream of an interleave shares itself out. Each worker has whole streams there, not shards of them.

    Raises:
        ShardingError: it does.
    """
    if not asked:
        return
    _check_kept(reader)
    if reader == "InterleaveDataset":
        raise ShardingError(
            "the streams of an InterleaveDataset are shared out among the workers, each to one of them, but one of the "
            "streams calls get_worker_info() and shares itself out: the rest of it would be lost. Let it give all its "
            "samples; or pass shard='none', and each worker reads its share of all streams."
        )


def all_or_none() -> OnPart:
    """Returns a check for streams that must all share themselves out, or none of them.

    Raises:
        ShardingError: by the returned check: some share themselves out, and others do not.
    """
    known: set[bool] = set()

    def check(reader: str, asked: bool) -> None:
        if asked:
            _check_kept(reader)
        known.add(asked)
        if len(known) == 2:
            raise ShardingError(
                f"of the datasets that are read together, the last of them by {reader}, some call get_worker_info() "
                "and share themselves out among the workers, and the others do not: samples would be lost, or come "
                "once from each worker. Let none of them call it, and the loader shares out what they give together; "
                "or let all of them call it. One that calls it for another reason declares shards_itself = False."
            )

    return check


def _check_kept(reader: str) -> None:
    if reader == "CacheDataset":
        raise ShardingError(
            "CacheDataset was given a stream that calls get_worker_info() and shares itself out among the workers: "
            "each would keep its share as if that were the whole. Give the stream a method shard(num_shards, index) "
            "and the class attribute stoker_protocol = True instead, and each shard is kept for itself; or let it give "
            "all its samples, and the loader shares them out."
        )


def shared_source(dataset: Any) -> str | None:
    """Returns the name of a queue or connection of multiprocessing that a dataset holds; None if it holds none.

    Locks, events and values do not count: workers that share them give the same samples.
    """
    there = [(sys.modules.get(module), names) for module, names in _CLASSES.items()]
    kinds = tuple(getattr(module, name) for module, names in there if module is not None for name in names)
    for source in find_objects(dataset, kinds, _CLOSED) if kinds else ():
        name, token = type(source).__name__, getattr(source, "_token", None)
        if token is None:
            return f"a {name} of multiprocessing"
        if getattr(token, "typeid", None) in _PROXIES:
            return "a manager's queue"
    return None
