"""Batches whose large samples are written as they come, beside those that are collated at their end."""

from __future__ import annotations

import mmap
import os
import random
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._engine.transport.writer import SlotWriter
from stoker.collate._compiled import incremental

Array = np.ndarray[Any, np.dtype[Any]]
BATCH = 4
WAYS = [
    pytest.param({"num_workers": 0}, id="no worker"),
    pytest.param({"num_workers": 1}, id="one worker"),
    pytest.param({"num_workers": 2}, id="two workers"),
    pytest.param({"num_workers": 2, "worker_method": "thread"}, id="two threads"),
    pytest.param({"num_workers": 1, "threads_per_worker": 2}, id="threads in a worker"),
]


class Images(stoker.Dataset[Any]):
    """Each sample tells whether the last one's array is still there."""

    def __init__(self, bad: tuple[int, ...] = (), odd: tuple[int, ...] = (), draws: bool = False) -> None:
        self.bad = bad
        self.odd = odd
        self.draws = draws
        self.last: weakref.ref[Array] | None = None

    def __len__(self) -> int:
        return 10 * BATCH

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.bad:
            raise ValueError(f"sample {index} is bad")
        is_alive = self.last is not None and self.last() is not None
        image = np.full((64, 64), index, np.float64 if index in self.odd else np.float32)
        if self.draws:
            image[0, 0] = random.random()
        self.last = weakref.ref(image)
        return {"image": image, "index": index, "waits": is_alive}


class Stream(stoker.IterableDataset[Any]):
    shards_itself = True

    def __iter__(self) -> Iterator[Any]:
        stoker.get_worker_info()
        images = Images()
        return (images[index] for index in range(len(images)))


@pytest.fixture(params=[-1.0, 1e9], ids=["as they come", "at the end"])
def worth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Where processes are forked they have it as well."""
    monkeypatch.setattr(incremental, "WORTH", request.param)
    return float(request.param)


def images_of(batches: list[Any]) -> list[Any]:
    return [(batch["index"].tolist(), batch["image"].dtype, batch["image"].tolist()) for batch in batches]


def loader(dataset: Any, **settings: Any) -> Any:
    return stoker.DataLoader(dataset, batch_size=BATCH, seed=3, output="numpy", **settings)


@pytest.mark.parametrize("ways", WAYS[:4])
def test_early_rows_give_the_same_batches_with_less_waiting(
    ways: dict[str, Any], worth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = "worker_method" not in ways
    with loader(Images(draws=draws), shuffle=True, **ways) as ours:
        batches = list(ours)
    waiting = sum(int(batch["waits"].sum()) for batch in batches)
    monkeypatch.setattr(incremental, "WORTH", 1e9)
    with loader(Images(draws=draws), shuffle=True) as model:
        assert images_of(batches) == images_of(list(model))
    if ways.get("worker_method") == "thread":
        return  # the threads share the dataset, which knows one last sample
    if worth < 0:  # but for the first of a worker, which waits for the second
        assert waiting <= max(1, ways["num_workers"])
    else:
        assert waiting >= 10 * (BATCH - 1) - 2 * BATCH


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_early_rows_leave_out_bad_samples(
    ways: dict[str, Any], policy: str, worth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = Images(bad=(17, 18, 29), draws=ways.keys() == {"num_workers"})

    def batches_of(**settings: Any) -> Any:
        with loader(images, on_error=policy, max_errors=10, max_error_rate=1.0, **settings) as ours:
            batches = list(ours)
        if worth < 0 and settings == {"num_workers": 1}:  # no wait for a sample that was left out
            assert not any(batch["waits"].any() for batch in batches[1:])
        return images_of(batches)

    found = batches_of(**ways)
    monkeypatch.setattr(incremental, "WORTH", 1e9)
    assert found == batches_of()


@pytest.mark.parametrize("ways", WAYS[:4])
def test_a_sample_that_raises_costs_its_batch(ways: dict[str, Any], worth: float) -> None:
    with loader(Images(bad=(17, 29)), **ways) as ours:
        iterator, found, raised = iter(ours), [], []
        while True:
            try:
                found.append(next(iterator)["index"].tolist())
            except StopIteration:
                break
            except ValueError as error:
                raised.append(str(error))
    assert len(raised) == 2
    assert found == [list(range(first, first + BATCH)) for first in range(0, 40, BATCH) if first not in (16, 28)]


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies_amid_its_rows(workers: int, worth: float, tmp_path: Path) -> None:
    """Another makes the batch again, over what the first one had written."""

    class Dies(Images):
        def __getitem__(self, index: int) -> dict[str, Any]:
            flag = tmp_path / str(index)
            if index in (18, 35) and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    with loader(Dies(draws=True), num_workers=workers) as ours, loader(Images(draws=True)) as model:
        assert images_of(list(ours)) == images_of(list(model))
        assert ours.report().event_counts["death"] == 2


@pytest.mark.parametrize("ways", WAYS[:4])
def test_samples_of_another_dtype(ways: dict[str, Any], worth: float) -> None:
    with loader(Images(odd=(18, 19, 33)), **ways) as ours:
        batches = list(ours)
    assert [batch["image"].dtype.itemsize for batch in batches] == [4, 4, 4, 4, 8, 4, 4, 4, 8, 4]
    for batch in batches:
        assert (batch["image"][:, 1, 1] == batch["index"]).all()


@pytest.mark.parametrize("ways", WAYS[:4])
def test_early_rows_work_for_streams(ways: dict[str, Any], worth: float) -> None:
    with loader(Stream(), **ways) as ours:
        batches = list(ours)
    for batch in batches:
        assert (batch["image"][:, 1, 1] == batch["index"]).all()
    times = max(1, ways["num_workers"])
    assert sorted(index for batch in batches for index in batch["index"].tolist()) == sorted([*range(40)] * times)
    if worth < 0 and ways["num_workers"] < 2:
        assert not any(batch["waits"].any() for batch in batches[1:])


@pytest.mark.parametrize("collate", [stoker.default_collate, stoker.default_convert])
@pytest.mark.parametrize("workers", [0, 1])
def test_early_rows_work_without_batching(collate: Any, workers: int, worth: float) -> None:
    class Pairs:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            return [np.full(20_000, index), np.full(20_000, index + 1)]

    made: Any = stoker.DataLoader(Pairs(), batch_size=None, collate_fn=collate, num_workers=workers, output="numpy")  # type: ignore[arg-type]
    for index, (one, other) in enumerate(made):
        assert (one == index).all() and (other == index + 1).all()


def test_the_last_batch_of_a_stream_keeps_its_own_memory(worth: float) -> None:
    class Large(stoker.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return (np.full(1 << 20, number, np.float32) for number in range(30))

    *_, batch = stoker.DataLoader(Large(), batch_size=9, output="numpy")
    assert len(batch) == 3
    base = batch if batch.base is None else batch.base
    assert base.nbytes < 2 * batch.nbytes


class Retries(Images):
    """Its exceptions know themselves, as those do that are kept in a variable and raised."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        try:
            return super().__getitem__(index)
        except ValueError as error:
            last = error
        raise last


@pytest.mark.parametrize("dataset", [Images, Retries])
def test_slots_are_lent_on_behind_a_sample_that_raises(
    dataset: type[Images], worth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in a traceback would count as rows that are still in use."""
    detached = mmap.mmap(-1, 1)  # shared with who is forked
    usual = SlotWriter._detach

    def noted(self: SlotWriter, *rest: Any) -> None:
        detached[0] = 1
        usual(self, *rest)

    monkeypatch.setattr(SlotWriter, "_detach", noted)
    with loader(dataset(bad=(17, 29)), num_workers=1) as ours:
        iterator, left = iter(ours), 10
        while left:
            left -= 1
            try:
                next(iterator)
            except ValueError:
                continue
    assert detached[0] == 0
    detached.close()
