"""Decides the consequence of a worker's death, and keeps the known faults of units.

`stoker._engine.supervision` decides; this module adds the words that describe a unit's faults to its next worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stoker._engine.activity import IDLE, SEVERAL, Position
from stoker._engine.backend import KnownFault, KnownFaults
from stoker._engine.process.worker_events import DOUBTED, blamed, stalled
from stoker._engine.supervision.restarts import Restarts, Verdict
from stoker._engine.supervision.rules import Rules
from stoker._engine.supervision.stalls import Stall, Stalls


class WorkerDeath(NamedTuple):
    """The death of a worker.

    Attributes:
        units: units that it held, the one in work first.
        position: its activity and place.
        pid: its process.
        code: its exit code, negative for a signal; None if unknown.
        stack: its last Python stack, if it was available.
        stall: the stall for which it was ended, with its stack then; or None.
    """

    units: Sequence[int]
    position: Position
    pid: int
    code: int | None
    stack: str = ""
    stall: tuple[Stall, str] | None = None


class Blame:
    """Finds the cause of deaths, and gives the known faults of a unit to the workers that make it again.

    Args:
        rules: number of deaths that are survived, and of units that a worker holds.
        stalls: knows the units that took too long.
    """

    def __init__(self, rules: Rules, stalls: Stalls) -> None:
        self._restarts = Restarts(rules.max_restarts, rules.deaths)
        self._stalls = stalls
        self._several = rules.units_at_once > 1  # samples of several units are made at a time
        self._known: dict[int, list[KnownFault]] = {}

    def known(self, unit: int) -> KnownFaults:
        """Returns the known faults of the unit."""
        return self._known.get(unit, ())

    def answered(self, unit: int) -> None:
        """Forgets a unit that is done."""
        self._restarts.answered(unit)
        self._stalls.answered(unit)
        self._known.pop(unit, None)

    @property
    def deaths(self) -> tuple[float, ...]:
        """The times of the deaths that count at present."""
        return self._restarts.times

    def died(self, death: WorkerDeath, now: float) -> Verdict:
        """Records the death of a worker; returns its consequence. A fault of the unit is known from now on."""
        unit = death.units[0] if death.units else None
        if self._several and unit is not None and unit not in self._known:
            return self._doubt(death.units, now)
        place = None if death.position == IDLE else death.position.mark
        if unit is None or death.stall is None or death.stall[0].unit != unit:
            verdict = self._restarts.died(unit, place, death.code, now)
            message = blamed(death.pid, death.code, death.position)
            fault = KnownFault(death.position, "death", message, death.stack)
        elif self._stalls.ended(unit, place):
            stall, stack = death.stall
            self._restarts.forgive(unit)
            verdict = Verdict(0.0, blamed=True)
            fault = KnownFault(death.position, "stall", stalled(stall.seconds, death.position), stack)
        else:
            return self._restarts.died(unit, None, death.code, now)  # it counts, and proves nothing yet
        if verdict.blamed and unit is not None:
            self._known.setdefault(unit, []).append(fault)
        return verdict

    def _doubt(self, units: Sequence[int], now: float) -> Verdict:
        """Marks the units of a worker that made several samples at once: their next worker makes them one by one."""
        for unit in units:
            self._known.setdefault(unit, []).append(KnownFault(SEVERAL, "death", DOUBTED))
            self._stalls.ended(unit, None)
        return self._restarts.died_among(list(units), now)
