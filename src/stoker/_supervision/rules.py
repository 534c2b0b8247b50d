"""What the supervision of a loader's workers is told."""

from __future__ import annotations

from typing import Literal, NamedTuple

from stoker._supervision import restarts, stalls

StallAction = Literal["warn", "restart", "raise"]


class Rules(NamedTuple):
    """Limits, as the user gives them.

    Attributes:
        max_restarts: deaths in ten minutes that are survived.
        stall_warning: seconds from which on a unit is reported; None or 0 for never.
        stall_action: what is done about it.
        memory_budget: bytes that batches and the growth of the workers may take; None for what is there.
        max_samples_per_worker: from which on a worker is replaced; None for never.
        row_seconds: what a sample has cost the workers of the last epoch; None if nobody knows.
        growth: bytes by which each grew for a unit, likewise.
        mark_heap: whether a heap of many Python objects is marked immortal before workers are forked, where it can be.
        units_at_once: units that a worker holds at the least; from 2 on it makes samples of several at the same time.
        deaths: when those were that count already, by the clock that never goes back.
    """

    max_restarts: int = restarts.DEFAULT
    stall_warning: float | None = stalls.DEFAULT
    stall_action: StallAction = "warn"
    memory_budget: int | None = None
    max_samples_per_worker: int | None = None
    row_seconds: float | None = None
    growth: int | None = None
    mark_heap: bool = True
    units_at_once: int = 1
    deaths: tuple[float, ...] = ()
