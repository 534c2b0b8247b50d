"""Chooses a loader's number of workers from measurements taken in turns. Pure, no clock.

A turn is a run of batches made by one number of workers, 0 for the trainer itself. The measure is the training loop's
time for a batch, its own work included, because workers slow it down if CPUs are few. See `docs/design/10-auto.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stoker.loader._autotune.hint import WAITING_SHARE

NEAR = 0.010
"""Seconds: a slower batch is never tried in the trainer, because it would stop the training loop."""

CHEAP = 0.03
"""Seconds for a batch up to which every number is tried, because a wrong number costs more than the trial."""

UNUSED, GAINS = 0.5, 0.8
"""Share of the workers' CPU time, and factor: below that share, samples wait for something else, and more workers are
tried. They stay if a batch takes at most this factor of the time.
"""

TIE = 1.05
"""Ratio below which two numbers are equal: the smaller one is then taken, which costs less."""

HOPELESS = (3.0, 1.3)
"""Ratios by which the better turn of a number must be slower than the best of all to drop that number after one round,
and after two rounds.
"""

COLD, FASTER = 6, 0.8
"""Repetitions and speed-up: new workers, and their memory, are slow at first, so they are measured again, at
most this often, while they gain at least this much. This costs nothing, because slow batches need these workers.
"""

ROUNDS = 3
SECONDS, LARGEST, BURSTS = 0.03, 64, 3
"""Seconds or batches of a turn, but at least this many bursts; `FEWEST` if that takes `LONG`."""

CLOSE, LONGER, FINALS = 1.25, 4, 2
"""Ratio, factor and repetitions: numbers that differ by less after all rounds are measured again in longer turns. This
costs little, because none of them is slow.
"""

BURST, LONG, FEWEST = 16, 1.0, 4
"""Batches for which workers are woken at once, at most; the time is averaged over these."""


@dataclass(frozen=True)
class Choice:
    """The decision.

    Attributes:
        number: of workers; 0 for the trainer itself.
        most: largest number of workers that compute.
        seconds: the training loop's time for a batch, by number of workers.
        waiting: share of that time spent waiting, with the chosen number.
        not_near: the reason why the trainer could not be tried, as text.
    """

    number: int
    most: int
    seconds: Mapping[int, float]
    waiting: float
    not_near: str | None = None

    @property
    def text(self) -> str:
        """Returns the measurements as text."""
        each = ", ".join(
            f"{1e3 * seconds:.3g} ms with {number or 'none'}" for number, seconds in sorted(self.seconds.items())
        )
        left_out = "" if self.not_near is None else f" (not tried without workers: {self.not_near})"
        limit = f"of at most {self.most}"
        if self.number > self.most:
            limit = f"beyond {self.most} for as many CPUs, which had time left while samples waited"
        return f"{limit}, because the training loop took for each batch {each}{left_out}"


class Trial:
    """Measures numbers of workers by turns until one is best.

    All that the CPUs allow begin, until they are warm, so that slow samples lose nothing. If the training loop waits
    for slow batches, they stay. If it does not wait, half of them are tried, half of these and so on, until it
    would. If it waits and the CPUs do not compute, more are tried once. If batches are cheap, all halves and the
    trainer itself take turns.

    Args:
        most: workers that there are, one for each CPU.
        near: whether the trainer may make batches.
        ahead: batches ahead for each worker.
        beyond: returns the number of workers allowed instead of `most`, if these use little of their CPUs' time.

    Attributes:
        busy: returns the seconds of processor time that each worker has used; empty if unknown.
        workers: number of workers for the next batches.
        turn: number of the present turn.
        choice: the decision, or None.
    """

    def __init__(self, most: int, near: bool, ahead: int = 2, beyond: Callable[[int], int] = lambda most: most) -> None:
        self.busy: Callable[[], Mapping[int, float]] = dict
        self.most = most
        self._beyond = beyond
        self._there = most
        self._in_vain: dict[int, float] = {}  # seconds with more workers than the CPUs allow, without a gain
        self._used: float | None = None  # share of the CPUs' time, by all that the CPUs allow
        self.workers = most
        self.turn = 0
        self.choice: Choice | None = None
        self._near = near
        self._not_near: str | None = None
        self._ahead = ahead
        self._seconds: dict[int, list[float]] = {}
        self._waiting: dict[int, list[float]] = {}
        self._cold = COLD
        self._round = 1
        self._left: list[int] = []  # turns of this round that are to come
        self._restart()

    def _restart(self) -> None:
        self._own: list[float] = []
        self._waited: list[float] = []
        self._fill()
        self._watch()

    def _watch(self) -> None:
        self._elapsed, self._busy_before = 0.0, self.busy()

    def _fill(self) -> None:
        """Skips the first batches of a turn: those of the last turn, and those already made."""
        self._skip = max(FEWEST, self._ahead * self.workers) if self.workers else 1

    def interrupted(self) -> None:
        """Continues the present turn in the next epoch, once all batches are in progress again."""
        self.turn += 1
        self._fill()
        self._watch()

    def there_are(self, workers: int) -> None:
        """Records the workers beyond the CPUs that have started: some may never start."""
        self._there = max(self.most, min(workers, self.workers))

    def without_near(self, reason: str) -> None:
        """Rules out the trainer, in which the dataset raises."""
        self._near, self._not_near = False, reason
        self._left = [number for number in self._left if number]
        self._seconds.pop(0, None)
        if self.workers == 0:
            self._next()

    def delivered(self, turn: int, own: float, waited: float) -> None:
        """Records a delivered batch.

        Args:
            turn: in which it was requested.
            own: the training loop's own seconds since the previous batch.
            waited: seconds that it waited.
        """
        self._elapsed += own + waited
        if turn != self.turn or self.choice is not None:
            return
        if self._skip:
            self._skip -= 1
            if not self._skip:
                self._watch()
            return
        self._own.append(own)
        self._waited.append(waited)
        count, took = len(self._own), sum(self._own) + sum(self._waited)
        longer = LONGER if self._round > ROUNDS else 1
        enough = count >= BURSTS * self._burst and (took >= longer * SECONDS or count >= longer * LARGEST)
        if enough or (count >= max(FEWEST, self._burst) and took >= LONG):
            self._finish()

    @property
    def _burst(self) -> int:
        """Returns the number of batches that may come together."""
        return min(BURST, max(1, self._ahead * self.workers))

    def _finish(self) -> None:
        # Medians: between two batches a loop may also validate or save, and the machine may do something else
        own, burst = _median(self._own), self._burst
        bursts = [self._waited[k : k + burst] for k in range(0, len(self._waited) - burst + 1, burst)]
        waited = _median([sum(together) / burst for together in bursts])
        seconds, before = own + waited, self._seconds.get(self.most, [])[-1:]
        if self.workers == self.most:
            self._used = self._share_of_cpus()
        if self._cold and (not before or seconds < FASTER * before[0]):
            self._cold -= 1
            self._seconds = {self.most: [seconds]}
            return self._begin(self.most)
        if self._cold:
            self._cold, self._seconds = 0, {}
        number = self.workers
        if number > self.most and self._there == self.most:
            self._in_vain[number] = seconds
        else:
            number = min(number, self._there) if number > self.most else number
            self._seconds.setdefault(number, []).append(seconds)
            self._waiting.setdefault(number, []).append(waited / seconds if seconds else 0.0)
        return self._next()

    def _share_of_cpus(self) -> float | None:
        """Returns the share of their time that the workers spent computing in this turn."""
        before, now = self._busy_before, self.busy()
        if not now or now.keys() != before.keys() or not self._elapsed:
            return None  # one that took another's place has used less
        used = sum(now.values()) - sum(before.values())
        return used / (self._elapsed * self.most) if used >= 0 else None  # else threads of theirs have ended

    def _next(self) -> None:
        """Decides, or begins the next turn."""
        if self._round == 1:
            follows = self._untried()
            if follows is not None or self.choice is not None:
                return self._begin(follows)
        if not self._left:
            self._round += 1
            numbers = self._hopeful()
            if self._round > ROUNDS:
                numbers = self._within(CLOSE, numbers)
            if len(numbers) == 1 or self._round > ROUNDS + FINALS:
                return self._settle(min(self._within(TIE, numbers)))
            if self._round == ROUNDS + 1:
                self._seconds |= {number: [] for number in numbers}
            self._left = sorted(numbers, reverse=self._round % 2 == 1)
        return self._begin(self._left.pop(0))

    def _begin(self, number: int | None) -> None:
        if number is None:  # it is decided
            return
        self.workers = self._there = number
        self.turn += 1
        self._restart()

    def _untried(self) -> int | None:
        """Returns the next number to try for the first time; None if there is none, or the decision is made."""
        if 0 in self._seconds:
            return None
        took = {number: seconds[0] for number, seconds in self._seconds.items()}
        first, few = took[self.most], min(took)
        if first > NEAR and len(took) == 1 and not self._in_vain and (more := self._more()) > self.most:
            return more
        if (top := max(took)) > self.most:
            if took[top] <= GAINS * first:
                self._settle(self._enough(self.most, took, top))
                return None
            self._in_vain[top] = took.pop(top)
            del self._seconds[top]
        if first > CHEAP:
            if took[few] > TIE * first:
                self._settle(self._enough(few, took, self.most))
            elif few == 1 or self._waiting[few][0] >= WAITING_SHARE:
                self._settle(few)
            return None if self.choice is not None else few // 2
        if few > 1 and took[few] <= 1.5 * min(took.values()):
            return few // 2
        # The trainer does not take longer for a batch than all workers together
        cheap = min(number * seconds for number, seconds in took.items()) <= NEAR
        return 0 if self._near and cheap else None

    def _more(self) -> int:
        """Returns the number of workers for the free CPUs, if the present ones wait for something else."""
        if self._waiting[self.most][0] < WAITING_SHARE or self._used is None or self._used > UNUSED:
            return self.most
        return min(self._beyond(self.most), int(self.most / max(self._used, 0.01)))

    def _enough(self, few: int, took: Mapping[int, float], all_of_them: int) -> int:
        """Returns a sufficient number of workers above `few`, which were too few, from the measured times."""
        needed = math.ceil(1.1 * few * took[few] / took[all_of_them])
        return max(few + 1, min(needed, *(number for number in took if number > few)))

    def _hopeful(self) -> list[int]:
        """Returns the numbers that may be the best."""
        least = {number: min(seconds) for number, seconds in self._seconds.items()}
        limit = HOPELESS[min(self._round, ROUNDS) - 2] * min(least.values())
        return [number for number, seconds in least.items() if seconds <= limit]

    def _within(self, factor: float, numbers: list[int]) -> list[int]:
        """Returns those of the numbers that take at most `factor` times as long as the best."""
        seconds = {number: _median(self._seconds[number]) for number in numbers}
        return [number for number in seconds if seconds[number] <= factor * min(seconds.values())]

    def _settle(self, number: int) -> None:
        seconds = {tried: _median(took) for tried, took in self._seconds.items()} | self._in_vain
        nearest = self.most if number <= self.most else max(self._waiting)
        waiting = _median(self._waiting.get(number) or self._waiting[nearest])
        self.choice = Choice(number, self.most, seconds, waiting, self._not_near)
        self.workers = number


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))  # `statistics` would be loaded for this alone, and brings decimal numbers with it
