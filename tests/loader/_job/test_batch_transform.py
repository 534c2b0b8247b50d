"""`batch_transform=` without a device: the same batches on every backend, with random numbers for each sample."""

from __future__ import annotations

import functools
import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.loader._random import batch_draws as module

BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "one worker": {"num_workers": 1, "multiprocessing_context": "fork"},
    "threads in workers": {"num_workers": 2, "threads_per_worker": 2, "multiprocessing_context": "fork"},
    "spawn": {"num_workers": 2, "multiprocessing_context": "spawn"},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
}


class Numbers(stoker.Dataset[Any]):
    def __init__(self, length: int = 22, bad: tuple[int, ...] = ()) -> None:
        self.length, self.bad = length, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise ValueError(f"sample {index} is bad")
        return np.full(3, index, np.float32), index


class Gathered(Numbers):
    def gather(self, indices: Any, out: Any = None) -> Any:
        rows = np.asarray(indices)
        return np.repeat(rows.astype(np.float32)[:, None], 3, 1), rows


class Counted(stoker.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(np.full(3, number, np.float32), number) for number in range(22)])


def with_draws(batch: Any) -> Any:
    values, labels = batch
    first, second = stoker.batch_draws(len(labels)), stoker.batch_draws(len(labels))
    numbers = np.stack([first.uniform(), first.uniform(), second.uniform(-1, 1)], 1)
    normal = [second.generator(row).standard_normal() for row in range(len(second))]
    return np.asarray(values), np.asarray(labels), numbers, np.array(normal)


def with_global_generators(batch: Any) -> Any:
    own = stoker.sample_rng().numpy_generator.random()
    return (np.asarray(batch[1]), random.random(), float(np.random.rand()), own)


def fails_at_9(batch: Any) -> Any:
    if 9 in np.asarray(batch[1]):
        raise ValueError("no nine")
    return batch


def batches(dataset: Any = None, **options: Any) -> list[Any]:
    options = {"batch_size": 5, "shuffle": True, "seed": 3, "batch_transform": with_draws, "output": "numpy"} | options
    return list(stoker.DataLoader(Numbers() if dataset is None else dataset, **options))


def by_sample(all_batches: list[Any]) -> dict[int, list[float]]:
    return {
        int(label): [*map(float, numbers), float(normal)]
        for _, labels, rows, normals in all_batches
        for label, numbers, normal in zip(labels, rows, normals, strict=True)
    }


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        np.array_equal(one, other)
        for batch, expected in zip(ours, theirs, strict=True)
        for one, other in zip(batch, expected, strict=True)
    )


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "serial"])
@pytest.mark.parametrize("dataset", [Numbers(), Gathered()], ids=["samples", "gathered"])
def test_backends_give_equal_batches(backend: str, dataset: Any) -> None:
    serial = batches()
    assert same(batches(dataset, **BACKENDS[backend]), serial)
    assert len({number for row in by_sample(serial).values() for number in row}) == 22 * 4


@pytest.mark.parametrize("backend", ["fork", "spawn"])
def test_other_generators_are_seeded_for_each_batch(backend: str) -> None:
    serial = batches(batch_transform=with_global_generators)
    assert same(batches(batch_transform=with_global_generators, **BACKENDS[backend]), serial)
    assert len({batch[1] for batch in serial}) == len(serial)


def test_the_trainers_generators_stay_as_they_are() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    batches(batch_transform=with_global_generators)
    assert random.random() == expected


@pytest.mark.parametrize("backend", ["serial", "fork", "threads"])
def test_a_sample_draws_the_same_on_another_number_of_ranks(backend: str) -> None:
    alone = by_sample(batches())
    ranks = [
        by_sample(batches(distributed="exact", num_replicas=2, rank=rank, **BACKENDS[backend])) for rank in range(2)
    ]
    assert ranks[0] | ranks[1] == alone and not set(ranks[0]) & set(ranks[1])


@pytest.mark.parametrize("backend", ["serial", "fork"])
def test_batches_after_a_resume_are_the_same(backend: str) -> None:
    def loader(workers: str) -> Any:
        options = {"batch_transform": with_draws, "output": "numpy", **BACKENDS[workers]}
        return stoker.DataLoader(Numbers(), batch_size=5, shuffle=True, seed=3, **options)

    first = loader("one worker")
    list(itertools.islice(iter(first), 2))
    second = loader(backend)
    second.load_state_dict(first.state_dict())
    assert same(list(second), batches()[2:])


def test_without_a_seed_the_epochs_seed_is_drawn() -> None:
    np.random.seed(0)
    loader = stoker.DataLoader(Numbers(), batch_size=5, batch_transform=with_draws, output="numpy")
    one, other = by_sample(list(loader)), by_sample(list(loader))
    assert not {number for row in one.values() for number in row} & {number for row in other.values() for number in row}


def test_samples_left_out_do_not_shift_the_draws() -> None:
    whole = by_sample(batches())
    with pytest.warns(stoker.StokerWarning, match="left out"):
        fewer = by_sample(batches(Numbers(bad=(4, 17)), on_error="skip", max_error_rate=None))
    assert fewer == {label: row for label, row in whole.items() if label not in (4, 17)}


@pytest.mark.parametrize("backend", ["fork", "threads"])
def test_a_stream_draws_for_each_position(backend: str) -> None:
    options = {"shuffle": None, "shard": "auto"}
    alone = by_sample(batches(Counted(), **options))
    with pytest.warns(stoker.StokerWarning):
        several = by_sample(batches(Counted(), **options, **BACKENDS[backend]))
    assert several == alone and len({row[0] for row in alone.values()}) == 22


def test_views_of_a_sample_draw_each_their_own() -> None:
    with module.of_batch(7, range(10, 13)):
        twice = stoker.batch_draws(6).uniform(size=(2,))
    with module.of_batch(7, range(12, 13)):
        last = stoker.batch_draws(2).uniform(size=(2,))
    assert len(np.unique(twice)) == 12
    np.testing.assert_array_equal(twice[4:], last)


def test_rows_that_are_no_multiple_of_the_samples_are_refused() -> None:
    with module.of_batch(7, range(4)), pytest.raises(stoker.BatchError, match=r"batch_draws\(6\): .* 4 samples"):
        stoker.batch_draws(6)


def test_draws_elsewhere_follow_the_global_generator() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    one, other = stoker.batch_draws(3).uniform(), stoker.batch_draws(3).uniform()
    torch.manual_seed(1)
    np.testing.assert_array_equal(stoker.batch_draws(3).uniform(), one)
    assert not set(one) & set(other)


def test_uniform_numbers_are_uniform() -> None:
    with module.of_batch(1, range(4000)):
        numbers = stoker.batch_draws(4000).uniform(2, 4, size=(8,))
    assert numbers.min() >= 2 and numbers.max() < 4
    np.testing.assert_allclose(numbers.mean(0), 3, atol=0.05)
    assert np.abs(np.corrcoef(numbers.T) - np.eye(8)).max() < 0.08


@pytest.mark.parametrize("backend", ["serial", "threads", "fork"])
def test_an_error_names_the_transform_and_the_batch(backend: str) -> None:
    with pytest.raises(ValueError, match="no nine") as caught:
        batches(shuffle=False, batch_transform=fails_at_9, **BACKENDS[backend])
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "batch_transform=fails_at_9 for batch 1 of epoch 0" in told


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="batch_transform should be a function of a batch or None"):
        stoker.DataLoader(Numbers(), batch_transform=3)  # type: ignore[arg-type]


def test_a_transform_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(stoker.CannotSendError, match="batch_transform"):
        batches(batch_transform=functools.partial(with_draws, threading.Lock()), **BACKENDS["spawn"])


def test_the_description_names_the_transform() -> None:
    loader = stoker.DataLoader(Numbers(), batch_size=5, batch_transform=with_draws, num_workers=2)
    assert "then batch_transform=with_draws" in loader.describe()


@pytest.mark.parametrize("backend", ["serial", "fork", "threads"])
def test_a_large_batch_that_is_kept_is_not_written_again(backend: str) -> None:
    kept: list[tuple[Any, Any]] = []

    class Large(stoker.Dataset[Any]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            return np.full(17 << 20, index, np.uint8)

    def keeps(batch: Any) -> Any:
        kept.append((batch, batch[:, :1].copy()))
        assert all((each == first).all() for each, first in [*kept])
        return batch

    found = batches(Large(), shuffle=False, batch_size=2, batch_transform=keeps, **BACKENDS[backend])
    assert [batch[:, 0].tolist() for batch in found] == [[0, 1], [2, 3], [4, 5]]
    assert all((batch == batch[:, :1]).all() for batch in found)


@pytest.mark.parametrize("backend", ["serial", "fork"])
def test_seeding_of_workers_does_not_matter(backend: str) -> None:
    """The transform is seeded for each batch, and the generators of the dataset go on as in torch."""
    drawn = batches(batch_transform=with_global_generators)
    options = {"seeding": "worker", **BACKENDS[backend]}
    assert same(batches(batch_transform=with_global_generators, **options), drawn)


def test_transform_moves_no_generator_of_a_worker() -> None:
    options: dict[str, Any] = {"seeding": "worker", "num_workers": 1, "output": "numpy", "seed": 3, "batch_size": 5}
    plain = [numbers for numbers, _ in stoker.DataLoader(Drawn(), **options)]
    drawn = [numbers for numbers, _ in stoker.DataLoader(Drawn(), batch_transform=draws_and_returns, **options)]
    np.testing.assert_array_equal(np.concatenate(drawn), np.concatenate(plain))


class Drawn:
    """Draws from the global generators."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return random.random() + np.random.rand(), index


def draws_and_returns(batch: Any) -> Any:
    with_global_generators(batch)
    return batch
