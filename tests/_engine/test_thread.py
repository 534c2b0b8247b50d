"""What is special about worker threads: nothing travels."""

from __future__ import annotations

import gc
import threading

import pytest

from stoker._engine.thread import ThreadBackend


class Square:
    """A job that squares its unit."""

    def __init__(self, number: int) -> None:
        self.number = number

    def run(self, work: object, lend: object = None) -> object:
        class Odd(Exception):
            pass

        if callable(work):
            return work()
        assert isinstance(work, int)
        if work < 0:
            raise Odd(work)
        return work * work

    def take_notes(self) -> list[str]:
        return []

    def failed_index(self) -> None:
        return None

    def stream_state(self) -> None:
        return None


def test_a_local_exception_class_stays_itself() -> None:
    backend = ThreadBackend(Square, 1)
    backend.submit(0, -3, None)
    failure = backend.receive(10).value
    assert type(failure.rebuilt()).__name__ == "Odd"
    backend.close()


def test_batches_are_handed_over_as_they_are() -> None:
    backend = ThreadBackend(Square, 2)
    made = object()
    backend.submit(0, lambda: made, None)
    assert backend.open(backend.receive(10)) is made
    backend.close()


def test_a_backend_that_is_garbage_ends_its_threads() -> None:
    before = threading.active_count()
    backend = ThreadBackend(Square, 3)
    assert threading.active_count() == before + 3
    del backend
    gc.collect()
    assert threading.active_count() == before


def test_a_dropped_unit_is_never_answered() -> None:
    backend = ThreadBackend(Square, 1)
    gate = threading.Event()
    backend.submit(0, gate.wait, None)
    backend.submit(1, 5, None)
    backend.drop(2)
    backend.submit(2, 6, None)
    gate.set()
    assert backend.receive(10).unit == 2
    backend.close()


def test_time_runs_out() -> None:
    backend = ThreadBackend(Square, 1)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0.01 seconds"):
        backend.receive(0.01)
    backend.close()
