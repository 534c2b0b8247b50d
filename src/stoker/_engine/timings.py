"""The times of a unit in its worker, and of its batch in the trainer. Off unless a profiler asks for them.

A worker writes each step of a unit into its mark already (`stoker._engine.activity`). A `Stopwatch` is a mark that also
reads the clock, so without one nothing is measured and nothing is asked.

Times are of `time.perf_counter()`, in seconds: a monotonic clock that all processes of a machine share, so the times of
trainer and workers make one timeline. CPU seconds are of `time.thread_time()`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, thread_time
from typing import NamedTuple

from stoker._engine.activity import ACTIVITY, PLACE, Activity, Mark

MOST_SAMPLES = 1024
"""Number of samples of a unit from which on their single times are left out: the report would grow with them."""


class StepSums(NamedTuple):
    """The times of one step of a chain of transforms.

    Attributes:
        name: of the step, with its place in the chain.
        calls: number of calls that ended.
        seconds: of all of them.
        longest: seconds of the longest one.
    """

    name: str
    calls: int
    seconds: float
    longest: float


StepReader = Callable[[], tuple[StepSums, ...]]
"""Returns the times of steps since its last call."""


class StackCount(NamedTuple):
    """How often a stack was seen.

    Attributes:
        stack: its functions, the outermost first, with ";" between them.
        times: how often.
    """

    stack: str
    times: int


StackReader = Callable[[], tuple[StackCount, ...]]
"""Returns the stacks that were seen since its last call."""


class UnitTimings(NamedTuple):
    """The times of a unit, or of some of its rows, in one worker. The phases follow each other, and do not overlap.

    Attributes:
        worker: number of the worker.
        begun: time at which the worker began the unit.
        fetch: seconds until the samples were there, with the start of the worker or its stream if the unit is its
            first. With Stoker's own collation it contains the copies of samples into the batch; where the dataset
            gathers a whole batch at once, all of it.
        collate: seconds of collation.
        write: seconds of handing the batch over: what lies elsewhere is copied into the slot.
        wait: seconds of waiting for memory, which are in none of the others.
        samples: seconds of each sample, in order; empty if threads make them, if the dataset gives them all at once, or
            from `MOST_SAMPLES` on.
        cpu: CPU seconds of the worker's thread during `fetch`; None if other threads make the samples.
        sample_cpu: CPU seconds of each sample by the worker's thread, beside `samples`.
        first: place in the unit of the first of `samples`; the others follow.
        steps: times of the steps of transforms since the unit before, if they are timed; threads begin samples of the
            next units too.
        stacks: that were seen since the unit before, if they are sampled.
    """

    worker: int
    begun: float
    fetch: float
    collate: float
    write: float
    wait: float
    samples: tuple[float, ...] = ()
    cpu: float | None = None
    sample_cpu: tuple[float, ...] = ()
    first: int = 0
    steps: tuple[StepSums, ...] = ()
    stacks: tuple[StackCount, ...] = ()

    @property
    def ended(self) -> float:
        """Returns the time at which the worker had made the unit."""
        return self.begun + self.fetch + self.collate + self.write + self.wait


class BatchTimings(NamedTuple):
    """The times of a delivered batch.

    Attributes:
        unit: number of the unit; counts over the epochs of an iterator.
        batch: number of the batch in its epoch.
        samples: number of its samples.
        kind: "batch", or "error" if its error was raised.
        asked: time at which the training loop asked for it.
        waited: seconds that the training loop waited.
        made: times in each worker that made some of it; empty if the workers were started without timings.
        indices: of the samples, or the one index without batching; None for a stream.
    """

    unit: int
    batch: int
    samples: int
    kind: str
    asked: float
    waited: float
    made: tuple[UnitTimings, ...]
    indices: object = None


TimingSink = Callable[[BatchTimings], None]
"""Called in the trainer after each batch, before the training loop has it."""

_FETCH, _COLLATE, _WRITE = range(3)

_PHASES = {Activity.COLLATE: _COLLATE, Activity.TRANSFORM: _COLLATE, Activity.WRITE: _WRITE}
"""The phase that begins with an activity; all others belong to fetching."""

_AT_ONCE = (Activity.SEVERAL, Activity.WHOLE)
"""Activities from which no time of a single sample follows."""


class Stopwatch:
    """A mark that measures the time between its changes. Used by one worker; other threads may write places.

    Args:
        worker: number of the worker.
        clock: returns seconds.
        cpu_clock: returns CPU seconds of this thread.
        steps: returns the times of the steps of transforms since its last call.
        stacks: returns the stacks that were seen since its last call.
    """

    def __init__(
        self,
        worker: int,
        clock: Callable[[], float] = perf_counter,
        cpu_clock: Callable[[], float] = thread_time,
        steps: StepReader = tuple,
        stacks: StackReader = tuple,
    ) -> None:
        self._worker = worker
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._steps, self._stacks = steps, stacks
        self._mark: Mark = [0, 0]
        self._begin(clock())

    def over(self, mark: Mark) -> Stopwatch:
        """Returns this stopwatch, writing into `mark` from now on."""
        self._mark = mark
        return self

    def __getitem__(self, index: int) -> int:
        return self._mark[index]

    def __setitem__(self, index: int, value: int) -> None:
        self._mark[index] = value
        now = self._clock()
        if index == PLACE:
            self._sample(value, now, self._phase == _FETCH)
        elif index == ACTIVITY:
            if value == Activity.START:
                self._begin(now)
                return
            if value in _AT_ONCE:
                self._is_alone = False
                self._by_others |= value == Activity.SEVERAL
            phase = _PHASES.get(Activity(value), _FETCH)
            if phase != self._phase:
                self._next(phase, now)

    def _begin(self, now: float) -> None:
        self._begun = self._since = now
        self._phase = _FETCH
        self._seconds = [0.0, 0.0, 0.0]
        self._wait = 0.0
        self._samples: dict[int, float] = {}
        self._sample_cpu: dict[int, float] = {}
        self._place: int | None = None  # of the sample being made
        self._place_since = now
        self._is_alone = True  # whether samples are made one by one
        self._by_others = False  # whether other threads make them
        self._cpu, self._cpu_since = 0.0, self._cpu_clock()  # of fetching, up to the last change

    def _next(self, phase: int, now: float) -> None:
        self._seconds[self._phase] += now - self._since
        was_fetching, self._phase, self._since = self._phase == _FETCH, phase, now
        self._sample(None, now, was_fetching)

    def _sample(self, place: int | None, now: float, was_fetching: bool) -> None:
        """Ends the sample being made, and begins the one at `place`. One that is made again counts with all tries."""
        cpu = self._cpu_clock()
        spent, self._cpu_since = cpu - self._cpu_since, cpu
        if was_fetching:
            self._cpu += spent
        if self._place is not None:
            self._samples[self._place] = self._samples.get(self._place, 0.0) + now - self._place_since
            self._sample_cpu[self._place] = self._sample_cpu.get(self._place, 0.0) + spent
        self._place, self._place_since = place, now

    def waited(self, seconds: float) -> None:
        """Counts the last seconds as waiting for memory, not as work."""
        self._wait += seconds
        self._since += seconds
        self._place_since += seconds

    def read(self) -> UnitTimings:
        """Returns the times of the unit in hand, which ends now."""
        self._next(self._phase, self._clock())
        places = sorted(self._samples) if self._is_alone and len(self._samples) < MOST_SAMPLES else []
        fetch, collate, write = self._seconds
        return UnitTimings(
            self._worker,
            self._begun,
            fetch,
            collate,
            write,
            self._wait,
            tuple(self._samples[place] for place in places),
            None if self._by_others else self._cpu,
            tuple(self._sample_cpu[place] for place in places),
            places[0] if places else 0,
            self._steps(),
            self._stacks(),
        )
