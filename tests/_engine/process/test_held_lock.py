"""A worker that waits for a lock of multiprocessing is recognised by its stack."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import stoker
from stoker._engine.process.held_lock import held_lock
from stoker.errors import LoaderTimeoutError

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


class DiesWithLock:
    """Its first sample ends the worker while that holds a lock."""

    def __init__(self) -> None:
        fork = multiprocessing.get_context("fork")
        self.lock, self.first = fork.Lock(), fork.Semaphore(1)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        with self.lock:
            if self.first.acquire(block=False):
                os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_timeout_names_lock_of_killed_worker() -> None:
    loader = stoker.DataLoader(DiesWithLock(), 2, num_workers=2, timeout=0.5, multiprocessing_context="fork")
    told = ""
    with iter(loader) as batches:
        while "acquire()" not in told:  # until the worker is dead and the other one waits
            with pytest.raises(LoaderTimeoutError) as error:
                next(batches)
            told = str(error.value)
    line = DiesWithLock.__getitem__.__code__.co_firstlineno + 1
    first = told.splitlines()[0]
    assert f"A worker waits in acquire() of a lock, at {Path(__file__).name}:{line}. The worker that died" in first


def stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
