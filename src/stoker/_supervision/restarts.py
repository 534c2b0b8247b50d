"""Who is to blame for deaths, and how many are survived: a pure policy, facts in, decisions out. No clock, no I/O."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple

PERIOD = 600.0
"""Seconds over which deaths are counted. Rarer ones cost a run of weeks nothing; a broken dataset makes its own in
seconds."""

DEFAULT = 5
"""Deaths in `PERIOD` that are survived: a few, so that the story is told while it is short."""

TOLD = 20
"""Deaths before the last one of which the error tells."""

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
"""Seconds before the replacement of the second that dies without a unit done in between, which then double, up to this:
what kills (a full memory, a file server that is away) may pass. The first is replaced at once."""

KILLS = 3
"""Deaths of one unit at one place that prove the place guilty, by whatever signal: two may be chance."""

OWN_KILLS = 2
"""The same, by what only the process does to itself. One may be a bit that fell over."""

OWN_SIGNALS = {
    -int(getattr(signal, name))
    for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")
    if hasattr(signal, name)
}
"""Exit codes of workers that end by what only a process does to itself. Any other signal may come from outside: from
the kernel for want of memory, an operator, somebody who asks for a stack where the handler is gone."""


class Verdict(NamedTuple):
    """What follows from a death.

    Attributes:
        pause: seconds to wait before the replacement; None if there is to be none, and the run ends.
        blamed: whether the place in the unit is proven guilty: the unit goes on without it.
    """

    pause: float | None
    blamed: bool = False


class Restarts:
    """Counts deaths, and says what to do about each.

    Args:
        most: deaths in `PERIOD` that are survived; 0 for none.
        before: when there were others, whoever has counted them.
    """

    def __init__(self, most: int, before: Iterable[float] = ()) -> None:
        self._most = most
        self._deaths: deque[tuple[float, int | None]] = deque((when, None) for when in before)  # (when, the unit)
        self._kills: dict[int, list[tuple[int, bool]]] = {}  # unit → (place, whether by its own doing)
        self._on_trial: dict[int, float] = {}  # unit → when it ended a worker by its own doing, once so far
        self._suspects: list[tuple[float, set[int]]] = []  # deaths of which one of several units may be guilty
        self._blamed: set[tuple[int, int]] = set()
        self._in_a_row = 0

    def died(self, unit: int | None, place: int | None, code: int | None, now: float) -> Verdict:
        """Somebody died at `now` (seconds, of a clock that never goes back), working on `unit`, or idle (None).

        Args:
            unit: what it worked on.
            place: where in the unit; equal numbers are equal places. A sample's, from 0, may be blamed again (another
                took its place), any other only once. None can not be blamed.
            code: its exit code, negative for a signal; None where that is unknown.
            now: the time.
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
                # Most likely the sample's doing, as the next death will prove: then it is the error policy's
                self._on_trial[unit] = now
                return Verdict(0.0)
            if unit in self._on_trial:
                self._deaths.append((self._on_trial.pop(unit), unit))
        self._deaths.append((now, unit))
        return self._goes_on(now)

    def _goes_on(self, now: float) -> Verdict:
        """After which pause, unless these were too many."""
        self._deaths = deque(death for death in self._deaths if now - death[0] <= PERIOD)
        if len(self._deaths) > self._most:
            return Verdict(None)
        again = min(self._in_a_row - 2, 20)
        return Verdict(0.0 if again < 0 else min(LONGEST_PAUSE, FIRST_PAUSE * 2**again))

    def died_among(self, units: Collection[int], now: float) -> Verdict:
        """Somebody died who worked on all these units at once. Each is to be done again sample by sample: then one is
        proven guilty and forgiven, or all are answered, and the death counts."""
        if not self._most:
            return Verdict(None)
        self._in_a_row += 1
        self._suspects.append((now, set(units)))
        return self._goes_on(now)

    def _guilty(self, unit: int, place: int, code: int | None) -> bool:
        kills = self._kills.setdefault(unit, [])
        kills.append((place, code is not None and (code >= 0 or code in OWN_SIGNALS)))
        if place < 0 and (unit, place) in self._blamed:
            return False
        here = [own for other, own in kills if other == place]
        return len(here) >= KILLS or here.count(True) >= OWN_KILLS

    def forgive(self, unit: int) -> None:
        """What the unit does is known, and can be left out: its deaths are the error policy's."""
        self._deaths = deque(death for death in self._deaths if death[1] != unit)
        self._kills.pop(unit, None)
        self._on_trial.pop(unit, None)
        self._suspects = [(when, units) for when, units in self._suspects if unit not in units]
        self._in_a_row = 0

    def answered(self, unit: int) -> None:
        """The unit is done after all."""
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
        """Somebody else goes on counting, from what was counted here, and has come to these."""
        self._deaths = deque((when, None) for when in times)

    @property
    def times(self) -> tuple[float, ...]:
        """When those deaths were that count at present."""
        return tuple(when for when, _ in self._deaths)
