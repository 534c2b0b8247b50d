"""Worker threads: batches are not copied, threads cannot be ended, stalls are seen while the trainer waits."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stoker import errors
from stoker._engine.activity import NEW_MARK, Activity, Position
from stoker._engine.backend import Answer, UnitReport, Where
from stoker._engine.supervision.rules import Rules
from stoker._engine.thread import ThreadBackend
from stoker.events import Event


class Square:
    """A job that squares its unit, or calls it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.mark: Any = [*NEW_MARK]

    def run(self, work: object, lend: object = None, known: object = ()) -> object:
        class Odd(Exception):
            pass

        self.mark[:] = 3, Activity.SAMPLE
        if callable(work):
            return work()
        assert isinstance(work, int)
        if work < 0:
            raise Odd(work)
        return work * work

    def report(self) -> UnitReport:
        return UnitReport(samples=1)

    def failed_index(self) -> None:
        return None

    def resume(self, state: bytes) -> None:
        raise AssertionError

    def close(self) -> None:
        pass


class Told:
    """An event sink that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def locate(self, unit: int, position: Position) -> Where:
        return Where(f"unit {unit}, place {position.place}", unit, position.place)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def threads(told: Told) -> Iterator[Callable[..., ThreadBackend]]:
    """Makes a backend, which is closed at the end."""
    made: list[ThreadBackend] = []

    def make(workers: int = 1, **rules: Any) -> ThreadBackend:
        made.append(ThreadBackend(Square, workers, Rules(**rules), told))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


Make = Callable[..., ThreadBackend]


def test_a_local_exception_class_stays_itself(threads: Make) -> None:
    backend = threads()
    backend.submit(0, -3, None)
    failure = backend.receive(10).value
    assert type(failure.rebuilt()).__name__ == "Odd"


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize("error", [SystemExit, ZeroDivisionError])
def test_a_thread_that_cannot_be_made_answers(
    error: type[BaseException], answers: bool, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a thread is an answer, also if the thread cannot say what became of its unit."""

    def fails(*_: Any) -> Any:
        raise error("by the user")

    backend = ThreadBackend(Square if answers else fails, 1, Rules(), told)
    monkeypatch.setattr(Square, "report", fails)
    for unit in range(2):
        backend.submit(unit, unit, None)
        answer = backend.receive(10)
        assert answer.unit == unit and answer.kind == "error"
        if error is SystemExit:
            with pytest.raises(errors.WorkerDiedError, match=r"worker thread 0.* exited unexpectedly.*by the user"):
                raise answer.value
        else:
            assert answer.value.known_kind is error
    backend.close()


def test_batches_are_handed_over_as_they_are(threads: Make) -> None:
    backend = threads(2)
    made = object()
    backend.submit(0, lambda: made, None)
    answer = backend.receive(10)
    assert backend.open(answer) is made and answer.report.samples == 1


def test_a_backend_that_is_garbage_ends_its_threads(told: Told) -> None:
    before = threading.active_count()
    backend = ThreadBackend(Square, 3, Rules(), told)
    assert threading.active_count() == before + 3
    del backend
    gc.collect()
    assert threading.active_count() == before


def test_a_dropped_unit_is_never_answered(threads: Make) -> None:
    backend = threads()
    gate = threading.Event()
    backend.submit(0, gate.wait, None)
    backend.submit(1, 5, None)
    backend.drop(2)
    backend.submit(2, 6, None)
    gate.set()
    assert backend.receive(10).unit == 2


def test_thread_backend_honours_the_timeout(threads: Make) -> None:
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0.01 seconds"):
        threads().receive(0.01)


# Stalls


class Gates(Told):
    """An event sink that opens a gate after a given number of stalls."""

    def __init__(self, stalls: int = 1) -> None:
        super().__init__()
        self._stalls = stalls
        self._gate = threading.Event()

    def tell(self, event: Event) -> None:
        super().tell(event)
        if len(self.events) == self._stalls:
            self._gate.set()

    def a_sample_that_waits(self) -> int:
        assert self._gate.wait(30)
        return 7


def test_stall_is_reported_once_with_place_and_thread_stack() -> None:
    gates = Gates()
    backend = ThreadBackend(Square, 1, Rules(stall_warning=0.05), gates)
    backend.submit(4, gates.a_sample_that_waits, None)
    assert backend.receive(30).value == 7
    (event,) = gates.events
    assert event.kind == "stall" and event.worker == 0
    assert event.details["unit"] == 4 and event.details["mark"] == 3 and 0.05 <= event.details["seconds"] < 10
    assert "worker 0 has been at unit 4, place 3 for" in event.message
    assert "a_sample_that_waits" in event.message and "test_a_stall_is_told" not in event.message  # its own stack
    backend.close()


def test_two_stalls_are_both_reported_and_timeout_applies() -> None:
    gates = Gates(2)
    backend = ThreadBackend(Square, 2, Rules(stall_warning=0.05), gates)
    for unit in range(2):
        backend.submit(unit, gates.a_sample_that_waits, None)
    assert sorted(backend.receive(30).unit for _ in range(2)) == [0, 1]
    assert sorted(event.details["unit"] for event in gates.events) == [0, 1]
    gate = threading.Event()
    backend.submit(2, lambda: gate.wait(30), None)
    with pytest.raises(errors.LoaderTimeoutError, match=r"after 0\.2 seconds"):
        backend.receive(0.2)
    assert [event.details["unit"] for event in gates.events][2:] == [2]
    gate.set()
    assert backend.receive(30).unit == 2
    backend.close()


def test_the_shortest_wait_for_an_answer_ends() -> None:
    """`SimpleQueue.get` waits for ever, now and then, before Python 3.13."""
    backend = ThreadBackend(Square, 1, Rules(stall_warning=None), Told())
    outbox = backend._answers
    answer = Answer(0, "batch", 7, 0)
    for _ in range(25_000):
        outbox.put(answer, 0.0)
        assert outbox.wait(0.0) and outbox.take()[0] is answer
        assert not outbox.wait(1e-9)
    backend.close()


def test_listener_that_raises_still_gets_the_other_stalls() -> None:
    class Raises(Gates):
        def tell(self, event: Event) -> None:
            super().tell(event)
            raise ZeroDivisionError

    gates = Raises(2)
    backend = ThreadBackend(Square, 2, Rules(stall_warning=1e-9), gates)
    for unit in range(2):
        backend.submit(unit, gates.a_sample_that_waits, None)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            backend.receive(30)
    assert sorted(event.details["unit"] for event in gates.events) == [0, 1]
    assert sorted(backend.receive(30).unit for _ in range(2)) == [0, 1]
    backend.close()


def test_a_stall_may_be_an_error(threads: Make, told: Told) -> None:
    gate = threading.Event()
    backend = threads(1, stall_warning=0.05, stall_action="raise")
    backend.submit(0, lambda: gate.wait(30), None)
    with pytest.raises(errors.StalledError, match=r"(?s)unit 0, place 3 for .*in wait"):
        backend.receive(30)
    assert told.events == []
    gate.set()


@pytest.mark.parametrize("after", [None, 30.0])
def test_no_stall_event_comes_without_a_stall(after: float | None, threads: Make, told: Told) -> None:
    backend = threads(2, stall_warning=after, stall_action="raise")
    gate = threading.Event()
    backend.submit(0, lambda: gate.wait(30), None)
    with pytest.raises(errors.LoaderTimeoutError):
        backend.receive(0.2)
    for unit in range(1, 100):
        backend.submit(unit, unit, None)
    gate.set()
    assert sorted(backend.receive(10).unit for _ in range(100)) == list(range(100))
    assert told.events == []


def test_a_trainer_that_is_away_for_long_is_no_stall(threads: Make, told: Told) -> None:
    """What was done meanwhile has answered, and what begins then begins then."""
    backend = threads(1, stall_warning=0.2, stall_action="raise")
    done = threading.Event()
    backend.submit(0, done.set, None)
    backend.submit(1, 5, None)
    assert done.wait(10)
    away = threading.Event()
    away.wait(0.3)  # longer than a unit may take
    assert [backend.receive(10).unit for _ in range(2)] == [0, 1]
    assert told.events == []
