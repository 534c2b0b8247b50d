"""Samples that are fetched no faster than a server allows."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Any, TypeVar

from stoker._core.worker_info import current
from stoker.datasets.awaited import is_awaited, settled
from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.combining import OverStream, become_stream, checked, pass_epoch
from stoker.datasets.gather import Indices, describe, gather_from, layout_of
from stoker.datasets.stream import State, StreamIterator, resume

T_co = TypeVar("T_co", covariant=True)


class RateLimitDataset(Dataset[T_co]):
    """The samples of a dataset, at most `per_second` of them: for a server that allows no more requests.

    The limit is of one loader: each of its workers takes `per_second` divided by the number of workers, so that no
    worker waits for another. (If some workers have no work, the others do not take their share.) Each rank of a
    distributed job has its own loader: divide the limit by the number of ranks. Threads of one worker share its rate.
    With `num_workers="auto"` a worker may not know of all others, so give a number.

    Samples are evenly spaced; a pause is not made up for later. Samples that are fetched in one call (`__getitems__`,
    `gather`) count each: they come at once, and the next call waits for all of them.

    Over a stream, the result is a stream with the source's order, shards and state. Put a `RetryDataset` around this
    dataset, so that further attempts count too, and a `CacheDataset` around both, so that cached samples do not.

    Args:
        dataset: by index, or a stream.
        per_second: samples per second, above 0; may be less than 1.

    Raises:
        TypeError: `dataset` is not a dataset, `per_second` is no number, or a subclass of this class was given a
            stream.
        ValueError: `per_second` is not above 0.
    """

    stoker_protocol = True
    dataset: Any
    per_second: float

    def __init__(self, dataset: Any, per_second: float) -> None:
        if isinstance(per_second, bool) or not isinstance(per_second, (int, float)):
            raise TypeError(f"per_second is {per_second!r}, expected a number of samples")
        if not per_second > 0:
            raise ValueError(f"per_second is {per_second}, expected a number above 0")
        self.dataset = checked(dataset, "RateLimitDataset")
        self.per_second = float(per_second)
        self._clocks: dict[tuple[int, int], _RateClock] = {}  # by process and worker: a forked child makes its own
        if is_stream(dataset):
            become_stream(self, _RateLimitStream)

    def __len__(self) -> int:
        """Returns the source's length.

        Raises:
            TypeError: the source has no length.
        """
        return len(self.dataset)

    def __getitem__(self, index: Any) -> T_co:
        """Returns the source's sample at `index`, when it is due; negative if the source accepts that."""
        sample: T_co = self._when_due(1, lambda: self.dataset[index], is_awaited(self.dataset, False))
        return sample

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[T_co]]:
        """Returns a function that fetches several samples. Exists only if the source has `__getitems__`.

        Raises:
            AttributeError: the source has no `__getitems__`.
        """
        fetch = self.dataset.__getitems__

        def samples(indices: Sequence[Any]) -> list[T_co]:
            due: list[T_co] = self._when_due(len(indices), lambda: fetch(indices), is_awaited(self.dataset, True))
            return due

        return samples

    def gather_layout(self) -> Any:
        """Returns the source's layout, if it can gather."""
        return layout_of(self.dataset)

    def gather(self, indices: Indices, out: Any) -> Any:
        """Makes the source write the samples at these indices, when they are due."""
        self._wait(len(indices))
        return gather_from(self.dataset, indices, out)

    def describe(self, index: Any) -> Any:
        """Returns the source's description of its sample at `index`, if it offers `describe`; else None."""
        return describe(self.dataset, index)

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to the source if it offers `set_epoch`."""
        pass_epoch(self.dataset, epoch)

    def _when_due(self, samples: int, fetch: Callable[[], Any], awaited: bool) -> Any:
        """Returns `fetch()` when this worker may fetch the next samples; if they are awaited, a coroutine for it."""
        seconds = self._turn(samples)
        if awaited:
            return _later(seconds, fetch)
        if seconds > 0:
            sleep(seconds)
        return fetch()

    def _wait(self, samples: int) -> None:
        """Waits until this worker may fetch the next samples."""
        if (seconds := self._turn(samples)) > 0:
            sleep(seconds)

    def _turn(self, samples: int) -> float:
        """Takes the turn of this worker's next samples; returns the seconds until it begins."""
        worker, workers = current.one_of_several or (0, 1)
        place = os.getpid(), worker
        clock = self._clocks.get(place)
        if clock is None:
            clock = self._clocks.setdefault(place, _RateClock(monotonic() + worker / self.per_second))
        return clock.take(samples * workers / self.per_second)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_clocks": {}}


async def _later(seconds: float, fetch: Callable[[], Any]) -> Any:
    import asyncio  # only where there is an event loop: it takes long to import

    await asyncio.sleep(seconds)
    return await settled(fetch())


class _RateClock:
    """When the next sample of one worker is due, first at `due`. Thread safe."""

    def __init__(self, due: float) -> None:
        self._lock = threading.Lock()
        self._due = due

    def take(self, seconds: float) -> float:
        """Takes the next turn, which lasts that long; returns the time to wait until it begins."""
        with self._lock:
            now = monotonic()
            begin = max(now, self._due)
            self._due = begin + seconds
            return begin - now


class _RateLimitStream(RateLimitDataset[T_co], OverStream[T_co]):
    _in_step = True

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_clocks": {}, "_latest": None}

    def _begin(self, state: State | None) -> StreamIterator[T_co]:
        return _RateLimitIterator(resume(self.dataset, state), self._wait)


class _RateLimitIterator(StreamIterator[T_co]):
    def __init__(self, source: StreamIterator[T_co], wait: Callable[[int], None]) -> None:
        self._source = source
        self._wait = wait

    def __next__(self) -> T_co:
        self._wait(1)
        return next(self._source)

    def state_dict(self) -> State:
        return self._source.state_dict()
