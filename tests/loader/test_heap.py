"""What a dataset of Python objects costs workers: found, told, or spared them by marks."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import stoker
from stoker._engine.process import immortal
from stoker.loader import heap

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


def test_what_rows_share_counts_once(few: None) -> None:
    alone, shared = heap.heaviest(texts()), heap.heaviest([("the same text for all of them", 7)] * ROWS)
    assert alone is not None
    assert shared is not None
    assert shared.size < alone.size / 5


def test_what_is_small_or_odd_is_passed_over(few: None) -> None:
    around = Files([SimpleNamespace(rows=texts()[:-1]), Slots(), Files])
    around.other["itself"] = around  # type: ignore[assignment]
    assert heap.heaviest(around) is None


def loader(rows: Any, **settings: Any) -> Any:
    return stoker.DataLoader(Files(rows), 4, **{"num_workers": 2, "output": "numpy", **settings})


def test_who_cannot_mark_is_told_once(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(immortal, "supported", lambda: False)
    loads = loader(texts())
    with pytest.warns(stoker.StokerWarning, match=r"dataset\.rows holds 1,000 rows.*stoker\.columns\(dataset\.rows\)"):
        assert len(list(loads)) == 10
    assert len(list(loads)) == 10


@pytest.mark.parametrize("settings", [{"num_workers": 0}, {"worker_method": "thread"}])
def test_nothing_is_said_where_nothing_is_copied(
    few: None, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(immortal, "supported", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader(texts(), **settings))) == 10


@pytest.mark.parametrize(
    ("seconds", "epoch", "free", "again"),
    [(1.0, 20.0, 1 << 40, True), (1.0, 5.0, 1 << 40, False), (1.0, 5.0, 1 << 20, True)],
)
def test_marking_is_not_paid_again_beside_a_short_epoch(
    monkeypatch: pytest.MonkeyPatch, seconds: float, epoch: float, free: int, again: bool
) -> None:
    monkeypatch.setattr(heap.memory, "available", lambda: SimpleNamespace(bytes=free, limit=free, source="a test"))
    loads = loader([])
    assert heap.is_marked(loads), "nobody knows yet what it costs"
    loads._ledger.marked, loads._ledger.epoch.until = (1_000_000, seconds), epoch
    assert heap.is_marked(loads) is again
    words = "and will be" if again else "and will not be"
    assert re.search(f"1,000,000 objects were marked immortal in 1 s.*{words} in the next epoch", loads.describe())


@pytest.mark.skipif(not immortal.supported(), reason="only CPython 3.12 and 3.13 as released can mark")
class TestMarks:
    def test_the_loader_knows_what_was_marked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(immortal, "worth_it", lambda: True)
        loads = loader([])
        assert "large, so it is marked immortal" in loads.describe()
        assert len(list(loads)) == 10
        objects, seconds = loads._ledger.marked
        assert objects > 10_000
        assert 0 < seconds < 30

    def test_the_switch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(immortal, "worth_it", lambda: True)
        loads = loader([], share_heap=False)
        assert len(list(loads)) == 10
        assert loads._ledger.marked is None
        assert "not marked immortal (share_heap=False)" in loads.describe()
