"""With a full arena workers wait for slots of the training loop, without garbage collections."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import DataLoader
from stoker._engine.fork import trainer

pytestmark = pytest.mark.filterwarnings("ignore::stoker.StokerWarning")


class Large(stoker.Dataset[Any]):
    """Sample k is 64 kB of k."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        return np.full(1 << 13, index, float)


@pytest.fixture
def collections() -> Iterator[list[str]]:
    """An entry for each time that all garbage is collected."""
    found: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            found.append(phase)

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


def test_no_garbage_is_collected_while_memory_comes_back(
    collections: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for four batches, where sixteen could be ahead."""
    monkeypatch.setattr(trainer, "SERVED", 30.0)  # the machine may be slow
    settings: dict[str, Any] = {"num_workers": 4, "prefetch_factor": 4, "memory_budget": 4 << 20}
    loader = DataLoader(Large(), batch_size=8, output="numpy", multiprocessing_context="fork", **settings)
    iterator = iter(loader)
    collections.clear()  # before a fork there is one
    assert [batch[0, 0] for batch in iterator] == list(range(0, 400, 8))
    assert len(collections) <= 2
