"""The decisions of `Dispatch`, `SlotAllocator` and `WorkerMemory` as they are defined: each looks at all workers, units
and requests every time. Supervisors of thousands of workers keep sorted what is counted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from stoker._engine.commands import Facts
from stoker._engine.supervision.dispatch import Assignment, Dispatch
from stoker._engine.supervision.rules import Rules
from stoker._engine.supervision.slot_allocator import MUCH, SlotAllocator, WorkerMemory
from stoker._engine.supervisor import Supervisor
from stoker._engine.transport.arena import Arena


class DispatchByAll(Dispatch):
    """Asks every worker whether it takes the next run."""

    def hand_out(self, admits: Callable[[int, int], bool] | None = None) -> list[tuple[int, Assignment]]:
        self.agrees()
        out, is_full = [], False
        order: Iterable[int] = range(len(self._held))
        if admits is not None:
            order = sorted(order, key=self._waits_for)
        for depth in range(1, max(self._depth, self._at_once) + 1):
            for worker in order:
                assignments = self._held[worker]
                waiting = self._bound[worker] or self._free
                if worker in self.alive and waiting and len(assignments) < depth and assignments[:1] < [waiting[0]]:
                    if assignments and (assignments[0].is_part or self._is_to_be_shared(waiting[0])):
                        continue
                    if not assignments and admits is not None and (is_full or not admits(worker, waiting[0].unit)):
                        is_full = True
                        continue
                    run = self._taken(waiting)
                    assignments.append(run)
                    self.busy.add(worker)
                    self._list(worker)
                    out.append((worker, run))
        self.agrees()
        return out

    def agrees(self) -> None:
        """What is kept is what can be counted."""
        queues = (self._free, *self._bound, *self._held)
        assert self.outstanding == sorted({run.unit for queue in queues for run in queue})
        assert self.busy == {worker for worker, held in enumerate(self._held) if held}


class SlotsByAll(SlotAllocator):
    """Counts the earlier units without a slot."""

    def _earlier(self, unit: int) -> int:
        assert self._asks == sorted(self._asking.values())
        runs = [range(first, first + self._dispatch._lengths.get(first, 1)) for first in self._dispatch.outstanding]
        return sum(1 for run in runs for other in run if other < unit and other not in self._slots)

    def spoken_for(self, worker: int = -1) -> int:
        assert self._memory is not None
        others = [
            other for other in self._others(worker) if not self._memory.is_much or self._dispatch.assignments(other)
        ]
        return sum(map(self._memory.to_come, others))


class MemoryByAll(WorkerMemory):
    """Finds the worker that takes most."""

    def showed(self, worker: int, own: int) -> None:
        self._growth[worker] = max(0, own - self._at_first[worker])
        self.growth = max(self._growth.values(), default=self._known)
        self.is_much = self.growth is None or self.growth >= MUCH


def by_all(workers: int, rules: Rules, arena: Arena, facts: Facts, unpickles: bool) -> Supervisor:
    """Returns a supervisor whose parts look at all workers."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (DispatchByAll, SlotsByAll, MemoryByAll):
            patch.setattr(f"stoker._engine.supervisor.{kind.__mro__[1].__name__}", kind)
        return Supervisor(workers, rules, arena, facts, unpickles=unpickles)
