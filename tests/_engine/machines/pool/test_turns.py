"""Turns of the workers in a process of a pool: one at a time, the longest waiting first."""

from __future__ import annotations

from stoker._engine.machines.pool.turns import LONGEST, Turns


def simulate(seconds: dict[int, float], until: float, pause: float = 0.0) -> dict[int, int]:
    """Returns the units of workers that want the next turn `pause` after their last, by the seconds of their units."""
    turns, now, made = Turns(), 0.0, dict.fromkeys(seconds, 0)
    wants = dict.fromkeys(seconds, 0.0)
    while now < until:
        for worker, at in sorted(wants.items(), key=lambda item: item[1]):
            if at <= now:
                turns.wants(worker)
                del wants[worker]
        given = turns.next(now)
        now = now + seconds[given[0]] if given else min(wants.values())
        for worker in given:
            turns.done(worker, now)
            made[worker] += 1
            wants[worker] = now + pause
    return made


def test_ranks_that_always_wait_make_as_many_units() -> None:
    made = simulate({0: 0.3, 1: 0.1, 2: 0.01}, until=410.0)
    assert max(made.values()) - min(made.values()) <= 1


def test_rank_that_needs_little_leaves_the_rest() -> None:
    turns, order = Turns(), []
    for step in range(12):
        turns.wants(0)
        if step % 4 == 0:
            turns.wants(1)
        while given := turns.next(float(step)):
            order += given
            turns.done(given[0], step + 0.1)
    assert order.count(0) == 12 and order.count(1) == 3
    assert turns.next(99.0) == [] and turns.patience(99.0) is None


def test_longest_waiting_worker_is_next() -> None:
    turns = Turns()
    for worker in (4, 2, 7):
        turns.wants(worker)
    assert turns.next(0.0) == [4] and turns.next(1.0) == []
    turns.done(4, 1.0)
    turns.wants(4)
    assert turns.next(1.0) == [2]
    turns.done(2, 3.0)
    assert turns.next(3.0) == [7]
    assert turns.seconds == {4: 1.0, 2: 2.0} and turns.total == 3.0


def test_end_of_a_worker_frees_its_turn_and_its_place() -> None:
    turns = Turns()
    for worker in (0, 1, 2):
        turns.wants(worker)
    assert turns.next(0.0) == [0]
    turns.ended(0, 5.0)
    turns.ended(1, 5.0)
    assert turns.next(5.0) == [2]
    assert turns.seconds == {} and turns.total == 5.0


def test_turn_that_lasts_too_long_keeps_nobody() -> None:
    turns = Turns()
    turns.wants(0)
    turns.wants(1)
    assert turns.next(0.0) == [0] and turns.patience(1.0) == LONGEST - 1.0
    assert turns.next(LONGEST - 0.1) == [] and turns.next(LONGEST) == [1]
    turns.done(0, LONGEST + 1)
    assert turns.seconds == {0: LONGEST + 1}
