"""What a worker tells its job of the units that come next, and what it keeps of those that are over."""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from stoker._engine.activity import NEW_MARK, SEVERAL
from stoker._engine.backend import KnownFault, UnitReport
from stoker._engine.messages import FromWorker, RowsWanted, SlotGiven, SlotWanted, ToWorker, Unit, UnitDone
from stoker._engine.process import linux, process_setup
from stoker._engine.process.channel import Channel, pair
from stoker._engine.process.worker import Worker, ZygotesWorker, work


class OverError(Exception):
    """The zygote has closed the connection."""


class Scripted(Worker):
    """Gets these messages, some each time that it asks, and keeps what it sends."""

    def __init__(self, *arrivals: list[ToWorker]) -> None:
        super().__init__(0, -1)
        self._arrivals = list(arrivals)
        self.sent: list[FromWorker] = []

    def send(self, message: FromWorker) -> None:
        self.sent.append(message)

    def receive(self) -> list[ToWorker]:
        if not self._arrivals:
            raise OverError
        return self._arrivals.pop(0)

    def arrived(self) -> list[ToWorker]:
        return self._arrivals.pop(0) if self._arrivals else []


class Curious:
    """A job that asks, at each unit, what comes next."""

    mark: Any = NEW_MARK
    upcoming: Callable[[], Iterable[Any]] = tuple

    def __init__(self) -> None:
        self.seen: list[tuple[Any, list[Any]]] = []

    def run(self, work: Any, lend: Any = None, known: Any = (), rows: Any = None, made_rows: Any = ()) -> Any:
        self.seen.append((work, list(self.upcoming())))
        return work

    def report(self) -> UnitReport:
        return UnitReport()

    def handed_over(self, written: bool) -> Any:
        return []

    def failed_index(self) -> Any:
        return None

    def resume(self, state: bytes) -> None:
        raise AssertionError

    def close(self) -> None:
        pass


def unit(number: int, known: Any = ()) -> Unit:
    return Unit(number, pickle.dumps(f"unit {number}"), [], known, None)


def seen(*arrivals: list[ToWorker]) -> list[tuple[Any, list[Any]]]:
    job = Curious()
    with pytest.raises(OverError):
        Scripted(*arrivals).run(lambda number: job)
    return job.seen


def test_arrived_units_are_announced_once() -> None:
    assert seen([unit(0), unit(1)], [unit(2)], [unit(3)]) == [
        ("unit 0", ["unit 1", "unit 2"]),
        ("unit 1", ["unit 3"]),
        ("unit 2", []),
        ("unit 3", []),
    ]


def test_unit_that_comes_back_is_announced_again() -> None:
    assert seen([unit(0), unit(1)], [], [], [unit(2), unit(1)]) == [
        ("unit 0", ["unit 1"]),
        ("unit 1", []),
        ("unit 2", ["unit 1"]),
        ("unit 1", []),
    ]


@pytest.mark.parametrize("gone", ["trainer", "channel"])
@pytest.mark.parametrize("by", ["closing", "another file"])
def test_worker_whose_descriptors_are_closed_leaves_alone(gone: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """User code may close all that it finds: neither zygote nor trainer have ended."""
    ours, theirs = pair()
    trainer = os.pidfd_open(os.getpid())
    worker = ZygotesWorker(3, Channel(ours), -1, os.getppid(), trainer, [*NEW_MARK])
    monkeypatch.setattr(worker, "_end", lambda: pytest.fail("the zygote is killed"))
    number = {"trainer": trainer, "channel": ours.fileno()}[gone]
    stays = os.dup(number)
    with open(os.devnull) as nothing:
        if by == "closing":
            os.close(number)
        else:
            os.dup2(nothing.fileno(), number)
        with pytest.raises(process_setup.Leaving):
            worker.receive()
        if gone == "channel":
            with pytest.raises(process_setup.Leaving, match="1"):
                worker.send(UnitDone(0, "empty", b"", 0.0, tuple(UnitReport()), 0.0))
    os.dup2(stays, number)
    os.close(stays), os.close(trainer), ours.close(), theirs.close()


def test_exit_request_unwinds_user_code() -> None:
    done = []

    def user_code() -> None:
        try:
            raise process_setup.Leaving(0)
        finally:
            done.append("unwound")

    work(user_code, lambda: done.append("bye"))
    assert done == ["unwound", "bye"]


def test_exit_request_is_raised_again_if_user_code_catches_it() -> None:
    ours, theirs = pair()
    worker = ZygotesWorker(3, Channel(ours), -1, os.getppid(), None, [*NEW_MARK])
    theirs.close()
    for _ in range(2):
        with pytest.raises(process_setup.Leaving):
            worker.receive()
        with pytest.raises(process_setup.Leaving):
            worker.send(SlotWanted(0, 1, 1, 0))
    ours.close()


def test_units_from_a_known_killer_on_are_not_announced() -> None:
    """A worker announces neither a unit that is known to kill nor the units behind it."""
    known = [KnownFault(SEVERAL, "death", "")]
    assert seen([unit(0), unit(1), unit(2, known), unit(3)]) == [
        ("unit 0", ["unit 1"]),
        ("unit 1", []),
        ("unit 2", ["unit 3"]),
        ("unit 3", []),
    ]


def test_answer_to_an_interrupted_question_is_skipped() -> None:
    """It would pass for the answer to the next question."""

    class Alarmed(Scripted):
        def receive(self) -> list[ToWorker]:
            messages = super().receive()
            if not messages:
                raise TimeoutError("from a handler")
            return messages

    worker = Alarmed([], [SlotGiven(1, (1, 0, 4096)), SlotGiven(2, (2, 4096, 8192))])
    with pytest.raises(TimeoutError):
        worker._ask(100)
    assert worker._ask(5000) == (2, 4096, 8192)
    assert [type(message) for message in worker.sent] == [SlotWanted, SlotWanted]
    with pytest.raises(OverError):  # what cannot be waited for is not waited for
        worker._ask(5000)


@pytest.mark.parametrize("part", [None, (0, 4, 8, None)])
def test_worker_without_memory_for_a_batch_gives_back_its_own(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it answers: then others may have it."""
    told: list[Any] = []
    held: list[weakref.ref[Any]] = []
    monkeypatch.setattr(linux, "give_back", lambda: told.append(held[-1]()))

    class Large(Curious):
        def run(self, work: Any, lend: Any = None, known: Any = (), rows: Any = None, made_rows: Any = ()) -> Any:
            batch = np.zeros((4, 1 << 16))
            held.append(weakref.ref(batch))
            return batch

    class Telling(Scripted):
        def send(self, message: FromWorker) -> None:
            super().send(message)
            told.append(message)

    refused = SlotGiven(1, "there is none" if part is None else None)
    worker = Telling([Unit(0, pickle.dumps("unit 0"), [], (), part)], [refused])
    with pytest.raises(OverError):
        worker.run(lambda number: Large())
    question = SlotWanted if part is None else RowsWanted
    kind = "error" if part is None else "short"
    assert [type(message) for message in told] == [question, type(None), UnitDone] and told[-1][:2] == (0, kind)
