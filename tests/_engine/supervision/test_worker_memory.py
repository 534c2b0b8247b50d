"""What workers will still take for samples, as far as it shows."""

from __future__ import annotations

from stoker._engine.supervision.slot_allocator import MUCH, WorkerMemory


def born(now: dict[int, int], known: int | None = None) -> WorkerMemory:
    """Of workers that are born with 10 bytes each."""
    at_first, now_ = dict.fromkeys(now, 10), dict(now)
    now.update(at_first)
    headroom = WorkerMemory(now.__getitem__, known)
    for worker in now:
        headroom.born(worker)
    now.update(now_)
    return headroom


def test_worker_is_expected_to_need_its_earlier_peak() -> None:
    now = {0: 100, 1: 40, 2: 10}
    headroom = born(now)
    assert headroom.growth is None and headroom.is_much  # no worker has shown its memory yet
    assert [headroom.to_come(worker) for worker in now] == [0, 0, 0]
    headroom.showed(0, 90)
    assert headroom.growth == 80
    assert headroom.to_come(1) == 50  # like the largest that has
    headroom.showed(1, 60)
    assert [headroom.to_come(worker) for worker in now] == [0, 20, 80]  # the first has it already
    now[0] = 30
    assert [headroom.to_come(worker) for worker in now] == [60, 20, 80]


def test_new_worker_is_expected_to_need_the_largest_peak() -> None:
    headroom = born({0: 10, 1: 30})
    assert headroom.to_begin(0) == 0
    headroom.showed(0, 90)
    headroom.showed(1, 40)
    assert (headroom.to_begin(0), headroom.to_begin(1)) == (80, 60)


def test_the_latest_counts() -> None:
    headroom = born({0: 10})
    headroom.showed(0, 90)
    headroom.showed(0, 30)
    assert headroom.to_come(0) == 20
    headroom.showed(0, 5)  # it has given back more than it was born with
    assert headroom.growth == headroom.to_come(0) == 0


def test_large_growth_of_a_worker_is_known() -> None:
    headroom = born({0: 10})
    headroom.showed(0, 10 + MUCH - 1)
    assert not headroom.is_much
    headroom.showed(0, 10 + MUCH)
    assert headroom.is_much


def test_known_growth_holds_until_a_worker_shows_its_own() -> None:
    headroom = born({0: 10, 1: 10}, known=70)
    assert (headroom.growth, headroom.to_begin(0), headroom.to_come(1)) == (70, 70, 70)
    headroom.showed(0, 30)
    assert (headroom.growth, headroom.to_come(1)) == (20, 20)


def test_successor_of_a_dead_worker_inherits_its_memory_use() -> None:
    """The successor of a worker that left does not."""
    now = {0: 10, 1: 10}
    headroom = born(now)
    headroom.showed(0, 90)
    headroom.showed(1, 30)
    now[0] = 15
    headroom.born(0)
    assert headroom.to_begin(0) == 80
    headroom.left(0)
    headroom.born(0)
    assert headroom.growth == 20
    headroom.left(1)
    assert headroom.growth == 20  # no other worker has shown its memory
    headroom.showed(0, 25)
    assert headroom.growth == 10
