"""Slots: reserved before use, reused for the whole run, given back when they idle."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from stoker._engine.transport import arena as arena_module
from stoker._engine.transport import segments
from stoker._engine.transport.arena import Arena, rounded
from stoker._engine.transport.segments import ArenaFiles
from stoker.errors import MemoryLimitError


@pytest.fixture
def arena() -> Iterator[Arena]:
    descriptor = segments.create()
    yield Arena(ArenaFiles([descriptor]), clock=lambda: 0.0)
    os.close(descriptor)


def blocks(arena: Arena) -> int:
    return os.fstat(arena.files[0]).st_blocks * 512


@pytest.mark.parametrize("size", [1, 4096, 4097, 100_000, 38 << 20, (38 << 20) + 1])
def test_sizes_are_rounded_up_by_less_than_an_eighth(size: int) -> None:
    assert size <= rounded(size) <= max(segments.PAGE, size * 9 // 8 + segments.PAGE)
    assert rounded(size) % segments.PAGE == 0


def test_a_slot_is_reserved_when_it_is_taken(arena: Arena) -> None:
    slot = arena.take(1 << 20)
    assert blocks(arena) == slot.capacity == arena.reserved_bytes


def test_slots_of_even_batches_are_no_larger_than_they(arena: Arena) -> None:
    size, exactly = (19 << 19) + 1, (19 << 19) + segments.PAGE
    assert [arena.take(size).capacity for _ in range(2)] == [exactly] * 2
    arena.wrote(size)
    arena.put_back(0)
    assert arena.take(size // 2 + 1).number == 0
    arena.wrote(size // 2 + 1)  # the last of an epoch is smaller, and makes none uneven
    assert arena.take(size).capacity == exactly
    assert arena.take(size - 2 * segments.PAGE).capacity == exactly  # for one of those, or for this one
    assert arena.take(1 << 20).capacity == rounded(1 << 20)
    arena.wrote(size + segments.PAGE)
    assert arena.take(size).capacity == rounded(size) == 10 << 20


def test_slots_do_not_overlap(arena: Arena) -> None:
    slots = sorted((arena.take(size) for size in (5000, 100_000, 70_000)), key=lambda slot: slot.offset)
    for lower, upper in itertools.pairwise(slots):
        assert lower.offset + lower.capacity <= upper.offset


def test_a_slot_that_is_put_back_twice_is_an_error_at_once(arena: Arena) -> None:
    first, second = arena.take(1 << 20), arena.take(1 << 20)
    arena.put_back(first.number)
    with pytest.raises(AssertionError, match="put back twice"):
        arena.put_back(first.number)
    arena.put_back(second.number)
    arena.trim(0)
    with pytest.raises(AssertionError, match="put back twice"):
        arena.put_back(second.number)


def test_a_slot_that_came_back_is_used_again(arena: Arena) -> None:
    slot = arena.take(1 << 20)
    arena.put_back(slot.number)
    assert arena.take((1 << 20) - 5000) == slot
    assert arena.reserved_bytes == slot.capacity


def test_a_small_batch_does_not_take_a_huge_slot(arena: Arena) -> None:
    huge = arena.take(8 << 20)
    arena.put_back(huge.number)
    assert arena.take(1 << 20) != huge


def test_trimming_returns_idle_memory_and_reuses_the_place(arena: Arena) -> None:
    slot = arena.take(1 << 20)
    arena.put_back(slot.number)
    arena.trim(0)
    assert blocks(arena) == 0
    assert arena.take(1 << 20) == slot
    assert blocks(arena) == slot.capacity


def test_idle_slots_of_another_size_make_room(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 4 << 20
    really = arena_module.reserve.reserve

    def reserve(descriptor: int, offset: int, size: int, spoken_for: int = 0) -> None:
        if blocks(arena) + size > limit:
            raise MemoryLimitError(f"needed {size}")
        really(descriptor, offset, size, spoken_for)

    monkeypatch.setattr(arena_module.reserve, "reserve", reserve)
    small = arena.take(1 << 20)
    with pytest.raises(MemoryLimitError):
        arena.take(4 << 20)
    arena.put_back(small.number)
    assert arena.take(4 << 20).capacity == 4 << 20
    assert not arena._free


@pytest.mark.parametrize("memfd", [True, False], ids=["memfd", "unlinked file"])
def test_a_segment_has_no_name(memfd: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    if not memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    descriptor = segments.create()
    try:
        os.ftruncate(descriptor, segments.PAGE)
        assert os.fstat(descriptor).st_nlink == 0
        one, other = (segments.Mapping(descriptor, 0, segments.PAGE) for _ in range(2))
        one.part(10, 3)[:] = b"abc"
        assert other.part(10, 3)[:] == b"abc"
    finally:
        os.close(descriptor)


def test_idle_slots_are_given_back_after_a_while() -> None:
    now = [0.0]
    descriptor = segments.create()
    arena = Arena(ArenaFiles([descriptor]), clock=lambda: now[0])
    try:
        three = [arena.take(4 << 20) for _ in range(3)]  # reserved anew in 0.8 ms
        for slot in three:
            arena.put_back(slot.number)
        for now[0] in (0.4, 0.5, 0.6, 0.7, 0.8):  # from the first of these on, one is in use at a time
            assert 3 * three[0].capacity == arena.reserved_bytes
            arena.put_back(arena.take(4 << 20).number)
        assert arena.reserved_bytes == blocks(arena) == three[0].capacity
    finally:
        os.close(descriptor)


def test_slots_needed_again_soon_are_kept(arena: Arena) -> None:
    """However many came back meanwhile: to reserve a large one anew takes longer than many batches."""
    three = [arena.take(4 << 20) for _ in range(3)]
    for slot in three:
        arena.put_back(slot.number)
    for _ in range(1000):
        arena.put_back(arena.take(4 << 20).number)
    assert arena.reserved_bytes == blocks(arena) == 3 * three[0].capacity


def test_freed_slots_are_not_freed_twice() -> None:
    now = [0.0]
    descriptor = segments.create()
    arena = Arena(ArenaFiles([descriptor]), clock=lambda: now[0])
    try:
        slots = [arena.take(4096) for _ in range(24)]
        for slot in slots[:20]:
            now[0] += 0.2
            arena.put_back(slot.number)
        arena.trim(3)
        now[0] += 0.2
        arena.put_back(slots[20].number)
        assert arena.reserved_bytes == 4 * slots[0].capacity  # three that are in use, and one
    finally:
        os.close(descriptor)


def test_slots_needed_now_and_then_are_kept() -> None:
    now = [0.0]
    descriptor = segments.create()
    arena = Arena(ArenaFiles([descriptor]), clock=lambda: now[0])
    try:
        several = [arena.take(1 << 20) for _ in range(3)]
        for _ in range(50):
            for slot in several:
                now[0] += 1
                arena.put_back(slot.number)
            several = [arena.take(1 << 20) for _ in range(3)]
        assert len({slot.number for slot in several}) == 3
        assert arena.reserved_bytes == 3 * several[0].capacity
    finally:
        os.close(descriptor)
