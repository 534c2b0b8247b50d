"""What `describe()` says of how batches are fetched, and that it asks no class of the user's."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import ConcatDataset, DataLoader, Dataset, StackDataset, Subset, TensorDataset, collate, from_iterable
from tests.datasets.test_gather import NotYetOpen

ROWS = np.zeros((20, 3), np.float32)


class Batched(list[int]):
    def __getitems__(self, indices: Any) -> list[int]:
        return [self[index] for index in indices]


def fetched(dataset: Any, **settings: Any) -> str:
    first = DataLoader(dataset, batch_size=4, **settings).describe().splitlines()[0]
    return first.split("; ")[1]


def threads(dataset: Any) -> str:
    text = DataLoader(dataset, batch_size=4, num_workers=1, threads_per_worker=4).describe()
    return next(line for line in text.splitlines() if line.startswith("threads"))


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (TensorDataset(ROWS), "a batch at once, by gather"),
        (Subset(StackDataset(ROWS, ROWS), range(8)), "a batch at once, by gather"),
        (NotYetOpen(), "a batch at once, by gather, where its layout allows it"),
        (StackDataset(ROWS, NotYetOpen()), "a batch at once, by gather, where its layout allows it"),
        (StackDataset(range(20), NotYetOpen()), "sample by sample, by __getitem__"),
        (ConcatDataset([ROWS, ROWS[:, :2]]), "sample by sample, by __getitem__"),
        (Subset(range(20), range(8)), "sample by sample, by __getitem__"),
        (Subset(Batched(range(20)), range(8)), "a batch at once, by __getitems__"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_description_says_how_batches_are_fetched(dataset: Any, said: str) -> None:
    assert fetched(dataset) == said


def test_only_the_default_collation_of_batches_is_gathered() -> None:
    for settings in ({"batch_size": None}, {"collate_fn": list}):
        text = DataLoader(NotYetOpen(), **settings).describe()
        assert "sample by sample" in text.splitlines()[0]


def test_functions_that_are_registered_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetched(TensorDataset(ROWS), output="numpy") == "a batch at once, by gather"
    monkeypatch.setitem(collate.default_collate_fn_map, np.ndarray, lambda batch, *, collate_fn_map=None: batch)
    assert fetched(TensorDataset(ROWS), output="numpy") == "sample by sample, by __getitem__"


def test_threads_are_for_what_is_not_gathered() -> None:
    assert "batches are gathered" in threads(TensorDataset(ROWS))
    assert "4 in each worker make the samples of batches that are not gathered" in threads(NotYetOpen())
    assert "4 in each worker make samples;" in threads(Subset(range(20), range(8)))
    assert "a whole batch is fetched at once" in threads(Subset(Batched(range(20)), range(8)))


def test_the_users_layout_is_asked_for_in_the_workers() -> None:
    class Opened(Dataset[Any]):
        stoker_protocol = True
        opened = False

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return ROWS[index]

        def gather_layout(self) -> Any:
            self.opened = True
            return ROWS[:0]

        def gather(self, indices: Any, out: Any) -> None:
            out[...] = ROWS[indices]

    data = Opened()
    loader = DataLoader(data, batch_size=4, num_workers=2)
    loader.describe()
    assert len(list(loader)) == 2
    assert not data.opened


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "one stream"),
        ({"num_workers": 2}, "a stream for each worker; if it does not shard itself, the loader shares it out"),
        ({"num_workers": 2, "shard": "none"}, "each worker reads all of its stream (shard='none')"),
        ({"num_workers": 2, "worker_init_fn": print}, "a stream for each worker, shared out by worker_init_fn"),
    ],
)
def test_description_says_how_streams_are_read(settings: dict[str, Any], said: str) -> None:
    first = DataLoader(from_iterable(range, 20), batch_size=4, **settings).describe().splitlines()[0]
    assert first.endswith(f"; {said}")


class Mapped(list[int]):
    pass


class Once(list[int]):
    unpickle_once = True


class Twice(Once):
    unpickle_once = False


def workers(dataset: Any, context: str = "spawn") -> str:
    text = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=context).describe()
    return next(line for line in text.splitlines() if line.startswith("workers"))


@pytest.mark.parametrize(
    ("dataset", "is_once"),
    [
        (Mapped(range(8)), False),
        (Once(range(8)), True),
        (Twice(range(8)), False),
        (Subset(Once(range(8)), range(4)), True),
        (ConcatDataset([Once(range(8)), Once(range(8))]), True),
        (ConcatDataset([Once(range(8)), Mapped(range(8))]), False),
        (StackDataset(Once(range(8)), Once(range(8))), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_description_says_which_workers_unpickle(dataset: Any, is_once: bool) -> None:
    said = "for which the dataset is unpickled once" if is_once else "each of which unpickles the dataset"
    assert said in workers(dataset)
    assert "forked" in workers(dataset, "fork")


def test_description_gives_the_unpickling_cost_of_each_worker() -> None:
    loader = DataLoader(Mapped(range(8)), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    assert len(list(loader)) == 2
    assert re.search(
        r"unpickles the dataset in [0-9.e-]+ s and \d+ MiB of its own; arrays are shared", loader.describe()
    )


def test_the_list_that_each_worker_will_hold_is_named() -> None:
    assert "and holds dataset itself, some" in workers([*range(100_000)])


def test_description_says_what_decodes_jpegs(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pytest.importorskip("stoker.images.kernel")
    compiled = f"images      JPEGs: {kernel.backend()}"

    def images(**arguments: Any) -> list[str]:
        described = DataLoader(ROWS, batch_size=4, **arguments).describe().splitlines()
        return [line for line in described if line.startswith("images")]

    assert images(num_workers=1) == [compiled]
    with stoker.images.register():
        assert images() == [compiled]
    if kernel.bound() is not None:
        assert "call stoker.images.register() once" in images()[0]
        assert "call stoker.images.register() once" in images(num_workers=1, worker_method="thread")[0]
        monkeypatch.setenv("STOKER_IMAGES", "0")
        assert images(num_workers=1)[0].endswith("because of STOKER_IMAGES=0")
    monkeypatch.delitem(sys.modules, "stoker.images.kernel")
    monkeypatch.delitem(sys.modules, "PIL.JpegImagePlugin")
    assert images() == []
