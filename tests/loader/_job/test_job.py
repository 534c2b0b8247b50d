"""What a worker says of a `gather` that raises: it is to blame only where the samples of the batch can be fetched."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader, Dataset, StokerWarning
from stoker.loader._random.sample_seeding import SampleSeeding

WORKERS = pytest.mark.parametrize("workers", [0, 1])
BAD = 7


class Corrupt(Dataset[Any]):
    """A batch with the bad sample cannot be gathered."""

    stoker_protocol = True

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return np.float64(index)

    def gather_layout(self) -> Any:
        return np.empty(0)

    def gather(self, indices: Any, out: Any) -> None:
        if (indices == BAD).any():
            raise OSError("sample 7 is corrupt")
        out[...] = indices


class CorruptAsItIs(Corrupt):
    def __getitem__(self, index: int) -> Any:
        if index == BAD:
            raise OSError("sample 7 is corrupt")
        return super().__getitem__(index)

    def gather(self, indices: Any, out: Any) -> None:
        super().gather(indices, out)  # of this class's own: else a class that fetches otherwise is not gathered


def said(dataset: Any, workers: int) -> tuple[int, list[str]]:
    """How many samples there were, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StokerWarning)
        loader = DataLoader(dataset, batch_size=5, num_workers=workers, on_error="skip", output="numpy")
        samples = sum(len(batch) for batch in loader)
    return samples, [str(warning.message) for warning in caught if issubclass(warning.category, StokerWarning)]


@WORKERS
def test_a_gather_that_raises_where_no_sample_does_is_named(workers: int) -> None:
    samples, texts = said(Corrupt(), workers)
    assert samples == 20
    assert any("Corrupt.gather() raised OSError" in text and "Correct gather()" in text for text in texts)


@WORKERS
def test_gather_that_raises_as_its_samples_is_not_blamed(workers: int) -> None:
    samples, texts = said(CorruptAsItIs(), workers)
    assert samples == 19
    assert any("sample 7 of batch 1 failed, and was left out" in text for text in texts)
    assert not any("gather()" in text for text in texts)


def as_they_are(samples: list[Any]) -> Any:
    """A function of users that keeps the samples."""
    return samples


def drawn(samples: list[Any]) -> Any:
    return [random.random()]


@pytest.mark.parametrize(
    ("collate_fn", "seeds"),
    [
        *((keeps, False) for keeps in (list, tuple, as_they_are, lambda batch: batch)),
        *((other, True) for other in (drawn, lambda batch: batch[0], lambda *batch: batch, lambda batch, more=1: more)),
    ],
)
def test_generators_are_seeded_for_a_collator_that_may_draw(
    monkeypatch: pytest.MonkeyPatch, collate_fn: Any, seeds: bool
) -> None:
    seeded: list[int] = []
    collate = SampleSeeding.collate

    def noted(self: SampleSeeding, seed: int, position: int, call: Any) -> Any:
        seeded.append(position)
        return collate(self, seed, position, call)

    monkeypatch.setattr(SampleSeeding, "collate", noted)
    batches = list(DataLoader(range(6), 2, collate_fn=collate_fn, output="numpy"))
    assert seeded == ([0, 2, 4] if seeds else [])
    if not seeds:
        assert [[*batch] for batch in batches] == [[0, 1], [2, 3], [4, 5]]
