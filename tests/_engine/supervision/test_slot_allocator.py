"""Who gets memory when there is little of it."""

from __future__ import annotations

import os

from stoker._engine.supervision.dispatch import Assignment, Dispatch
from stoker._engine.supervision.slot_allocator import LARGEST, MUCH, SlotAllocator, WorkerMemory
from stoker._engine.transport import segments
from stoker._engine.transport.arena import Arena, Slot, SpokenFor, rounded
from stoker._engine.transport.segments import ArenaFiles
from stoker.errors import MemoryLimitError


class Rooms:
    """An arena of a given number of slots, all of one size."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.given = 0

    def take(self, size: int, spoken_for: SpokenFor = lambda: 0) -> Slot:
        if self.free <= spoken_for():
            raise MemoryLimitError("full")
        self.free -= 1
        self.given += 1
        return Slot(self.given, 0, size)

    def take_free(self, size: int) -> Slot | None:
        return self.take(size) if self.free else None

    def can_give(self, count: int, size: int, spoken_for: SpokenFor = lambda: 0) -> bool:
        return self.free >= count + spoken_for()

    def slot(self, number: int) -> Slot:
        return Slot(number, 0, 1)

    def put_back(self, number: int) -> None:
        self.free += 1

    def trim(self, keep: int) -> None:
        self.kept = keep

    def wanted(self, count: int, size: int) -> int:
        return count * size

    def wrote(self, size: int) -> None:
        self.written = size


class Posted:
    """A board with this on it."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    registered: set[int] = set()  # noqa: RUF012 - never written

    def collect(self) -> list[int]:
        numbers, self.numbers = self.numbers, []
        return numbers


def lending(
    free: int, units: int, seconds: float = 0.0, board: Posted | None = None, headroom: WorkerMemory | None = None
) -> tuple[SlotAllocator, Rooms]:
    """Each unit is held by the worker of its number; an answered unit took a fixed time."""
    rooms, dispatch = Rooms(free), Dispatch(units + 1)
    for worker in range(units):
        dispatch.joined(worker)
        dispatch.submitted(worker, worker)
    dispatch.hand_out()
    dispatch.joined(units)
    dispatch.submitted(units, units)
    dispatch.hand_out()
    dispatch.answered(units, Assignment(units), seconds)
    return SlotAllocator(rooms, dispatch, board, headroom), rooms  # type: ignore[arg-type]


def born(now: dict[int, int]) -> WorkerMemory:
    """Of workers that have these bytes, and had one each when they were born."""
    headroom = WorkerMemory(lambda worker: headroom_of[worker])
    headroom_of = dict.fromkeys(now, 1)
    for worker in now:
        headroom.born(worker)
    headroom_of = now
    return headroom


def granted(lending: SlotAllocator, hungry_for: int | None = None) -> dict[int, object]:
    return dict(lending.grant(hungry_for))


def test_an_earlier_unit_is_served_first() -> None:
    slots, _ = lending(free=3, units=3)
    slots.asked(2, 2, 10)
    assert granted(slots) == {2: Slot(1, 0, 10)}  # enough for all
    slots, _ = lending(free=2, units=3)
    slots.asked(2, 2, 10)
    slots.asked(1, 1, 10)
    assert granted(slots) == {1: Slot(1, 0, 10)}  # one is left for unit 0, which has not asked yet
    assert slots.is_asked and slots.starved_for is None


def test_a_worker_waits_for_its_latest_question_alone() -> None:
    slots, rooms = lending(free=0, units=2)
    slots.asked(1, 1, 10)
    slots.asked(1, 1, 20)  # an exception of the user's had ended the wait
    rooms.free = 3
    assert granted(slots) == {1: Slot(1, 0, 20)}
    assert rooms.given == 1 and not slots.is_asked


def test_slots_posted_by_the_trainer_are_granted() -> None:
    board = Posted()
    slots, rooms = lending(free=0, units=1, board=board)
    slots.answered(0, "batch", (None, 10))  # the usual size
    assert not slots.offer(0) and slots.share(0, 10, 0) is None
    board.numbers = [5]
    assert slots.offer(0) == [Slot(1, 0, 10)]
    slots.asked(0, 0, 20)  # the one that was offered is free
    assert granted(slots) == {0: Slot(2, 0, 20)} and not rooms.free

    slots, rooms = lending(free=0, units=1, board=board)
    slots.asked(0, 0, 10)
    assert not granted(slots)
    board.numbers = [6]
    assert granted(slots) == {0: Slot(1, 0, 10)} and not rooms.free

    slots, rooms = lending(free=0, units=1, board=board)
    board.numbers = [7]
    assert slots.share(0, 0, 0) is not None and not rooms.free


def test_worker_that_has_answered_waits_for_no_slot() -> None:
    slots, rooms = lending(free=0, units=2)
    slots.asked(1, 1, 10)
    slots.answered(1, "error", None)
    rooms.free = 3
    assert not granted(slots) and not slots.is_asked


def test_slot_of_the_first_unit_is_not_kept_for_others() -> None:
    some, _ = lending(0, units=3)
    some.asked(2, 2, 100)
    some.asked(0, 0, 100)
    assert not granted(some)
    assert [some.waits(worker) for worker in range(3)] == [True, False, True]
    assert [some.waits_for_others(worker) for worker in range(3)] == [False, False, True]


def test_waiting_worker_is_refused_only_if_the_trainer_waits() -> None:
    slots, rooms = lending(free=0, units=2)
    slots.asked(0, 0, 10)
    slots.asked(1, 1, 10)
    assert granted(slots) == {} and slots.starved_for == 0
    assert granted(slots, hungry_for=0) == {0: "full"}
    assert slots.is_asked
    slots.put_back([5])
    assert rooms.kept > 2
    slots.answered(0, "error", b"")


def test_small_slot_is_returned_before_a_larger_request() -> None:
    slots, rooms = lending(free=1, units=1)
    slots.asked(0, 0, 10)
    assert granted(slots) == {0: Slot(1, 0, 10)}
    assert rooms.free == 0
    slots.asked(0, 0, 20)
    assert rooms.free == 1
    assert granted(slots) == {0: Slot(2, 0, 20)}


def test_exchanged_slot_is_freed_once_even_without_a_grant() -> None:
    slots, rooms = lending(free=1, units=2)
    slots.answered(0, "batch", (None, 10))
    assert slots.offer(0)
    slots.asked(0, 0, 20)
    assert not slots.offer(1) and rooms.free == 1
    rooms.free = 0  # another has it by now
    assert granted(slots, hungry_for=0) == {0: "full"}
    assert slots.answered(0, "error", b"") is None
    assert rooms.free == 0


def test_slow_worker_asks_for_a_slot_when_it_needs_it() -> None:
    slots, _ = lending(free=3, units=2, seconds=1.0)
    slots.answered(0, "batch", (3, 900))
    assert not slots.offer(1)


def test_part_of_a_batch_comes_with_a_shared_or_idle_slot() -> None:
    slots, rooms = lending(free=2, units=3, seconds=1.0)
    assert slots.offer_to_share(0) is None  # nothing is known yet
    slots.answered(0, "batch", (None, 900))
    for offered in (slots.offer_to_share(0), slots.offer_to_share(0), slots.share(0, 1, 0)):
        assert offered is not None and offered.number == slots.shared(0) == 1 and rooms.free == 1
    for offered in (slots.share(1, 1, 1), slots.offer_to_share(1)):
        assert offered is not None and offered.number == 2
    assert slots.offer_to_share(2) is None and slots.share(2, 900, 2) is None  # none lies idle
    slots.unshare(0)
    slots.asked(2, 2, 900)
    assert slots.offer_to_share(0) is None and rooms.free == 1  # it is for who waits


def test_each_unit_of_a_run_gets_a_slot() -> None:
    """As far as memory goes, and not beyond a megabyte; idle or new."""
    for free, size, expected in ((9, 10, 4), (3, 10, 3), (9, LARGEST // 2, 2), (9, 9 * LARGEST, 1)):
        slots, rooms = lending(free=free, units=0)
        slots.answered(0, "batch", (None, size))
        assert [slot.number for slot in slots.offer(1, 4)] == list(range(1, expected + 1))
        assert rooms.free == free - expected
        slots.lost(0, range(1, 5))
        assert rooms.free == free


def test_run_leaves_memory_for_earlier_units() -> None:
    slots, rooms = lending(free=4, units=2)
    slots.answered(2, "batch", (None, 10))
    slots._dispatch.submitted(3, None, run=4)
    assert len(slots.offer(3, 4)) == 2 and rooms.free == 2


def test_usual_size_is_offered_unless_a_worker_waits() -> None:
    slots, rooms = lending(free=3, units=2)
    assert not slots.offer(0)  # nothing is known yet
    assert slots.answered(0, "batch", (3, 900)) == Slot(3, 0, 1)
    assert slots.offer(1) == [Slot(1, 0, 900)]
    slots.asked(1, 1, 1000)
    assert not slots.offer(0)
    slots.lost(1, [1])
    assert not slots.is_asked
    assert slots.offer(0) == [Slot(2, 0, 900)] and rooms.free == 2
    assert slots.answered(0, "end", b"") is None
    assert rooms.free == 3


def test_worker_that_asks_for_one_leaf_makes_no_batch_uneven() -> None:
    descriptor, dispatch = segments.create(), Dispatch(3)
    try:
        arena = Arena(ArenaFiles([descriptor]))
        slots = SlotAllocator(arena, dispatch)
        one, both = (9 << 20) + 1, (18 << 20) + 1
        for unit in range(3):
            dispatch.joined(unit)
            dispatch.submitted(unit, unit)
            dispatch.hand_out()
            slots.asked(unit, unit, one)
            held = granted(slots)[unit]
            assert isinstance(held, Slot)
            slots.asked(unit, unit, both)
            held = granted(slots)[unit]
            assert isinstance(held, Slot)
            assert held.capacity == (18 << 20) + segments.PAGE
            assert slots.answered(unit, "batch", (held.number, both)) == held
        slots.asked(0, 3, both + segments.PAGE)
        held = granted(slots)[0]
        assert isinstance(held, Slot)
        slots.answered(3, "batch", (held.number, both + segments.PAGE))
        slots.asked(0, 4, both)
        held = granted(slots)[0]
        assert isinstance(held, Slot)
        assert held.capacity == rounded(both)  # that one was
    finally:
        os.close(descriptor)


def test_memory_for_samples_of_other_workers_is_reserved() -> None:
    now = {0: 1, 1: 1, 2: 1}
    slots, rooms = lending(free=2, units=2, headroom=born(now))
    slots.asked(0, 0, 10, own=2)  # two others are like it, and may take one more each
    assert granted(slots) == {} and slots.starved_for == 0
    assert granted(slots, hungry_for=0) == {}  # the second makes samples: it is waited for
    now[1] = now[2] = 2
    assert granted(slots) == {0: Slot(1, 0, 10)} and rooms.free == 1


def test_waiting_worker_holds_its_samples_and_idle_ones_wait() -> None:
    now = {0: 2, 1: 1, 2: 1}
    slots, _ = lending(free=1, units=2, headroom=born(now))
    slots.asked(0, 0, 10, own=2)
    slots.asked(1, 1, 10, own=2)
    assert granted(slots) == {}
    assert granted(slots, hungry_for=0) == {0: Slot(1, 0, 10)}  # now or never
    assert slots.waits(1)


def test_a_slot_to_share_is_not_taken_of_what_others_need() -> None:
    now = {0: 1, 1: 1, 2: 1}
    slots, _ = lending(free=2, units=2, headroom=born(now))
    assert slots.share(0, 1, 0, own=2) is None
    now[1] = now[2] = 2
    assert slots.share(0, 1, 0, own=2) == Slot(1, 0, 1)


def test_idle_worker_with_large_units_needs_extra_memory() -> None:
    now = dict.fromkeys(range(3), 1)
    slots, _ = lending(free=MUCH + 1, units=2, headroom=born(now))
    slots.asked(0, 0, 10, own=1 + MUCH)
    now[0] = 1 + MUCH
    assert slots.spoken_for() == slots.spoken_for(0) == MUCH  # of the second, which holds a unit
    assert slots.spoken_for(1) == 0
    assert granted(slots) == {0: Slot(1, 0, 10)}


def test_slots_to_be_given_cover_units_in_hand_and_the_next() -> None:
    slots, _ = lending(free=3, units=3)
    assert slots.to_be_given(9) == 0  # their size is not known
    slots.asked(1, 1, 10)
    assert slots.to_be_given(9) == 40
    assert granted(slots, hungry_for=0) == {1: Slot(1, 0, 10)}
    assert slots.to_be_given(9) == 30
    assert slots.to_be_given(2) == 20  # which is in hand


def test_idle_slots_can_be_given_back() -> None:
    board = Posted()
    slots, rooms = lending(free=1, units=1, board=board)
    slots.asked(0, 0, 10)
    (held,) = granted(slots).values()
    assert isinstance(held, Slot)
    slots.answered(0, "batch", (held.number, 10))
    board.numbers = [held.number]
    slots.give_back()
    assert rooms.kept == 0 and rooms.free == 1
