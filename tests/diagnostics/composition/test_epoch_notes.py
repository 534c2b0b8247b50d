"""Notes of an epoch: bounded, over all of it, and nothing where the indices are no numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.diagnostics.composition import epoch_notes
from stoker.diagnostics.composition.composition import NotedEpoch, noted_epochs
from stoker.diagnostics.composition.epoch_notes import EpochNotes, SampleColumn
from stoker.loader._job.work import GivenBatch
from tests.ownership import moved, named_like


def noted(batches: list[Any], chunk: int = 7, labels: Any = None, lengths: Any = None) -> list[NotedEpoch]:
    """The notes of an epoch, written after each `chunk` batches."""
    columns = [None if values is None else SampleColumn(values, "here") for values in (labels, lengths)]
    notes = EpochNotes(lambda: ({"length": 5}, *columns))  # type: ignore[arg-type, return-value]
    notes.name(3, 1)
    lines = []
    for number, batch in enumerate(batches):
        notes.asked(batch)
        if not number % chunk:
            lines += notes.lines()
    notes.over()
    notes.is_done = True
    lines += notes.lines()
    assert all((line["noted"], line["loader"]) == (1, 3) for line in lines)
    return noted_epochs(lines)


def test_short_epoch_is_noted_in_full() -> None:
    batches = [[3, 1], [0, 4], [2]]
    (epoch,) = noted(batches, labels=[10, 11, 12, 13, 14], lengths=np.arange(5.0))
    assert epoch.indices.tolist() == [3, 1, 0, 4, 2]
    assert epoch.labels is not None and epoch.labels.tolist() == [13, 11, 10, 14, 12]
    assert epoch.lengths is not None and epoch.lengths.tolist() == [3, 1, 0, 4, 2]
    assert epoch.positions.tolist() == [0, 1, 2, 3, 4] and epoch.sizes.tolist() == [2, 2, 1]
    assert (epoch.batches, epoch.samples, epoch.every, epoch.is_whole) == (3, 5, 1, True)
    assert epoch.about == {"length": 5}


@pytest.mark.parametrize("chunk", [1, 30, 10_000])
def test_long_epoch_is_noted_at_equal_distances(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_notes, "SAMPLES", 100)
    batches = [list(range(4 * number, 4 * number + 4)) for number in range(1000)]
    (epoch,) = noted(batches, chunk)
    assert 50 <= len(epoch.indices) <= 104 and epoch.every == 64
    assert epoch.starts.tolist() == list(range(0, 4000, 4 * 64))
    assert epoch.positions.tolist() == epoch.indices.tolist()
    assert (epoch.batches, epoch.samples) == (1000, 4000)


@pytest.mark.parametrize(
    "batches",
    [
        [(1, 2), (0,)],
        [np.array([1, 2]), np.array([0])],
        [[np.int64(1), 2], [np.uint8(0)]],
        [1, 2, 0],
        [np.int32(1), 2, 0],
    ],
)
def test_whole_numbers_of_all_kinds_are_noted(batches: list[Any]) -> None:
    (epoch,) = noted(batches)
    assert epoch.indices.tolist() == [1, 2, 0]


def test_tensors_are_noted() -> None:
    torch = pytest.importorskip("torch")
    (epoch,) = noted([torch.tensor([1, 2]), [torch.tensor(0)], torch.tensor(3)])
    assert epoch.indices.tolist() == [1, 2, 0, 3] and epoch.sizes.tolist() == [2, 1, 1]


def test_batches_that_stoker_made_a_list_of_are_noted() -> None:
    (epoch,) = noted([GivenBatch([1, 2])])
    with moved(GivenBatch):
        assert noted([GivenBatch([1, 2])])[0].indices.tolist() == epoch.indices.tolist() == [1, 2]
    for kind in (named_like(GivenBatch, list), type("GivenBatch", (GivenBatch,), {})):
        assert noted([kind([1, 2])]) == []


class Keyed(int):
    """A user's class of keys, whose methods are not to be called."""

    def __index__(self) -> int:
        raise AssertionError

    __int__ = __index__


@pytest.mark.parametrize(
    "odd", [["a", "b"], "ab", None, [None], [(0, 224)], [0.5], [2**70], Keyed(1), [Keyed(1)], iter([1, 2]), {1: 2}]
)
def test_other_indices_end_the_notes(odd: Any) -> None:
    assert noted([odd]) == []
    assert noted([[0, 1]] * 10 + [odd] + [[2, 3]] * 10, chunk=4) == []


def test_values_that_are_missing_are_left_out() -> None:
    (epoch,) = noted([[0, 1], [2, 3]], labels=[1, 2], lengths=["a"])
    assert epoch.labels is None and epoch.lengths is None and len(epoch.indices) == 4


def test_the_notes_copy_a_list_that_the_sampler_uses_again() -> None:
    notes = EpochNotes(lambda: ({}, None, None))
    notes.name(0, 0)
    batch = [1, 2]
    notes.asked(batch)
    batch[:] = [7, 8]
    notes.asked(batch)
    (epoch,) = noted_epochs(notes.lines())
    assert epoch.indices.tolist() == [1, 2, 7, 8] and not epoch.is_whole


def test_lengths_of_batches_are_looked_for_at_equal_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_notes, "PADDED", 8)
    notes = EpochNotes(lambda: ({}, None, None))
    notes.name(0, 0)
    lines = []
    for number in range(100):
        notes.received({"x": np.zeros((2, 200)), "x_mask": np.arange(200) < np.array([[number], [200]])})
        lines += notes.lines()
    (epoch,) = noted_epochs(lines)
    assert [lengths[0] for _, _, lengths, _ in epoch.padded] == list(range(0, 100, 16))
    notes = EpochNotes(lambda: ({}, None, None))
    notes.name(0, 0)
    for number in range(100):
        notes.received([np.zeros(3)] if number < 50 else {"lengths": np.ones(2, int), "x": np.ones((2, 1))})
    assert notes.lines() == []
