"""Datasets of many parts, each with a generator: a sample pays for those that it can draw from."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import DataLoader, Dataset
from stoker.datasets.nesting import held_by
from stoker.loader._random import generators
from stoker.loader._random.find_generators import SampleParts


class Part(Dataset[float]):
    def __init__(self, number: int) -> None:
        self.rng = np.random.default_rng(number)

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> float:
        return float(self.rng.random()) + random.random()


def ways(dataset: Any) -> SampleParts:
    return SampleParts(dataset, lambda held: held_by(held, ("__getitem__", "__getitems__")))


def test_part_of_a_sample_is_that_of_its_index() -> None:
    parts = [Part(number) for number in range(4)]
    nested = stoker.ConcatDataset([stoker.ConcatDataset(parts[:2]), stoker.Subset(parts[2], [4, 0]), parts[3]])
    found = ways(stoker.RetryDataset(stoker.Subset(nested, [0, 5, 9, 10, 11, 12, 16, -1]), wait=0))
    assert found.parts == parts
    assert [found.of(index) for index in range(8)] == [0, 1, 1, 2, 2, 3, 3, 3]
    assert found.of("name") is None and found.of(99) is None
    assert ways(parts[0]).parts == parts[:1]


def test_part_that_stands_several_times_is_one_part() -> None:
    parts = [Part(number) for number in range(2)]
    found = ways(stoker.ConcatDataset([*parts, parts[0]]))
    assert found.parts == parts
    assert [found.of(index) for index in (0, 5, 10)] == [0, 1, 0]


def test_parts_of_torchs_concatenation_are_found() -> None:
    data = pytest.importorskip("torch.utils.data")
    parts = [Part(number) for number in range(3)]
    found = ways(data.Subset(data.ConcatDataset(parts), [14, 0, 7]))
    assert [found.parts[found.of(index) or 0] for index in range(3)] == [parts[2], parts[0], parts[1]]


def epoch(dataset: Any, **options: Any) -> list[float]:
    loader = DataLoader(dataset, 4, shuffle=True, seed=5, output="numpy", collate_fn=list, **options)
    with loader:
        return [number for batch in loader for number in batch]


def test_generators_of_other_parts_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stoker.ConcatDataset([Part(number) for number in range(20)])
    before = [part.rng.bit_generator.state for part in whole.datasets]
    seeded: list[Any] = []
    seed = generators.NumpyState.seed
    monkeypatch.setattr(generators.NumpyState, "seed", lambda self, key: (seeded.append(self), seed(self, key))[1])
    made = epoch(whole)
    assert len(seeded) == 100 and len(set(seeded)) == 20, "one for each sample"
    assert [part.rng.bit_generator.state for part in whole.datasets] == before, "the script's own"
    assert len(set(made)) == 100
    assert made == epoch(whole) == epoch(whole, num_workers=2) == epoch(whole, on_error="skip")
    few = epoch(whole, seeding="sample")
    assert few == made


class Transform:
    def __init__(self, number: int) -> None:
        self.rng = random.Random(number)


class Transformed(Dataset[float]):
    def __init__(self, drawn: int) -> None:
        self.transforms = [Transform(number) for number in range(24)]
        self.drawn = drawn

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> float:
        return sum(transform.rng.random() for transform in self.transforms[: self.drawn])


@pytest.mark.parametrize("workers", [0, 1])
def test_more_than_16_generators_are_bounded_and_named(workers: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = epoch(Transformed(16), num_workers=workers)
    assert made == epoch(Transformed(16)) and len(set(made)) == 40
    with pytest.warns(stoker.StokerWarning, match="holds 24 random generators .* 16 of them are seeded") as caught:
        assert len(set(epoch(Transformed(24), num_workers=workers))) == 40
    assert len(caught) == 1


class Refuses(random.Random):
    refuses = False

    def getstate(self) -> Any:
        raise NotImplementedError("a hardware generator")


class Hardware(Dataset[float]):
    def __init__(self) -> None:
        self.rng = Refuses(1)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> float:
        return self.rng.random() + random.random()


@pytest.mark.parametrize("workers", [0, 1])
def test_generator_that_refuses_is_left_alone_and_named(workers: int) -> None:
    with pytest.warns(stoker.StokerWarning, match="The Refuses that the dataset holds cannot be read") as caught:
        assert len(set(epoch(Hardware(), num_workers=workers))) == 20
    assert len(caught) == 1
