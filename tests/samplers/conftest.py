from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from stoker._core import nominal
from stoker.samplers.order import BatchOrder


@pytest.fixture
def torch_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torch is not installed: samplers draw from NumPy."""
    monkeypatch.setattr(nominal, "torch_is_wanted", lambda: False)


@pytest.fixture
def asked_by_threads() -> Callable[[BatchOrder], list[list[int]]]:
    """All batches of an order, of which four threads ask for every fourth, the last one first."""

    def batches(order: BatchOrder) -> list[list[int]]:
        found: dict[int, list[int]] = {}

        def ask(first: int) -> None:
            for number in range(len(order) - 1 - first, -1, -4):
                found[number] = order.batch(number)

        threads = [threading.Thread(target=ask, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[number] for number in range(len(order))]

    return batches
