"""What a loader is protected from, and what it gets: `Gathered` over datasets that gather well, and badly."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker import collate
from stoker.collate import registry, tensors
from stoker.errors import BatchError, MemoryLimitError

KEPT: list[Any] = []


class Rows:
    """Sample i is `{"x": three floats, "y": i}`; `how` gathers a batch of them."""

    stoker_protocol = True

    def __init__(self, how: Callable[[Rows, Any, Any], Any] | None = None, layout: Any = None) -> None:
        self.x = np.arange(300, dtype=np.float32).reshape(100, 3)
        self.y = np.arange(100)
        self.how = how
        self.layout = {"x": np.empty((0, 3), np.float32), "y": np.empty(0, np.int64)} if layout is None else layout
        self.samples = 0

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.samples += 1
        return {"x": self.x[index], "y": int(self.y[index])}

    def gather_layout(self) -> Any:
        return self.layout

    def gather(self, indices: Any, out: Any) -> Any:
        return write(self, indices, out) if self.how is None else self.how(self, indices, out)


def write(rows: Rows, indices: Any, out: Any) -> None:
    out["x"][...] = rows.x[indices]
    out["y"][...] = rows.y[indices]


def gathering(rows: Any, collate_fn: Any = collate.numpy_collate) -> Any:
    return collate.gathering(collate_fn, rows, rows)


def test_batches_equal_those_of_samples(assert_same: Any) -> None:
    rows = Rows()
    gathered = gathering(rows)
    for indices in ([5, 1, 1, -1], list(range(100)), [np.int32(7), 3], np.array([4, 2])):
        assert_same(gathered(indices), collate.numpy_collate([rows[index] for index in indices]))


def test_later_batches_probe_fewer_samples_than_the_first() -> None:
    rows = Rows()
    gathered = gathering(rows)
    read = []
    for _ in range(8):
        before = rows.samples
        gathered(list(range(50)))
        read.append(rows.samples - before)
    assert read[0] == 16
    assert [number for number, count in enumerate(read, 1) if count] == [1, 2, 4, 8]
    assert max(read[1:]) <= 4


def test_a_row_in_the_middle_of_a_small_batch_is_looked_at() -> None:
    def one_is_wrong(rows: Rows, indices: Any, out: Any) -> None:
        write(rows, indices, out)
        out["x"][5] = 0

    with pytest.raises(BatchError, match=r"wrote other values .* into row 5 of the batch"):
        gathering(Rows(one_is_wrong))(list(range(50, 60)))


def test_rows_that_are_wrong_later_are_found_soon() -> None:
    calls = 0

    def wrong_from_the_third_on(rows: Rows, indices: Any, out: Any) -> None:
        nonlocal calls
        calls += 1
        write(rows, indices, out)
        if calls > 3:
            out["x"][1:] = 0  # but for the first

    gathered = gathering(Rows(wrong_from_the_third_on))
    with pytest.raises(BatchError, match="wrote other values"):
        for _ in range(8):
            gathered(list(range(20)))


def test_gathered_batch_is_written_into_lent_memory(slot: Any) -> None:
    batch = gathering(Rows())([3, 1, 2])
    assert slot.given[:2] == [36, 24] and slot.holds(batch["x"]) and slot.holds(batch["y"])


def wrong_rows(rows: Rows, indices: Any, out: Any) -> None:
    write(rows, indices[::-1], out)


def too_few(rows: Rows, indices: Any, out: Any) -> None:
    out["x"][:-1] = rows.x[indices[:-1]]
    out["x"][-1] = -1
    out["y"][...] = rows.y[indices]


def replaces(rows: Rows, indices: Any, out: Any) -> None:
    out["x"] = rows.x[indices]
    out["y"][...] = rows.y[indices]


def reshapes(rows: Rows, indices: Any, out: Any) -> None:
    write(rows, indices, out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        out["x"].shape = -1


def returns(rows: Rows, indices: Any, out: Any) -> Any:
    return {"x": rows.x[indices], "y": rows.y[indices]}


def keeps(rows: Rows, indices: Any, out: Any) -> None:
    write(rows, indices, out)
    KEPT.append(out["x"])


def keeps_all(rows: Rows, indices: Any, out: Any) -> None:
    write(rows, indices, out)
    KEPT.append(out)


def leaves_a_row(rows: Rows, indices: Any, out: Any) -> None:
    for place in (0, 2, 4):
        out["x"][place] = rows.x[indices[place]]
    out["x"][[1, 3], :2] = rows.x[indices[[1, 3]], :2]
    out["y"][...] = rows.y[indices]


def keeps_a_view(rows: Rows, indices: Any, out: Any) -> None:
    write(rows, indices, out)
    KEPT.append(out["y"][1:2])


@pytest.fixture
def kept() -> Any:
    KEPT.clear()
    yield KEPT
    KEPT.clear()


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        (wrong_rows, r"Rows.gather\(\) wrote other values in dict\['x'\]  into row 0 of the batch than sample 5 has"),
        (too_few, r"into row 4 of the batch than sample 2 has"),
        (replaces, "replaced a leaf of `out`"),
        (reshapes, "replaced a leaf of `out`"),
        (returns, r"returned a dict: it has to write into `out`"),
        (keeps, "keeps `out`, or a part of it"),
        (keeps_all, "keeps `out`, or a part of it"),
        (leaves_a_row, r"Rows.gather\(\) left row 1 of the batch unwritten in dict\['x'\]"),
        (keeps_a_view, "keeps `out`, or a part of it"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_gather_is_refused(how: Any, said: str, lent: bool, new_slot: Any) -> None:
    with tensors.lent_by(new_slot() if lent else lambda size: None), pytest.raises(BatchError, match=said):
        gathering(Rows(how))([5, 6, 9, 3, 2])


class Bytes:
    """May have any values, also those by which it is seen what was not written."""

    stoker_protocol = True

    def __init__(self, writes: int, tensors: bool) -> None:
        self.values = np.resize(np.array([0xA5, 0x5A, 0], np.uint8), (20, 5))
        self.writes = writes
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return self.of(self.values[index])

    def of(self, values: Any) -> Any:
        return sys.modules["torch"].from_numpy(values) if self.tensors else values

    def gather_layout(self) -> Any:
        return self.of(self.values[:0])

    def gather(self, indices: Any, out: Any) -> None:
        out[: self.writes] = self.of(self.values[indices])[: self.writes]


@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
def test_bytes_of_any_value_count_as_written(tensors: bool) -> None:
    if tensors:
        pytest.importorskip("torch")
    output: Any = collate.default_collate if tensors else collate.numpy_collate
    whole = Bytes(20, tensors)
    gathered = collate.gathering(output, whole, whole)
    assert gathered is not None
    assert gathered(list(range(20))).tolist() == whole.values.tolist()
    some = Bytes(4, tensors)
    gathered = collate.gathering(output, some, some)
    assert gathered is not None
    with pytest.raises(BatchError, match="left row 4 of the batch unwritten"):
        gathered([3, 1, 4, 1, 5])


@pytest.mark.parametrize(
    "layout",
    [
        (np.empty((0, 3), np.float32), np.empty(0, np.int64)),
        {"x": np.empty((0, 3), np.float32), "y": np.empty(0, np.int64)},
        {"x": np.empty((0, 3), np.float32), "in": {"y": np.empty(0, np.int64)}},
    ],
    ids=["tuple", "dict", "nested"],
)
def test_leaf_replaced_in_a_later_batch_is_refused(layout: Any) -> None:
    class Tables(Rows):
        def __getitem__(self, index: int) -> Any:
            if isinstance(layout, tuple):
                return self.x[index], int(self.y[index])
            return {"x": self.x[index], **({"y": self.y[index]} if "y" in layout else {"in": {"y": self.y[index]}})}

    def replaces_the_last(rows: Rows, indices: Any, out: Any) -> None:
        first = 0 if isinstance(out, list) else "x"
        inner = out.get("in", out) if isinstance(out, dict) else out
        inner[1 if isinstance(out, list) else "y"][...] = rows.y[indices]
        if len(indices) < 4:  # the last, smaller batch takes another way
            out[first] = rows.x[indices]
        else:
            out[first][...] = rows.x[indices]

    gathered = gathering(Tables(replaces_the_last, layout))
    for start in (0, 4):
        gathered(list(range(start, start + 4)))
    with pytest.raises(BatchError, match=r"Tables.gather\(\) replaced a leaf of `out`"):
        gathered([8, 9])


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"x": np.empty((0, 3)), "y": np.empty(0, np.int64)}, "gives float64 of shape .3,. in dict"),
        ({"x": np.empty((0, 3), np.float32), "y": np.empty(0, np.int32)}, "gives int32 of shape .* has int64"),
        ({"x": np.empty((0, 1, 3), np.float32), "y": np.empty(0, np.int64)}, r"float32 of shape \(1, 3\)"),
        ({"y": np.empty(0, np.int64), "x": np.empty((0, 3), np.float32)}, "has in dict"),
        ({"x": np.empty((0, 3), np.float32)}, "has in dict"),
    ],
)
def test_a_layout_that_is_not_the_samples_is_refused(layout: Any, said: str) -> None:
    def fill(rows: Rows, indices: Any, out: Any) -> None:
        for key in out:
            out[key][...] = rows.x[indices].reshape(out[key].shape) if key == "x" else rows.y[indices]

    with pytest.raises(BatchError, match=said):
        gathering(Rows(fill, layout))([5, 6])


def test_a_cycle_that_holds_out_is_no_keeping() -> None:
    def in_a_cycle(rows: Rows, indices: Any, out: Any) -> None:
        write(rows, indices, out)
        cycle = [out["x"]]
        cycle.append(cycle)

    assert gathering(Rows(in_a_cycle))([1, 2])["y"].tolist() == [1, 2]


def test_gather_that_raises_falls_back_to_samples() -> None:
    gathered = gathering(Rows())
    assert gathered([1, 100]) is collate.NOT_GATHERED
    assert isinstance(gathered.trouble, IndexError)
    assert gathered([1, 99])["y"].tolist() == [1, 99]


def test_memory_that_is_refused_is_refused() -> None:
    def refuses(size: int) -> None:
        raise MemoryLimitError("none left")

    with tensors.lent_by(refuses), pytest.raises(MemoryLimitError):
        gathering(Rows())([1, 2])


@pytest.mark.parametrize("indices", [[], ["a"], [1.5], [None], [(1, 2)], [[1, 2]], [True, False], [2**70], [1, 2.0]])
def test_indices_that_are_no_integers_are_not_gathered(indices: list[Any]) -> None:
    assert gathering(Rows())(indices) is collate.NOT_GATHERED


@pytest.mark.parametrize("layout", [None, np.empty(0, object), np.empty(0, "S2"), {"x": np.empty(0, "M8[s]")}, "text"])
def test_layouts_of_other_things_are_not_gathered(layout: Any) -> None:
    rows = Rows()
    rows.layout = layout
    assert gathering(rows)([1, 2]) is collate.NOT_GATHERED


def test_gather_that_always_declines_is_given_up() -> None:
    asked: list[int] = []
    gathered = gathering(Rows(lambda rows, indices, out: asked.append(1) or NotImplemented))
    for _ in range(50):
        assert gathered([1, 2]) is collate.NOT_GATHERED
    assert len(asked) < 10


def test_gather_that_declines_now_and_then_is_kept() -> None:
    def odd(rows: Rows, indices: Any, out: Any) -> Any:
        return write(rows, indices, out) if len(indices) % 2 else NotImplemented

    gathered = gathering(Rows(odd))
    answers = [gathered(list(range(size))) is collate.NOT_GATHERED for size in range(1, 30)]
    assert answers == [size % 2 == 0 for size in range(1, 30)]


def test_only_the_default_collation_is_gathered() -> None:
    for other in (list, collate.PadCollator(), collate.default_convert):
        assert gathering(Rows(), other) is None


def test_functions_of_the_users_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = gathering(Rows())
    assert gathered([1, 2]) is not collate.NOT_GATHERED
    for kind in (np.ndarray, np.int64, int, dict):
        with monkeypatch.context() as patch:
            patch.setitem(registry.default_collate_fn_map, kind, lambda batch, *, collate_fn_map: batch)
            assert gathered([1, 2]) is collate.NOT_GATHERED
    assert gathered([1, 2]) is not collate.NOT_GATHERED


def test_tensors_are_gathered_where_torch_is() -> None:
    torch = pytest.importorskip("torch")
    rows = Rows()
    gathered = gathering(rows, collate.default_collate)
    for indices in ([5, 1, -1], [2]):
        batch, expected = gathered(indices), collate.default_collate([rows[index] for index in indices])
        assert all(torch.equal(batch[key], expected[key]) and batch[key].dtype == expected[key].dtype for key in "xy")


def test_functions_registered_with_torch_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(theirs, torch.Tensor, lambda batch, *, collate_fn_map: batch)
    assert gathering(Rows(), collate.default_collate)([1, 2]) is collate.NOT_GATHERED
    assert gathering(Rows(), collate.numpy_collate)([1, 2]) is collate.NOT_GATHERED


def test_copy_made_by_torch_is_written_as_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a default device, `torch.as_tensor` copies."""
    torch = pytest.importorskip("torch")
    from stoker.datasets import TensorDataset

    class Elsewhere(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            return made.clone() if function is torch.as_tensor else made

    rows = np.arange(20.0)
    data = TensorDataset(rows)
    gathered = collate.gathering(collate.default_collate, data, data)  # type: ignore[arg-type]
    gathered([0, 1])
    with Elsewhere():
        assert gathered([3, 4])[0].tolist() == [3, 4]


def test_gather_that_declines_the_second_time_is_no_error() -> None:
    class Once(Bytes):
        asked = 0

        def gather(self, indices: Any, out: Any) -> Any:
            self.asked += 1
            if self.asked == 2:
                return NotImplemented
            return super().gather(indices, out)  # type: ignore[func-returns-value]

    once = Once(20, tensors=False)
    gathered = collate.gathering(collate.numpy_collate, once, once)
    assert gathered is not None
    assert gathered(list(range(20))) is collate.NOT_GATHERED
    assert once.asked == 2
    assert gathered(list(range(20))).tolist() == once.values.tolist()
