"""Samples that are fetched again when an error says that it may pass."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from time import sleep
from types import CoroutineType
from typing import Any, NamedTuple, TypeVar

from stoker._core.worker_info import current
from stoker.datasets.awaited import settled
from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.combining import OverStream, become_stream, checked, pass_epoch, positive
from stoker.datasets.gather import Indices, describe, gather_from, layout_of
from stoker.datasets.stream import State, StreamIterator, resume
from stoker.errors import FileChangedError, ImageError, ParquetFileError, ShardError, SkipSample

T_co = TypeVar("T_co", covariant=True)

Errors = type[Exception] | tuple[type[Exception], ...]

LASTING = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    FileChangedError,
    ImageError,
    ParquetFileError,
    ShardError,
)
"""Classes of `OSError` that another attempt does not change: missing, forbidden or damaged files."""


class RetryDataset(Dataset[T_co]):
    """The samples of a dataset, fetched again after an error that may pass: a network or a server that fails at times.

    Before each further attempt the dataset waits: `wait` seconds, then twice as long each time, up to `longest_wait`,
    each time shortened at random by up to a half so that workers do not return all at once. The attempts of a sample
    end after `attempts`, or when the next wait would make the sum exceed `total_wait`. The last error is then raised,
    with a note of the attempts, and goes to `on_error=` as any other.

    An attempt begins with the sample's own random numbers, so a sample is the same however often it failed, except
    below a `ShuffleDataset` or another stream that reads several samples at once, if those samples draw numbers.

    Over a stream, the result is a stream with the source's order, shards and state. After an error the source is opened
    anew at its position before the failed sample. Its state is therefore taken before each sample, and should be small.
    A stream without a state is read again from its start.

    `__getitems__` and `gather` are passed on, and tried again as a whole. A worker that waits makes no other sample
    meanwhile, and its batch may be reported as stalled (`stall_warning=`). Threads may share this dataset if they may
    share the source.

    Args:
        dataset: by index, or a stream.
        attempts: the number of attempts for each sample, at least 1.
        wait: seconds before the second attempt.
        retry_on: the class or classes of errors that may pass.
        never: subclasses of these that do not. By default: files that are missing, forbidden, changed or damaged.
        longest_wait: seconds of one wait, at most.
        total_wait: seconds of all waits for one sample, at most.

    Raises:
        TypeError: `dataset` is not a dataset, another argument has a wrong type, or a subclass of this class was given
            a stream.
        ValueError: `attempts` is less than 1, or a number of seconds is negative.
    """

    stoker_protocol = True
    dataset: Any

    def __init__(
        self,
        dataset: Any,
        attempts: int = 4,
        wait: float = 0.5,
        retry_on: Errors = (OSError,),
        *,
        never: Errors | tuple[()] = LASTING,
        longest_wait: float = 30.0,
        total_wait: float = 120.0,
    ) -> None:
        self.dataset = checked(dataset, "RetryDataset")
        self._policy = _RetryPolicy(
            positive(attempts, "attempts"),
            _seconds(wait, "wait"),
            _classes(retry_on, "retry_on"),
            _classes(never, "never"),
            _seconds(longest_wait, "longest_wait"),
            _seconds(total_wait, "total_wait"),
        )
        self.attempts, self.wait, self.retry_on, self.never, self.longest_wait, self.total_wait = self._policy
        if is_stream(dataset):
            become_stream(self, _RetryStream)

    def __len__(self) -> int:
        """Returns the source's length.

        Raises:
            TypeError: the source has no length.
        """
        return len(self.dataset)

    def __getitem__(self, index: Any) -> T_co:
        """Returns the source's sample at `index`; negative if the source accepts that."""
        sample: T_co = self._called(lambda: self.dataset[index])
        return sample

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[T_co]]:
        """Returns a function that fetches several samples. Exists only if the source has `__getitems__`.

        Raises:
            AttributeError: the source has no `__getitems__`.
        """
        fetch = self.dataset.__getitems__
        return lambda indices: self._called(lambda: fetch(indices))

    def _called(self, fetch: Callable[[], Any]) -> Any:
        sample = self._policy.called(fetch)
        return self._policy.awaited(sample, fetch) if type(sample) is CoroutineType else sample

    def gather_layout(self) -> Any:
        """Returns the source's layout, if it can gather."""
        return self._policy.called(lambda: layout_of(self.dataset))

    def gather(self, indices: Indices, out: Any) -> Any:
        """Makes the source write the samples at these indices."""
        return self._policy.called(lambda: gather_from(self.dataset, indices, out))

    def describe(self, index: Any) -> Any:
        """Returns the source's description of its sample at `index`, if it offers `describe`; else None."""
        return describe(self.dataset, index)

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to the source if it offers `set_epoch`."""
        pass_epoch(self.dataset, epoch)


class _RetryStream(RetryDataset[T_co], OverStream[T_co]):
    _in_step = True

    def _begin(self, state: State | None) -> StreamIterator[T_co]:
        on_read_again = current.reading.on_read_again

        def opened() -> StreamIterator[T_co]:
            current.reading.on_read_again = on_read_again
            return resume(self.dataset, state)

        return _RetryIterator(self.dataset, self._policy.called(opened), self._policy)


class _RetryIterator(StreamIterator[T_co]):
    def __init__(self, dataset: Any, source: StreamIterator[T_co], policy: _RetryPolicy) -> None:
        self._dataset = dataset
        self._source = source
        self._policy = policy

    def __next__(self) -> T_co:
        before = self._source.state_dict()

        def again() -> T_co:
            self._source = resume(self._dataset, before)
            current.begin_again()
            return next(self._source)

        sample: T_co = self._policy.called(lambda: next(self._source), again)
        return sample

    def state_dict(self) -> State:
        return self._source.state_dict()


class _RetryPolicy(NamedTuple):
    """When a call is made again. The fields are arguments of `RetryDataset`."""

    attempts: int
    wait: float
    retry_on: tuple[type[Exception], ...]
    never: tuple[type[Exception], ...]
    longest_wait: float
    total_wait: float

    def called(self, first: Callable[[], Any], again: Callable[[], Any] | None = None) -> Any:
        """Returns `first()` or, after an error that may pass, `again()`; without `again`, `first()` once more."""
        waited = 0.0
        for attempt in itertools.count(1):
            try:
                return first() if attempt == 1 or again is None else again()
            except self.retry_on as error:
                pause = self._pause_after(error, attempt, waited)
            sleep(pause)
            waited += pause
            current.begin_again()
        raise AssertionError

    async def awaited(self, sample: Any, again: Callable[[], Any]) -> Any:
        """Returns the sample of a coroutine or, after an error that may pass, of another one that `again()` returns."""
        import asyncio  # only where there is an event loop: it takes long to import

        waited = 0.0
        for attempt in itertools.count(1):
            try:
                return await settled(sample if attempt == 1 else again())
            except self.retry_on as error:
                pause = self._pause_after(error, attempt, waited)
            await asyncio.sleep(pause)
            waited += pause
            current.begin_again()
        raise AssertionError

    def _pause_after(self, error: Exception, attempt: int, waited: float) -> float:
        """Returns the seconds to wait after an error of an attempt; raises the error if there is no other attempt."""
        pause = self._pause(attempt)
        if isinstance(error, (StopIteration, SkipSample, *self.never)):
            raise error
        if attempt == self.attempts or waited + pause > self.total_wait:
            error.add_note(f"RetryDataset: attempt {attempt} of {self.attempts}, after {waited:.3g} s of waiting")
            raise error
        return pause

    def _pause(self, attempt: int) -> float:
        longest = min(self.wait * 2.0 ** min(attempt - 1, 64), self.longest_wait)
        return longest * (1 - random.SystemRandom().random() / 2)  # draws from no generator that a sample might use


def _seconds(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}, expected a number of seconds")
    if not value >= 0:
        raise ValueError(f"{name} is {value}, expected 0 or more seconds")
    return float(value)


def _classes(value: Any, name: str) -> tuple[type[Exception], ...]:
    classes = value if isinstance(value, tuple) else (value,)
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(f"{name} holds {kind!r}, expected classes of exceptions, as in (OSError, TimeoutError)")
    return classes
