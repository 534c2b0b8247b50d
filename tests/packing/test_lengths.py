"""The lengths of samples: as they are, made once, and anew when the data has changed."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import JSONLinesDataset, JSONLinesStream, LMDBDataset, MapDataset, Subset, lengths
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


def longest(source: str) -> int:
    """The length of sample 500 in a program, which is none of those that are compared with the kept ones."""
    names: dict[str, Any] = {"__name__": "program"}
    exec(PROGRAM + source, names)
    return int(lengths(names["Rows"](), names["key"], 0)[500])


PROGRAM = """
import threading
class Above:
    def __len__(self): return 1000
    def __getitem__(self, index): return [0] * (9 if index == 500 else 2)
class Rows(Above):
    pass
def key(row): return len(row)
"""

CHANGES = {
    "a global": "LIMIT = {n}\ndef key(row): return min(len(row), LIMIT)\n",
    "a global of nested code": "LIMIT = {n}\ndef key(row): return [min(len(row), (lambda: LIMIT)())][0]\n",
    "a function": "def limit(): return {n}\ndef key(row): return min(len(row), limit())\n",
    "two that name each other": (
        "def one(n): return two(n) if n else {n}\ndef two(n): return one(n - 1)\n"
        "def key(row): return min(len(row), one(3))\n"
    ),
    "a cached function": (
        "import functools\n@functools.lru_cache\ndef limit(): return {n}\ndef key(row): return min(len(row), limit())\n"
    ),
    "a default": "def key(row, limit={n}): return min(len(row), limit)\n",
    "a default by name": "def key(row, *, limit={n}): return min(len(row), limit)\n",
    "a class attribute": "Rows.limit = {n}\n"
    "Rows.__getitem__ = lambda self, at: [0] * (self.limit if at == 500 else 2)\n",
    "a base": "Above.__getitem__ = lambda self, index: [0] * ({n} if index == 500 else 2)\n",
    "a property": (
        "Rows.limit = property(lambda self: {n})\n"
        "Rows.__getitem__ = lambda self, at: [0] * (self.limit if at == 500 else 2)\n"
    ),
    "a static method": (
        "Rows.limit = staticmethod(lambda: {n})\n"
        "Rows.__getitem__ = lambda self, at: [0] * (self.limit() if at == 500 else 2)\n"
    ),
    "a class method": (
        "Rows.limit = classmethod(lambda self: {n})\n"
        "Rows.__getitem__ = lambda self, at: [0] * (self.limit() if at == 500 else 2)\n"
    ),
    "a class that is named": (
        "class Limit:\n    def of(self): return {n}\ndef key(row): return min(len(row), Limit().of())\n"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_lengths_follow(change: str, made: list[int]) -> None:
    assert longest(CHANGES[change].format(n=4)) == longest(CHANGES[change].format(n=4)) == 4
    assert len(made) == 1
    assert longest("\n\n" + CHANGES[change].format(n=4)) == 4, "the lines of the code do not count"
    assert len(made) == 1
    assert longest(CHANGES[change].format(n=8)) == 8


def test_lengths_follow_a_module_of_the_user(made: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (4, 4, 8):
        helper = types.ModuleType("helper_of_lengths")
        helper.limit = number  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, helper.__name__, helper)
        inside = "def key(row):\n    import helper_of_lengths as helper\n    return min(len(row), helper.limit)\n"
        assert longest(inside) == number
    assert len(made) == 2


@pytest.mark.parametrize(
    "source",
    [
        "lock = threading.Lock()\ndef key(row):\n    with lock: return len(row)\n",
        "def key(row):\n    if not row: import not_there_yet\n    return len(row)\n",
    ],
)
def test_nothing_is_kept_if_code_is_not_known(source: str, made: list[int], cache: Path) -> None:
    assert longest(source) == longest(source) == 9
    assert len(made) == 2 and not cache.exists()


def test_sets_of_a_program_are_the_same_in_the_next_one(tmp_path: Path) -> None:
    program = """
import sys
from stoker.packing import lengths
STOP = {"a", "b", "c", "d", "e"}
def key(row): return len(row) + (row in STOP) + (row in {"f", "g", "h", "i"})
print(lengths._digest(key))
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1 and b"None" not in found.pop()


def test_lengths_of_a_changed_lmdb(tmp_path: Path, made: list[int]) -> None:
    lmdb = pytest.importorskip("lmdb")

    def write(size: int) -> None:
        gc.collect()  # closes the environment that this process has read, which LMDB opens once
        with lmdb.open(str(tmp_path / "db"), map_size=1 << 24) as environment, environment.begin(write=True) as change:
            for number in range(1000):
                change.put(b"%06d" % number, b"x" * (size if number == 500 else 2))
        os.utime(tmp_path / "db" / "data.mdb", ns=(size, size))

    write(4)
    for _ in range(2):
        assert lengths(LMDBDataset(tmp_path / "db"), len, 0)[500] == 4
    assert len(made) == 1
    former = LMDBDataset(tmp_path / "db")
    write(8)
    assert lengths(former, len, 0)[500] == lengths(LMDBDataset(tmp_path / "db"), len, 0)[500] == 8


def test_kept_lengths_can_be_written(made: list[int]) -> None:
    for _ in range(2):
        found = lengths([[1], [1, 2]], len, 0)
        found += 1
        assert found.tolist() == [2, 3]
    assert len(made) == 1


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
    assert lengths([np.array([101]), np.array([[7]]), np.array([1, 2])], np.asarray, 0).tolist() == [1, 1, 2]


def test_tensors_of_one_element_have_one() -> None:
    torch = pytest.importorskip("torch")
    rows = [{"tokens": torch.tensor(row), "n": torch.tensor(len(row))} for row in ([5, 6, 7], [101], [])]
    assert lengths(rows, "tokens", 0).tolist() == lengths(rows, "n", 0).tolist() == [3, 1, 0]


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


class Awaited:
    def __len__(self) -> int:
        return 9

    async def __getitem__(self, index: int) -> str:
        await asyncio.sleep(0)
        return "x" * index


class AwaitedTogether(Awaited):
    async def __getitems__(self, indices: list[int]) -> list[str]:
        return [await self[index] for index in indices]


@pytest.mark.leaves_behind("the event loop of this thread stays for its next samples")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [Awaited, AwaitedTogether])
def test_lengths_of_awaited_samples(kind: type[Awaited], workers: int) -> None:
    assert lengths(kind(), len, workers).tolist() == list(range(9))
