"""Decides what a worker's death proves, and how many deaths are survived: a pure policy, facts in, decisions out. No
clock, no I/O.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple

PERIOD = 600.0
"""Seconds over which deaths are counted. Rarer deaths cost a run of weeks nothing; a broken dataset causes its own
within seconds.
"""

DEFAULT = 5
"""Deaths in `PERIOD` that are survived: few, so that the error comes while its report is short."""

TOLD = 20
"""Deaths before the last one that the error describes."""

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
"""Seconds before a replacement, from the second death without a unit done in between. The pause then doubles, up to the
longest: the cause (a full memory, a file server that is away) may pass. The first replacement starts at once.
"""

KILLS = 3
"""Deaths of one unit at one place that prove the place guilty, by any signal: two may be chance."""

OWN_KILLS = 2
"""The same, for deaths that a process can only cause itself. One may be a flipped bit."""

OWN_SIGNALS = {
    -int(getattr(signal, name))
    for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")
    if hasattr(signal, name)
}
"""Exit codes of deaths that a process can only cause itself. Any other signal may come from outside: from the kernel
when memory runs out, from an operator, or from a request for a stack after its handler is gone.
"""


class Verdict(NamedTuple):
    """The consequence of a death.

    Attributes:
        pause: seconds to wait before the replacement; None if there is none, and the run ends.
        blamed: whether the place in the unit is proven guilty: the unit continues without it.
    """

    pause: float | None
    blamed: bool = False


class Restarts:
    """Counts deaths, and decides the consequence of each.

    Args:
        most: deaths in `PERIOD` that are survived; 0 for none.
        before: times of earlier deaths, counted elsewhere.
    """

    def __init__(self, most: int, before: Iterable[float] = ()) -> None:
        self._most = most
        self._deaths: deque[tuple[float, int | None]] = deque((when, None) for when in before)  # (when, the unit)
        self._kills: dict[int, list[tuple[int, bool]]] = {}  # unit → (place, whether the process caused it itself)
        self._on_trial: dict[int, float] = {}  # unit → time of the only death that it caused itself so far
        self._suspects: list[tuple[float, set[int]]] = []  # deaths of which one of several units may be guilty
        self._blamed: set[tuple[int, int]] = set()
        self._in_a_row = 0

    def died(self, unit: int | None, place: int | None, code: int | None, now: float) -> Verdict:
        """Records the death of a worker; returns its consequence.

        Args:
            unit: the unit in work; None if the worker was idle.
            place: place in the unit; equal numbers are equal places. A sample's, from 0, may be blamed again (another
                took its place), any other only once. None cannot be blamed.
            code: its exit code, negative for a signal; None if unknown.
            now: seconds of a monotonic clock.
        """
        if not self._most:
            return Verdict(None)
        self._in_a_row += 1
        if unit is not None and place is not None:
            if self._guilty(unit, place, code):
                self._blamed.add((unit, place))
                self.forgive(unit)
                return Verdict(0.0, blamed=True)
            if place >= 0 and self._kills[unit] == [(place, True)]:
                # Most likely the sample's fault, as a second death will prove: then the error policy handles it
                self._on_trial[unit] = now
                return Verdict(0.0)
            if unit in self._on_trial:
                self._deaths.append((self._on_trial.pop(unit), unit))
        self._deaths.append((now, unit))
        return self._goes_on(now)

    def _goes_on(self, now: float) -> Verdict:
        """Returns the pause before the replacement, or None if there were too many deaths."""
        self._deaths = deque(death for death in self._deaths if now - death[0] <= PERIOD)
        if len(self._deaths) > self._most:
            return Verdict(None)
        again = min(self._in_a_row - 2, 20)
        return Verdict(0.0 if again < 0 else min(LONGEST_PAUSE, FIRST_PAUSE * 2**again))

    def died_among(self, units: Collection[int], now: float) -> Verdict:
        """Records the death of a worker that worked on all these units at once. Each is made again sample by sample:
        then one is proven guilty and forgiven, or all are answered, and the death counts.
        """
        if not self._most:
            return Verdict(None)
        self._in_a_row += 1
        self._suspects.append((now, set(units)))
        return self._goes_on(now)

    def _guilty(self, unit: int, place: int, code: int | None) -> bool:
        kills = self._kills.setdefault(unit, [])
        kills.append((place, ends_itself(code)))
        if place < 0 and (unit, place) in self._blamed:
            return False
        here = [own for other, own in kills if other == place]
        return len(here) >= KILLS or here.count(True) >= OWN_KILLS

    def forgive(self, unit: int) -> None:
        """Removes the deaths of a unit whose guilty place is known: the error policy leaves the place out."""
        self._deaths = deque(death for death in self._deaths if death[1] != unit)
        self._kills.pop(unit, None)
        self._on_trial.pop(unit, None)
        self._suspects = [(when, units) for when, units in self._suspects if unit not in units]
        self._in_a_row = 0

    def answered(self, unit: int) -> None:
        """Records that the unit is done."""
        self._in_a_row = 0
        self._kills.pop(unit, None)
        if unit in self._on_trial:
            self._deaths.append((self._on_trial.pop(unit), unit))  # it was chance
        if self._suspects:
            for when, units in self._suspects:
                units.discard(unit)
                if not units:
                    self._deaths.append((when, unit))
            self._suspects = [(when, units) for when, units in self._suspects if units]
        if self._blamed:
            self._blamed = {(other, place) for other, place in self._blamed if other != unit}

    def recounted(self, times: Iterable[float]) -> None:
        """Replaces the counted deaths by those of another counter, which continued from these."""
        self._deaths = deque((when, None) for when in times)

    @property
    def times(self) -> tuple[float, ...]:
        """The times of the deaths that count at present."""
        return tuple(when for when, _ in self._deaths)


def ends_itself(code: int | None) -> bool:
    """Whether a process with this exit code caused its own end, rather than a signal from outside."""
    return code is not None and (code >= 0 or code in OWN_SIGNALS)
