"""Figures and words of an epoch's order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stoker.diagnostics.composition.composition import (
    PICTURE,
    POINTS,
    NotedEpoch,
    composition_of,
    is_same_order,
    order_of,
    pictures,
    points_of,
)
from tests.diagnostics.composition.test_epoch_notes import noted

N = 2000


def epoch_of(indices: Sequence[int], size: int = 20, every: int = 1) -> NotedEpoch:
    """An epoch of these samples, of which every so manieth batch is noted."""
    batches = [list(indices[first : first + size]) for first in range(0, len(indices), size)]
    kept = range(0, len(batches), every)
    return NotedEpoch(
        0,
        {},
        len(batches),
        len(indices),
        every,
        True,
        np.array([size * number for number in kept]),
        np.array([len(batches[number]) for number in kept]),
        np.concatenate([batches[number] for number in kept]),
    )


def shuffled(seed: int = 7) -> list[int]:
    return random.Random(seed).sample(range(N), N)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize(
    ("indices", "text"),
    [
        (range(N), "Not shuffled: the samples come in the order of the dataset. No sample came twice among the "),
        (range(N)[::-1], "Not shuffled: the samples come in the opposite order of the dataset. No sample came twice"),
        (shuffled(), "No sample came twice among the "),
        ([*range(N // 2, N), *range(N // 2)], "No sample came twice among the "),
    ],
    ids=["in order", "reversed", "shuffled", "in shards"],
)
def test_order_of_the_dataset_is_said(indices: Sequence[int], text: str, every: int) -> None:
    found = order_of(epoch_of(indices, every=every))
    assert found is not None and found["repeated"] == 0
    assert found["text"].startswith(text)


def test_repeated_samples_are_counted() -> None:
    indices = random.Random(7).choices(range(N), k=N)
    found = order_of(epoch_of(indices))
    assert found is not None
    assert found["repeated"] == N - len(set(indices)) > 500
    assert f"{found['repeated']:,} had come before in the epoch" in found["text"]


@pytest.mark.parametrize("indices", [[3] * 40, list(range(15))])
def test_small_and_constant_orders(indices: list[int]) -> None:
    found = order_of(epoch_of(indices))
    assert found is None if len(indices) < 16 else found is not None and found["repeated"] == 39


def test_the_same_order_in_two_epochs() -> None:
    one, other = epoch_of(shuffled()), epoch_of(shuffled())
    assert is_same_order(one, other) and not is_same_order(one, epoch_of(shuffled(8)))
    assert is_same_order(one, epoch_of(shuffled()[:200]))


def test_pictures_are_bounded_and_repeatable() -> None:
    epoch = epoch_of(range(N))
    points = points_of(epoch, 100)
    assert points == points_of(epoch, 100) and len(points["indices"]) == 100
    assert points["indices"] == points["positions"] == sorted(points["positions"])
    assert len(points_of(epoch, 10_000)["indices"]) == N


def test_composition_of_notes() -> None:
    assert composition_of([]) is None
    (epoch,) = noted([[0, 1], [2]])
    assert epoch.indices.tolist() == [0, 1, 2]


def records(loader: int) -> list[dict[str, Any]]:
    from stoker.diagnostics.composition.epoch_notes import EpochNotes

    found = []
    for number in range(2):
        notes = EpochNotes(lambda: ({}, None, None))
        notes.name(loader, number)
        for first in range(0, 3000, 30):
            notes.asked(list(range(first, first + 30)))
        found += notes.lines()
    return found


def test_all_pictures_of_a_page_are_bounded() -> None:
    some = [records(loader) for loader in range(20)]
    shown = pictures(some)
    assert sum(len(picture["indices"]) for one in shown for picture in one) == POINTS
    assert [len(picture["indices"]) for picture in pictures(some[:1])[0]] == [3000, 3000]
    assert PICTURE >= 3000
    found = composition_of(some[0])
    assert found is not None and found["same_order"] is True
    assert [one["epoch"] for one in found["orders"]] == [0, 1]
