"""What is loaded before workers are forked."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from stoker import DataLoader, Dataset
from stoker._job import preload

pytest.importorskip("PIL.Image")
PART = "PIL.JpegImagePlugin"


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where no photograph has been opened."""
    monkeypatch.delitem(sys.modules, PART, raising=False)
    yield


class Loaded(Dataset[bool]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> bool:
        return PART in sys.modules


def test_workers_are_born_with_the_decoder_of_photographs(unloaded: None) -> None:
    batches = [batch.tolist() for batch in DataLoader(Loaded(), 2, num_workers=2)]
    assert batches == [[True, True]] * 2
    assert PART in sys.modules


def test_no_library_is_preloaded_without_processes(unloaded: None) -> None:
    for how in ({"num_workers": 0}, {"num_workers": 1, "worker_method": "thread"}):
        assert [batch.tolist() for batch in DataLoader(Loaded(), 4, **how)] == [[False] * 4]  # type: ignore[arg-type]


def test_a_program_without_the_library_stays_without(monkeypatch: pytest.MonkeyPatch, unloaded: None) -> None:
    monkeypatch.delitem(sys.modules, "PIL.Image")
    preload.load()
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
