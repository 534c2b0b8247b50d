"""Samplers and states that were made for something else are told so before the first batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stoker
from stoker import DataLoader
from tests.loader._state.edits import edited

N = 23


@pytest.mark.parametrize("count", [N - 1, N + 1])
@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("weights", lambda n: {"sampler": stoker.WeightedRandomSampler(np.ones(n), 5)}),
        ("lengths", lambda n: {"batch_sampler": stoker.BucketBatchSampler([1] * n, batch_size=4)}),
        ("labels", lambda n: {"batch_sampler": stoker.StratifiedBatchSampler([0, 1] * (n // 2) + [0] * (n % 2), 4)}),
        ("labels", lambda n: {"batch_sampler": stoker.BalancedBatchSampler([0, 1] * (n // 2) + [0] * (n % 2), 2, 2)}),
    ],
)
def test_a_sampler_for_another_number_of_samples(name: str, made: Any, count: int) -> None:
    told = rf"has {count} {name}, but the dataset has {N} samples"
    if count > N:
        with pytest.raises(stoker.errors.SamplerError, match=told):
            DataLoader(range(N), **made(count))
    else:
        with pytest.warns(stoker.StokerWarning, match=rf"{told}: those from {count} on are never drawn"):
            DataLoader(range(N), **made(count))


def test_sampler_generator_of_another_device_is_refused() -> None:
    class OfAGpu:
        device = type("device", (), {"type": "cuda", "__str__": lambda self: "cuda:0"})()

    with pytest.raises(ValueError, match="generator is on cuda:0, and the order is drawn on the CPU"):
        DataLoader(range(N), sampler=stoker.RandomSampler(range(N), generator=OfAGpu()))  # type: ignore[arg-type]


def test_a_state_of_more_batches_than_samples_is_damaged() -> None:
    loader = DataLoader(range(N), 4, shuffle=True, seed=3)
    next(iter(loader))
    with pytest.raises(stoker.errors.StateFormatError, match="position 4 behind 99 batches"):
        loader.load_state_dict(edited(loader.state_dict(), batches=99))
