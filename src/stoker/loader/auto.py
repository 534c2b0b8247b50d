"""How many workers a loader is to have, from what was measured by turns: pure, facts in, decisions out. No clock.

A turn is a run of batches made by one number of workers, 0 for the trainer itself. What counts is how long the training
loop takes for a batch, its own work included, because workers slow that down where CPUs are few. See
`docs/design/10-auto.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

NEAR = 0.010
"""Seconds: a batch that may take longer is never tried in the trainer, whose loop would stand still for it."""

CHEAP = 0.03
"""Seconds for a batch up to which everything is tried, because the wrong number costs more than to find the right."""

WAITS = 0.2
"""Share of its time from which on the training loop is said to wait."""

UNUSED, GAINS = 0.5, 0.8
"""Where workers use less of their CPUs' time, their samples wait for something else, and more workers are tried. They
stay if a batch takes at most so many times as long."""

TIE = 1.05
"""Two numbers that differ by less are equal: then the smaller one is taken, which costs less."""

HOPELESS = (3.0, 1.3)
"""By how much the better turn of a number must be slower than the best of all, for it to be given up after one round,
after two rounds."""

COLD, FASTER = 6, 0.8
"""Workers are new at first, and so is their memory: they are measured again, at most so often, while they become so
much faster. It costs nothing, because they are those whom slow batches need."""

ROUNDS = 3
SECONDS, LARGEST, BURSTS = 0.03, 64, 3
"""A turn measures so many seconds, or so many batches, but at least so many bursts; `FEWEST` if that takes `LONG`."""

CLOSE, LONGER, FINALS = 1.25, 4, 2
"""Numbers that differ by less after all rounds are measured anew so often, in turns so many times as long. It costs
little, because none of them is slow."""

BURST, LONG, FEWEST = 16, 1.0, 4
"""Workers are woken for several batches at a time, up to so many: over these is averaged."""


@dataclass(frozen=True)
class Choice:
    """What was decided.

    Attributes:
        number: of workers; 0 for the trainer itself.
        most: how many there could be that compute.
        seconds: that the training loop takes for a batch, by numbers of workers.
        waiting: share of it that goes by waiting, with the number that was chosen.
        not_near: why the trainer itself could not be tried, in words.
    """

    number: int
    most: int
    seconds: Mapping[int, float]
    waiting: float
    not_near: str | None = None

    @property
    def text(self) -> str:
        """What was measured, for people."""
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

    All that the CPUs allow begin, until they are warm, so that slow samples lose nothing. Where the training loop waits
    for slow batches, they stay. Where it does not wait, half of them are tried, half of these and so on, until it
    would. Where it waits and the CPUs do not compute, more are tried once. Where batches are cheap, all halves and the
    trainer itself take turns.

    Args:
        most: workers that there are, one for each CPU.
        near: whether the trainer may make batches.
        ahead: batches ahead for each worker.
        beyond: says how many workers there may be instead of `most`, where these use little of their CPUs' time.

    Attributes:
        busy: says how many seconds of processor time each worker has used; nothing where nobody knows.
        workers: who makes the next batches.
        turn: number of the present turn.
        choice: what was decided, or None.
    """

    def __init__(self, most: int, near: bool, ahead: int = 2, beyond: Callable[[int], int] = lambda most: most) -> None:
        self.busy: Callable[[], Mapping[int, float]] = dict
        self.most = most
        self._beyond = beyond
        self._there = most
        self._in_vain: dict[int, float] = {}  # seconds with more than the CPUs allow, where they gained nothing
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
        """What comes first is no measure: the last turn's batches, and those that lay ready."""
        self._skip = max(FEWEST, self._ahead * self.workers) if self.workers else 1

    def interrupted(self) -> None:
        """An epoch has ended, or begins: the present turn goes on there, when all is under way again."""
        self.turn += 1
        self._fill()
        self._watch()

    def there_are(self, workers: int) -> None:
        """Of the workers beyond the CPUs so many have been started by now: some may never be."""
        self._there = max(self.most, min(workers, self.workers))

    def without_near(self, reason: str) -> None:
        """The trainer cannot make batches: the dataset raises there."""
        self._near, self._not_near = False, reason
        self._left = [number for number in self._left if number]
        self._seconds.pop(0, None)
        if self.workers == 0:
            self._next()

    def delivered(self, turn: int, own: float, waited: float) -> None:
        """A batch was delivered.

        Args:
            turn: in which it was asked for.
            own: seconds since the one before that the training loop spent itself.
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
        """Batches that may come together."""
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
        """How much of their time the workers have used in this turn."""
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
        """The number to try for the first time; None where that is all, or it is decided."""
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
            elif few == 1 or self._waiting[few][0] >= WAITS:
                self._settle(few)
            return None if self.choice is not None else few // 2
        if few > 1 and took[few] <= 1.5 * min(took.values()):
            return few // 2
        # The trainer does not take longer for a batch than all workers together
        cheap = min(number * seconds for number, seconds in took.items()) <= NEAR
        return 0 if self._near and cheap else None

    def _more(self) -> int:
        """Workers that the CPUs have room for, because those that there are wait for something else than CPUs."""
        if self._waiting[self.most][0] < WAITS or self._used is None or self._used > UNUSED:
            return self.most
        return min(self._beyond(self.most), int(self.most / max(self._used, 0.01)))

    def _enough(self, few: int, took: Mapping[int, float], all_of_them: int) -> int:
        """So many were too few, and kept up with `few` batches in the time that one takes."""
        needed = math.ceil(1.1 * few * took[few] / took[all_of_them])
        return max(few + 1, min(needed, *(number for number in took if number > few)))

    def _hopeful(self) -> list[int]:
        """Numbers that may be the best."""
        least = {number: min(seconds) for number, seconds in self._seconds.items()}
        limit = HOPELESS[min(self._round, ROUNDS) - 2] * min(least.values())
        return [number for number, seconds in least.items() if seconds <= limit]

    def _within(self, factor: float, numbers: list[int]) -> list[int]:
        """Those of them that take at most so many times as long as the best."""
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
