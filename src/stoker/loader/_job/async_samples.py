"""Samples that wait, several in flight in one thread: datasets with `async def __getitem__`.

The event loop runs while the worker waits for a sample, in its own thread. It takes the samples in their order, and
handles failed samples, collation and all the rest as ever: see `docs/design/39-async-samples.md`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import functools
import inspect
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from time import monotonic
from types import CodeType, FunctionType
from typing import Any

from stoker._core.worker_info import WorkerInfo
from stoker._engine.activity import ACTIVITY, DUTIES, PLACE, Activity, Mark
from stoker.errors import EventLoopError, SkipSample
from stoker.loader._job.work import Raised, Work, sample_of
from stoker.loader._random.sample_rng import RNG_OF_TASK, SampleRNG
from stoker.loader._random.sample_seeding import SampleSeeding, Seeding, key_of_batches, key_of_samples
from stoker.loader._random.thread_generators import Bystanders, SharedGenerators

LOOKS = (0.001, 0.01, 0.1)
"""Seconds of waiting after which the worker looks whether more units have arrived, or its peer has ended; the last
again and again."""

CANCELLED = 1.0
"""Seconds that samples have to end after they were cancelled."""

Fetch = Callable[[Any], Any]


class _OwnLoop:
    """An event loop of one thread. What samples keep, as a session, stays usable as long as the thread lives."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()  # of the policy that the program has set
        self.process = os.getpid()

    def close(self) -> None:
        """Closes the loop; in a forked child that would disturb the other's."""
        if self.process == os.getpid() and not self.loop.is_running():
            self.loop.close()

    __del__ = close


class _OfThread(threading.local):
    own: _OwnLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        if self.own is None or self.own.process != os.getpid() or self.own.loop.is_closed():
            _INHERITED.append(self.own)
            self.own = _OwnLoop()
        return self.own.loop

    def close(self) -> None:
        """Ends what is in flight in the loop of this thread, and closes it."""
        if self.own is not None and self.own.process == os.getpid():
            for awaiting in [each for each in _open if each.loop is self.own.loop]:
                awaiting.end()
            self.own.close()


_INHERITED: list[_OwnLoop | None] = []  # from the process that this one was forked from: kept open
_open: weakref.WeakSet[Awaiting] = weakref.WeakSet()
_of_thread = _OfThread()
atexit.register(_of_thread.close)


def check_no_loop_runs() -> None:
    """Raises EventLoopError where an event loop runs in this thread."""
    if asyncio._get_running_loop() is not None:
        raise EventLoopError(
            "this thread runs an event loop, as a notebook does, and the loader has to run one for the samples of its "
            "dataset, whose __getitem__ is awaited. Pass num_workers=1 or more: workers have loops of their own."
        )


class Awaiting:
    """Awaits one sample at a time: `concurrency=1`, and what is made one by one.

    Used by the worker's own thread only.

    Args:
        rng: the generators of the worker itself.
        mark: memory for the worker's current activity.
        own_process: whether the worker is a process.
        look: called from time to time during a wait.
    """

    def __init__(self, rng: SampleRNG, mark: Mark, own_process: bool, look: Callable[[], object]) -> None:
        self._rng = rng
        self._mark = mark
        self._own_process = own_process
        self._look = look
        self.loop = _of_thread.get()
        self._tasks: dict[asyncio.Task[Any], int] = {}  # with the number of samples that each awaits
        self._base = contextvars.copy_context()
        self._error: BaseException | None = None
        _open.add(self)

    def alone(self, fetch: Fetch) -> Fetch:
        """Returns a function that fetches one sample, and waits for it if it is awaited."""

        def fetched(index: Any) -> Any:
            sample = fetch(index)
            return self._settled(sample) if inspect.isawaitable(sample) else sample

        return fetched

    def _settled(self, sample: Any) -> Any:
        check_no_loop_runs()
        context = self._base.copy()
        context.run(RNG_OF_TASK.set, self._rng)
        task = self._task(_outcome(lambda _: sample, None), context)
        task.add_done_callback(self._stop)
        try:
            self._wait(task.done, lambda: task)
        except BaseException:
            self.end()
            raise
        return sample_of(task.result())

    def _task(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> asyncio.Task[Any]:
        task = self.loop.create_task(coroutine, context=context)
        self._tasks[task] = 0
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:  # no sample's: those are outcomes
            self._error = error
            self.loop.stop()

    def _stop(self, task: asyncio.Task[Any]) -> None:
        self.loop.stop()

    def _wait(self, is_done: Callable[[], bool], awaited: Callable[[], asyncio.Task[Any] | None]) -> None:
        """Runs the loop until `is_done`. The stack of the `awaited` task is part of the thread's after some time."""
        self._look()
        for seconds in itertools.chain(LOOKS, itertools.repeat(LOOKS[-1])):
            if is_done():
                return
            task = awaited() if seconds == LOOKS[-1] else None
            _below(() if task is None else tuple(_frames_of(task)), functools.partial(self._run, seconds))
            if self._error is not None:
                raise self._error
            self._look()

    def _run(self, seconds: float) -> None:
        timer = self.loop.call_later(seconds, self.loop.stop)
        try:
            self.loop.run_forever()
        finally:
            timer.cancel()

    def end(self) -> None:
        """Cancels what is in flight, and waits for its end."""
        if self._tasks:
            if self._own_process:
                self._mark[DUTIES] = 1  # its parent gives it more time to end
            tasks = tuple(self._tasks)
            for task in tasks:
                task.add_done_callback(self._stop)
            self._cancel(tasks, lambda: not self._tasks)
            self._error = None

    def _cancel(self, tasks: Sequence[asyncio.Task[Any]], have_ended: Callable[[], bool]) -> None:
        """Cancels tasks, and waits until they have ended; for one that goes on nonetheless, not longer than a time."""
        for task in tasks:
            task.cancel()
        until = monotonic() + CANCELLED
        while (now := monotonic()) < until and not have_ended():
            self._run(until - now)


class InFlight:
    """The samples of one unit, of which several are awaited at a time.

    Args:
        count: number of the samples.
        strict: whether the first error is that of the unit, so that the samples behind it are not needed.
    """

    def __init__(self, count: int, strict: bool) -> None:
        self._outcomes: list[Any] = [_MISSING] * count
        self._strict = strict
        self._failed: int | None = None  # the first place that has raised
        self.first_missing = 0
        self.tasks: dict[int, asyncio.Task[Any]] = {}

    def put(self, place: int, outcome: Any) -> None:
        """Stores an outcome, unless all were dropped: it was cancelled, and went on."""
        self.tasks.pop(place, None)
        if not self._outcomes:
            return
        self._outcomes[place] = outcome
        if self._strict and type(outcome) is Raised and not isinstance(outcome.error, SkipSample):
            self._failed = place if self._failed is None else min(place, self._failed)
        outcomes, missing = self._outcomes, self.first_missing
        while missing < len(outcomes) and outcomes[missing] is not _MISSING:
            missing += 1
        self.first_missing = missing

    @property
    def is_failed(self) -> bool:
        """Whether the unit fails by a sample before which none is missing."""
        return self._failed is not None and self._failed < self.first_missing

    @property
    def is_made(self) -> bool:
        """Whether nothing is missing that the unit needs."""
        return self.first_missing == len(self._outcomes) or self.is_failed

    def sample(self, place: int) -> Any:
        """Returns a sample, or raises the dataset's error."""
        return sample_of(self._outcomes[place])

    def forget(self) -> None:
        """Drops samples that were taken: an exception refers to its frames, and through them to all samples."""
        self._outcomes = []


class AsyncSamples(Awaiting):
    """Several samples in flight in one worker, across the bounds of its units. Used by the worker's own thread only.

    Args:
        count: number of samples in flight.
        info: the worker's info for samples.
        rng: the generators of the worker itself.
        seeding: the loader's, or "worker" if `worker_init_fn` has seeded generators itself.
        mark: memory for the worker's current activity.
        own_process: whether the worker is a process; its generators are its own then.
        has_peers: whether other threads draw from the same generators.
        begin_ahead: called when there is time to `begin` the next units.
        tell: reports a text to the user once.

    Attributes:
        seeds: for `MapFetcher`, which takes the samples: seeds the draws of replacements.
    """

    def __init__(
        self,
        count: int,
        info: WorkerInfo,
        rng: SampleRNG,
        seeding: Seeding,
        mark: Mark,
        own_process: bool,
        has_peers: bool,
        begin_ahead: Callable[[], object],
        tell: Callable[[str], object],
    ) -> None:
        super().__init__(rng, mark, own_process, begin_ahead)
        self._count = count
        self._tell = tell
        self._begun: dict[tuple[int, ...], InFlight] = {}
        self._queue: deque[tuple[InFlight, int, Fetch, int, int, Any, int]] = deque()
        self._awaited: InFlight | None = None
        shared, sharers = seeding != "worker", ("samples in flight", "concurrency", count)
        self._bystanders = Bystanders() if shared and has_peers else None
        own = shared and not has_peers
        self._shared = SharedGenerators(info.dataset, vars(info)["seed"], sharers, own_process) if own else None
        self.seeds = SampleSeeding("worker", dataset=None, rng=rng, mark=mark)

    def begin(
        self, work: Work, positions: range, indices: Sequence[Any], fetch: Fetch, strict: bool = False, size: int = 0
    ) -> None:
        """Queues samples behind those begun before.

        Args:
            work: their unit.
            positions: of the samples.
            indices: of the samples.
            fetch: returns a sample, or what is awaited for it.
            strict: whether the first error is the unit's.
            size: number of samples in each call of `fetch`, if it fetches whole batches.
        """
        samples = self._begun[_name(work)] = InFlight(len(indices), strict)
        key = key_of_batches(work.seed) if size else key_of_samples(work.seed)
        for place, (position, index) in enumerate(zip(positions, indices, strict=True)):
            self._queue.append((samples, place, fetch, key, position, index, size or 1))
        self._fill()

    def made(
        self, work: Work, positions: range, indices: Sequence[Any], fetch: Fetch, strict: bool = False, size: int = 0
    ) -> InFlight:
        """Returns the samples of a unit when they are made, and begins them if necessary."""
        self._mark[PLACE], self._mark[ACTIVITY] = 0, Activity.SEVERAL
        check_no_loop_runs()
        if self._shared is not None:
            self._shared.watch()
        if _name(work) not in self._begun:
            self.begin(work, positions, indices, fetch, strict, size)
        self._fill()
        samples = self._begun.pop(_name(work))
        if self._bystanders and not samples.is_made:  # else they have drawn while others were waited for
            with self._bystanders.watched():
                self._await(samples)
        else:
            self._await(samples)
        if self._shared is not None and (story := self._shared.story()) is not None:
            self._tell(story)
        return samples

    def rest(self) -> None:
        """Waits until no sample begun ahead is in progress."""
        for samples in tuple(self._begun.values()):
            self._mark[PLACE], self._mark[ACTIVITY] = 0, Activity.SEVERAL
            self._await(samples)

    def _await(self, samples: InFlight) -> None:
        def awaited() -> asyncio.Task[Any] | None:
            self._mark[PLACE] = samples.first_missing
            return samples.tasks.get(samples.first_missing)

        self._awaited = samples
        try:
            self._wait(lambda: samples.is_made, awaited)
            if samples.tasks:  # it has failed
                self._cancel(tuple(samples.tasks.values()), lambda: not samples.tasks)
                for task in samples.tasks.values():
                    self._tasks.pop(task, None)
        except BaseException:
            self.end()
            raise
        finally:
            self._awaited = None

    def end(self) -> None:
        """Cancels all samples in flight, and waits for their end. What was begun is begun again, if it is asked for."""
        self._queue.clear()
        self._begun.clear()
        super().end()
        self._tasks.clear()  # of those that go on nonetheless

    def _ended(self, task: asyncio.Task[Any]) -> None:
        super()._ended(task)
        if task.cancelled():  # between two samples
            self._fill()

    def _fill(self) -> None:
        for _ in range(min(self._count - len(self._tasks), len(self._queue))):
            self._task(self._lane(), self._base.copy())

    async def _lane(self) -> None:
        """Awaits one sample of the queue after another."""
        queue, tasks, task = self._queue, self._tasks, asyncio.current_task()
        assert task is not None
        while queue and task in tasks:  # else it was given up
            samples, place, fetch, key, position, index, size = queue[0]
            if size > 1 and (flying := sum(tasks.values())) > 0 and flying + size > self._count:
                break
            queue.popleft()
            if samples.is_failed:
                continue
            tasks[task], samples.tasks[place] = size, task
            RNG_OF_TASK.set(SampleRNG.of_sample(key, position))
            samples.put(place, await _outcome(fetch, index))
            if task in tasks:
                tasks[task] = 0
            while task.cancelling():
                task.uncancel()
            if samples is self._awaited and samples.is_made:
                self.loop.stop()
                await asyncio.sleep(0)
        self._tasks.pop(task, None)  # now, not when the loop runs again: another takes its place


async def _outcome(fetch: Fetch, index: Any) -> Any:
    """Returns a sample, or its error."""
    try:
        sample = fetch(index)
        while inspect.isawaitable(sample):
            sample = await sample
        return sample
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except asyncio.CancelledError as cancelled:
        error = RuntimeError(
            "the sample was cancelled (asyncio.CancelledError): by a task or a task group of its own, or because the "
            "loader did not need it any more."
        )
        error.__cause__ = cancelled
        return Raised(error)
    except BaseException as error:  # also that a sample wants its worker to end
        return Raised(error)


# The stack of a task is not that of a thread, which `faulthandler` writes when a worker stalls. So the thread waits
# below functions that have the names and places of the functions that await.


def _frames_of(task: asyncio.Task[Any]) -> Iterator[tuple[CodeType, int]]:
    """Yields the code and line of each function that awaits another in a task, the outermost first."""
    awaiting: Any = task.get_coro()
    while awaiting is not None:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(awaiting, f"{kind}_frame", None)
            if frame is not None:
                yield frame.f_code, frame.f_lineno
                awaiting = getattr(awaiting, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
                break
        else:
            return


def _below(frames: Sequence[tuple[CodeType, int]], call: Callable[[], None]) -> None:
    """Makes a call below functions that look like these on a stack."""
    for code, line in reversed(frames):
        named = _CALLS.replace(co_filename=code.co_filename, co_name=code.co_name, co_firstlineno=line)
        call = functools.partial(FunctionType(named, {}), call)
    call()


_CALLS = (lambda call: call()).__code__
_MISSING: Any = object()


def _name(work: Work) -> tuple[int, ...]:
    return work.run, work.batch, work.position
