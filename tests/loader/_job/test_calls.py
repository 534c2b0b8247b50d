"""Each sample is asked for once, whatever Stoker's options are, and also by what shows or measures a loader."""

from __future__ import annotations

import json
import os
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import stoker
from stoker.loader._random import sample_seeding
from tests.loader._state.edits import formerly

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have fewer CPUs

SAMPLES = 90


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Callable[[], list[int]]]:
    """Returns the indices asked for since the last call, in any process."""
    path = tmp_path / "asked"
    path.touch()
    os.environ["ASKED"] = str(path)

    def since() -> list[int]:
        found = sorted(map(int, path.read_text().split()))
        path.write_text("")
        return found

    with mock.patch.multiple(sample_seeding, _PROBES=20, _DEAR=1e9):
        yield since
    del os.environ["ASKED"]


def note(index: int) -> None:
    file = os.open(os.environ["ASKED"], os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{index}\n".encode())
    os.close(file)


class Counted(stoker.Dataset[int]):
    """Draws late, and asks for every 31st sample to be left out, if `skips`."""

    def __init__(self, skips: bool = False, fails: bool = False) -> None:
        self.skips, self.fails = skips, fails

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        note(index)
        if index >= 40:
            random.random()
        if index >= 60:
            stoker.sample_rng().random_generator.random()
        if self.skips and index % 31 == 30:
            raise stoker.SkipSample("no object in it")
        if self.fails and index == 45:
            raise OSError("sample 45 is corrupt")
        return index


class CountedStream(stoker.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        inner = Counted()
        yield from (inner[index] for index in range(SAMPLES))


def walk(dataset: Any, **options: Any) -> list[int]:
    with stoker.DataLoader(dataset, **{"batch_size": 8, "output": "numpy", "collate_fn": list, **options}) as loader:
        return [index for batch in loader for index in batch]


ONCE = list(range(SAMPLES))
BACKENDS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "worker_method": "thread"},
    {"num_workers": 1, "threads_per_worker": 3},
]


@pytest.mark.filterwarnings("ignore:Samples drew from random generators that all threads")
@pytest.mark.filterwarnings("ignore:sample 45 of batch 5 failed")
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_each_sample_is_asked_for_once(asked: Callable[[], list[int]], backend: dict[str, Any]) -> None:
    left = [index for index in ONCE if index % 31 != 30]
    for collate in ({}, {"collate_fn": None}):
        for seeding in ("auto", "sample", "worker"):
            assert walk(Counted(), seeding=seeding, seed=3, **backend, **collate) == ONCE
            assert asked() == ONCE, (seeding, collate)
        assert walk(Counted(skips=True), **backend, **collate) == left
        assert asked() == ONCE, ("a sample is left out", collate)
        assert walk(Counted(fails=True), **backend, **collate, on_error="skip") == [i for i in ONCE if i != 45]
        assert asked() == ONCE, ("a sample fails", collate)
        if "threads_per_worker" not in backend:
            assert len(walk(Counted(fails=True), **backend, **collate, on_error="replace")) == SAMPLES
            found = asked()
            assert sorted(set(found)) == ONCE and len(found) == SAMPLES + 1, ("another takes its place", collate)
    assert walk(stoker.RetryDataset(Counted(), wait=0), **backend) == ONCE
    assert asked() == ONCE


def test_retries_ask_again_for_the_sample_that_failed(asked: Callable[[], list[int]]) -> None:
    with pytest.raises(OSError, match="sample 45"):
        walk(stoker.RetryDataset(Counted(fails=True), attempts=3, wait=0))
    assert asked() == [*range(46), 45, 45]


def test_streams_are_read_once(asked: Callable[[], list[int]]) -> None:
    for workers in (0, 1):
        assert walk(CountedStream(), num_workers=workers) == ONCE
        assert asked() == ONCE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stoker.StokerWarning)
        assert sorted(walk(CountedStream(), num_workers=2)) == ONCE  # each worker reads the whole stream
    assert asked() == sorted([*ONCE, *ONCE])


def test_previews_and_profiles_ask_once(asked: Callable[[], list[int]], tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    loader = stoker.DataLoader(Pictures(), batch_size=8, output="numpy")
    loader.preview(tmp_path / "first.png")
    assert asked() == list(range(8))
    loader = stoker.DataLoader(Counted(), batch_size=8, output="numpy", num_workers=1)
    with loader:
        assert len(list(loader.profile())) == 12
    assert asked() == ONCE


class Pictures(Counted):
    def __getitem__(self, index: int) -> Any:
        import numpy as np

        super().__getitem__(index)
        return np.zeros((8, 8, 3), np.uint8)


def test_a_later_loader_keeps_what_was_found(asked: Callable[[], list[int]]) -> None:
    loader = stoker.DataLoader(Counted(), batch_size=8, output="numpy", num_workers=1, seed=5)
    assert "up to now" not in loader.describe()
    list(loader)
    assert "generators that samples draw from (up to now: Python) are seeded" in loader.describe()
    state = loader.state_dict()
    other = stoker.DataLoader(Counted(), batch_size=8, output="numpy", seed=5)
    other.load_state_dict(state)
    assert "up to now: Python" in other.describe()
    before = stoker.DataLoader(Counted(), batch_size=8, output="numpy", seed=5).state_dict()
    assert formerly(before)["below"] is None and "drawn" not in before["below"]
    other.load_state_dict(formerly(before))
    assert json.loads(other.state_dict()["below"])["drawn"] == ["Python"]


class Late(stoker.Dataset[float]):
    """Draws from the 30th sample on; in the second epoch from the first."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> float:
        return random.random() if index >= 30 else 0.0


def test_numbers_of_later_epochs_are_those_of_each_sample() -> None:
    """What the first epoch found is told to the workers of the next."""

    def epochs(**options: Any) -> list[list[float]]:
        loader = stoker.DataLoader(Late(), batch_size=8, output="numpy", seed=5, collate_fn=list, **options)
        with loader:
            return [[number for batch in loader for number in batch] for _ in range(2)]

    with mock.patch.multiple(sample_seeding, _PROBES=8, _DEAR=1e9):
        model = epochs(seeding="sample")
        for options in ({}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}):
            first, second = epochs(**options)
            assert second == model[1]
            late = [number for number in first if number]
            assert len(set(late)) == len(late) == 60
            assert first[32:] == model[0][32:] or options.get("num_workers") == 2
