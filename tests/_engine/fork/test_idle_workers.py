"""Workers that have nothing to do give back what `malloc` has kept of their last samples."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader
from stoker._engine.process import linux
from stoker._engine.supervision import rules

FREED = 32 << 20


class Untidy:
    """Frees 32 MiB, and keeps a little that lies above them, so that they do not go back by themselves. A sample is the
    worker's memory then."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        freed = [np.ones(1 << 16, np.uint8) for _ in range(FREED >> 16)]
        self._kept.append(np.ones(1 << 16, np.uint8))
        del freed
        return np.array([index, linux.private_bytes(os.getpid())])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the allocator is not glibc's")
@pytest.mark.parametrize("stall_warning", [60.0, 0.0])
def test_idle_workers_give_memory_back_each_time(monkeypatch: pytest.MonkeyPatch, stall_warning: float) -> None:
    monkeypatch.setattr(rules, "IDLE", 0.1)
    loader: Any = DataLoader(
        Untidy(),
        num_workers=1,
        persistent_workers=True,
        output="numpy",
        multiprocessing_context="fork",
        stall_warning=stall_warning,
    )
    with loader:
        for _ in range(2):
            iterator = iter(loader)
            batches = np.concatenate(list(iterator))
            assert batches[:, 0].tolist() == [0, 1, 2, 3]
            _, worker = iterator._backend.pids
            until = time.monotonic() + 20
            while linux.private_bytes(worker) > batches[:, 1].min() - FREED // 2:
                assert time.monotonic() < until
                time.sleep(0.01)
