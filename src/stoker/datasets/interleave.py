"""Many streams read in turn, with a few of them open at once."""

from __future__ import annotations

import copy
import operator
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

from stoker._core.hashing import bits
from stoker.datasets.base import is_stream
from stoker.datasets.combining import NoDatasetError, checked, filled_shards_of, pass_epoch, positive
from stoker.datasets.shards import ShardProgress, share_of
from stoker.datasets.stream import State, Stream, StreamIterator, count, not_the_end
from stoker.datasets.worker_share import resume_and_report
from stoker.errors import StateError, StateFormatError, StateMismatchError

T_co = TypeVar("T_co", covariant=True)


class InterleaveDataset(Stream[T_co]):
    """A block of samples from each of the open streams in turn; the next stream replaces one that ends.

    The order depends on the arguments and the epoch alone. Each worker reads streams of its own (`shard`), of which it
    opens `open_at_once`.

    The state holds those of the open streams and one bit for each other stream. It can be loaded with any number of
    workers: the streams that were open are then opened first.

    Args:
        streams: datasets (streams, or datasets by index, read in their order), or functions that return one at its
            turn, such as `functools.partial(TextLineStream, path)`.
        open_at_once: the number of streams that are read in turn.
        block: the number of samples taken from a stream at each turn.
        seed: any integer; the order in which streams are opened depends on it and the epoch. None: in their given
            order.
        empty: "skip" passes over a stream without samples. The default is an error, because a file that was never
            filled looks the same.

    Raises:
        TypeError: an item of `streams` is neither a dataset nor a function, or a number is not an integer.
        ValueError: there are no streams, a number is less than 1, or a stream has no samples. An empty stream is
            reported at once if its length is known, else at its turn; iteration then continues with another stream.
    """

    def __init__(
        self,
        streams: Iterable[Any | Callable[[], Any]],
        open_at_once: int,
        block: int = 1,
        seed: int | None = None,
        empty: Literal["error", "skip"] = "error",
    ) -> None:
        self.streams = list(streams)
        self.open_at_once = positive(open_at_once, "open_at_once")
        self.block = positive(block, "block")
        self.seed = None if seed is None else operator.index(seed)
        self.empty = empty
        self.epoch = 0
        self._numbers = range(len(self.streams))
        if empty not in ("error", "skip"):
            raise ValueError(f"empty is {empty!r}, expected 'error' or 'skip'")
        if not self.streams:
            raise ValueError("InterleaveDataset needs at least one stream, and got none. Did a pattern match no file?")
        for number, stream in enumerate(self.streams):
            if not callable(stream) or _is_dataset(stream):
                stream = checked(stream, f"InterleaveDataset (streams[{number}])")
                if empty == "error" and not is_stream(stream) and not len(stream):
                    raise _without_samples(number, stream)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration, also for the streams it opens. A loaded state overrides it."""
        self.epoch = operator.index(epoch)

    @property
    def num_shards(self) -> int:
        """The number of streams."""
        return len(self._numbers)

    def shard(self, num_shards: int, index: int) -> InterleaveDataset[T_co]:
        """Returns the interleave of every `num_shards`-th stream, from stream `index` on.

        Raises:
            ValueError: there are fewer streams than shards, or `index` is not a shard.
        """
        part = copy.copy(self)
        part._numbers = share_of(self._numbers, num_shards, index)
        return part

    def _begin(self, state: State | None) -> StreamIterator[T_co]:
        return _Interleaved(self, ShardProgress(self._numbers, len(self.streams), state))


class _Interleaved(StreamIterator[T_co]):
    def __init__(self, dataset: InterleaveDataset[T_co], progress: ShardProgress) -> None:
        self._streams, self._block = dataset.streams, dataset.block
        self._skips_empty = dataset.empty == "skip"
        self._new: set[int] = set()  # opened at their start, no sample given yet
        self._progress = progress
        self._order = {name: getattr(dataset, name) for name in ("open_at_once", "block", "seed")}
        saved = progress.saved
        self._epoch = dataset.epoch if saved is None else count(saved, "epoch")
        if saved is not None and (order := {name: saved.get(name) for name in self._order}) != self._order:
            raise StateMismatchError(f"the state is of another order, {order}: here is {self._order}")
        if dataset.seed is not None:
            progress.waiting = deque(sorted(progress.waiting, key=bits(dataset.seed, self._epoch)))
        self._open: list[tuple[int, StreamIterator[T_co]]] = []
        self._failed: deque[tuple[int, State | None, Exception]] = deque()  # failed to open; error not raised yet
        while len(self._open) < dataset.open_at_once and (opened := self._next_stream()):
            self._open.append(opened)
        self._turn = count(saved, "turn") if progress.is_own else 0  # position in `_open` of the current stream
        self._given = count(saved, "given") if progress.is_own else 0  # samples of its block given so far
        if self._turn >= max(1, len(self._open) + len(self._failed)) or self._given >= self._block:
            raise StateFormatError(f"the state is damaged: turn {self._turn} of {len(self._open)} open streams")
        self._turn %= max(1, len(self._open))

    def __next__(self) -> T_co:
        while self._open or self._failed:
            if self._failed:
                number, _, error = self._failed.popleft()
                self._progress.finish(number)  # not tried again
                raise error
            number, stream = self._open[self._turn]
            try:
                sample = next(stream)
            except StopIteration:
                self._replace(number)
                if number in self._new and not self._skips_empty:
                    raise _without_samples(number, self._streams[number]) from None
                continue
            self._new.discard(number)
            self._given += 1
            if self._given == self._block:
                self._given, self._turn = 0, (self._turn + 1) % len(self._open)
            return sample
        raise StopIteration

    def state_dict(self) -> State:
        # in the order of their turns; more than `open_at_once` only if other workers began them
        begun = {number: stream.state_dict() for number, stream in self._open} | self._progress.begun
        begun |= {number: state for number, state, _ in self._failed if state is not None}
        own = {**self._order, "epoch": self._epoch, "turn": self._turn, "given": self._given}
        return self._progress.state(begun.items(), **own)

    def _replace(self, number: int) -> None:
        self._progress.finish(number)
        self._given = 0
        opened = self._next_stream()
        self._open[self._turn : self._turn + 1] = [opened] if opened else []
        self._turn %= max(1, len(self._open))

    def _next_stream(self) -> tuple[int, StreamIterator[T_co]] | None:
        begun, waiting = self._progress.begun, self._progress.waiting
        while begun or waiting:
            number = next(iter(begun)) if begun else waiting.popleft()
            state = begun.pop(number, None)
            try:
                opened = self._opened(number, state)
            except (StateError, NoDatasetError):  # not caused by the stream
                raise
            except Exception as error:
                raised = not_the_end(f"streams[{number}]") if isinstance(error, StopIteration) else error
                self._failed.append((number, state, raised))
                continue
            return number, opened
        return None

    def _opened(self, number: int, state: State | None) -> StreamIterator[T_co]:
        stream = self._streams[number]
        if not _is_dataset(stream):
            stream = checked(stream(), f"InterleaveDataset (from streams[{number}])")
        pass_epoch(stream, self._epoch)
        opened = resume_and_report(stream, state, "InterleaveDataset")
        if state is None and not (is_stream(stream) and filled_shards_of(stream) == 0):
            self._new.add(number)
        return opened


def _without_samples(number: int, stream: Any) -> ValueError:
    named = type(stream).__name__ if _is_dataset(stream) or is_stream(stream) else repr(stream)
    return ValueError(
        f"stream {number} of the interleave ({named:.100}) has no samples. Check its source of data, or pass "
        "empty='skip' if streams may be empty."
    )


def _is_dataset(stream: Any) -> bool:
    return hasattr(stream, "__getitem__") and not isinstance(stream, type)
