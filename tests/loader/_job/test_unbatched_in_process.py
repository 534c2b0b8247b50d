"""Samples that are not batched, without workers: the short path gives what the long one gives, and counts the same."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import StokerError, StokerWarning
from stoker.loader._random import sample_seeding
from stoker.loader._random.sample_seeding import _PROBES

LATE = _PROBES + 300
MANY = LATE + 300


@pytest.fixture(autouse=True)
def samples_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a busy machine: all generators would stay seeded for dear ones, which need the long path."""
    monkeypatch.setattr(sample_seeding, "_DEAR", 1e9)


class Kinds:
    """Numbers, and from `LATE` on something else."""

    def __init__(self, late: Any) -> None:
        self.late = late
        self.asked: list[int] = []

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        if index < LATE:
            return index, {"row": np.full(3, index)}
        return self.late(index)


def loader(dataset: Any, **settings: Any) -> Any:
    return stoker.DataLoader(dataset, batch_size=None, output="numpy", seed=3, **settings)


def failing(index: int) -> Any:
    if index == LATE:
        raise ValueError("this one")
    return index, {"row": np.full(3, index)}


LATER = {
    "a text": str,
    "a number": float,
    "a tuple": lambda index: (index, (np.float32(index), None)),
    "a dict": lambda index: {"a": [np.arange(index % 5)]},
    "nothing": lambda index: None,
    "an object": lambda index: complex(index),
}


@pytest.mark.parametrize("late", LATER.values(), ids=LATER)
def test_samples_are_converted_as_by_a_worker(late: Any) -> None:
    dataset = Kinds(late)
    made = iter(loader(dataset))
    samples = [*itertools.islice(made, LATE)]
    assert made._short is not None, "the short path is the one that is tested"
    samples += made
    assert dataset.asked == [*range(MANY)]
    assert repr(samples) == repr([*loader(Kinds(late), num_workers=1, worker_method="thread")])


def test_failed_sample_is_raised_in_its_turn_and_asked_for_once() -> None:
    dataset = Kinds(failing)
    made = iter(loader(dataset))
    before = [number for number, _ in itertools.islice(made, LATE)]
    with pytest.raises(ValueError, match="this one"):
        next(made)
    assert before == [*range(LATE)] and dataset.asked == [*range(LATE + 1)]


def test_failed_sample_is_left_out_and_the_rest_is_counted() -> None:
    made = loader(Kinds(failing), on_error="skip")
    with pytest.warns(StokerWarning, match="left out"):
        numbers = [number for number, _ in made]
    assert numbers == [*range(LATE), *range(LATE + 1, MANY)]
    report = made.report().epoch
    assert (report.delivered, report.quarantined) == (MANY - 1, 1)


def test_array_without_a_leaf_is_an_error_that_names_it() -> None:
    pytest.importorskip("torch")
    dataset = Kinds(lambda index: {"when": np.array(["2026-01-01"], "M8[D]")})
    made = iter(stoker.DataLoader(dataset, batch_size=None))
    for _ in range(LATE):
        next(made)
    with pytest.raises(StokerError, match="when"):
        next(made)
    assert dataset.asked == [*range(LATE + 1)]


def test_draws_that_begin_late_are_those_of_the_position() -> None:
    draws = Kinds(lambda index: random.random())
    late = [*loader(draws)][LATE + 1 :]  # the first of them makes the draws known
    assert late == [*loader(Kinds(lambda index: random.random()), seeding="sample")][LATE + 1 :]


def test_state_stands_behind_the_latest_sample() -> None:
    whole = [number for number, _ in loader(Kinds(lambda index: (index, {})), shuffle=True)]
    made = loader(Kinds(lambda index: (index, {})), shuffle=True)
    first = [number for number, _ in itertools.islice(iter(made), _PROBES + 100)]
    other = loader(Kinds(lambda index: (index, {})), shuffle=True)
    other.load_state_dict(made.state_dict())
    both = first + [number for number, _ in other]
    assert both == whole and sorted(both) == [*range(MANY)]
