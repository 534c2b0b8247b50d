"""A worker's share of a stream of somebody else's that has a `shard`: the loader calls that, and the stream may ask.

Hugging Face's streams have `shard(num_shards=, index=)` as ours have, and share themselves out by `get_worker_info()`:
cut by both, they would lose samples. Which of the two a stream does shows only when it is read.
"""

from __future__ import annotations

import itertools
from typing import Any

from stoker._worker_info import current
from stoker.datasets.copies import own_copy
from stoker.datasets.stream import Counted, State, Stream, StreamIterator, resume


class OfWorker(int):
    """The index of a shard that the loader cuts for a worker. A shard that is a rank's is for its workers to share."""


class WorkerShare(Stream[Any]):
    """All of a stream if it asks which worker it is in before its first sample, else its shard.

    Args:
        dataset: a copy of it is read, so that to find out leaves no trace there.
        num_shards: how many workers there are.
        index: number of this one.
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
            self._asks, current.asked = current.asked, False  # it is answered here: nobody above needs to know
            if self._asks and state is None:
                return begun
            current.reading.on_read_again = tell
            current.resumed()  # what was drawn to find out is no sample's
        return resume(self._whole if self._asks else self._part, state)


class _Begun(StreamIterator[Any]):
    """A stream whose first sample was read, or what that raised."""

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
