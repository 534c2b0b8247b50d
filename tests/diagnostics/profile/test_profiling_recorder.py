"""The recorder of a profiled process asks nothing of the user's objects, and keeps none of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import DataLoader
from stoker.diagnostics.profile.profiling_recorder import ProfilingRecorder, _length
from stoker.diagnostics.settings.batch_limit import ProfileOrder


class Draws:
    """A sampler of a user's, whose length draws a random number."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.drawn = error, 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        self.drawn += 1
        if self.error is not None:
            raise self.error
        return 4


def named(**attributes: Any) -> Any:
    """A loader as far as its length is concerned: Stoker's own asks its sampler when it is made."""
    kind = type("Loader", (SimpleNamespace,), {"__len__": lambda loader: len(loader.batch_sampler or loader.sampler)})
    kind.__len__.__module__ = "torch.utils.data.dataloader"
    return kind(**attributes)


@pytest.mark.parametrize("error", [None, NotImplementedError(), TypeError(), ValueError()])
def test_sampler_of_the_user_is_not_asked_for_its_length(error: Exception | None) -> None:
    own = Draws(error)
    for batch_sampler, sampler in ((None, own), (own, None), (stoker.BatchSampler(own, 2, False), own)):
        assert _length(named(batch_sampler=batch_sampler, sampler=sampler)) is None
    assert own.drawn == 0


def test_length_of_usual_loaders_is_known() -> None:
    rows = list(range(10))
    for options in ({}, {"shuffle": True}, {"batch_sampler": [[1, 2], [3]] * 2 + [[4]]}):
        options = {"batch_size": 2, **options} if "batch_sampler" not in options else options
        assert _length(DataLoader(rows, output="numpy", **options)) == 5
    torch = pytest.importorskip("torch.utils.data")
    weighted = torch.WeightedRandomSampler(np.ones(10), 10)
    for options in ({}, {"shuffle": True}, {"sampler": torch.SubsetRandomSampler(rows)}, {"sampler": weighted}):
        assert _length(torch.DataLoader(rows, 2, **options)) == 5
    assert _length(torch.DataLoader(rows, batch_size=None)) == 10


def test_length_that_raises_is_unknown() -> None:
    class Lengthless:
        def __getitem__(self, index: int) -> int:
            return index

        def __len__(self) -> int:
            raise OSError("the server is away")

    assert _length(named(batch_sampler=None, sampler=stoker.SequentialSampler(Lengthless()))) is None


class Rows:
    stoker_protocol = True

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return np.full(2, index)


def test_forgotten_objects_are_free(tmp_path: Path) -> None:
    recorder = ProfilingRecorder(str(tmp_path), ProfileOrder(str(tmp_path), 100))
    dataset = Rows()
    loader = DataLoader(dataset, batch_size=2, output="numpy")
    recorder.prepare(loader, "train.py:1")
    epoch = recorder.begin(loader, "train.py:1", 0.0, 0.1, "stoker")
    iterator = iter(loader)
    assert len(recorder.next_batch(epoch, iterator, next)) == 2  # type: ignore[arg-type]
    iterator.close()
    epoch.end_use()  # type: ignore[attr-defined]
    recorder.flush()
    known = weakref.ref(dataset)
    del dataset, loader, iterator, epoch
    gc.collect()
    assert known() is not None
    recorder.forget()
    gc.collect()
    assert known() is None
