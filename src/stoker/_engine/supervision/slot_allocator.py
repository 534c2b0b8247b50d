"""Assigns slots of the arena to units, and estimates the memory that workers will still take for samples.

Runs in the process that owns the arena.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from stoker._engine.supervision.dispatch import Dispatch
from stoker._engine.transport.arena import Arena, Board, Slot
from stoker.errors import MemoryLimitError

_Ask = tuple[int, int, int]
"""Unit, worker, and bytes of the slot."""

LARGEST = 2**20
"""Bytes of the slots of a run that are given before its batches are made, unless it is one slot."""

SPARE_SLOTS = 3
"""Number of idle slots kept beyond the units under way: a training loop holds one batch while it asks for the next,
wrappers that look ahead hold two.
"""


class SlotAllocator:
    """Lends slots to units. If memory is short, an earlier unit is served before a later one.

    Args:
        arena: has the slots.
        dispatch: knows the units.
        board: receives the slots that the trainer has let go of; None if messages carry all of them.
        memory: knows the memory that the workers may still take for their samples; None if unknown.

    Attributes:
        starved_for: the unit for which the last `grant` found no memory, or None.
    """

    def __init__(
        self, arena: Arena, dispatch: Dispatch, board: Board | None = None, memory: WorkerMemory | None = None
    ) -> None:
        self._arena = arena
        self._memory = memory
        self._board = board
        if board is not None:
            arena.registered = board.registered
        self._dispatch = dispatch
        self._slots: dict[int, int] = {}  # unit → slot that its worker writes
        self._served: list[int] = []  # the units in `_slots`, in ascending order
        self._asks: list[_Ask] = []  # of workers that wait for a slot, ascending
        self._asking: dict[int, _Ask] = {}  # worker → the same
        self._usual_size = 0
        self._latest_size = 0  # last size that was asked for or written
        self._hungry_for = -1  # units up to this one get only the memory that is there now
        self.starved_for: int | None = None

    @property
    def is_asked(self) -> bool:
        """Whether a worker waits for a slot."""
        return bool(self._asks)

    def waits(self, worker: int) -> bool:
        """Whether this worker waits for a slot."""
        return worker in self._asking

    def waits_for_others(self, worker: int) -> bool:
        """Whether this worker waits for a slot, and may have to until an earlier unit has one."""
        ask = self._asking.get(worker)
        return ask is not None and ask[0] > self._dispatch.outstanding[0]

    def offer(self, unit: int, run: int = 1) -> list[Slot]:
        """Returns an idle slot of the usual size for the unit, if that leaves enough for earlier units; of a run, which
        is cheap to make, a slot for each unit, as far as memory and `LARGEST` go, idle or not.

        If none is idle, or units are slow, the worker asks for a slot when it has its samples: a slot held while it
        makes them would be memory that no batch needs yet, and a request takes a tenth of a millisecond.
        """
        slots: list[Slot] = []
        if not self._dispatch.is_slow and self._usual_size:
            for each in range(unit, unit + self._at_once(run)):
                if (slot := self._idle(each, run > 1)) is None:
                    break
                slots.append(slot)
        return slots

    def _at_once(self, run: int) -> int:
        """Returns the number of slots that a run of so many units is given."""
        return max(1, min(run, LARGEST // max(1, self._usual_size)))

    def _idle(self, unit: int, is_of_run: bool = False) -> Slot | None:
        size = self._usual_size
        if not size or self._asks:
            return None
        self.collect()
        try:
            if not self._leaves_room(unit, size):
                return None
            slot = self._arena.take(size, self.spoken_for) if is_of_run else self._arena.take_free(size)
        except MemoryLimitError:
            return None
        if slot is not None:
            self._lend(unit, slot.number)
        return slot

    def _lend(self, unit: int, number: int) -> None:
        self._slots[unit] = number
        insort(self._served, unit)

    def _returned(self, unit: int) -> int | None:
        """Returns the slot of a unit, which is its own no longer; None if it has none."""
        number = self._slots.pop(unit, None)
        if number is not None:
            del self._served[bisect_left(self._served, unit)]
        return number

    def _forget(self, ask: _Ask | None) -> None:
        """Drops a request."""
        if ask is not None:
            del self._asking[ask[1]], self._asks[bisect_left(self._asks, ask)]

    def asked(self, worker: int, unit: int, size: int, own: int = 0) -> None:
        """Queues a worker's request for a slot of this size instead of its present one, until `grant` serves it. `own`
        is the worker's private memory in bytes.

        An earlier request of the same worker is dropped: an exception of the user's code has ended that wait.
        """
        self._free(self._returned(unit))
        self._forget(self._asking.get(worker))
        ask = self._asking[worker] = unit, worker, size
        insort(self._asks, ask)
        self._latest_size = size
        self._has(worker, own)

    def offer_to_share(self, unit: int) -> Slot | None:
        """Returns the slot that several workers write, if there is one, or an idle one as `offer` does. It returns one
        for a slow unit too, since each of its workers would ask otherwise.
        """
        number = self._slots.get(unit)
        return self._idle(unit) if number is None else self._arena.slot(number)

    def share(self, unit: int, size: int, worker: int, own: int = 0) -> Slot | None:
        """Returns the slot that several workers write; None if it is too small, or there is no memory at the moment.

        A worker that waited here could keep an earlier unit from being made.
        """
        self._has(worker, own)
        self._latest_size = size
        number = self._slots.get(unit)
        if number is None:
            self.collect()
            try:
                if self._asks or not self._leaves_room(unit, size, worker):
                    return None
                number = self._arena.take(size, lambda: self.spoken_for(worker)).number
                self._lend(unit, number)
            except MemoryLimitError:
                return None
        slot = self._arena.slot(number)
        return slot if size <= slot.capacity else None

    def shared(self, unit: int) -> int | None:
        """Returns the number of the slot that several workers wrote."""
        return self._slots.get(unit)

    def unshare(self, unit: int) -> None:
        """Frees the slot of a shared unit that no worker writes any longer."""
        self._free(self._returned(unit))

    def grant(self, hungry_for: int | None = None) -> Iterator[tuple[int, Slot | str]]:
        """Yields (worker, its slot or the reason for none) for workers that wait, earliest unit first, as far as memory
        goes.

        Args:
            hungry_for: the earliest unit without an answer, if the trainer waits for it and has given back all that it
                could. If it cannot be served now, it never will. Any other can wait: answers are on their way to the
                trainer, and will bring their memory back.
        """
        self.collect()
        self.starved_for = None
        self._hungry_for = max(self._hungry_for, -1 if hungry_for is None else hungry_for)
        while self._asks:
            unit, worker, size = self._asks[0]
            reply: Slot | str
            try:
                if not self._leaves_room(unit, size, worker):
                    return
                reply = self._taken(unit, worker, size)
                self._lend(unit, reply.number)
            except MemoryLimitError as error:
                if self._can_wait(unit, worker):
                    self.starved_for = unit
                    return
                reply = str(error)
            self._forget(self._asks[0])
            yield worker, reply

    def _taken(self, unit: int, worker: int, size: int) -> Slot:
        try:
            return self._arena.take(size, lambda: self.spoken_for(worker))
        except MemoryLimitError:
            if self._can_wait(unit, worker):
                raise
            return self._arena.take(size)  # the last chance: memory reserved for other workers goes to this unit

    def _can_wait(self, unit: int, worker: int) -> bool:
        """Whether memory may come later: from the trainer, or when other workers show how much they need."""
        if not self.is_wanted_now(unit) or (self._served and self._served[0] < unit):
            return True
        return self._memory is not None and any(map(self._dispatch.assignments, self._others(worker)))

    def _others(self, worker: int) -> list[int]:
        """Returns the other workers, except those that wait for a slot and so have all their samples."""
        there = self._dispatch.alive | self._dispatch.busy
        return [other for other in there if other != worker and other not in self._asking]

    def to_be_given(self, unit: int) -> int:
        """Returns the bytes of slots still to be given, to the units in hand and to `unit`."""
        in_hand = {run.unit for worker in self._dispatch.busy for run in self._dispatch.assignments(worker)}
        missing = sum(1 for other in in_hand | {unit} if other not in self._slots)
        self.collect()
        return self._arena.wanted(missing, self._latest_size)

    def spoken_for(self, worker: int = -1) -> int:
        """Returns the bytes that workers other than `worker` will take for their samples. If a unit takes much, idle
        workers count nothing: they begin only if there is more memory.
        """
        if self._memory is None or not self._memory.growth:
            return 0
        others, much = self._others(worker), self._memory.is_much
        return sum(self._memory.to_come(other) for other in others if not much or self._dispatch.assignments(other))

    def _has(self, worker: int, own: int) -> None:
        if self._memory is not None:
            self._memory.showed(worker, own)

    def answered(self, unit: int, kind: str, value: object) -> Slot | None:
        """Records a worker's answer; returns the slot of its batch. Frees any other slot of the unit, and drops its
        request.
        """
        if self._asks:
            at = bisect_left(self._asks, (unit,))
            while self._asks[at : at + 1] and self._asks[at][0] == unit:
                self._forget(self._asks[at])
        slot = self._returned(unit)
        if kind == "batch":
            number, self._usual_size = cast("tuple[int | None, int]", value)[:2]
            self._latest_size = self._usual_size
            if number is not None:
                self._arena.wrote(self._usual_size)
                return self._arena.slot(number)
        self._free(slot)
        return None

    def lost(self, worker: int, units: Sequence[int]) -> None:
        """Drops a worker that is gone, with its units; the list excludes units that others write as well."""
        self._forget(self._asking.get(worker))
        for unit in units:
            self._free(self._returned(unit))

    def collect(self) -> None:
        """Takes back the slots that the trainer has let go of since the last call."""
        if self._board is not None:
            self.put_back(self._board.collect())

    def unregistered(self, numbers: Sequence[int]) -> None:
        """Records that no device reads these slots in place any more, so that they may be given back."""
        self.collect()  # what was posted before
        self._arena.registered.difference_update(numbers)

    def put_back(self, numbers: Sequence[int]) -> None:
        """Marks these slots as free."""
        for number in numbers:
            self._arena.put_back(number)
        if numbers:
            self._arena.trim(self._dispatch.count() + self._at_once(self._dispatch.longest) - 1 + SPARE_SLOTS)

    def is_wanted_now(self, unit: int) -> bool:
        """Whether the trainer waits for this unit, and has given back all that it could."""
        return unit <= self._hungry_for

    def give_back(self) -> None:
        """Returns idle slots to the system."""
        self.collect()
        self._arena.trim(0)

    def _free(self, number: int | None) -> None:
        self.put_back([] if number is None else [number])

    def _leaves_room(self, unit: int, size: int, worker: int = -1) -> bool:
        """Whether earlier units without a slot could still get one: else a later one must not take the memory.

        Batches are delivered in order, so memory held by later ones would never come back while an earlier one waits.
        """
        earlier = self._earlier(unit)
        return not earlier or self._arena.can_give(earlier + 1, size, lambda: self.spoken_for(worker))

    def _earlier(self, unit: int) -> int:
        """Returns the number of earlier units without a slot."""
        return self._dispatch.count(unit) - bisect_left(self._served, unit)  # one with a slot is outstanding


MUCH = 16 << 20
"""Bytes. A worker that needs at least this much for its samples begins a unit only once that much memory is known to be
free.
"""


class WorkerMemory:
    """Compares a worker's memory at its birth, now, and when it held most of a unit: usually at its request for a slot.

    Args:
        now: returns a worker's private memory in bytes; 0 if unknown.
        known: bytes per unit of the last epoch's workers; None if unknown.
        local: number of workers of this machine: those from this number on take none of its memory.

    Attributes:
        growth: bytes per unit of the worker that takes most; None while unknown.
        is_much: whether that memory must be free before a worker begins; true while unknown.
    """

    def __init__(self, now: Callable[[int], int], known: int | None = None, local: int = sys.maxsize) -> None:
        self._now = now
        self._known = known
        self._local = local
        self._at_first: dict[int, int] = {}
        self._growth: dict[int, int] = {}  # bytes, as each worker has shown last
        self._learn()

    def born(self, worker: int, own: int | None = None) -> None:
        """Records the memory of a new worker, now or `own` at its birth, which belongs to no sample. It is assumed to
        need as much as an earlier worker of this number.
        """
        self._at_first[worker] = self._now(worker) if own is None else own

    def left(self, worker: int) -> None:
        """Forgets a worker that had grown too large or old: the next of this number is assumed to be like the others,
        or like this one if no other has shown its need.
        """
        grown = self._growth.pop(worker, None)
        if not self._growth and grown is not None:
            self._known = grown
        self._learn()

    def showed(self, worker: int, own: int) -> None:
        """Records the memory of a worker that has most of a unit in hand."""
        if not self.is_here(worker):
            return
        before, grown = self._growth.get(worker), max(0, own - self._at_first[worker])
        self._growth[worker] = grown
        if len(self._growth) == 1 or (before is not None and before == self.growth and grown < before):
            self._learn()
        elif self.growth is None or grown > self.growth:
            self._grew(grown)

    def is_here(self, worker: int) -> bool:
        """Whether the worker takes memory of this machine."""
        return worker < self._local

    def _learn(self) -> None:
        self._grew(max(self._growth.values(), default=self._known))

    def _grew(self, growth: int | None) -> None:
        self.growth = growth
        self.is_much = growth is None or growth >= MUCH

    def to_come(self, worker: int) -> int:
        """Returns the bytes that a worker with a unit in hand will still take. A worker that has shown nothing counts
        as the one that takes most.
        """
        return self._beyond(worker, self._growth.get(worker, self.growth or 0))

    def to_begin(self, worker: int) -> int:
        """Returns the bytes that an idle worker will take for a unit: as much as the one that takes most."""
        return self._beyond(worker, self.growth or 0)

    def so_far(self, worker: int) -> int:
        """Returns the bytes that a worker has taken since its birth."""
        return self._now(worker) - self._at_first[worker]

    def _beyond(self, worker: int, growth: int) -> int:
        here = growth and self.is_here(worker)
        return max(0, self._at_first[worker] + growth - self._now(worker)) if here else 0
