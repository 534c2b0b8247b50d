"""The settings for the supervision of a loader's workers."""

from __future__ import annotations

from typing import Literal, NamedTuple

from stoker._core.machine import memory
from stoker._engine.supervision import restarts, stalls

StallAction = Literal["warn", "restart", "raise"]


class Rules(NamedTuple):
    """Limits, as the user gives them.

    Attributes:
        max_restarts: deaths in ten minutes that are survived.
        stall_warning: seconds after which a unit is reported; None or 0 for never.
        stall_action: reaction to a stall.
        memory_budget: bytes that batches and the growth of the workers may take; None for all that is available.
        max_samples_per_worker: number of samples after which a worker is replaced; None for never.
        row_seconds: cost of a sample in the last epoch, in seconds; None if unknown.
        growth: bytes by which each worker grew for a unit, likewise.
        dearer: comparisons in a row in which parts of units cost more than whole units (`SplitPolicy`), likewise.
        mark_heap: whether a heap of many Python objects is marked immortal before workers are forked, if possible.
        units_at_once: least number of units that a worker holds; from 2 on it makes samples of several at once.
        deaths: times of earlier deaths that count, in seconds of a monotonic clock.
    """

    max_restarts: int = restarts.DEFAULT
    stall_warning: float | None = stalls.DEFAULT
    stall_action: StallAction = "warn"
    memory_budget: int | None = None
    max_samples_per_worker: int | None = None
    row_seconds: float | None = None
    growth: int | None = None
    dearer: int = 0
    mark_heap: bool = True
    units_at_once: int = 1
    deaths: tuple[float, ...] = ()


SHARE_OF_MEMORY = 0.5
"""Share of the memory that is free at the start which batches in the user's hands may take before they are copied."""


def held_bytes(rules: Rules) -> int:
    """Returns the bytes of the arena that batches in the user's hands may take before they are copied out of it."""
    budget = rules.memory_budget
    return int(memory.available().bytes * SHARE_OF_MEMORY) if budget is None else budget // 4
