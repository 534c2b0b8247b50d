"""The stacks of workers, and of those that cannot be asked for theirs."""

from __future__ import annotations

import os
import subprocess

import pytest

from stoker._engine.fork.forked_process import Stacks
from stoker._engine.transport import segments


def test_worker_without_the_signal_handler_is_not_asked() -> None:
    """As a worker whose sample has reset the handlers of all signals."""
    stacks = Stacks(1)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        told = stacks.read([(0, process.pid)])
    assert told.startswith(f"Worker 0 (pid {process.pid}):\n(cannot be asked") and process.returncode == 0
    os.close(stacks.descriptor(0))


def test_failed_stack_file_leaves_no_other_open(monkeypatch: pytest.MonkeyPatch) -> None:
    stacks, create, room = Stacks(1), segments.create, [None, None]

    def with_room() -> int:
        if not room:
            raise OSError(24, "Too many open files")
        room.pop()
        return create()

    monkeypatch.setattr(segments, "create", with_room)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="Too many open files"):
        stacks.grow(4)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    monkeypatch.undo()
    stacks.grow(2)
    for worker in range(2):
        os.close(stacks.descriptor(worker))
