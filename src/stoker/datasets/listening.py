"""Listens to streams that others read: do they share themselves out among the workers, by `get_worker_info()`?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from stoker._worker_info import Questions, current
from stoker.datasets.base import is_stream
from stoker.datasets.stream import State, StreamIterator, resume


def listened(dataset: Any, state: State | None, reader: str) -> StreamIterator[Any]:
    """`resume` for what `reader`, a class, reads. A loader that shares it out among several workers is told who asks.

    Raises:
        ShardingError: one shares itself out that must not. This is known, and raised, behind its first sample.
    """
    on_part = current.reading.on_part
    if on_part is None:
        return resume(dataset, state)
    if is_stream(dataset):
        return _Listened(dataset, state, functools.partial(on_part, reader))
    on_part(reader, False)
    return resume(dataset, state)


class _Listened(StreamIterator[Any]):
    """A stream that asks, if it does, when it is opened or gives its first sample."""

    def __init__(self, dataset: Any, state: State | None, tell: Callable[[bool], None]) -> None:
        self._tell = tell
        self._resumed = bool(state)
        self._heard: Questions | None = Questions()
        with current.listening(self._heard):
            self._source = resume(dataset, state)

    def __next__(self) -> Any:
        if self._heard is None:
            return next(self._source)
        heard, self._heard = self._heard, None
        try:
            with current.listening(heard):
                return next(self._source)
        finally:
            if heard.asked or not self._resumed:  # its state may say what is its share
                self._tell(heard.asked)

    def state_dict(self) -> State:
        return self._source.state_dict()
