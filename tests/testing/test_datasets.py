"""The suite passes what is right, and each of its tests fails where its promise is broken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.datasets.base import Dataset, IterableDataset
from stoker.datasets.combining import absolute
from stoker.datasets.stack import TensorDataset
from stoker.datasets.tokens import TokenWindows
from stoker.sources.lines.text_lines import TextLineStream
from stoker.testing.datasets import DatasetSuite


@pytest.mark.parametrize("make", [lambda: TokenWindows(np.arange(50, dtype=np.uint16), 8)], ids=["tokens"])
class TestTokenWindows(DatasetSuite):
    births = ("fork",)
    pickle_bytes = 2000


@pytest.mark.parametrize("make", [lambda: TensorDataset(np.arange(20).reshape(10, 2))], ids=["arrays"])
class TestTensorDataset(DatasetSuite):
    births = ("fork",)


class TestTextLineStream(DatasetSuite):
    births = ("fork",)

    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        paths = [tmp_path / f"{number}.txt" for number in range(3)]
        for number, path in enumerate(paths):
            path.write_text("".join(f"line {number} {line}\n" for line in range(4)))
        return lambda: TextLineStream(paths)

    def delete(self, dataset: TextLineStream) -> str:
        for path in dataset.files:
            os.unlink(path)
        return dataset.files[0]


class Records(Dataset[Any]):
    """Records of a file. One thing is wrong with it, which `fault` names."""

    stoker_protocol = True

    def __init__(self, path: Path, fault: str = "") -> None:
        self.path = str(path)
        self.fault = fault
        self.file: Any = None
        self.used = 0
        self.kept: list[int] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> bytes:
        if self.fault == "wraps":
            index = index % len(self)
        if self.fault == "no negative" and index < 0:
            index = 0
        place = index if self.fault == "wraps" or self.fault == "no negative" else absolute(index, len(self))
        if place >= len(self):
            raise IndexError(place)
        self.used += 1
        if self.fault == "forgets" and self.used > len(self):
            return b"gone"
        if self.fault == "leaks":
            self.kept.append(os.open(self.path, os.O_RDONLY))
        if self.fault == "hides a deletion" and not os.path.exists(self.path):
            return b"...."
        if self.fault == "shares its place":
            return self._by_a_shared_place(place)
        with open(self.path, "rb") as file:
            file.seek(4 * place)
            return file.read(4)

    def _by_a_shared_place(self, place: int) -> bytes:
        if self.file is None:
            self.file = os.getpid()
        return b"%4d" % place if self.file == os.getpid() else b"none"

    def __getitems__(self, indices: list[int]) -> list[bytes]:
        order = sorted(indices) if self.fault == "sorts" else indices
        return [self[index] for index in order]

    def describe(self, index: int) -> str:
        return "a record" if self.fault == "tells nothing" else f"record {index} of {self.path}"

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "file": None}
        return {**state, "data": bytes(20_000)} if self.fault == "carries its data" else state


FAULTS: dict[str, Callable[..., None]] = {
    "wraps": DatasetSuite.test_indices_out_of_range_are_index_errors,
    "no negative": DatasetSuite.test_negative_indices_count_from_the_end,
    "forgets": DatasetSuite.test_indices_come_in_any_order_and_repeat,
    "sorts": DatasetSuite.test_batched_reads_equal_single_reads,
    "tells nothing": DatasetSuite.test_describe_names_a_sample,
    "carries its data": DatasetSuite.test_pickles_before_and_after_it_was_read,
    "shares its place": DatasetSuite.test_forked_child_reads_what_its_parent_reads,
    "leaks": DatasetSuite.test_nothing_stays_open,
    "hides a deletion": DatasetSuite.test_deleted_data_is_an_error_that_names_it,
}


class SuiteOfRecords(DatasetSuite):
    births = ("fork",)

    def delete(self, dataset: Records) -> str:
        os.unlink(dataset.path)
        return dataset.path


class TestRecords(SuiteOfRecords):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        return lambda: Records(written(tmp_path))


def written(folder: Path) -> Path:
    path = folder / "records"
    path.write_bytes(b"".join(b"%4d" % number for number in range(10)))
    return path


@pytest.mark.leaves_behind("the fault under test is a descriptor that stays open")
@pytest.mark.parametrize("fault", FAULTS)
def test_suite_fails_at_a_fault(fault: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    made: list[Records] = []

    def make() -> Records:
        made.append(Records(path, fault))
        return made[-1]

    try:
        with pytest.raises(AssertionError):
            FAULTS[fault](SuiteOfRecords(), make)
    finally:
        for descriptor in [one for dataset in made for one in dataset.kept]:
            os.close(descriptor)


class Unsharded(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


def test_suite_fails_where_torchs_workers_repeat_samples() -> None:
    pytest.importorskip("torch")
    with pytest.raises(AssertionError, match="2 workers"):
        DatasetSuite().test_torchs_loader_reads_it(Unsharded)


def test_suite_fails_at_a_loader_that_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.loader.dataloader import DataLoader

    monkeypatch.setattr(DataLoader, "load_state_dict", lambda loader, state: None)
    with pytest.raises(AssertionError, match="resumed after 1 batches"):
        DatasetSuite().test_loader_resumes_at_every_step(lambda: list(range(10)))
