"""A worker's share of another library's stream, which has `shard` but may also divide itself by `get_worker_info()`.

Hugging Face's streams have `shard(num_shards=, index=)`, as Stoker's have, and divide themselves by
`get_worker_info()`: with both, samples would be lost. Only reading a stream shows which of the two it does.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from stoker._core.worker_info import current
from stoker.datasets._stream.copies import own_copy
from stoker.datasets._stream.declared import declared
from stoker.datasets.stream import Counted, State, Stream, StreamIterator, resume


class OfWorker(int):
    """The index of a shard that the loader cuts for a worker. Indices of shards for ranks, which workers divide
    further, are plain integers.
    """


class WorkerShare(Stream[Any]):
    """The whole stream if it calls `get_worker_info()` before its first sample, else its shard.

    Args:
        dataset: the stream. A copy of it is read, so that the test leaves no trace in it.
        num_shards: the number of workers.
        index: the number of this worker.
    """

    _in_step = True

    def __init__(self, dataset: Any, num_shards: int, index: int) -> None:
        self._whole = own_copy(dataset)
        self._part = dataset.shard(num_shards=num_shards, index=index)
        self._asks: bool | None = None

    def _begin(self, state: State | None) -> StreamIterator[Any]:
        if self._asks is None:
            tell = current.reading.on_read_again
            current.asked = False
            begun = _Begun(self._whole)
            self._asks, current.asked = current.asked, False  # handled here, hidden from the readers above
            if self._asks and state is None:
                return begun
            current.reading.on_read_again = tell
            current.resumed()  # random numbers drawn by the test belong to no sample
        return resume(self._whole if self._asks else self._part, state)


class DeclaredShard(Stream[Any]):
    """The shard of a stream whose class declares that its `shard` is meant for the loader.

    If the shard calls `get_worker_info()` nevertheless, the loader guesses that it does not divide itself further.

    Args:
        dataset: the stream.
        num_shards: the number of workers.
        index: the number of this worker.
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
        return _ListenedShare(self._part, state, functools.partial(guess, self._name))


class _ListenedShare(StreamIterator[Any]):
    def __init__(self, dataset: Any, state: State | None, guess: Callable[[str], None]) -> None:
        self._guess: Callable[[str], None] | None = guess
        with current.unheard():  # handled here, hidden from the readers above
            current.asked = False
            self._stream = resume(dataset, state)
            self._tell_if_asked()

    def __next__(self) -> Any:
        if self._guess is None:
            return next(self._stream)
        with current.unheard():
            current.asked = False
            try:
                return next(self._stream)
            finally:
                self._tell_if_asked()
                self._guess = None

    def _tell_if_asked(self) -> None:
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
