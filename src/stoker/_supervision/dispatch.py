"""Which worker does which unit: a pure state machine, facts in, decisions out. No clock, process or I/O.

States and functions are drawn in `docs/design/04-accounting.md`.
"""

from __future__ import annotations

from collections import deque

SLOW_UNIT = 0.005
"""Seconds a unit takes from which on a worker is handed one at a time: a second one would wait behind it for nothing,
while below it the round trip for the next unit would show."""


class Dispatch:
    """Units that are waiting, and those that each worker holds.

    A unit is bound to a worker or free to go to any; free units go out in order of their numbers.
    """

    def __init__(self, workers: int) -> None:
        self._held: list[list[int]] = [[] for _ in range(workers)]
        self._bound: list[deque[int]] = [deque() for _ in range(workers)]
        self._free: deque[int] = deque()
        self._worker_of: dict[int, int | None] = {}  # unit → the worker that it is bound to, until it is answered
        self._alive = [False] * workers
        self._depth = 1

    def joined(self, worker: int) -> None:
        """The worker can be handed units from now on."""
        self._alive[worker] = True

    def retires(self, worker: int) -> None:
        """The worker is handed no more units; what it holds it answers."""
        self._alive[worker] = False

    def submitted(self, unit: int, worker: int | None) -> None:
        """The trainer wants the unit done, by `worker` if it is bound to one."""
        self._worker_of[unit] = worker
        (self._free if worker is None else self._bound[worker]).append(unit)

    def hand_out(self) -> list[tuple[int, int]]:
        """(worker, unit) pairs to hand out now; they count as handed out. Least busy workers first."""
        out = []
        for depth in range(1, self._depth + 1):
            for worker, held in enumerate(self._held):
                waiting = self._bound[worker] or self._free
                # A worker is never given an earlier unit behind a later one, which may wait for it to have memory first
                if self._alive[worker] and waiting and len(held) < depth and held[:1] < [waiting[0]]:
                    unit = waiting.popleft()
                    held.append(unit)
                    out.append((worker, unit))
        return out

    def answered(self, worker: int, unit: int, seconds: float) -> None:
        """The worker has answered the unit, after working on it for so long."""
        self._held[worker].remove(unit)
        self._worker_of.pop(unit, None)
        self._depth = 1 if seconds > SLOW_UNIT else 2

    def died(self, worker: int) -> list[int]:
        """The worker is gone; returns the units it held, the one it worked on first."""
        self._alive[worker] = False
        lost, self._held[worker] = self._held[worker], []
        return lost

    def requeued(self, lost: list[int]) -> None:
        """What a dead worker held is to be done again, before all later units."""
        for unit in sorted(lost, reverse=True):
            worker = self._worker_of[unit]
            queue = self._free if worker is None else self._bound[worker]
            place = next((place for place, other in enumerate(queue) if other > unit), len(queue))
            queue.insert(place, unit)

    def dropped(self, before: int) -> list[int]:
        """Units below `before` are not wanted any more; returns those that nobody had begun."""
        gone = [unit for queue in (self._free, *self._bound) for unit in queue if unit < before]
        self._free = deque(unit for unit in self._free if unit >= before)
        self._bound = [deque(unit for unit in queue if unit >= before) for queue in self._bound]
        for unit in gone:
            del self._worker_of[unit]
        return gone

    @property
    def is_slow(self) -> bool:
        """Whether the latest unit took so long that what is done for each of them does not show."""
        return self._depth == 1

    def held(self, worker: int) -> list[int]:
        """The units that the worker holds, the one it works on first."""
        return self._held[worker]

    @property
    def outstanding(self) -> list[int]:
        """All units that are not answered, in ascending order."""
        waiting = [unit for queue in (self._free, *self._bound) for unit in queue]
        return sorted(waiting + [unit for held in self._held for unit in held])
