"""What is loaded before workers are forked.

The library is made by the test: Pillow's own part, loaded a second time, would register other classes for the tests
that follow.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from stoker import DataLoader, Dataset
from stoker.loader._job import torch_worker_info

LIBRARY, PART = "made_library_of_a_test", "made_library_of_a_test.late_part"


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program has loaded the library, and not yet its late part."""
    package = tmp_path / LIBRARY
    package.mkdir()
    package.joinpath("__init__.py").touch()
    package.joinpath("late_part.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in (LIBRARY, PART):
        monkeypatch.setitem(sys.modules, name, None)  # so that the end of the test takes both back
        del sys.modules[name]
    importlib.import_module(LIBRARY)
    monkeypatch.setattr(torch_worker_info, "_LATE", {LIBRARY: PART})


class Loaded(Dataset[bool]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> bool:
        return PART in sys.modules


def test_the_decoder_of_photographs_is_a_late_part() -> None:
    pytest.importorskip("PIL.Image")
    assert torch_worker_info._LATE["PIL.Image"] == importlib.import_module("PIL.JpegImagePlugin").__name__


def test_workers_are_born_with_the_late_part(unloaded: None) -> None:
    batches = [batch.tolist() for batch in DataLoader(Loaded(), 2, num_workers=2)]
    assert batches == [[True, True]] * 2
    assert PART in sys.modules


def test_no_library_is_preloaded_without_processes(unloaded: None) -> None:
    for how in ({"num_workers": 0}, {"num_workers": 1, "worker_method": "thread"}):
        assert [batch.tolist() for batch in DataLoader(Loaded(), 4, **how)] == [[False] * 4]


def test_a_program_without_the_library_stays_without(monkeypatch: pytest.MonkeyPatch, unloaded: None) -> None:
    monkeypatch.delitem(sys.modules, LIBRARY)
    torch_worker_info.load()
    assert PART not in sys.modules


def test_a_library_without_the_part_is_left_alone(monkeypatch: pytest.MonkeyPatch, unloaded: None) -> None:
    class Missing:
        asked = 0

        def find_spec(self, name: str, *_: object) -> None:
            if name == PART:
                self.asked += 1
                raise ModuleNotFoundError(name)

    missing = Missing()
    monkeypatch.setattr(sys, "meta_path", [missing, *sys.meta_path])
    assert [batch.tolist() for batch in DataLoader(Loaded(), 4, num_workers=1)] == [[False] * 4]
    assert missing.asked == 1
