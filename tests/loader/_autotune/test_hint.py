"""A loader without workers says once that its training loop waits, and how many workers would help."""

from __future__ import annotations

import logging
import types
import warnings
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._core.machine import cpus
from stoker._core.machine.cpus import Cpus
from stoker.loader._autotune.hint import BATCHES, Hint, workers_for


@pytest.mark.parametrize(
    ("own", "cost", "cpus", "number"),
    [
        (0.1, 0.05, 8, 1),
        (0.1, 0.15, 8, 2),
        (0.02, 0.15, 8, 7),
        (0.0, 0.15, 4, 4),
        (0.1, 0.15, 2, 2),
        (0.0, 0.0005, 8, 0),  # to hand it over takes longer
        (0.0, 0.0018, 2, 0),
        (0.002, 0.0018, 2, 1),
        (1.0, 0.05, 8, 0),
        (0.1, 0.15, 1, 0),  # they would take the trainer's CPU
    ],
)
def test_hint_gives_the_number_of_workers(own: float, cost: float, cpus: int, number: int) -> None:
    assert workers_for(own, cost, cpus) == number


def said_after(hint: Hint, own: float, cost: float, most: int = 1000) -> int | None:
    for count in range(most):
        if hint.delivered(own, cost, lambda: 4) is not None:
            return count
    return None


def test_hint_needs_enough_batches_and_seconds() -> None:
    assert said_after(Hint(), 0.5, 0.5) == BATCHES
    assert said_after(Hint(), 0.01, 0.03) == 50
    assert said_after(Hint(), 0.5, 0.5, most=BATCHES) is None


def test_the_first_batch_is_not_counted() -> None:
    hint = Hint()
    hint.delivered(0.0, 1000.0, lambda: 4)
    assert said_after(hint, 0.1, 0.01) is None


def test_a_loop_that_waits_less_than_a_fifth_hears_nothing() -> None:
    assert said_after(Hint(), 0.081, 0.019) is None
    assert said_after(Hint(), 0.05, 0.03) is not None


def test_hint_comes_when_the_loop_begins_to_wait_later() -> None:
    hint = Hint()
    assert said_after(hint, 0.1, 0.0) is None
    assert said_after(hint, 0.1, 0.2) is not None


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which all takes a second, and a machine of four CPUs."""
    ticks = iter(range(10**9))
    clock = types.SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    monkeypatch.setattr("stoker.loader._autotune.hint.time", clock)
    monkeypatch.setattr(cpus, "cpus", lambda: Cpus(4, 4.0, "a test"))


def loader(**settings: Any) -> Any:
    return stoker.DataLoader(np.arange(60), 2, output="numpy", **settings)


@pytest.mark.usefixtures("slow")
def test_hint_comes_once_and_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Any] = []
    data = loader(on_event=events.append)
    with caplog.at_level(logging.INFO, "stoker"):
        for _ in range(3):  # warnings are errors here
            assert len(list(data)) == 30
    assert [event.kind for event in events] == ["hint"]
    assert "waits 50% of its time" in caplog.text
    assert "num_workers=1 would" in caplog.text
    assert "num_workers=1 would" in str(data.report())


@pytest.mark.usefixtures("slow")
def test_hint_is_a_warning() -> None:
    data = loader()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(data)
        list(data)
    assert [warning.category for warning in caught] == [stoker.errors.StokerWarning]
    assert caught[0].filename == __file__


@pytest.mark.usefixtures("slow")
def test_over_several_epochs_that_are_short() -> None:
    events: list[Any] = []
    data = stoker.DataLoader(np.arange(20), 2, output="numpy", on_event=events.append)
    for _ in range(4):
        list(data)
    assert [event.kind for event in events] == ["hint"]


@pytest.mark.usefixtures("slow")
def test_listener_that_raises_costs_no_batch() -> None:
    def listen(event: Any) -> None:
        raise ValueError("no")

    iterator = iter(loader(on_event=listen))
    got = []
    raised = 0
    while True:
        try:
            got.append(next(iterator).tolist())
        except ValueError:
            raised += 1
        except StopIteration:
            break
    assert raised == 1
    assert got == [[n, n + 1] for n in range(0, 60, 2)]


@pytest.mark.usefixtures("slow")
def test_zero_is_taken_literally() -> None:
    data = loader()
    iterator = iter(data)
    list(iterator)
    assert data.num_workers == 0
    assert cpus.taken() == 0
