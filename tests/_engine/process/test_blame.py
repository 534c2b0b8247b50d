"""What follows from a death, and what a unit is known to do since."""

from __future__ import annotations

import signal

from stoker._engine.activity import IDLE, SEVERAL, sample
from stoker._engine.process.worker_events import Blame, WorkerDeath
from stoker._engine.supervision.restarts import KILLS, OWN_KILLS
from stoker._engine.supervision.rules import STALLS, Rules, Stall, Stalls

PID = 4711


def blame(most: int = 5, at_once: int = 1) -> Blame:
    rules = Rules(max_restarts=most, units_at_once=at_once)
    return Blame(rules, Stalls(rules.stall_warning))


def test_a_sample_that_crashes_its_workers_is_known() -> None:
    judge = blame()
    for death in range(OWN_KILLS):
        assert not judge.known(7)
        verdict = judge.died(WorkerDeath([7, 8], sample(3), PID, -signal.SIGSEGV, "in decode()"), float(death))
    assert verdict.blamed
    (fault,) = judge.known(7)
    assert (fault.position, fault.kind, fault.stack) == (sample(3), "death", "in decode()")
    assert "(pid 4711)" in fault.message
    assert not judge.known(8)
    judge.answered(7)
    assert not judge.known(7)


def test_death_of_an_idle_worker_blames_no_sample() -> None:
    judge = blame()
    for death in range(KILLS):
        assert not judge.died(WorkerDeath([], IDLE, PID, -signal.SIGKILL), float(death)).blamed
    assert len(judge.deaths) == KILLS


def test_stall_that_ended_a_worker_is_reported_with_its_stack() -> None:
    judge = blame()
    stall = Stall(0, 7, 61.0)
    for death in range(STALLS):
        verdict = judge.died(WorkerDeath([7], sample(3), PID, -signal.SIGKILL, "now", (stall, "then")), float(death))
    assert verdict.blamed
    (fault,) = judge.known(7)
    assert (fault.position, fault.kind, fault.stack) == (sample(3), "stall", "then")


def test_a_stall_of_another_unit_proves_nothing() -> None:
    judge = blame(most=50)
    for death in range(KILLS - 1):
        assert not judge.died(
            WorkerDeath([8], sample(3), PID, -signal.SIGKILL, stall=(Stall(0, 7, 61.0), "then")), float(death)
        ).blamed


def test_units_of_concurrent_samples_are_remade_one_by_one() -> None:
    judge = blame(at_once=4)
    assert not judge.died(WorkerDeath([7, 8], SEVERAL, PID, -signal.SIGSEGV), 0.0).blamed
    assert [fault.position for unit in (7, 8) for fault in judge.known(unit)] == [SEVERAL, SEVERAL]
    for death in range(OWN_KILLS):
        verdict = judge.died(WorkerDeath([8], sample(2), PID, -signal.SIGSEGV), 1.0 + death)
    assert verdict.blamed
    assert [fault.position for fault in judge.known(8)] == [SEVERAL, sample(2)]
