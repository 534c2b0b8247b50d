"""Samples made by several threads of one worker process: `DataLoader(threads_per_worker=n)`.

The threads only call `dataset[index]`. The worker's own thread handles failed samples, collation and all the rest, and
takes the samples in their order: see `docs/design/09-threads.md`.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from stoker._core.protocol import asked
from stoker._core.worker_info import WorkerInfo, current
from stoker._engine.activity import ACTIVITY, PLACE, Activity
from stoker._engine.process import process_setup
from stoker.loader._job.work import Raised, Work, sample_of
from stoker.loader._random.generators import step
from stoker.loader._random.sample_rng import SampleRNG
from stoker.loader._random.sample_seeding import SampleSeeding, Seeding, key_of_samples
from stoker.loader._random.thread_generators import SharedGenerators

LOOKS = (0.001, 0.01, 0.1, 1.0)
"""Seconds of waiting after which it is looked again whether more units have arrived; the last again and again."""

Fetch = Callable[[Any], Any]


def units_at_once(threads: int, batch_sampler: Any) -> int:
    """Returns the number of units that a worker holds, so that no thread is idle: the one for which it waits, those
    that are made meanwhile, and one on its way. 1 for a single thread.

    Args:
        threads: of a worker.
        batch_sampler: the loader's; None where a unit is one sample.
    """
    if threads == 1:
        return 1
    size = 1 if batch_sampler is None else asked(batch_sampler, "batch_size")
    if not isinstance(size, int) or size < 1:
        size = threads  # unknown batch size: many units of large batches would need much memory
    return 2 + math.ceil(threads / size)


class Made:
    """The samples of one unit, which threads make in order as they become free."""

    def __init__(self, count: int) -> None:
        self._outcomes: list[Any] = [_MISSING] * count
        self._missing = count
        self._counting = threading.Lock()
        self._incomplete = threading.Lock()  # held until all is made
        if count:
            self._incomplete.acquire()

    def put(self, place: int, outcome: Any) -> None:
        """Stores an outcome, in the thread that made it."""
        self._outcomes[place] = outcome
        with self._counting:
            self._missing -= 1
            if not self._missing:
                self._incomplete.release()

    def wait(self, seconds: float = -1) -> bool:
        """Waits until all are made, or for the given seconds; returns whether all are made."""
        if not self._incomplete.acquire(timeout=seconds):
            return False
        self._incomplete.release()
        return True

    @property
    def first_missing(self) -> int:
        """Returns the place of the first sample not made."""
        return next((place for place, outcome in enumerate(self._outcomes) if outcome is _MISSING), 0)

    def sample(self, place: int) -> Any:
        """Returns a sample, or raises the dataset's error."""
        return sample_of(self._outcomes[place])

    def forget(self) -> None:
        """Drops samples that were taken: an exception refers to its frames, and through them to all samples."""
        self._outcomes = []


class Threads:
    """The threads of one worker. They begin with the first sample, and end with the process.

    Used by the worker's own thread only. A unit whose samples were begun ahead is always taken later.

    Args:
        count: number of threads.
        info: the worker's info for samples; each thread has an `rng` of its own.
        seeding: the loader's, or "worker" if `worker_init_fn` has seeded generators itself.
        mark: memory for the worker's current activity.
        begin_ahead: called when there is time to `begin` the next units.
        tell: reports a text to the user once.

    Attributes:
        seeds: for `MapSource`, which takes the samples: seeds the draws of replacements.
    """

    def __init__(
        self,
        count: int,
        info: WorkerInfo,
        seeding: Seeding,
        mark: Any,
        begin_ahead: Callable[[], object],
        tell: Callable[[str], object],
    ) -> None:
        self._count = count
        self._info = info
        self._mark = mark
        self._begin_ahead = begin_ahead
        self._tell = tell
        self._begun: dict[tuple[int, ...], Made] = {}
        self._queue: queue.SimpleQueue[tuple[Made, int, Fetch, int, int, Any]] = queue.SimpleQueue()
        self._running = 0
        sharers = ("threads of a worker", "threads_per_worker", count)
        self._shared = None if seeding == "worker" else SharedGenerators(info.dataset, info.seed, sharers)
        rng = info.rng
        assert isinstance(rng, SampleRNG)
        self.seeds = SampleSeeding("worker", dataset=None, rng=rng, mark=mark)

    def begin(self, work: Work, positions: range, indices: Sequence[Any], fetch: Fetch, *_: object) -> None:
        """Queues samples behind those begun before."""
        while self._running < self._count:
            threading.Thread(target=self._run, name=f"stoker-{self._info.id}-{self._running}", daemon=True).start()
            self._running += 1
        samples = self._begun[_name(work)] = Made(len(indices))
        key = key_of_samples(work.seed)
        for place, (position, index) in enumerate(zip(positions, indices, strict=True)):
            self._queue.put((samples, place, fetch, key, position, index))

    def made(self, work: Work, positions: range, indices: Sequence[Any], fetch: Fetch, *_: object) -> Made:
        """Returns the samples of a unit when they are made, and begins them if necessary."""
        self._mark[PLACE], self._mark[ACTIVITY] = 0, Activity.SEVERAL
        if self._shared is not None:
            self._shared.watch()
        if _name(work) not in self._begun:
            self.begin(work, positions, indices, fetch)
        samples = self._begun.pop(_name(work))
        for seconds in itertools.chain(LOOKS, itertools.repeat(LOOKS[-1])):
            self._begin_ahead()
            if samples.wait(seconds):
                break
            self._mark[PLACE] = samples.first_missing
        if self._shared is not None and (story := self._shared.story()) is not None:
            self._tell(story)
        return samples

    def rest(self) -> None:
        """Waits until no sample begun ahead is in progress."""
        if self._begun:
            self._mark[PLACE], self._mark[ACTIVITY] = 0, Activity.SEVERAL
            for samples in self._begun.values():
                samples.wait()

    def _run(self) -> None:
        """Runs a thread."""
        info, rng = self._info, SampleRNG(self._info.seed)
        current.info = WorkerInfo(info.id, info.num_workers, info.seed, info.dataset, rng, info.worker_method)
        current.rng = rng
        while True:
            samples, place, *sample = self._queue.get()
            samples.put(place, _outcome(rng, *sample))
            del samples, sample  # while it waits for the next


def _outcome(rng: SampleRNG, fetch: Fetch, key: int, position: int, index: Any) -> Any:
    """Returns a sample, or its error."""
    try:
        process_setup.one_thread()  # torch's setting is one of each thread that has used it
        rng.key, rng.find_position = key, lambda: position
        for stream in rng.streams:
            stream.seed(step(key, position))
        return fetch(index)
    except BaseException as error:  # also that a sample wants its worker to end
        return Raised(error)


_MISSING: Any = object()


def _name(work: Work) -> tuple[int, ...]:
    return work.run, work.batch, work.position
