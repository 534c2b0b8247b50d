"""A worker that waits for a lock of multiprocessing is recognised by its stack."""

from __future__ import annotations

import faulthandler
import multiprocessing
import tempfile
import threading
from pathlib import Path

import pytest

from stoker._engine.process.held_lock import held_lock

LOCK = multiprocessing.get_context("spawn").Lock()


def enters() -> None:
    with LOCK:
        pass


def acquires() -> None:
    assert LOCK.acquire(timeout=60)
    LOCK.release()


@pytest.mark.parametrize("wait", [enters, acquires])
def test_line_that_waits_is_named(wait: object) -> None:
    thread = threading.Thread(target=wait)  # type: ignore[arg-type]
    stack = ""
    with LOCK:
        thread.start()
        while "in enters" not in stack and "in acquires" not in stack:
            stack = stacks()
        while not held_lock(stack):  # until the thread is inside
            stack = stacks()
    thread.join()
    assert f"at {Path(__file__).name}:" in held_lock(stack) and "may have held that lock" in held_lock(stack)


def test_other_stacks_say_nothing() -> None:
    assert held_lock(stacks()) == "" and held_lock("") == ""


def stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
