"""What a dataset can learn about the worker that it runs in: `get_worker_info()`."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np


class RNG(Protocol):
    """Generators of one worker, seeded for each sample. Fields are those of torch's thread workers."""

    @property
    def random_generator(self) -> random.Random:
        """A `random.Random`."""

    @property
    def torch_generator(self) -> Any:
        """A CPU `torch.Generator`, or None while torch is not imported."""

    @property
    def numpy_generator(self) -> np.random.Generator:
        """A `numpy.random.Generator`."""


@dataclass(frozen=True)
class WorkerInfo:
    """The worker that runs the caller.

    Attributes:
        id: number of the worker, from 0 to `num_workers - 1`.
        num_workers: how many workers the loader has (1 while a loader without workers fetches a sample). With
            `num_workers="auto"`, at least `id + 1`: there may come more within the epoch, and some may only wait.
        seed: seed of this worker in this epoch.
        dataset: the dataset as this worker holds it.
        rng: generators that are seeded for each sample, whatever the backend; the promise with threads.
        worker_method: `"multiprocessing"`, `"thread"` or `"serial"`.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any
    rng: RNG | None = None
    worker_method: str | None = "multiprocessing"

    def __getattribute__(self, name: str) -> Any:
        if name in _TELL_APART or name in _THE_SAME_FOR_ALL:
            current.read(name)
        return super().__getattribute__(name)


_TELL_APART = frozenset({"id", "num_workers", "seed"})
"""Fields by which a stream can share itself out."""
_THE_SAME_FOR_ALL = frozenset({"rng", "worker_method"})
"""Fields that say nothing about which worker it is: `rng` is seeded by the place of a sample."""


class Questions:
    """What the code in one worker has asked about it."""

    told = called = False

    @property
    def asked(self) -> bool:
        """Whether the caller may know which worker it is: a call counts until it is seen to want something else."""
        return self.told or self.called


class Reading:
    """What a loader that reads a stream in a worker wants to be told, and tells: those below may be anybody's.

    Attributes:
        on_told: called once, when a field is read that tells workers apart.
        on_resumed: called where a stream of the user's has loaded its state, which may be that of global generators as
            well.
        on_part: where the loader shares a stream out: called for a stream that another one reads, with who reads it,
            and whether it has asked which worker it is in.
        on_read_again: where a stream is resumed: called before a sample is read again, with how many there are from it
            to the next. Who gives other samples than the stream below is not to pass it on to that.
        on_read_from: called before one below others is read again, with the position at which it was read. A stream
            without a state is read again from its first sample's: what it drew there is its order, most likely.
        on_other_samples: called, with how many were read, where what is read again is not the same.
        position: gives the position of the sample that is made.
        draws: tells whether samples of the stream have drawn random numbers.
        leaves_out: whether the loader goes on behind a sample that fails, and says nothing of its end.
    """

    on_told: Callable[[], None] | None = None
    on_resumed: Callable[[], None] | None = None
    on_part: Callable[[str, bool], None] | None = None
    on_read_again: Callable[[int], None] | None = None
    on_read_from: Callable[[int], None] | None = None
    on_other_samples: Callable[[int], None] | None = None
    position: Callable[[], int] | None = None
    draws: Callable[[], bool] | None = None
    leaves_out = False


class _Current(threading.local):
    """The worker that this thread is, and whether whoever runs in it has asked which.

    A class attribute is what threads see that have no value of their own: by that a worker process is the same worker
    in all threads that the user's code starts there.

    Attributes:
        info: what it is told.
        reading: who reads a stream in it.
    """

    info: WorkerInfo | None = None
    reading: Reading
    _asking: Questions

    def __init__(self) -> None:
        if not hasattr(self, "_asking"):
            self._asking, self.reading = Questions(), Reading()

    def becomes(self, info: WorkerInfo) -> None:
        """This thread is that worker, and no other thread is."""
        self.info, self._asking, self.reading = info, Questions(), Reading()

    def becomes_with_all_threads(self, info: WorkerInfo) -> None:
        """This process is that worker, and so are threads that the user's code starts: they ask in its name."""
        self.becomes(info)
        type(self).info, type(self)._asking, type(self).reading = self.info, self._asking, self.reading

    @property
    def asked(self) -> bool:
        """Whether whoever runs here may know which worker it is."""
        return self._asking.asked

    @asked.setter
    def asked(self, value: bool) -> None:
        self._asking.told, self._asking.called = value, False

    @property
    def one_of_several(self) -> tuple[int, int] | None:
        """Number and count where this is one of several workers, torch's own too; to learn it is not to ask."""
        number, count = 0, 1
        if self.info is not None:
            number, count = vars(self.info)["id"], vars(self.info)["num_workers"]
        elif (info := _told_by_torch()) is not None:
            number, count = info.id, info.num_workers
        return (number, count) if count > 1 else None

    @contextlib.contextmanager
    def listening(self, heard: Questions) -> Iterator[None]:
        """Notes in `heard`, beside, what is asked meanwhile."""
        asking = self._asking
        before = asking.told, asking.called
        asking.told, asking.called = heard.told, heard.called
        try:
            yield
        finally:
            heard.told, heard.called = asking.told, asking.called
            asking.told, asking.called = heard.told or before[0], heard.called or before[1]

    def call(self) -> None:
        """`get_worker_info()` is called."""
        self._asking.called = True

    def resumed(self) -> None:
        """A stream of the user's has loaded its state."""
        if self.reading.on_resumed is not None:
            self.reading.on_resumed()

    def read(self, field: str) -> None:
        """A field of an answer is read."""
        self._asking.called = False
        if field in _TELL_APART:
            self._asking.told = True
            told, self.reading.on_told = self.reading.on_told, None
            if told is not None:
                told()


current = _Current()


def get_worker_info() -> WorkerInfo | None:
    """Returns what is known about the calling worker; None in the training process. Works in torch's own workers too.

    Safe in any thread and process: threads that a worker process starts are told of that worker. While a loader with
    `num_workers=0` fetches a sample, the answer is worker 0 of 1 with `worker_method="serial"`, so that
    `get_worker_info().rng` works on every backend; torch's own `get_worker_info()` stays None there, as today.
    """
    current.call()
    return current.info if current.info is not None else _told_by_torch()


def _told_by_torch() -> WorkerInfo | None:
    """In a worker of torch's own loader what that says: frameworks put theirs in the place of ours."""
    torchs: Any = sys.modules.get("torch.utils.data._utils.worker")
    own: WorkerInfo | None = getattr(torchs, "_worker_info", None)
    return own
