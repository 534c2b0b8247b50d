"""When workers that have nothing to do are to give memory back."""

from __future__ import annotations

import random

from stoker._engine.supervision.rules import IDLE, IdlePolicy


def test_worker_that_has_not_begun_is_not_idle() -> None:
    rest = IdlePolicy()
    assert not rest.begins(False, 0, 0.0) and rest.looks_at is None
    assert not rest.begins(False, 0, 100.0) and rest.looks_at is None


def test_after_a_while_without_work_and_once() -> None:
    rest = IdlePolicy()
    assert not rest.begins(True, 0, 0.0) and rest.looks_at == IDLE
    assert not rest.begins(False, 3, 0.5 * IDLE) and rest.looks_at == IDLE  # it is not time to look
    assert not rest.begins(False, 3, IDLE) and rest.looks_at == 2 * IDLE  # they have worked since the last look
    assert rest.begins(False, 3, 2 * IDLE) and rest.looks_at is None
    assert not rest.begins(False, 3, 9 * IDLE)
    assert not rest.begins(True, 3, 10 * IDLE) and rest.looks_at == 11 * IDLE


def test_worker_that_worked_between_two_checks_is_not_idle() -> None:
    rest = IdlePolicy()
    now, answered, last, chance = 0.0, 0, 0.0, random.Random(0)
    for _ in range(10_000):
        now += chance.choice([0.01, 0.1, 1.0]) * IDLE
        is_busy = chance.random() < 0.2
        if chance.random() < 0.2:
            answered += 1
            last = now
        before = rest.looks_at
        if rest.begins(is_busy, answered, now):
            assert not is_busy and now - last > 0.999 * IDLE and before is not None and now >= before
        elif is_busy:
            assert rest.looks_at is not None and rest.looks_at > now
