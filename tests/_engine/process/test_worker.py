"""What a worker tells its job of the units that come next, and what it keeps of those that are over."""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np
import pytest

from stoker._engine.base import IDLE, SEVERAL, Said
from stoker._engine.process import kernel, settle
from stoker._engine.process.channel import Channel, Message, pair
from stoker._engine.process.worker import Worker, ZygotesWorker


class OverError(Exception):
    """There is nobody left to work for."""


class Scripted(Worker):
    """Gets these messages, some each time that it asks, and keeps what it sends."""

    def __init__(self, *arrivals: list[Message]) -> None:
        super().__init__(0, -1)
        self._arrivals = list(arrivals)
        self.sent: list[Message] = []

    def send(self, *message: Any) -> None:
        self.sent.append(message)

    def receive(self) -> list[Message]:
        if not self._arrivals:
            raise OverError
        return self._arrivals.pop(0)

    def arrived(self) -> list[Message]:
        return self._arrivals.pop(0) if self._arrivals else []


class Curious:
    """A job that asks, at each unit, what comes next."""

    mark: Any = (IDLE,)
    upcoming: Callable[[], Iterable[Any]] = tuple

    def __init__(self) -> None:
        self.seen: list[tuple[Any, list[Any]]] = []

    def run(self, work: Any, lend: Any = None, known: Any = (), rows: Any = None) -> Any:
        self.seen.append((work, list(self.upcoming())))
        return work

    def said(self) -> Said:
        return Said()

    def failed_index(self) -> Any:
        return None

    def resume(self, state: bytes) -> None:
        raise AssertionError


def unit(number: int, known: Any = ()) -> Message:
    return ("unit", number, pickle.dumps(f"unit {number}"), None, known, None)


def seen(*arrivals: list[Message]) -> list[tuple[Any, list[Any]]]:
    job = Curious()
    with pytest.raises(OverError):
        Scripted(*arrivals).run(lambda number: job)
    return job.seen


def test_units_that_have_arrived_are_told_of_once() -> None:
    assert seen([unit(0), unit(1)], [unit(2)], [unit(3)]) == [
        ("unit 0", ["unit 1", "unit 2"]),
        ("unit 1", ["unit 3"]),
        ("unit 2", []),
        ("unit 3", []),
    ]


def test_one_that_comes_back_is_told_of_again() -> None:
    assert seen([unit(0), unit(1)], [], [], [unit(2), unit(1)]) == [
        ("unit 0", ["unit 1"]),
        ("unit 1", []),
        ("unit 2", ["unit 1"]),
        ("unit 1", []),
    ]


class LeftError(Exception):
    """A worker leaves."""


@pytest.mark.parametrize("gone", ["trainer", "channel"])
@pytest.mark.parametrize("by", ["closing", "another file"])
def test_who_finds_its_descriptors_closed_goes_alone(gone: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """User code may close all that it finds: neither zygote nor trainer have ended."""

    def leave(code: int) -> NoReturn:
        raise LeftError(code)

    monkeypatch.setattr(settle, "leave", leave)
    ours, theirs = pair()
    trainer = os.pidfd_open(os.getpid())
    worker = ZygotesWorker(3, Channel(ours), -1, os.getppid(), trainer, [IDLE])
    monkeypatch.setattr(worker, "_end", lambda: pytest.fail("the zygote is killed"))
    number = {"trainer": trainer, "channel": ours.fileno()}[gone]
    stays = os.dup(number)
    with open(os.devnull) as nothing:
        if by == "closing":
            os.close(number)
        else:
            os.dup2(nothing.fileno(), number)
        with pytest.raises(LeftError):
            worker.receive()
        if gone == "channel":
            with pytest.raises(LeftError, match="1"):
                worker.send("answer")
    os.dup2(stays, number)
    os.close(stays), os.close(trainer), ours.close(), theirs.close()


def test_not_of_one_that_is_known_to_kill_nor_of_those_behind_it() -> None:
    known = [(SEVERAL, {"kind": "death", "message": "", "stack": ""})]
    assert seen([unit(0), unit(1), unit(2, known), unit(3)]) == [
        ("unit 0", ["unit 1"]),
        ("unit 1", []),
        ("unit 2", ["unit 3"]),
        ("unit 3", []),
    ]


def test_the_answer_to_a_question_that_was_interrupted_is_passed_over() -> None:
    """It would pass for the answer to the next question."""

    class Alarmed(Scripted):
        def receive(self) -> list[Message]:
            messages = super().receive()
            if not messages:
                raise TimeoutError("from a handler")
            return messages

    worker = Alarmed([], [("slot", 1, (1, 0, 4096)), ("slot", 2, (2, 4096, 8192))])
    with pytest.raises(TimeoutError):
        worker._ask(100)
    assert worker._ask(5000) == (2, 4096, 8192)
    assert [message[0] for message in worker.sent] == ["ask", "ask"]
    with pytest.raises(OverError):  # what cannot be waited for is not waited for
        worker._ask(5000)


@pytest.mark.parametrize("part", [None, (0, 4, 8, None)])
def test_for_whose_batch_there_is_no_memory_gives_back_what_it_took(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it answers: then others may have it."""
    told: list[Any] = []
    held: list[weakref.ref[Any]] = []
    monkeypatch.setattr(kernel, "give_back", lambda: told.append(held[-1]()))

    class Large(Curious):
        def run(self, work: Any, lend: Any = None, known: Any = (), rows: Any = None) -> Any:
            batch = np.zeros((4, 1 << 16))
            held.append(weakref.ref(batch))
            return batch

    class Telling(Scripted):
        def send(self, *message: Any) -> None:
            super().send(*message)
            told.append(message[:3])

    refused = ("slot", 1, "there is none" if part is None else None)
    worker = Telling([("unit", 0, pickle.dumps("unit 0"), None, (), part)], [refused])
    with pytest.raises(OverError):
        worker.run(lambda number: Large())
    name = "ask" if part is None else "ask_for_rows"
    kind = "error" if part is None else "short"
    assert [word[0] if word else word for word in told] == [name, None, "answer"] and told[-1] == ("answer", 0, kind)
