"""The hooks note what the loops get, under both engines, and change nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.diagnostics.composition.composition import NotedEpoch, composition_of, noted_epochs
from stoker.diagnostics.composition.order_hooks import OrderHooks
from stoker.diagnostics.loader_hooks import LoaderHooks
from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.recorder import Recorder

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")
stoker = pytest.importorskip("stoker")

KINDS = [data.DataLoader, stoker.DataLoader]
WORKERS = pytest.mark.parametrize("workers", [0, 2])
LOADERS = pytest.mark.parametrize("kind", KINDS)


class Own(data.Sampler):  # type: ignore[misc]
    """A sampler of the user's, which draws from the global generator."""

    def __iter__(self) -> Iterator[int]:
        yield from (int(torch.randint(40, ()).item()) for _ in range(40))

    def __len__(self) -> int:
        return 40


class Measured:
    """Hooks in this process, and what they have noted."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self.recorder = Recorder(self._folder)
        self.hooks = LoaderHooks(self.recorder, order=OrderHooks(self.recorder))
        self.hooks.observe()
        self.hooks.measure("torch.utils.data.dataloader")

    def loaders(self) -> list[list[NotedEpoch]]:
        self.recorder.flush()
        known = Measurements()
        known.read(self._folder)
        return [noted_epochs(one.noted) for one in known.loaders]


@pytest.fixture
def measured(tmp_path: Path) -> Iterator[Measured]:
    made = Measured(tmp_path)
    yield made
    made.hooks.undo()


SAMPLERS: list[Callable[[], dict[str, Any]]] = [
    lambda: {"batch_size": 6},
    lambda: {"batch_size": 6, "shuffle": True},
    lambda: {"batch_size": None, "shuffle": True},
    lambda: {"batch_size": 6, "sampler": Own(), "drop_last": True},
    lambda: {"batch_size": 6, "sampler": data.WeightedRandomSampler([1.0] * 39 + [9.0], 40)},
    lambda: {"batch_sampler": data.BatchSampler(data.RandomSampler(range(40)), 6, False)},
    lambda: {"batch_sampler": stoker.BucketBatchSampler([1 + place % 7 for place in range(40)], 4, buckets=3)},
]


def got(kind: Any, options: dict[str, Any], workers: int) -> list[list[list[int]]]:
    """The batches of three epochs of seeded loops, one of them persistent, and a number drawn after them."""
    torch.manual_seed(5)
    loader = kind(list(range(40)), num_workers=workers, persistent_workers=workers > 0, **options)
    epochs = [[torch.as_tensor(batch).reshape(-1).tolist() for batch in loader] for _ in range(3)]
    if hasattr(loader, "close"):
        loader.close()
    return [*epochs, [torch.rand(2).tolist()]]


@WORKERS
@LOADERS
@pytest.mark.parametrize("place", range(len(SAMPLERS)))
def test_notes_are_the_batches_and_change_nothing(kind: Any, workers: int, place: int, tmp_path: Path) -> None:
    alone = got(kind, SAMPLERS[place](), workers)
    made = Measured(tmp_path)
    try:
        batches = got(kind, SAMPLERS[place](), workers)
        assert batches == alone
        (epochs,) = made.loaders()
    finally:
        made.hooks.undo()
    assert [[one.tolist() for one in epoch.split(epoch.indices)] for epoch in epochs] == batches[:2]
    assert all(epoch.is_whole and epoch.every == 1 for epoch in epochs)


@WORKERS
def test_stokers_notes_are_the_plan(measured: Measured, workers: int) -> None:
    loader = stoker.DataLoader(list(range(100)), batch_size=8, shuffle=True, seed=3, num_workers=workers)
    for _ in range(2):
        list(loader)
    (epochs,) = measured.loaders()
    for number, epoch in enumerate(epochs):
        planned = [loader.batch_indices(number, k) for k in range(13)]
        assert [one.tolist() for one in epoch.split(epoch.indices)] == planned


@WORKERS
def test_batches_that_are_left_out_are_not_noted(measured: Measured, workers: int) -> None:
    loader = stoker.DataLoader(list(range(40)), batch_size=4, seed=3, num_workers=workers)
    loader.skip(range(2, 5))
    batches = [batch.tolist() for batch in loader]
    ((epoch,),) = measured.loaders()
    assert [one.tolist() for one in epoch.split(epoch.indices)] == batches and len(batches) == 7


@WORKERS
def test_torch_loaders_under_stokers_engine_are_noted(measured: Measured, workers: int) -> None:
    installed = stoker.install()
    try:
        loader = data.DataLoader(list(range(40)), batch_size=8, shuffle=True, num_workers=workers)
        batches = [batch.tolist() for batch in loader]
    finally:
        installed.undo()
    ((epoch,),) = measured.loaders()
    assert [one.tolist() for one in epoch.split(epoch.indices)] == batches


@LOADERS
def test_epochs_that_are_left_are_noted_apart(kind: Any, measured: Measured) -> None:
    loader = kind(list(range(40)), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    first = next(iter(loader)).tolist()
    batches = [batch.tolist() for batch in loader]
    ((left, whole),) = measured.loaders()
    assert left.split(left.indices)[0].tolist() == first and not left.is_whole
    assert [one.tolist() for one in whole.split(whole.indices)] == batches
    del loader


@WORKERS
@LOADERS
def test_streams_and_keys_have_no_order(kind: Any, workers: int, measured: Measured) -> None:
    class Stream(data.IterableDataset):  # type: ignore[misc]
        shards_itself = True

        def __iter__(self) -> Iterator[int]:
            worker = data.get_worker_info()
            return iter(range(8) if worker is None else range(worker.id, 8, worker.num_workers))

    class Words(data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 3

        def __getitem__(self, key: str) -> str:
            return key

    assert len(list(kind(Stream(), batch_size=4, num_workers=workers))) >= 2
    assert list(kind(Words(), sampler=["a", "b", "c"], num_workers=workers)) == [["a"], ["b"], ["c"]]
    assert measured.loaders() == [[], []]


@LOADERS
def test_a_loader_inside_a_dataset_is_noted_apart(kind: Any, measured: Measured) -> None:
    class Outer(data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            return sum(kind([index, 1], batch_size=2))[0]

    assert len(list(kind(Outer(), batch_size=5))) == 4
    outer, inner = measured.loaders()
    assert outer[0].indices.tolist() == list(range(20)) and inner[0].indices.tolist() == [0, 1]


def test_classes_and_masks_are_noted(measured: Measured) -> None:
    class Texts(data.Dataset):  # type: ignore[misc]
        targets = (0, 1) * 20
        classes = ("ham", "spam")

        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            return torch.ones(1 + index % 10)

    def collate(texts: list[Any]) -> dict[str, Any]:
        ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
        return {"ids": ids, "attention_mask": ids != 0}

    for _ in range(3):
        for _ in data.DataLoader(Texts(), batch_size=10, collate_fn=collate):
            pass
    measured.recorder.flush()
    known = Measurements()
    known.read(measured.recorder._folder)
    found = composition_of(known.loaders[0].noted)
    assert found is not None and found["same_order"] is True
    assert [one["epoch"] for one in found["orders"]] == [0, 1] and "Not shuffled" in found["orders"][0]["text"]
    assert [(row["name"], row["batches"]) for row in found["classes"]["shares"]] == [("ham", 0.5), ("spam", 0.5)]
    assert found["padding"]["source"] == "attention_mask" and found["padding"]["padding"] == pytest.approx(0.45)


def test_nothing_is_noted_unless_asked(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    hooks = LoaderHooks(recorder)
    hooks.measure("torch.utils.data.dataloader")
    list(data.DataLoader(list(range(40))))
    hooks.undo()
    assert recorder.noted == []
    recorder.flush()
    assert "noted" not in "".join(path.read_text() for path in tmp_path.iterdir())
