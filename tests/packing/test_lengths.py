"""The lengths of samples: as they are, made once, and anew when the data has changed."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import JSONLinesDataset, JSONLinesStream, MapDataset, Subset, lengths
from stoker.packing import lengths as module


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stoker" / "indexes"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often all samples were made."""
    calls: list[int] = []
    original = module._made

    def counted(measured: Any, workers: int) -> Any:
        calls.append(workers)
        return original(measured, workers)

    monkeypatch.setattr(module, "_made", counted)
    return calls


def texts(path: Path, sizes: list[int]) -> Path:
    path.write_text("".join(json.dumps({"tokens": [7] * size, "text": "x" * size, "n": size}) + "\n" for size in sizes))
    return path


def half(sample: Any) -> int:
    return len(sample["tokens"]) // 2


def five(sample: Any) -> int:
    return 5


@pytest.mark.parametrize("workers", [0, 2])
def test_lengths_of_all_samples_in_order(tmp_path: Path, workers: int) -> None:
    sizes = [*range(700), 3, 0]
    dataset = JSONLinesDataset(texts(tmp_path / "a.jsonl", sizes))
    for key in ("tokens", "text", "n"):
        found = lengths(dataset, key, workers)
        assert found.dtype == np.int64 and found.tolist() == sizes
    assert lengths(dataset, half, workers).tolist() == [size // 2 for size in sizes]


def test_lengths_are_kept_beside_the_files(tmp_path: Path, made: list[int], cache: Path) -> None:
    path = texts(tmp_path / "a.jsonl", [3, 1, 2])
    for _ in range(2):
        assert lengths(JSONLinesDataset(path), "n", 0).tolist() == [3, 1, 2]
    assert len(made) == 1
    assert len(list(tmp_path.glob("a.jsonl.*.lengths"))) == 1 and not cache.exists()
    for dataset in (MapDataset(JSONLinesDataset(path), half), Subset(JSONLinesDataset(path), [0, 2])):
        for _ in range(2):
            assert set(lengths(dataset, five, 0).tolist()) == {5}
    assert len(made) == 3
    assert len(list(tmp_path.glob("a.jsonl.*.lengths"))) == 3


def test_changed_data_are_measured_anew(tmp_path: Path, made: list[int]) -> None:
    path = texts(tmp_path / "a.jsonl", [3, 1, 2])
    assert lengths(JSONLinesDataset(path), "n", 0).tolist() == [3, 1, 2]
    texts(path, [4, 1, 2])
    os.utime(path, ns=(1, 1))
    assert lengths(JSONLinesDataset(path), "n", 0).tolist() == [4, 1, 2]
    assert lengths(JSONLinesDataset(path), half, 0).tolist() == [2, 0, 1]
    assert lengths(JSONLinesDataset(path), "text", 0).tolist() == [4, 1, 2]
    assert len(made) == 4
    assert len(list(tmp_path.glob("a.jsonl.*.lengths"))) == 3, "changed data take the place of the former"


def closure(add: int) -> Any:
    return lambda sample: len(sample) + add


def test_the_code_of_functions_counts(made: list[int]) -> None:
    rows = [[1], [1, 2], []]
    assert lengths(rows, len, 0).tolist() == lengths(rows, len, 0).tolist() == [1, 2, 0]
    assert len(made) == 1
    assert lengths(rows, lambda row: len(row) + 1, 0).tolist() == [2, 3, 1]
    assert lengths(rows, lambda row: len(row) + 2, 0).tolist() == [3, 4, 2]
    assert lengths(rows, closure(3), 0).tolist() == [4, 5, 3]
    assert lengths(rows, closure(4), 0).tolist() == [5, 6, 4]
    assert lengths(rows, closure(4), 0).tolist() == [5, 6, 4]
    assert len(made) == 5


class ByPath:
    """A dataset of a user's, whose pickle does not show that its file has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> list[int]:
        return [0] * json.loads(self.path.read_text())[index]


def test_kept_lengths_are_compared_with_samples(tmp_path: Path, made: list[int], cache: Path) -> None:
    path = tmp_path / "sizes"
    path.write_text("[1, 2, 3]")
    assert lengths(ByPath(path), len, 0).tolist() == lengths(ByPath(path), len, 0).tolist() == [1, 2, 3]
    assert len(made) == 1 and len(list(cache.iterdir())) == 1
    path.write_text("[1, 2, 4]")
    assert lengths(ByPath(path), len, 0).tolist() == [1, 2, 4]
    assert len(made) == 2


def draws(row: list[int]) -> int:
    return len(row) + int(np.random.randint(2)) * 0


def test_no_generator_of_the_program_is_changed(made: list[int]) -> None:
    np.random.seed(5)
    expected = np.random.RandomState(5).randint(1000)
    rows = [[1], [1, 2]]
    assert lengths(rows, draws, 0).tolist() == lengths(rows, draws, 0).tolist() == [1, 2]
    assert len(made) == 1
    assert np.random.randint(1000) == expected


def test_no_hint_of_training_loops_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.loader._autotune.hint.Hint.delivered", lambda *_: "the training loop waits 100%")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert set(lengths([[1, 2]] * (40 * module._BATCH), len, 0).tolist()) == {2}
    assert not seen


def test_a_dataset_without_a_pickle_is_measured_each_time(made: list[int], cache: Path) -> None:
    rows = MapDataset([[1], [2, 3]], len)
    rows.kept = (number for number in range(3))  # type: ignore[attr-defined]
    assert lengths(rows, int, 0).tolist() == lengths(rows, int, 0).tolist() == [1, 2]
    assert len(made) == 2 and not cache.exists()


def test_integers_arrays_and_tuples() -> None:
    rows = [(np.zeros((4, 2)), np.int32(3)), (np.zeros((5, 2)), np.array(6))]
    assert lengths(rows, 0, 0).tolist() == [4, 5]
    assert lengths(rows, 1, 0).tolist() == [3, 6]
    assert lengths([], 0).shape == (0,)


def test_a_dataset_that_reads_several_at_once() -> None:
    class Several:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return self.__getitems__([index])[0]

        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [{"a": [0] * index} for index in indices]

    assert lengths(Several(), "a", 0).tolist() == [0, 1, 2]


def test_what_has_no_lengths_is_refused(tmp_path: Path) -> None:
    path = texts(tmp_path / "a.jsonl", [3, 1, 2])
    with pytest.raises(TypeError, match=r"JSONLinesStream has no length .*JSONLinesDataset for JSONLinesStream"):
        lengths(JSONLinesStream(path), "n")
    with pytest.raises(TypeError, match="generator has no length"):
        lengths((row for row in [[1]]), len)
    with pytest.raises(TypeError, match=r"key is 1\.5, expected the name of a field"):
        lengths([[1]], 1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="sample 0: 'a' gave a float, which is no integer and has no length"):
        lengths([{"a": 2.0}], "a", 0)
    with pytest.raises(KeyError, match="b"):
        lengths([{"a": 2}], "b", 0)
