"""Workers collate into memory that travels. What code of the user's keeps of it stays as it was."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import collate
from stoker._engine.supervision import split_policy
from stoker._engine.transport import segments
from stoker._engine.transport.writer import SlotWriter


@pytest.fixture(params=["fork", "forkserver"])
def birth(request: pytest.FixtureRequest) -> str:
    return str(request.param)


ROWS, SIZE = 4, 4096  # 128 KiB in float64: enough to be lent memory


class Caches(stoker.Dataset[Any]):
    """Samples that it has collated itself, and keeps."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index not in self.made:
            self.made[index] = collate.numpy_collate([np.full(SIZE, float(index))] * ROWS)
        return self.made[index]


class Walks(stoker.IterableDataset[Any]):
    """A stream of what a loader within it gives."""

    def __iter__(self) -> Iterator[Any]:
        whole = [np.full(SIZE, float(number)) for number in range(32)]
        for batch in stoker.DataLoader(whole, batch_size=16, num_workers=0, output="numpy"):
            yield from batch


class Remembers:
    """A collator that mixes each batch with the one before."""

    def __init__(self) -> None:
        self.before: Any = None

    def __call__(self, samples: list[Any]) -> Any:
        batch = collate.numpy_collate(samples)
        mixed = np.stack([batch, batch if self.before is None else self.before])
        self.before = batch
        return mixed


class Keeps:
    """A collator that gives what it keeps."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, samples: list[Any]) -> Any:
        self.kept.append(collate.numpy_collate(samples))
        assert all((whole[:, 0] == whole[:, -1]).all() for whole in self.kept)
        return {"now": self.kept[-1], "all": [float(whole[0, 0]) for whole in self.kept]}


def plain(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    return batch.copy() if isinstance(batch, np.ndarray) else batch


def everything(dataset: Any, workers: int, birth: str, **how: Any) -> list[Any]:
    if workers:
        how |= {"multiprocessing_context": birth, "prefetch_factor": 1}
    loader = stoker.DataLoader(dataset, num_workers=workers, output="numpy", **how)
    return [plain(batch) for batch in loader]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and repr(ours) == repr(theirs)


def test_a_dataset_may_keep_what_it_has_collated(birth: str) -> None:
    order = [*range(8), *range(8)]
    batches = everything(Caches(), 1, birth, sampler=order)
    assert [[float(batch.min()), float(batch.max())] for batch in batches] == [[i, i] for i in order]


def test_a_stream_may_walk_a_loader(birth: str) -> None:
    batches = everything(Walks(), 1, birth, batch_size=4)
    assert [float(row.min()) for batch in batches for row in batch] == list(range(32))
    assert [float(row.max()) for batch in batches for row in batch] == list(range(32))


@pytest.mark.parametrize("collator", [Remembers, Keeps])
def test_a_collator_may_keep_what_it_has_made(birth: str, collator: Any) -> None:
    dataset = [np.full(SIZE, float(number)) for number in range(40)]
    serial = everything(dataset, 0, birth, batch_size=ROWS, collate_fn=collator())
    assert same(everything(dataset, 1, birth, batch_size=ROWS, collate_fn=collator()), serial)


@pytest.mark.parametrize(
    "how",
    [{"collate_fn": Remembers()}, {"collate_fn": Keeps()}, {"gathers": True}],
    ids=["a collator that mixes", "a collator that keeps", "a dataset that gathers"],
)
def test_undetachable_memory_is_not_lent_to_code_that_keeps_it(monkeypatch: pytest.MonkeyPatch, how: Any) -> None:
    monkeypatch.setattr(segments, "CAN_DETACH", False)  # as on Windows
    gathers = how.get("gathers", False)
    dataset: Any = GathersAndKeeps() if gathers else [np.full(SIZE, float(number)) for number in range(40)]
    how = {"batch_size": ROWS} | ({} if gathers else how)
    assert same(everything(dataset, 1, "fork", **how), everything(dataset, 0, "fork", **copy.deepcopy(how)))


class Looks(stoker.Dataset[Any]):
    """Samples that say whether this worker still lends."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        writers = [thing for thing in gc.get_objects() if type(thing) is SlotWriter]
        return {"lends": np.full(SIZE, float(all(writer._lends for writer in writers))), "writers": len(writers)}


HOW: dict[str, dict[str, Any]] = {
    "default": {},
    "as tensors": {"output": "torch"},
    "a function around it": {"collate_fn": lambda samples: collate.default_collate(samples)},
    "padded": {"collate_fn": stoker.PadCollator()},
    "threads": {"threads_per_worker": 2},
    "shared": {"num_workers": 2},
    "persistent": {"persistent_workers": True},
}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_memory_is_lent_each_time_to_code_that_keeps_none(monkeypatch: pytest.MonkeyPatch, how: Any) -> None:
    monkeypatch.setattr(split_policy, "WORTH", 0.0)  # units are worth being shared, however cheap
    if how.get("output") == "torch":
        pytest.importorskip("torch")
    how = {"num_workers": 1, "output": "numpy", **how}
    with stoker.DataLoader(Looks(), batch_size=ROWS, multiprocessing_context="fork", **how) as loader:
        for batch in (*loader, *loader):
            assert batch["lends"].min() == 1 and min(batch["writers"]) == 1


class GathersAndKeeps(stoker.Dataset[Any]):
    """It keeps `out`, but for the first batch, which is looked at for that."""

    stoker_protocol = True

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.batches = 0

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return np.full(SIZE, float(index))

    def gather_layout(self) -> Any:
        return np.empty((0, SIZE))

    def gather(self, indices: Any, out: Any) -> None:
        assert all((kept == copied).all() for kept, copied in self.kept), "changed by somebody"
        out[:] = np.asarray(indices, np.float64)[:, None]
        self.batches += 1
        if self.batches > 1:
            self.kept.append((out, out.copy()))


def test_a_dataset_may_keep_what_it_gathers_into(birth: str) -> None:
    batches = everything(GathersAndKeeps(), 1, birth, batch_size=ROWS)
    assert [float(row.min()) for batch in batches for row in batch] == list(range(40))
    assert [float(row.max()) for batch in batches for row in batch] == list(range(40))
