"""What follows from the death of a worker, and what units are known to do since: asked by whoever buries workers.

Beside `stoker._supervision`, which decides, this knows the words in which a unit's story is told to its next worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from stoker._engine.base import IDLE, SEVERAL, Known
from stoker._engine.process import fates
from stoker._supervision.restarts import Restarts, Verdict
from stoker._supervision.rules import Rules
from stoker._supervision.stalls import Stall, Stalls


class Death(NamedTuple):
    """How a worker died.

    Attributes:
        units: what it held, what it worked on first.
        mark: what it was doing.
        pid: its process.
        code: its exit code, negative for a signal; None where that is unknown.
        stack: its last Python stack, where it could be had.
        stall: for which it was ended, with its stack then; None if it was not.
    """

    units: Sequence[int]
    mark: int
    pid: int
    code: int | None
    stack: str = ""
    stall: tuple[Stall, str] | None = None


class Blame:
    """Finds out who is to blame, and tells those who make a unit again what it is known to do.

    Args:
        rules: how many deaths are survived, and how many units a worker holds.
        stalls: which units took too long.
    """

    def __init__(self, rules: Rules, stalls: Stalls) -> None:
        self._restarts = Restarts(rules.max_restarts, rules.deaths)
        self._stalls = stalls
        self._several = rules.units_at_once > 1  # samples of several units are made at a time
        self._known: dict[int, list[tuple[int, dict[str, Any]]]] = {}

    def known(self, unit: int) -> Known:
        """What the unit is known to do."""
        return self._known.get(unit, ())

    def answered(self, unit: int) -> None:
        """The unit is done."""
        self._restarts.answered(unit)
        self._stalls.answered(unit)
        self._known.pop(unit, None)

    @property
    def deaths(self) -> tuple[float, ...]:
        """When those deaths were that count at present."""
        return self._restarts.times

    def died(self, death: Death, now: float) -> Verdict:
        """A worker has died. A unit that is to blame is known from now on."""
        unit = death.units[0] if death.units else None
        if self._several and unit is not None and unit not in self._known:
            return self._doubt(death.units, now)
        place = None if death.mark == IDLE else death.mark
        if unit is None or death.stall is None or death.stall[0].unit != unit:
            verdict = self._restarts.died(unit, place, death.code, now)
            story = {"kind": "death", "message": fates.blamed(death.pid, death.code, death.mark), "stack": death.stack}
        elif self._stalls.ended(unit, place):
            stall, stack = death.stall
            self._restarts.forgive(unit)
            verdict = Verdict(0.0, blamed=True)
            story = {"kind": "stall", "message": fates.stalled(stall.seconds, death.mark), "stack": stack}
        else:
            return self._restarts.died(unit, None, death.code, now)  # it counts, and proves nothing yet
        if verdict.blamed and unit is not None:
            self._known.setdefault(unit, []).append((death.mark, story))
        return verdict

    def _doubt(self, units: Sequence[int], now: float) -> Verdict:
        """A worker that made several samples at once is gone: they are made one by one, by one who is told so."""
        for unit in units:
            self._known.setdefault(unit, []).append((SEVERAL, fates.doubted()))
            self._stalls.ended(unit, None)
        return self._restarts.died_among(list(units), now)
