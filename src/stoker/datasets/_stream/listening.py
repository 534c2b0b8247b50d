"""Detects streams that divide themselves among workers by `get_worker_info()` while another dataset reads them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from stoker._core.worker_info import Questions, current
from stoker.datasets.base import is_stream
from stoker.datasets.stream import State, StreamIterator, resume


def listened(dataset: Any, state: State | None, reader: str) -> StreamIterator[Any]:
    """Returns `resume(dataset, state)`, and reports to a loader that divides `reader` whether the dataset divides
    itself.

    Raises:
        ShardingError: a dataset divides itself but must not. Raised after its first sample, when this is known.
    """
    on_part = current.reading.on_part
    if on_part is None:
        return resume(dataset, state)
    if is_stream(dataset):
        return _ListenedStream(dataset, state, functools.partial(on_part, reader))
    on_part(reader, False)
    return resume(dataset, state)


class _ListenedStream(StreamIterator[Any]):
    """A stream that calls `get_worker_info()`, if at all, while being opened or giving its first sample."""

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
            if heard.asked or not self._resumed:  # a resumed stream may know its share from its state
                self._tell(heard.asked)

    def state_dict(self) -> State:
        return self._source.state_dict()
