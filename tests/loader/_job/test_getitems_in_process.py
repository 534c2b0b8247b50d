"""`__getitems__` without workers: the short path gives what the long one gives, and asks as often."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import StokerError
from stoker.loader import iterator

N, BATCH = 400, 8


class Rows:
    """Notes each call; from half of them on, `late` makes the batch."""

    def __init__(self, late: Callable[[list[int]], Any]) -> None:
        self.late = late
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("batches are fetched at once")

    def __getitems__(self, indices: list[int]) -> Any:
        self.asked.append((type(indices), list(indices)))
        if len(self.asked) % 50 > 25:
            return self.late(indices)
        return [(index, np.full(3, index)) for index in indices]


def failing(indices: list[int]) -> Any:
    if indices[0] % 3 == 0:
        raise ValueError(f"at {indices[0]}")
    return [(index, np.full(3, index)) for index in indices]


def skipping(indices: list[int]) -> Any:
    if len(indices) > 1 and 101 in indices:
        raise stoker.SkipSample
    if indices == [101]:
        raise stoker.SkipSample
    return [(index, np.full(3, index)) for index in indices]


def emptying(indices: list[int]) -> Any:
    rows = [(index, np.full(3, index)) for index in indices]
    if type(indices) is list:
        indices.clear()
    return rows


LATE: dict[str, Callable[[list[int]], Any]] = {
    "drawing": lambda indices: [
        (random.random(), np.random.rand(), stoker.sample_rng().numpy_generator.random(), index) for index in indices
    ],
    "drawing the same": lambda indices: [(random.randrange(99), np.full(3, np.random.rand())) for _ in indices],
    "failing": failing,
    "skipping": skipping,
    "too few": lambda indices: [(index, np.full(3, index)) for index in indices[1:]],
    "a tuple": lambda indices: tuple((index, np.full(3, index)) for index in indices),
    "an array": np.array,
    "ragged": lambda indices: [(index, np.full(index % 5, index)) for index in indices],
    "changes the list": emptying,
}
ORDERS: dict[str, dict[str, Any]] = {
    "computed": {"batch_size": BATCH, "shuffle": True},
    "walked": {"batch_size": BATCH, "sampler": [*range(N)]},
    "batches as tuples": {"batch_sampler": [tuple(range(n, n + BATCH)) for n in range(0, N, BATCH)]},
}


def course(late: str, order: str) -> tuple[list[Any], int]:
    random.seed(1)
    np.random.seed(1)
    dataset = Rows(LATE[late])
    loader: Any = stoker.DataLoader(dataset, output="numpy", seed=3, **ORDERS[order])
    seen, short = [], 0
    for _ in range(2):
        batches = iter(loader)
        while True:
            try:
                seen.append(str(next(batches)))
            except StopIteration:
                break
            except (ValueError, StokerError) as error:
                seen.append(f"{type(error)} {error}")
            short += batches._short is not None
            seen.append((random.random(), np.random.rand(), str(loader.state_dict())))
    return [seen, dataset.asked, loader.report().total.delivered], short


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("late", LATE)
def test_each_step_is_that_of_the_long_path(late: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    got, short = course(late, order)
    monkeypatch.setattr(iterator, "short_path", lambda *given: None)
    expected, none = course(late, order)
    assert got == expected and none == 0
    assert short > 10
