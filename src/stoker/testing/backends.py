"""Test suite for backends: each gives the same samples, order, errors and augmentation as the serial backend.

A test module subclasses the suite:

    @pytest.mark.parametrize("workers", [1, 3])
    class TestThreads(BackendSuite):
        settings = {"worker_method": "thread"}

The serial backend is the reference: each test runs the same loader on both and compares. The suite needs only pytest's
collection, neither torch nor a clock.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from stoker._core.worker_info import get_worker_info
from stoker.datasets.base import Dataset, IterableDataset
from stoker.errors import SkipSample, StokerWarning
from stoker.extend import sample_rng

SAMPLES = 23
"""Samples of the suite's datasets: not a multiple of a batch size or of a number of workers."""


class Augmented(Dataset[Any]):
    """Samples with random numbers from the global generators, or from the worker's own."""

    def __init__(self, whose: str) -> None:
        self._whose = whose

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> list[float]:
        if self._whose == "global":
            return [index, random.random(), float(np.random.rand()), random.random()]
        rng = sample_rng()
        return [index, rng.random_generator.random(), float(rng.numpy_generator.random()), 0.0]


class Failing(Dataset[Any]):
    """A dataset in which some samples raise, each a different kind of error."""

    errors: ClassVar[dict[int, type[Exception]]] = {3: ValueError, 8: KeyError, 9: IndexError, 14: UnicodeDecodeError}

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        kind = self.errors.get(index)
        if kind is UnicodeDecodeError:
            b"\xff".decode()
        if kind is not None:
            raise kind(f"sample {index} is broken")
        return index


class Choosy(Failing):
    """A dataset in which some samples raise, and others raise `SkipSample`."""

    def __getitem__(self, index: int) -> int:
        if index % 5 == 0:
            raise SkipSample(f"sample {index} is skipped")
        return super().__getitem__(index)


class Nested(Dataset[Any]):
    """Samples with leaves of all kinds, some too large for a message."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        large = np.full((64, 64), index, dtype=np.float64)
        return {"large": large, "pair": (index, float(index)), "name": f"sample {index}", "flag": np.bool_(index % 2)}


class Batches(Dataset[Any]):
    """A dataset that fetches a whole batch at once."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitems__(self, indices: list[int]) -> list[float]:
        return [index + random.random() for index in indices]


class ShardedStream(IterableDataset[Any]):
    """A stream that divides itself among workers."""

    shards_itself = True

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(start, SAMPLES, step))


class BackendSuite:
    """Tests of one backend. `settings` are the loader's arguments that select it; the subclass provides `workers`."""

    settings: ClassVar[dict[str, Any]] = {}
    global_generators: ClassVar[bool] = True
    """Whether random numbers from global generators are reproducible. False for threads, which share the generators."""

    def loader(self, dataset: Any, workers: int, **arguments: Any) -> Any:
        """Returns the loader under test, or the serial one if `workers` is 0."""
        from stoker.loader.dataloader import DataLoader

        backend = {"num_workers": workers, **self.settings} if workers else {}
        return DataLoader(dataset, **{"batch_size": 4, "seed": 7, "output": "numpy", **backend, **arguments})

    def epoch(self, dataset: Any, workers: int, **arguments: Any) -> list[Any]:
        """Returns all batches of one epoch, as plain values."""
        with self.loader(dataset, workers, **arguments) as loader:
            return [plain(batch) for batch in loader]

    def same(self, dataset: Any, workers: int, **arguments: Any) -> None:
        """Asserts that this backend and the serial one deliver the same batches."""
        assert self.epoch(dataset, workers, **arguments) == self.epoch(dataset, 0, **arguments)

    def test_samples_and_order(self, workers: int) -> None:
        self.same(range(SAMPLES), workers)
        self.same(range(SAMPLES), workers, shuffle=True)
        self.same(range(SAMPLES), workers, shuffle=True, drop_last=True)

    def test_leaves_of_all_kinds(self, workers: int) -> None:
        self.same(Nested(), workers, shuffle=True)

    def test_single_samples(self, workers: int) -> None:
        self.same(range(SAMPLES), workers, batch_size=None, shuffle=True)

    def test_samplers_of_the_users(self, workers: int) -> None:
        self.same(range(SAMPLES), workers, sampler=[5, 5, 1, 22, 0])
        self.same(range(SAMPLES), workers, batch_size=1, batch_sampler=[[5], [], [1, 22, 0, 0, 1]], collate_fn=list)

    def test_augmentation_from_global_generators(self, workers: int) -> None:
        if self.global_generators:
            self.same(Augmented("global"), workers, shuffle=True)
            self.same(Batches(), workers, shuffle=True)

    def test_augmentation_from_the_workers_generators(self, workers: int) -> None:
        self.same(Augmented("own"), workers, shuffle=True)

    def test_errors_come_in_their_place(self, workers: int) -> None:
        def story(number: int) -> list[Any]:
            with self.loader(Failing(), number, batch_size=2) as loader:
                iterator, told = iter(loader), []
                while True:
                    try:
                        told.append(plain(next(iterator)))
                    except StopIteration:
                        return told
                    except Exception as error:
                        told.append(type(error))

        assert story(workers) == story(0)

    def test_samples_that_fail_are_left_out_or_replaced_alike(self, workers: int) -> None:
        for policy in ("skip", "replace", lambda record: "skip" if record.index == 3 else "replace"):
            for dataset in (Failing(), Choosy()):
                arguments = {"shuffle": True, "on_error": policy, "max_error_rate": None}
                assert self.outcome(dataset, workers, **arguments) == self.outcome(dataset, 0, **arguments)

    def outcome(self, dataset: Any, workers: int, **arguments: Any) -> tuple[list[Any], dict[str, int]]:
        """Returns all batches of one epoch, and the loader's counts of its samples."""
        with self.loader(dataset, workers, **arguments) as loader, warnings.catch_warnings():
            warnings.simplefilter("ignore", StokerWarning)
            batches = [plain(batch) for batch in loader]
            counts = loader.report().as_dict()["epoch"]
        return batches, {name: count for name, count in counts.items() if isinstance(count, int)}

    def test_epochs_differ_and_repeat(self, workers: int) -> None:
        def epochs(number: int, **arguments: Any) -> list[Any]:
            with self.loader(Augmented("own"), number, shuffle=True, **arguments) as loader:
                return [[plain(batch) for batch in loader] for _ in range(3)]

        model = epochs(0)
        assert model[0] != model[1] != model[2]
        assert epochs(workers) == model
        if workers:
            assert epochs(workers, persistent_workers=True) == model

    def test_an_epoch_that_is_left_leaves_nothing_in_the_next(self, workers: int) -> None:
        def epochs(number: int, **arguments: Any) -> list[Any]:
            with self.loader(range(SAMPLES), number, shuffle=True, **arguments) as loader:
                first = plain(next(iter(loader)))
                return [first, *(plain(batch) for batch in loader)]

        model = epochs(0)
        assert epochs(workers) == model
        if workers:
            assert epochs(workers, persistent_workers=True) == model

    def test_streams_lose_and_double_nothing(self, workers: int) -> None:
        batches = self.epoch(ShardedStream(), workers)
        assert sorted(sample for batch in batches for sample in batch) == list(range(SAMPLES))
        assert batches[0] == list(range(0, 4 * workers, workers))


def plain(value: Any) -> Any:
    """Returns a batch as lists and numbers, which compare by `==`."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value
