"""What the kernel says of other processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from stoker._engine.process import linux

Process = subprocess.Popen[bytes]


@pytest.fixture
def process() -> Iterator[Process]:
    """One that waits for its input to end; its first line says that it is there."""
    lines = "import signal; signal.signal(signal.SIGUSR1, lambda *_: None); print(flush=True); input()"
    command = [sys.executable, "-S", "-c", lines]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        yield process


def test_whether_a_process_has_ended(process: Process) -> None:
    descriptor = linux.process_descriptor(process.pid)
    assert not linux.has_ended(descriptor) and not linux.is_ending(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert linux.has_ended(descriptor) and linux.is_ending(process.pid)  # its corpse is there
    process.wait()
    assert linux.has_ended(descriptor) and linux.is_ending(process.pid)
    assert descriptor is not None
    os.close(descriptor)


def test_a_descriptor_that_is_another_files_by_now_says_nothing(process: Process) -> None:
    descriptor = linux.process_descriptor(process.pid)
    assert descriptor is not None
    os.close(descriptor)
    assert not linux.has_ended(descriptor)
    assert os.open(os.devnull, os.O_RDONLY) == descriptor  # and it is readable
    assert not linux.has_ended(descriptor)
    os.close(descriptor)
    assert not linux.has_ended(None)


def test_fatal_signals_of_a_process_are_known(process: Process) -> None:
    assert linux.dies_of(process.pid, signal.SIGUSR2)
    assert linux.dies_of(process.pid, signal.SIGRTMAX - 3)
    assert not linux.dies_of(process.pid, signal.SIGUSR1)  # it has a handler
    assert not linux.dies_of(process.pid, signal.SIGPIPE)  # Python ignores it
    process.kill()
    process.wait()
    assert not linux.dies_of(process.pid, signal.SIGUSR2)


def test_cpu_time_that_a_process_wanted(process: Process) -> None:
    """What it used, and what others had instead of it."""
    pid, asleep = os.getpid(), linux.cpu_seconds_wanted(process.pid)
    before, began = linux.cpu_seconds_wanted(pid), time.thread_time()
    while time.thread_time() < began + 0.05:
        pass
    assert linux.cpu_seconds_wanted(pid) >= before + 0.05
    assert linux.cpu_seconds_wanted(process.pid) < asleep + 0.05
    assert linux.cpu_seconds_wanted(2**22 + 1) == 0.0  # no such process
