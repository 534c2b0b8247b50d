"""A mark with a clock: the times of a unit follow from what a worker writes into its mark anyway."""

from __future__ import annotations

from stoker._engine.activity import ACTIVITY, PLACE, Activity
from stoker._engine.timings import MOST_SAMPLES, StepSums, Stopwatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def stopwatch() -> tuple[Stopwatch, Clock, list[int]]:
    clock, mark = Clock(), [0, int(Activity.IDLE)]
    return Stopwatch(3, clock).over(mark), clock, mark


def steps(watch: Stopwatch, clock: Clock, *activities: tuple[Activity | int, float]) -> None:
    """Each activity, or the place of a sample, and its seconds."""
    for activity, seconds in activities:
        watch[ACTIVITY if isinstance(activity, Activity) else PLACE] = activity
        clock.now += seconds


def test_stopwatch_tells_the_phases_apart() -> None:
    watch, clock, mark = stopwatch()
    clock.now += 50  # idle before the unit
    steps(watch, clock, (Activity.START, 1), (0, 0), (Activity.SAMPLE, 2), (1, 3), (Activity.COLLATE, 4))
    assert mark == [1, Activity.COLLATE] and watch[ACTIVITY] == Activity.COLLATE
    steps(watch, clock, (Activity.WRITE, 5))
    times = watch.read()
    assert (times.worker, times.begun, times.fetch, times.collate, times.write, times.wait) == (3, 150, 6, 4, 5, 0)
    assert times.samples == (2, 3) and times.ended == clock.now


def test_stopwatch_begins_anew_with_each_unit() -> None:
    watch, clock, _ = stopwatch()
    steps(watch, clock, (Activity.START, 1), (0, 7), (Activity.COLLATE, 2), (Activity.IDLE, 9), (Activity.START, 1))
    steps(watch, clock, (0, 1), (Activity.WRITE, 3))
    assert watch.read()[2:7] == (2, 0, 3, 0, (1,))


def test_cpu_seconds_of_fetching_and_of_each_sample() -> None:
    cpu = Clock()
    watch = Stopwatch(3, Clock(), cpu).over([0, int(Activity.IDLE)])
    steps(watch, cpu, (Activity.START, 1), (4, 0), (Activity.SAMPLE, 2), (5, 3), (Activity.COLLATE, 4), (6, 5))
    times = watch.read()
    assert (times.cpu, times.sample_cpu[:2], times.first) == (6, (2, 3), 4)


def test_no_cpu_seconds_where_other_threads_make_the_samples() -> None:
    watch, clock, _ = stopwatch()
    steps(watch, clock, (Activity.START, 0), (0, 0), (Activity.SEVERAL, 5))
    assert watch.read().cpu is None


def test_steps_of_transforms_are_read_once() -> None:
    sums = [StepSums("0 Crop", 1, 0.5, 0.5)]

    def read() -> tuple[StepSums, ...]:
        found = (*sums,)
        sums.clear()
        return found

    watch = Stopwatch(0, Clock(), Clock(), read)
    watch[ACTIVITY] = Activity.START
    assert [step.name for step in watch.read().steps] == ["0 Crop"]
    watch[ACTIVITY] = Activity.START
    assert watch.read().steps == ()


def test_waiting_for_memory_is_not_work() -> None:
    watch, clock, _ = stopwatch()
    steps(watch, clock, (Activity.START, 0), (0, 5))
    watch.waited(4)
    steps(watch, clock, (Activity.COLLATE, 2))
    watch.waited(1)
    times = watch.read()
    assert (times.fetch, times.collate, times.wait, times.samples) == (1, 1, 5, (1,)) and times.ended == clock.now


def test_a_sample_that_is_tried_again_counts_with_all_tries() -> None:
    watch, clock, _ = stopwatch()
    steps(watch, clock, (Activity.START, 0), (0, 1), (1, 2), (0, 1), (1, 2), (Activity.POLICY, 3), (Activity.SAMPLE, 1))
    assert watch.read().samples == (2, 8)


def test_samples_made_together_have_no_times_of_their_own() -> None:
    for activity in (Activity.SEVERAL, Activity.WHOLE):
        watch, clock, _ = stopwatch()
        steps(watch, clock, (Activity.START, 0), (0, 0), (activity, 5), (Activity.SAMPLE, 0), (1, 0))
        assert watch.read()[2:7] == (5, 0, 0, 0, ())


def test_large_units_leave_out_the_times_of_samples() -> None:
    watch, clock, _ = stopwatch()
    steps(watch, clock, (Activity.START, 0), *((place, 1) for place in range(MOST_SAMPLES)))
    assert watch.read()[2:7] == (MOST_SAMPLES, 0, 0, 0, ())
