"""A worker's share of a stream: cut by `shard`, or by the stream itself, which asks `get_worker_info()`.

Hugging Face's streams have `shard(num_shards=, index=)`, as Stoker's have, and divide themselves by
`get_worker_info()`: with both, samples would be lost. Only reading a stream shows which of the two it does.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from typing import Any

from stoker._core.worker_info import Questions, current
from stoker.datasets.base import is_stream
from stoker.datasets.declared import declared
from stoker.datasets.stream import Counted, State, Stream, StreamIterator, resume


class OfWorker(int):
    """The index of a shard that the loader cuts for a worker. Indices of shards for ranks, which workers divide
    further, are plain integers.
    """


class WorkerShare(Stream[Any]):
    """The whole stream if it calls `get_worker_info()` before its first sample, else its shard.

    Args:
        dataset: the stream. A copy of it is read, so that the test leaves no trace in it.
    """

    _in_step = True

    def __init__(self, dataset: Any, num_shards: int, index: int) -> None:
        self._whole = own_copy(dataset)
        self._part = dataset.shard(num_shards=num_shards, index=index)
        self._asks: bool | None = None

    def _begin(self, state: State | None) -> StreamIterator[Any]:
        if self._asks is None:
            on_read_again = current.reading.on_read_again
            current.asked = False
            first_read = _Begun(self._whole)
            self._asks, current.asked = current.asked, False  # handled here, hidden from the readers above
            if self._asks and state is None:
                return first_read
            current.reading.on_read_again = on_read_again
            current.resumed()  # random numbers drawn by the test belong to no sample
        return resume(self._whole if self._asks else self._part, state)


class DeclaredShard(Stream[Any]):
    """The shard of a stream whose class declares that its `shard` is meant for the loader.

    If the shard calls `get_worker_info()` nevertheless, the loader guesses that it does not divide itself further.
    """

    _in_step = True

    def __init__(self, dataset: Any, num_shards: int, index: int) -> None:
        self._part = dataset.shard(num_shards=num_shards, index=index)
        self._name = type(dataset).__name__
        self._declares = declared(dataset) is not None

    def _begin(self, state: State | None) -> StreamIterator[Any]:
        guess = current.reading.on_guess
        if guess is None or self._declares:
            return resume(self._part, state)
        return _ReportedShare(self._part, state, functools.partial(guess, self._name))


class _ReportedShare(StreamIterator[Any]):
    def __init__(self, dataset: Any, state: State | None, guess: Callable[[str], None]) -> None:
        self._guess: Callable[[str], None] | None = guess
        with current.ignoring_questions():  # handled here, hidden from the readers above
            current.asked = False
            self._stream = resume(dataset, state)
            self._report_if_asked()

    def __next__(self) -> Any:
        if self._guess is None:
            return next(self._stream)
        with current.ignoring_questions():
            current.asked = False
            try:
                return next(self._stream)
            finally:
                self._report_if_asked()
                self._guess = None

    def _report_if_asked(self) -> None:
        if current.asked and self._guess is not None:
            self._guess(current.question)
            self._guess = None

    def state_dict(self) -> State:
        return self._stream.state_dict()


class _Begun(StreamIterator[Any]):
    """A stream of which the first sample was read in advance, or the error that it raised."""

    def __init__(self, dataset: Any) -> None:
        self._stream: StreamIterator[Any] = Counted(iter(()), None)
        self._error: Exception | None = None
        self._first: list[Any] = []
        try:
            self._stream = resume(dataset, None)
            self._first = list(itertools.islice(self._stream, 1))
        except Exception as error:
            self._error = error

    def __next__(self) -> Any:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._first.pop() if self._first else next(self._stream)

    def state_dict(self) -> State:
        return {} if self._first or self._error is not None else self._stream.state_dict()


def own_copy(dataset: Any) -> Any:
    """Returns a copy of a stream for one thread, with its own position.

    The streams in it are copied, and the lists, dictionaries and sets that these hold. All else is shared: arrays,
    tensors, files, functions and other objects. An object with `state_dict` and `load_state_dict` is copied like a
    stream, except for a neural network.
    """
    return _copy(dataset, {})


def _copy(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    if id(value) in known:
        return known[id(value)][1]

    def is_now(copied: Any) -> Any:
        known[id(value)] = value, copied  # keeps the value alive, so that its id is not reused
        return copied

    kind = type(value)
    if kind is dict:
        copied = is_now({})
        copied.update((name, _copy(item, known)) for name, item in value.items())
    elif kind is list:
        copied = is_now([])
        copied.extend(_copy(item, known) for item in value)
    elif kind is tuple:
        copied = is_now(tuple(_copy(item, known) for item in value))
    elif kind is set:
        copied = is_now(set(value))
    elif is_stream(value) or _keeps_state(value):
        copied = is_now(copy.copy(value))
        own = {name: _copy(item, known) for name, item in getattr(copied, "__dict__", {}).items()}
        if own:  # a new dictionary: the __setstate__ of Hugging Face's streams reuses that of the original
            object.__setattr__(copied, "__dict__", own)
    else:
        copied = value
    return copied


def _keeps_state(value: Any) -> bool:
    kind = type(value)
    both = callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))
    return both and not hasattr(kind, "named_parameters")


def resume_and_report(dataset: Any, state: State | None, reader: str) -> StreamIterator[Any]:
    """Returns `resume(dataset, state)`, and reports to a loader that divides `reader` whether the dataset divides
    itself.

    Raises:
        ShardingError: a dataset divides itself but must not. Raised after its first sample, when this is known.
    """
    on_part = current.reading.on_part
    if on_part is None:
        return resume(dataset, state)
    if is_stream(dataset):
        return _ReportedStream(dataset, state, functools.partial(on_part, reader))
    on_part(reader, False)
    return resume(dataset, state)


class _ReportedStream(StreamIterator[Any]):
    """A stream that calls `get_worker_info()`, if at all, while being opened or giving its first sample."""

    def __init__(self, dataset: Any, state: State | None, report: Callable[[bool], None]) -> None:
        self._report = report
        self._resumed = bool(state)
        self._questions: Questions | None = Questions()
        with current.recording(self._questions):
            self._source = resume(dataset, state)

    def __next__(self) -> Any:
        if self._questions is None:
            return next(self._source)
        questions, self._questions = self._questions, None
        try:
            with current.recording(questions):
                return next(self._source)
        finally:
            if questions.asked or not self._resumed:  # a resumed stream may know its share from its state
                self._report(questions.asked)

    def state_dict(self) -> State:
        return self._source.state_dict()
