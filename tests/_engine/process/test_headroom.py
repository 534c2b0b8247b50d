"""What workers will still take for samples, as far as it shows."""

from __future__ import annotations

from stoker._engine.process.headroom import MUCH, Headroom


def born(now: dict[int, int], known: int | None = None) -> Headroom:
    """Of workers that are born with 10 bytes each."""
    at_first, now_ = dict.fromkeys(now, 10), dict(now)
    now.update(at_first)
    headroom = Headroom(now.__getitem__, known)
    for worker in now:
        headroom.born(worker)
    now.update(now_)
    return headroom


def test_who_has_shown_what_it_needs_will_need_it_again() -> None:
    now = {0: 100, 1: 40, 2: 10}
    headroom = born(now)
    assert headroom.growth is None and headroom.is_much  # nobody has shown anything: who knows
    assert [headroom.to_come(worker) for worker in now] == [0, 0, 0]
    headroom.showed(0, 90)
    assert headroom.growth == 80
    assert headroom.to_come(1) == 50  # like the largest that has
    headroom.showed(1, 60)
    assert [headroom.to_come(worker) for worker in now] == [0, 20, 80]  # the first has it already
    now[0] = 30
    assert [headroom.to_come(worker) for worker in now] == [60, 20, 80]


def test_who_begins_may_need_as_much_as_whoever_had_most() -> None:
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


def test_much_is_what_has_to_be_there() -> None:
    headroom = born({0: 10})
    headroom.showed(0, 10 + MUCH - 1)
    assert not headroom.is_much
    headroom.showed(0, 10 + MUCH)
    assert headroom.is_much


def test_what_is_known_of_others_holds_until_one_shows_it() -> None:
    headroom = born({0: 10, 1: 10}, known=70)
    assert (headroom.growth, headroom.to_begin(0), headroom.to_come(1)) == (70, 70, 70)
    headroom.showed(0, 30)
    assert (headroom.growth, headroom.to_come(1)) == (20, 20)


def test_one_that_takes_a_dead_workers_place_will_be_like_it_and_unlike_one_that_left() -> None:
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
    assert headroom.growth == 20  # nobody else has shown anything
    headroom.showed(0, 25)
    assert headroom.growth == 10
