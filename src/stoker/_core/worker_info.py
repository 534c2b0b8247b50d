"""The worker in which a dataset runs: `get_worker_info()`."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np


class RNG(Protocol):
    """Generators of one worker, seeded for each sample. The fields are those of torch's thread workers."""

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
        num_workers: number of workers of the loader. With `num_workers="auto"`, at least `id + 1`: the loader may add
            workers within the epoch, and some may be idle.
        seed: seed of this worker in this epoch.
        dataset: the worker's copy of the dataset.
        rng: generators seeded for each sample, in processes and threads. `stoker.sample_rng()` returns the same, and
            also works without workers.
        worker_method: `"multiprocessing"` or `"thread"`.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any
    rng: RNG | None = None
    worker_method: str | None = "multiprocessing"

    def __getattribute__(self, name: str) -> Any:
        if name in _IDENTIFYING or name in _NOT_IDENTIFYING:
            current.read(name)
        return super().__getattribute__(name)


_IDENTIFYING = frozenset({"id", "num_workers", "seed"})
"""Fields with which a stream can shard itself."""
_NOT_IDENTIFYING = frozenset({"rng", "worker_method"})
"""Fields that do not identify the worker: `rng` is seeded by the position of a sample."""


class Questions:
    """Whether the code in one worker has asked which worker it is in.

    Attributes:
        identity: whether it read a field that identifies the worker, or declares that it shards itself.
        called: whether it called `get_worker_info()`, and has read no field since.
        field: the first field read that identifies the worker; empty if none was read.
    """

    identity = called = False
    field = ""

    @property
    def asked(self) -> bool:
        """Whether the code has asked; a call counts until the field read next does not identify the worker."""
        return self.identity or self.called


class Reading:
    """Callbacks and facts of a loader that reads a stream in a worker. The streams below may be any code.

    Attributes:
        on_asked: called once, when the code asks which worker it is in.
        on_guess: called when a stream whose input the loader has split asks for its worker, with the stream's name and
            the field or call.
        on_idle: receives a text for the user, said once, if a stream has no part for this worker.
        on_resumed: called when a stream of the user has loaded its state, which may include that of global generators.
        on_part: called when one stream reads another while the loader divides them; receives the reader's name, and
            whether the inner stream called `get_worker_info()`.
        on_read_again: called, when a stream is resumed, before a sample is read again, with the number of samples up to
            the next. A stream that yields other samples than the stream below it must not pass the call on.
        on_read_from: called before a stream below others is read again, with the position at which it was read. A
            stream without a state is read again from its first sample on: the random numbers drawn there most likely
            determine its order.
        on_other_samples: called, with the number of samples read, if they differ when read again.
        position: returns the position of the sample being made.
        draws: returns whether samples of the stream have drawn random numbers.
        leaves_out: whether the loader continues after a failed sample, without raising its error.
        ignores_questions: whether the stream being read declares `shards_itself = False`: its questions do not count.
        keeps_own: whether a stream that was opened keeps a state of the user's.
    """

    on_asked: Callable[[], None] | None = None
    on_resumed: Callable[[], None] | None = None
    on_guess: Callable[[str, str], None] | None = None
    on_idle: Callable[[str], None] | None = None
    on_part: Callable[[str, bool], None] | None = None
    on_read_again: Callable[[int], None] | None = None
    on_read_from: Callable[[int], None] | None = None
    on_other_samples: Callable[[int], None] | None = None
    position: Callable[[], int] | None = None
    draws: Callable[[], bool] | None = None
    leaves_out = False
    ignores_questions = False
    keeps_own = False


class _Current(threading.local):
    """The worker of this thread, and whether the code in it has asked which worker it is in.

    Threads without a value of their own see the class attributes: so a worker process is the same worker in all threads
    that the user's code starts there.

    Attributes:
        info: of the worker. None in the trainer, also while a loader without workers fetches a sample there.
        rng: generators of the sample being fetched; with workers, those of `info`.
        reading: of the stream that the worker reads.
    """

    info: WorkerInfo | None = None
    rng: RNG | None = None
    reading: Reading
    _asking: Questions

    def __init__(self) -> None:
        if not hasattr(self, "_asking"):
            self._asking, self.reading = Questions(), Reading()

    def becomes(self, info: WorkerInfo) -> None:
        """Makes this thread, and no other, that worker."""
        self.info, self._asking, self.reading = info, Questions(), Reading()
        self.rng = vars(info)["rng"]

    def becomes_with_all_threads(self, info: WorkerInfo) -> None:
        """Makes this process that worker, including threads that the user's code starts."""
        self.becomes(info)
        type(self).info, type(self)._asking, type(self).reading = self.info, self._asking, self.reading
        type(self).rng = self.rng

    @property
    def is_worker_process(self) -> bool:
        """Whether this whole process is a worker, not a thread of the trainer's process."""
        return type(self).info is not None

    @property
    def asked(self) -> bool:
        """Whether the code in this thread has asked which worker it is in."""
        return self._asking.asked

    @asked.setter
    def asked(self, value: bool) -> None:
        self._asking.identity, self._asking.called, self._asking.field = value, False, ""

    @property
    def question(self) -> str:
        """The field read or call made by the code in this thread, as the end of a sentence."""
        field = self._asking.field
        return f"reads get_worker_info().{field}" if field else "calls get_worker_info()"

    @property
    def one_of_several(self) -> tuple[int, int] | None:
        """Number and count of the worker if it is one of several, also of torch's own. Does not count as asking."""
        number, count = 0, 1
        if self.info is not None:
            number, count = vars(self.info)["id"], vars(self.info)["num_workers"]
        elif (info := _info_of_torch()) is not None:
            number, count = info.id, info.num_workers
        return (number, count) if count > 1 else None

    @contextlib.contextmanager
    def recording(self, questions: Questions) -> Iterator[None]:
        """Records the questions asked in the context in `questions` as well as in the worker's own record."""
        asking = self._asking
        before = asking.identity, asking.called
        asking.identity, asking.called = questions.identity, questions.called
        try:
            yield
        finally:
            questions.identity, questions.called = asking.identity, asking.called
            asking.identity, asking.called = questions.identity or before[0], questions.called or before[1]

    @contextlib.contextmanager
    def ignoring_questions(self) -> Iterator[None]:
        """Ignores questions asked in the context."""
        asking, reading = self._asking, self.reading
        before = asking.identity, asking.called, asking.field
        ignored, on_asked = reading.ignores_questions, reading.on_asked
        reading.ignores_questions, reading.on_asked = True, None
        try:
            yield
        finally:
            asking.identity, asking.called, asking.field = before
            reading.ignores_questions, reading.on_asked = ignored, on_asked

    def call(self) -> None:
        """Records a call of `get_worker_info()`."""
        self._asking.called = True

    def resumed(self) -> None:
        """Reports that a stream of the user has loaded its state."""
        if self.reading.on_resumed is not None:
            self.reading.on_resumed()

    def begin_again(self) -> None:
        """Seeds the generators of the current sample as at its beginning: its function is called once more."""
        reading = self.reading
        if reading.on_resumed is None:
            again = getattr(self.rng, "again", None)
            if again is not None:
                again()
            return
        at = None if reading.position is None else reading.position()
        reading.on_resumed()
        if at is not None and reading.on_read_from is not None:
            reading.on_read_from(at)

    def read(self, field: str) -> None:
        """Records that a field of a `WorkerInfo` is read."""
        self._asking.called = False
        if field in _IDENTIFYING:
            self._asking.field = self._asking.field or field
            self.mark_asked()

    def mark_asked(self) -> None:
        """Records that the code asked which worker it is in, or declares that it shards itself."""
        self._asking.identity = True
        callback, self.reading.on_asked = self.reading.on_asked, None
        if callback is not None:
            callback()


current = _Current()


def get_worker_info() -> WorkerInfo | None:
    """Returns the calling worker's information; None in the training process. Works in torch's own workers too.

    Safe in any thread and process: threads started in a worker process get the information of that worker. As in torch,
    a loader with `num_workers=0` has no worker: while it fetches a sample, the result is None, or the information of
    the worker in which the loader itself runs. For random numbers with and without workers, use `stoker.sample_rng()`.
    """
    info = current.info if current.info is not None else _info_of_torch()
    if info is not None:  # None does not identify a worker
        current.call()
    return info


def _info_of_torch() -> WorkerInfo | None:
    """Returns the information in a worker of torch's loader, with which frameworks may replace Stoker's; else None."""
    function = function_of_torchs()
    own: WorkerInfo | None = None if function is None else function.__globals__["_worker_info"]
    return own


TORCHS = "torch.utils.data._utils.worker"
"""The module of torch's `get_worker_info`."""


def function_of_torchs() -> FunctionType | None:
    """Returns torch's own `get_worker_info`; None before torch is imported.

    `sys.modules` may hold a proxy in place of the module, with a separate namespace, and a test may have replaced the
    function: torch's is identified by its globals.
    """
    for name in (TORCHS, "torch.utils.data"):
        function = getattr(sys.modules.get(name), "get_worker_info", None)
        if isinstance(function, FunctionType) and "_worker_info" in function.__globals__:
            return function
    return None
