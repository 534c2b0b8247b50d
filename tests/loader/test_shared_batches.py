"""Batches that several workers make: which are split, and that the delivered batches are the same.

The whole conformance suite runs on shared batches as well (`tests/conformance`).
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import select
import signal
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from stoker import (
    ConcatDataset,
    DataLoader,
    Dataset,
    SkipSample,
    StackDataset,
    StokerWarning,
    Subset,
    TensorDataset,
)
from stoker._engine.supervision import split_policy
from stoker.loader._accounting.ledger import Ledger
from stoker.loader._epoch.gather_or_split import may_share
from stoker.loader.record import options_of, record_of
from stoker.loader.unit_queue import Prefetch

pytestmark = [
    pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this platform does not fork"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

N = 64


class Images(Dataset[Any]):
    """Large and small leaves, and random numbers."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return {"x": np.full((50, 50), index, np.float32), "y": index, "random": np.random.rand(), "pid": os.getpid()}


class Together(Images):
    """Two samples that wait for each other, so two workers have to make them."""

    def __init__(self, pipes: list[tuple[int, int]]) -> None:
        self._pipes = pipes

    def __getitem__(self, index: int) -> Any:
        if index in (0, split_policy.AT_FIRST):
            ours, theirs = self._pipes if index else self._pipes[::-1]
            os.write(theirs[1], b"!")
            assert select.select([ours[0]], [], [], 30)[0], "the other sample is not made meanwhile"
        return super().__getitem__(index)


class Named(Images):
    def __getitem__(self, index: int) -> Any:
        return {**super().__getitem__(index), "name": f"{index}.jpg"}


class Failing(Images):
    """Samples that raise once in all: a file for each tells the other processes."""

    def __init__(self, folder: Path, kind: type[Exception], *bad: int) -> None:
        self._folder, self._kind, self._bad = folder, kind, bad

    def __getitem__(self, index: int) -> Any:
        if index in self._bad:
            try:
                os.close(os.open(self._folder / str(index), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                raise self._kind(f"number {index}")
        return super().__getitem__(index)


class Deadly(Failing):
    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are shared whatever they cost, a row at a time."""
    for name, value in {"WORTH": 0.0, "SHORTEST": 0.0, "LONGEST": 1e-9, "LARGE": 2, "AT_FIRST": 1}.items():
        monkeypatch.setattr(split_policy, name, value)


def loader(dataset: Any, **settings: Any) -> DataLoader[Any]:
    given = {"num_workers": 2, "multiprocessing_context": "fork", "batch_size": 16, "output": "numpy", "seed": 7}
    return DataLoader(dataset, **{**given, **settings})


def plain(batches: Any) -> list[Any]:
    """Batches as lists, without what tells workers apart."""
    return [{name: leaf.tolist() for name, leaf in batch.items() if name != "pid"} for batch in batches]


def serial(dataset: Any) -> list[Any]:
    return plain(loader(dataset, num_workers=0, multiprocessing_context=None))


def test_the_first_batch_is_made_by_several_workers() -> None:
    pipes = [os.pipe(), os.pipe()]
    try:
        with iter(loader(Together(pipes))) as batches:
            first = next(batches)
    finally:
        for descriptor in (*pipes[0], *pipes[1]):
            os.close(descriptor)
    assert first["y"].tolist() == list(range(16))
    assert len(set(first["pid"].tolist())) == 2


def test_the_workers_of_the_next_epoch_know_what_a_sample_costs() -> None:
    made = loader(Images())
    assert record_of(made).ledger.row_seconds is None
    assert len(list(made)) == 4
    assert 0 < record_of(made).ledger.row_seconds < 1


@pytest.mark.usefixtures("row_by_row")
def test_batches_are_those_of_one_worker() -> None:
    assert plain(loader(Images())) == serial(Images())
    assert plain(loader(Images(), num_workers=5, drop_last=True, batch_size=10)) == plain(
        loader(Images(), num_workers=1, drop_last=True, batch_size=10)
    )


@pytest.mark.usefixtures("row_by_row")
def test_a_subset_draws_as_it_does_without_workers() -> None:
    some = Subset(Images(), range(0, N, 2))
    assert plain(loader(some)) == serial(some) == plain(loader(some, num_workers=1, batch_size=16))


@pytest.mark.usefixtures("row_by_row")
def test_texts_are_delivered_as_ever() -> None:
    made = loader(Named(), persistent_workers=True)
    batches = list(made)
    assert made._iterator is not None and made._iterator._backend.shares  # type: ignore[union-attr]
    made.close()
    assert all(type(batch["name"]) is list for batch in batches)
    assert [name for batch in batches for name in batch["name"]] == [f"{index}.jpg" for index in range(N)]


@pytest.mark.usefixtures("row_by_row")
def test_error_that_occurs_once_in_a_split_batch_is_raised(tmp_path: Path) -> None:
    made = loader(Failing(tmp_path, OSError, 20, 22))
    with iter(made) as batches:
        next(batches)
        with pytest.raises(OSError, match=r"(?s)at sample 2[02].*number 2[02]") as caught:
            next(batches)
        assert "in DataLoader worker process" in str(caught.value)
        assert next(batches)["y"].tolist() == list(range(32, 48))
    assert made.report().as_dict()["epoch"]["raised"] == 16


class Pair(NamedTuple):
    x: Any
    y: Any


class Counted(Dataset[Any]):
    """Counts the calls for each sample, in a file that all processes have open."""

    def __init__(self, file: Any, make: Callable[[int], Any]) -> None:
        self._file, self._make = file, make

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        os.write(self._file.fileno(), bytes([index]))
        return self._make(index)


def unlike_samples() -> dict[str, Callable[[int], Any]]:
    """Samples of which some cannot be rows of one batch with the others."""

    class Local(NamedTuple):
        x: Any
        y: Any

    @dataclasses.dataclass
    class Record:
        x: Any
        y: Any

    def skipped(index: int) -> Any:
        if index in (7, 40, 41):
            raise SkipSample("blurred")
        return {"x": image(index), "y": index, "name": str(index)}

    def image(index: int) -> Any:
        return np.full((40, 40), index, np.float64 if index % 20 == 0 else np.float32)

    return {
        "dtypes": lambda index: {"x": image(index), "y": np.random.rand(), "name": str(index)},
        "numbers": lambda index: (index if index % 20 else float(index), [np.int16(index), "text"]),
        "booleans": lambda index: {"x": index % 2 == 1 if index % 20 else index, "y": np.full(3, index)},
        "small numbers": lambda index: (np.int16(index) if index % 20 else np.int32(index), image(index)),
        "keys": lambda index: {"x": index, "y": 1} if index % 20 else {"y": 1, "x": index},
        "fields": lambda index: {"x": index, "nothing": {}},
        "named": lambda index: Pair(image(index), index),
        "local classes": lambda index: Local(Record(image(index), index), index),
        "left out": skipped,
    }


@pytest.mark.usefixtures("row_by_row")
def test_no_sample_is_asked_for_twice() -> None:
    for name, make in unlike_samples().items():
        batches = {}
        for workers in (1, 2):
            with tempfile.TemporaryFile() as file:
                made = loader(Counted(file, make), num_workers=workers, seed=3)
                batches[workers] = [repr(batch) for batch in made]
                file.seek(0)
                assert sorted(file.read()) == list(range(N)), name
            skipped = 3 if name == "left out" else 0
            assert made.report().as_dict()["epoch"]["skipped"] == skipped
        assert batches[1] == batches[2], name


def test_no_sample_is_asked_for_twice_without_memory(monkeypatch: pytest.MonkeyPatch, row_by_row: None) -> None:
    monkeypatch.setattr(split_policy, "PATIENCE", 1 << 30)
    with tempfile.TemporaryFile() as file:
        images = Counted(file, lambda index: np.full((50, 50), index, np.float32))
        made = loader(images, num_workers=4, prefetch_factor=4, memory_budget=300_000, batch_size=8)
        labels = [batch[:, 0, 0].tolist() for batch in made]
        file.seek(0)
        assert sorted(file.read()) == list(range(N))
    assert labels == np.arange(N).reshape(-1, 8).tolist()


@pytest.mark.usefixtures("row_by_row")
def test_death_in_the_middle_of_a_split_batch_changes_no_batch(tmp_path: Path) -> None:
    with pytest.warns(StokerWarning, match="is killed by signal"):
        batches = plain(loader(Deadly(tmp_path, OSError, 5, 40)))
    assert batches == serial(Images())


@pytest.mark.usefixtures("row_by_row")
def test_abandoned_epoch_leaves_nothing_in_the_next() -> None:
    made = loader(Images(), persistent_workers=True)
    for _ in range(3):
        next(iter(made))
    assert [batch["y"] for batch in plain(made)] == [batch["y"] for batch in serial(Images())]
    made.close()


@pytest.mark.usefixtures("row_by_row")
def test_batch_is_made_whole_without_memory_to_split_it() -> None:
    kept = []
    for batch in loader(Images(), memory_budget=4 << 20, batch_size=8):
        kept.append(batch)
    assert [label for batch in kept for label in batch["y"].tolist()] == list(range(N))


@pytest.mark.usefixtures("row_by_row")
def test_split_batches_do_not_deadlock_in_short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who made a part of a batch that has to be made again must not have begun a later one, which waits behind it."""
    monkeypatch.setattr(split_policy, "PATIENCE", 1 << 30)

    class Many(Images):
        def __len__(self) -> int:
            return 8 * N

    made = loader(Many(), num_workers=4, prefetch_factor=4, memory_budget=600_000, batch_size=8)
    assert [label for batch in made for label in batch["y"].tolist()] == list(range(8 * N))


@pytest.mark.usefixtures("row_by_row")
def test_fewer_batches_are_under_way_where_they_are_shared() -> None:
    made = loader(Images(), num_workers=8, batch_size=4)
    with iter(made) as batches:
        for _ in range(4):
            next(batches)
        assert batches._backend.shares  # type: ignore[union-attr]
        assert batches._units._ahead.most(batches._backend) == 4  # type: ignore[arg-type]


class Told:
    """What an iterator asks its backend: whether workers share batches, and whether they have become more."""

    def __init__(self, shares: bool | None, grown: int = 0) -> None:
        self.shares, self.grown, self.makes_runs = shares, grown, False


@pytest.mark.parametrize(
    ("row_seconds", "batch_size", "at_first", "shared"),
    [
        (None, 16, 8, 3),  # one for each worker
        (1.0, 16, 3, 3),  # prefetch_factor and one: they are shared
        (1e-9, 16, 16, 3),  # as many as may be: they are not
        (1.0, 2, 8, 8),  # two rows for each worker
        (1.0, 1, 16, 16),
    ],
)
def test_prefetch_count_depends_on_whether_batches_are_split(
    row_seconds: float | None, batch_size: int, at_first: int, shared: int
) -> None:
    made = loader(Images(), num_workers=8, batch_size=batch_size)
    record_of(made).ledger.row_seconds = row_seconds
    with iter(made) as batches:
        most = [batches._units._ahead.most(Told(shares)) for shares in (None, True, False)]  # type: ignore[arg-type]
    assert most == [at_first, shared, 16]


@pytest.mark.usefixtures("row_by_row")
def test_batch_sampler_batches_are_split_among_all_workers() -> None:
    small = [[index, index + 1] for index in range(0, N, 2)]
    with iter(loader(Images(), num_workers=8, batch_sampler=small, batch_size=1)) as batches:
        for _ in range(4):
            next(batches)
        assert batches._units._ahead.most(Told(True)) == 8  # type: ignore[arg-type]


def test_prefetch_count_is_unchanged_without_splitting() -> None:
    with iter(loader(Images(), num_workers=8, collate_fn=list)) as batches:
        assert batches._units._ahead.most(Told(None)) == 16  # type: ignore[arg-type]
        assert batches._units._ahead.most(Told(None, grown=20)) == 40  # type: ignore[arg-type]


def test_no_more_units_than_the_prefetch_count_are_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    held = os.pipe()

    class Held(Images):
        """The first batch waits for the end of the test."""

        def __getitem__(self, index: int) -> Any:
            os.read(held[0], 1)
            return super().__getitem__(index)

    submitted, under_way = [], []
    with iter(loader(Held(), num_workers=4, batch_size=1, prefetch_factor=3)) as batches:
        backend = batches._backend
        submit, receive = backend.submit, backend.receive  # type: ignore[union-attr]

        def counting(unit: int, *rest: Any) -> None:
            submitted.append(unit)
            submit(unit, *rest)

        def first(timeout: float | None) -> Any:
            under_way.append(len(submitted))
            os.write(held[1], b"." * N)
            return receive(timeout)

        monkeypatch.setattr(backend, "submit", counting)
        monkeypatch.setattr(backend, "receive", first)
        next(batches)
    for descriptor in held:
        os.close(descriptor)
    assert under_way[0] == 8  # two rows for each worker, of the 12 batches that may be under way before any answer


@pytest.mark.parametrize("batch_size", [split_policy.LARGE, split_policy.LARGE - 1])  # at first in parts, or whole
def test_cheap_batches_are_known_from_the_first_answers(monkeypatch: pytest.MonkeyPatch, batch_size: int) -> None:
    monkeypatch.setattr(split_policy, "WORTH", 1e9)
    made = loader(Images(), num_workers=2, batch_size=batch_size)
    with iter(made) as batches:
        assert batches._backend.shares is None  # type: ignore[union-attr]
        next(batches)
        assert batches._backend.shares is False  # type: ignore[union-attr]


@pytest.mark.usefixtures("row_by_row")
def test_batches_that_cannot_be_split_are_not_tried_again() -> None:
    class Empty(Images):
        """With a field that has no row for each sample."""

        def __getitem__(self, index: int) -> Any:
            return {"y": index, "nothing": {}}

    made = loader(Empty(), batch_size=4, persistent_workers=True)
    assert len(list(made)) == N // 4
    assert made._iterator is not None and made._iterator._backend.shares is False  # type: ignore[union-attr]
    assert record_of(made).ledger.row_seconds is None
    made.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"num_workers": 1},
        {"num_workers": 0, "multiprocessing_context": None},
        {"worker_method": "thread", "multiprocessing_context": None},
        {"worker_init_fn": print},
        {"seeding": "worker"},
        {"collate_fn": list},
        {"batch_size": None},
        {"on_error": "skip"},
        {"threads_per_worker": 2},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_prevent_splitting(settings: dict[str, Any]) -> None:
    assert not may_share(options_of(loader(Images(), **settings)))


def test_datasets_whose_batches_may_be_split() -> None:
    assert may_share(options_of(loader(Images())))

    class AtOnce(Images):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices]

    assert not may_share(options_of(loader(AtOnce())))
    assert not may_share(options_of(loader(Subset(AtOnce(), range(4)))))
    for holding in (Subset(Images(), range(4)), ConcatDataset([Images()]), StackDataset(Images(), Images())):
        assert may_share(options_of(loader(holding)))
    torch = pytest.importorskip("torch")
    assert not may_share(options_of(loader(TensorDataset(torch.arange(3)))))  # gathered at once


class Blocks(Images):
    prefer_whole_batches = True


def rows_shared(dataset: Any, indices: Any, dearer: int = 0) -> int:
    ledger = Ledger()
    ledger.dearer = dearer
    return Prefetch(options_of(loader(dataset)), ledger).rows(indices)


def test_declared_neighbours_keep_ascending_batches_whole() -> None:
    assert rows_shared(Images(), [3, 4, 9]) == 3
    assert rows_shared(Blocks(), list(np.array([3, 4, 9]))) == 0
    for dataset in (Blocks(), Subset(Blocks(), range(9)), ConcatDataset([Images(), Blocks()])):
        assert rows_shared(dataset, [3, 4, 9]) == rows_shared(dataset, np.array([3, 4, 9])) == 0
        assert rows_shared(dataset, [3, 9, 4]) == rows_shared(dataset, np.array([3, 9, 4])) == 3
        assert rows_shared(dataset, ["a", "b"]) == 2  # nobody knows what comes next
    assert "unless its indices ascend" in loader(Blocks()).describe()
    assert "unless its indices ascend" not in loader(Images()).describe()


@pytest.mark.usefixtures("row_by_row")
def test_whole_batches_come_from_one_worker_each() -> None:
    made = loader(Blocks())
    with iter(made) as batches:
        pids = [set(batch["pid"].tolist()) for batch in batches]
    assert [len(workers) for workers in pids] == [1] * 4


def test_dear_parts_keep_only_ascending_batches_whole() -> None:
    for dearer, rows in ((0, 3), (split_policy.COMPARISONS - 1, 3), (split_policy.COMPARISONS, 0)):
        assert rows_shared(Images(), [3, 4, 9], dearer) == rows
        assert rows_shared(Images(), [3, 9, 4], dearer) == 3


class Neighbours(Dataset[Any]):
    """Keeps the last block that was decompressed, and notes each block in a file that all processes have open."""

    def __init__(self, file: Any, count: int) -> None:
        self._file, self._count = file, count
        self._block, self._number = b"", -1
        self._compressed = zlib.compress(bytes(1 << 23))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        if index // 16 != self._number:
            self._number = index // 16
            os.write(self._file.fileno(), bytes([self._number]))
            self._block = zlib.decompress(self._compressed)
        return {"x": np.full((8, 8), index, np.float32), "y": index + self._block[index]}


@pytest.mark.usefixtures("row_by_row")
def test_neighbours_are_found_by_processor_time() -> None:
    """Nobody knows when the three comparisons are made, but then each block is decompressed once."""
    with tempfile.TemporaryFile() as file:
        made = loader(Neighbours(file, 16 * 16), num_workers=4)
        assert "unless its indices ascend" not in made.describe()
        for _ in range(20):
            labels = [label for batch in made for label in batch["y"].tolist()]
            assert labels == list(range(16 * 16))
            if record_of(made).ledger.dearer == split_policy.COMPARISONS:
                break
        assert "unless its indices ascend" in made.describe()
        file.seek(0)
        before = len(file.read())
        assert [label for batch in made for label in batch["y"].tolist()] == labels
        file.seek(0)
        assert sorted(file.read()[before:]) == list(range(16))
