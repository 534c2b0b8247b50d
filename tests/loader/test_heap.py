"""What a dataset of Python objects costs workers: found, told, or spared them by marks."""

from __future__ import annotations

import mmap
import re
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import stoker
from stoker._engine.fork import heap_sharing
from stoker.loader import heap
from stoker.loader.record import options_of, record_of

ROWS = 1_000


class Files:
    """Rows of Python objects."""

    def __init__(self, rows: Any) -> None:
        self.other = {"names": ["a", "b"]}
        self.rows = rows

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


class Slots:
    __slots__ = ("rows",)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("not asked for")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are many."""
    monkeypatch.setattr(heap, "_MANY", ROWS)
    monkeypatch.setattr(heap, "TELLING", 1)


def texts() -> list[tuple[str, int]]:
    return [(f"class/{number:06d}.jpg", 7) for number in range(ROWS)]


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (texts, "dataset"),
        (lambda: Files(texts()), "dataset.rows"),
        (lambda: Files(dict(enumerate(texts()))), "dataset.rows"),
        (lambda: stoker.Subset(Files(tuple(texts())), range(10)), "dataset.dataset.rows"),
        (lambda: stoker.ConcatDataset([Files([]), Files(texts())]), "dataset.datasets[1].rows"),
        (lambda: Files({"train": texts()}), "dataset.rows['train']"),
    ],
)
def test_the_rows_are_found_where_they_lie(few: None, make: Callable[[], Any], path: str) -> None:
    found = heap.heaviest(make())
    assert found is not None
    assert (found.path, found.rows) == (path, ROWS)
    assert 100 * ROWS < found.size < 300 * ROWS


def test_objects_shared_by_rows_count_once(few: None) -> None:
    alone, shared = heap.heaviest(texts()), heap.heaviest([("the same text for all of them", 7)] * ROWS)
    assert alone is not None
    assert shared is not None
    assert shared.size < alone.size / 5


def test_small_or_unknown_objects_are_passed_over(few: None) -> None:
    around = Files([SimpleNamespace(rows=texts()[:-1]), Slots(), Files])
    around.other["itself"] = around  # type: ignore[assignment]
    assert heap.heaviest(around) is None


def loader(rows: Any, **settings: Any) -> Any:
    return stoker.DataLoader(Files(rows), 4, **{"num_workers": 2, "output": "numpy", **settings})


def test_python_that_cannot_share_the_heap_warns_once(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_sharing, "supported", lambda: False)
    loads = loader(texts())
    with pytest.warns(stoker.StokerWarning, match=r"dataset\.rows holds 1,000 rows.*stoker\.columns\(dataset\.rows\)"):
        assert len(list(loads)) == 10
    assert len(list(loads)) == 10


@pytest.mark.parametrize("settings", [{"num_workers": 0}, {"worker_method": "thread"}])
def test_nothing_is_said_where_nothing_is_copied(
    few: None, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(heap_sharing, "supported", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader(texts(), **settings))) == 10


class Shared(Files):
    unpickle_once = True


@pytest.mark.parametrize("supported", [True, False])
def test_large_payload_of_clean_workers_warns_once(few: None, monkeypatch: pytest.MonkeyPatch, supported: bool) -> None:
    """Marks spare nothing there: they are for what is shared."""
    monkeypatch.setattr(heap_sharing, "supported", lambda: supported)
    monkeypatch.setattr(heap_sharing, "worth_it", lambda: True)
    loads = loader(texts(), multiprocessing_context="spawn")
    with pytest.warns(stoker.StokerWarning, match=r"dataset.rows holds .* unpickles the dataset itself"):
        heap.tell(options_of(loads), record_of(loads))
    heap.tell(options_of(loads), record_of(loads))  # not again
    found = heap.heaviest(loads.dataset)
    assert found is not None and heap.copied(options_of(loads)) == loads.num_workers * found.size
    assert not heap.is_marked(options_of(loads), record_of(loads).ledger)
    assert heap.text(options_of(loads), record_of(loads).ledger) is None


def test_payload_unpickled_once_is_shared_as_a_forked_heap(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_sharing, "supported", lambda: True)
    loads = stoker.DataLoader(Shared(texts()), num_workers=2, multiprocessing_context="spawn")
    heap.tell(options_of(loads), record_of(loads))
    assert heap.is_marked(options_of(loads), record_of(loads).ledger)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heap is large enough for marks."""
    monkeypatch.setattr(heap_sharing, "worth_it", lambda: True)


PAGE = heap.PAGES * mmap.PAGESIZE


@pytest.mark.parametrize(
    ("seconds", "epoch", "too_little", "again"),
    [
        (1.0, 20.0, 1, True),
        (1.0, 5.0, 1, False),
        (1.0, 5.0, 0, True),
    ],
    ids=["cheap", "dear, and little would be copied", "dear, and much would be copied"],
)
def test_marking_is_paid_again_where_it_is_cheap_or_spares_much(
    few: None, large: None, monkeypatch: pytest.MonkeyPatch, seconds: float, epoch: float, too_little: int, again: bool
) -> None:
    loads = loader(texts())
    monkeypatch.setattr(heap, "TELLING", heap.copied(options_of(loads)) + too_little)
    record_of(loads).ledger.marked, record_of(loads).ledger.epoch.until = (1_000_000, seconds), epoch
    assert heap.is_marked(options_of(loads), record_of(loads).ledger) is again
    words = "and will be" if again else "and will not be"
    assert re.search(f"1,000,000 objects were marked immortal in 1 s.*{words} in the next epoch", loads.describe())


def test_a_small_dataset_does_not_wait_for_the_marks_of_another(large: None) -> None:
    somebody_elses = [(number, str(number)) for number in range(200_000)]
    loads = loader(texts())
    assert not heap.is_marked(options_of(loads), record_of(loads).ledger)
    assert "large, and not marked immortal: workers copy an estimated 0 MiB" in loads.describe()
    assert len(somebody_elses) == 200_000


class OddSampler:
    def __iter__(self) -> Any:
        return iter(range(7))

    def __len__(self) -> int:
        raise RuntimeError("nobody knows")


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({}, 40),
        ({"drop_last": True, "sampler": range(7)}, 4),
        ({"batch_sampler": [[0, 1]] * 3}, None),
        ({"batch_size": None}, 40),
        ({"sampler": (number for number in range(7))}, None),
        ({"persistent_workers": True}, None),
        ({"sampler": OddSampler()}, None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_workers_copy_only_the_objects_that_an_epoch_reads(
    few: None, settings: dict[str, Any], rows: int | None
) -> None:
    how = {"batch_size": 4, "num_workers": 2, "output": "numpy", **settings}
    if "batch_sampler" in settings:
        del how["batch_size"]
    files = Files(texts())
    found = heap.heaviest(files)
    assert found is not None
    expected = 2 * found.size if rows is None else min(2 * found.size, rows * PAGE)
    assert heap.copied(options_of(stoker.DataLoader(files, **how))) == expected  # type: ignore[arg-type]


class ReadsGlobals:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return len(NAMED[index])


NAMED: list[tuple[str, int]] = []


def test_rows_that_a_method_names(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert heap.heaviest(ReadsGlobals()) is None
    monkeypatch.setattr(sys.modules[__name__], "NAMED", texts())
    found = heap.heaviest(stoker.Subset(ReadsGlobals(), range(3)))  # type: ignore[arg-type]
    assert found is not None
    assert (found.path, found.rows) == (f"{__name__}.NAMED", ROWS)


@pytest.mark.skipif(not heap_sharing.supported(), reason="only CPython 3.12 and 3.13 as released can mark")
class TestMarks:
    def test_the_loader_knows_what_was_marked(self, few: None, large: None) -> None:
        loads = loader(texts())
        assert "large, so it is marked immortal" in loads.describe()
        assert len(list(loads)) == 10
        objects, seconds = record_of(loads).ledger.marked
        assert objects > 10_000
        assert 0 < seconds < 30

    def test_heap_sharing_can_be_switched_off(self, few: None, large: None) -> None:
        loads = loader(texts(), share_heap=False)
        assert len(list(loads)) == 10
        assert record_of(loads).ledger.marked is None
        assert "not marked immortal (share_heap=False)" in loads.describe()
