"""What spawned workers are sent, however many of them take others' places."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import numpy as np
import pytest

from stoker._engine.serialize import pickler
from stoker._engine.spawn.worker_processes import WorkerPayload


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks Linux which files are open")
def test_later_workers_need_no_more_payload_files() -> None:
    """A pipe is made over to each process by itself, and the rest with it."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    shipment = WorkerPayload({"pipe": theirs, "array": np.arange(100_000)})
    open_files = files()
    for _ in range(3):
        with pickler.spawning():
            _, (stream, buffers, _) = shipment.__reduce__()
        assert os.fstat(stream.descriptor).st_size > 0 and os.fstat(buffers.descriptor).st_size >= 800_000
        assert files() == open_files
    shipment.close()
    ours.close()
    theirs.close()


def test_payload_that_cannot_be_written_leaves_no_file() -> None:
    class Never:
        def __reduce__(self) -> Any:
            raise ValueError("never")

    before = files()
    with pytest.raises(TypeError, match="never"):
        WorkerPayload({"it": Never()})
    assert files() == before
