"""The trainer's end of the process backend: what it says of its own accord."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._engine.process.channel import Channel
from stoker._engine.process.trainer import LARGE


class Gated(stoker.Dataset[Any]):
    """Samples of so many bytes; the third waits until it may be made."""

    def __init__(self, size: int, gate: int) -> None:
        self.size = size
        self.gate = gate

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            os.read(self.gate, 1)
        return np.zeros(self.size, np.uint8)


@pytest.mark.parametrize(("size", "is_told"), [(LARGE, True), (LARGE // 2, False)])
def test_memory_of_large_batches_is_given_back_as_soon_as_the_trainer_waits(
    monkeypatch: pytest.MonkeyPatch, size: int, is_told: bool
) -> None:
    gate, opens = os.pipe()
    given_back: list[list[int]] = []
    send = Channel.send

    def spied(channel: Channel, *message: Any) -> None:
        if message[0] == "freed":
            given_back.append(message[1])
            os.write(opens, b"x")
        send(channel, *message)

    dataset = Gated(size, gate)
    with stoker.DataLoader(dataset, batch_size=1, num_workers=1, output="numpy", seed=0, timeout=20) as loader:
        iterator = iter(loader)
        next(iterator)
        next(iterator)  # neither is kept
        monkeypatch.setattr(Channel, "send", spied)
        if not is_told:
            os.write(opens, b"x")
        assert next(iterator).nbytes == size
        assert [len(numbers) for numbers in given_back] == [1] * is_told
    os.close(gate)
    os.close(opens)
