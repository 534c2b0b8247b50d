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
    figures,
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


def order(kind: str) -> list[int]:
    draw = random.Random(7)
    whole = list(range(N))
    if kind == "reversed":
        return whole[::-1]
    if kind in ("random", "replaced"):
        return draw.sample(whole, N) if kind == "random" else draw.choices(whole, k=N)
    if kind == "runs":  # shards of 100, in random order
        return [100 * shard + place for shard in draw.sample(range(20), 20) for place in range(100)]
    if kind == "window":  # a buffer of 100
        held, found = whole[:100], []
        for index in whole[100:]:
            place = draw.randrange(100)
            found.append(held[place])
            held[place] = index
        return found + draw.sample(held, 100)
    if kind == "other":  # a buffer, of the opposite order
        return [N - 1 - index for index in order("window")]
    if kind == "spread":  # from two files by turns
        first, second = draw.sample(range(N // 2), N // 2), draw.sample(range(N // 2, N), N // 2)
        return [index for pair in zip(first, second, strict=True) for index in pair]
    return whole


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("kind", ["sequential", "reversed", "random", "runs", "window", "other", "spread"])
def test_orders_are_told_apart(kind: str, every: int) -> None:
    found = order_of(epoch_of(order(kind), every=every))
    assert found is not None
    assert found["kind"] == kind, found
    assert found["repeated"] == 0 and "No sample came twice" in found["text"]


def test_ratio_is_that_of_bartels() -> None:
    """Of a sorted order of n the sum of squared distances of neighbours is n - 1, that of ranks n (n² - 1) / 12."""
    ratio, correlation, _ = figures(epoch_of(range(N)))
    assert ratio == pytest.approx(1 / (2 * (N * N - 1) / 12)) and correlation == pytest.approx(1)
    indices = [4, 4, 9, 1, 1, 1] * 5  # ranks with ties
    ranks = np.array([{1: 7.0, 4: 19.5, 9: 27.0}[index] for index in indices])
    ratio, _, _ = figures(epoch_of(indices, 5))
    assert ratio == pytest.approx((np.diff(ranks) ** 2).mean() / (2 * ranks.var()))


def test_seeded_permutations_are_called_random() -> None:
    kinds = [order_of(epoch_of(random.Random(seed).sample(range(300), 300))) for seed in range(200)]
    assert sum(one is not None and one["kind"] == "random" for one in kinds) >= 195


def test_repeated_samples_are_counted() -> None:
    indices = order("replaced")
    found = order_of(epoch_of(indices))
    assert found is not None and found["kind"] == "random"
    assert found["repeated"] == N - len(set(indices)) > 500
    assert f"{found['repeated']:,} had come before in the epoch" in found["text"]


@pytest.mark.parametrize("indices", [[3] * 40, list(range(15))])
def test_small_and_constant_orders(indices: list[int]) -> None:
    found = order_of(epoch_of(indices))
    assert found is None if len(indices) < 16 else found is not None and found["neighbours"] is None


def test_single_samples_far_apart_have_no_neighbours() -> None:
    found = order_of(epoch_of(order("sequential"), size=1, every=8))
    assert found is not None and (found["neighbours"], found["kind"]) == (None, "window")
    found = order_of(epoch_of(order("reversed"), size=1, every=8))
    assert found is not None and (found["neighbours"], found["kind"]) == (None, "other")


def test_the_same_order_in_two_epochs() -> None:
    one, other = epoch_of(order("random")), epoch_of(order("random"))
    assert is_same_order(one, other) and not is_same_order(one, epoch_of(order("runs")))
    assert is_same_order(one, epoch_of(order("random")[:200]))


def test_pictures_are_bounded_and_repeatable() -> None:
    epoch = epoch_of(order("sequential"))
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
