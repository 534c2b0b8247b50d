"""Gather: overridden methods of subclasses are used, and combinations of datasets pass it on."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import ArrayDataset, collate
from stoker._core import native
from stoker.datasets import ConcatDataset, Dataset, MapDataset, StackDataset, Subset, TensorDataset, ZipDataset, columns
from stoker.datasets import gather as module
from stoker.datasets.gather import UNKNOWN, foreseen, gather_rows, gatherer, inside, layout_of
from stoker.errors import BatchError
from stoker.testing.gather import differences, out_for
from tests.ownership import moved, named_like

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

ROWS = np.arange(60, dtype=np.float32).reshape(20, 3)


class Augmented(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return (-self.tensors[0][index],)


class Fetching(TensorDataset):
    def __getitems__(self, indices: Any) -> Any:
        return [(-self.tensors[0][index],) for index in indices]


class Both(TensorDataset):
    stoker_protocol = True

    def __getitem__(self, index: Any) -> Any:
        return (-self.tensors[0][index],)

    def gather(self, indices: Any, out: Any) -> None:
        out[0][...] = -self.tensors[0][indices]


class Mixin:
    def __getitem__(self, index: Any) -> Any:
        return index


class Mixed(Mixin, TensorDataset):
    pass


class Named(TensorDataset):
    """Adds nothing that matters."""

    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize("kind", [Augmented, Fetching, Mixed])
def test_a_subclass_that_fetches_otherwise_is_never_bypassed(kind: Any) -> None:
    own = kind(ROWS)
    assert gatherer(own) is None
    for around in (Subset(own, [1, 2]), ConcatDataset([own, own]), StackDataset(own), ZipDataset(own)):
        assert layout_of(around) is None


def test_subclass_with_its_own_gather_is_its_own_gatherer() -> None:
    for own in (Both(ROWS), Named(ROWS)):
        assert gatherer(own) is own
    out = out_for(Both(ROWS), 2)
    Both(ROWS).gather(np.array([1, -1]), out)
    assert out[0].tolist() == (-ROWS[[1, -1]]).tolist()


def test_an_object_with_a_fetch_of_its_own_is_obeyed() -> None:
    data = TensorDataset(ROWS)
    data.__getitems__ = lambda indices: []  # type: ignore[attr-defined]
    assert gatherer(data) is None


def test_datasets_without_rows_have_no_gatherer() -> None:
    for data in ([1, 2], range(3), "abc", object(), Dataset(), MapDataset(ROWS, abs)):
        assert gatherer(data) is None
        assert layout_of(data) is None


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(np.array(["a", "b"])),
        TensorDataset(ROWS, np.array([object()] * 20)),
        TensorDataset(np.zeros(3, "M8[s]")),
        TensorDataset(np.ma.masked_array(ROWS)),
        TensorDataset(np.zeros(2, np.longdouble)),
        TensorDataset(np.zeros(2, [("a", "i4")])),
        ConcatDataset([ROWS, ROWS.astype(np.float64)]),
        ConcatDataset([ROWS, ROWS[:, :2]]),
        ConcatDataset([StackDataset(a=ROWS, b=ROWS), StackDataset(b=ROWS, a=ROWS)]),
        ConcatDataset([ROWS, [1, 2]]),
        StackDataset(ROWS, range(20)),
        ZipDataset(ROWS, "abc"),
        columns(["a", "b"]),
        columns([(1, None), (2, 3)]),
        columns([(1, "a"), (2, "b")]),
    ],
)
def test_gather_names_fields_that_it_cannot_gather(data: Any) -> None:
    assert layout_of(data) is None
    assert foreseen(data) is None


class NotYetOpen(Dataset[Any]):
    """Its data are there in the workers only."""

    stoker_protocol = True

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("asked too early")

    def gather_layout(self) -> Any:
        raise AssertionError("asked too early")

    def gather(self, indices: Any, out: Any) -> Any:
        raise AssertionError("asked too early")


def test_layout_is_known_without_calling_user_code() -> None:
    theirs = NotYetOpen()
    for data in (theirs, Subset(theirs, [0]), StackDataset(ROWS, theirs), ConcatDataset([theirs, ROWS])):
        assert foreseen(data) is UNKNOWN
    assert foreseen(StackDataset(theirs, range(20))) is None  # whatever it would answer
    assert foreseen(Subset(StackDataset(a=ROWS), [0]))["a"].shape == (0, 3)
    assert foreseen(ROWS).shape == (0, 3)


def test_layout_of_a_moved_class_is_known() -> None:
    for kind in (TensorDataset, Named):
        assert foreseen(kind(ROWS))[0].shape == (0, 3)
        with moved(TensorDataset, Subset):
            assert foreseen(Subset(kind(ROWS), [0]))[0].shape == (0, 3)
            assert foreseen(ROWS).shape == (0, 3)


def test_layout_that_a_subclass_defines_is_unknown() -> None:
    def refuses(dataset: Any) -> Any:
        raise AssertionError("asked too early")

    members = {"gather_layout": refuses, "stoker_protocol": True}
    for kind in (type("Own", (TensorDataset,), members), named_like(TensorDataset, **members)):
        assert foreseen(kind(ROWS)) is UNKNOWN
        assert foreseen(Subset(kind(ROWS), [0])) is UNKNOWN


def test_layout_of_files_is_asked_for_in_a_worker(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    assert foreseen(ArrayDataset(tmp_path / "rows.npy")) is UNKNOWN
    assert foreseen(Subset(ArrayDataset(tmp_path / "rows.npy"), [0])) is UNKNOWN


def test_each_source_that_gathers_is_marked() -> None:
    marked = {}
    for path in (Path(native.__file__).parents[2] / "sources").rglob("*.py"):
        for kind in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)):
            if any(isinstance(node, ast.FunctionDef) and node.name == "gather_layout" for node in kind.body):
                marked[kind.name] = any(ast.unparse(node) == "_layout_of_files = True" for node in kind.body)
    assert marked == {"ArrayDataset": True, "HDF5Dataset": True}


def test_layout_of_torchs_own_is_known() -> None:
    data = pytest.importorskip("torch.utils.data")
    assert foreseen(data.Subset(TensorDataset(ROWS), [0]))[0].shape == (0, 3)
    assert foreseen(type("Named", (data.Subset,), {})(TensorDataset(ROWS), [0])) is None


def test_tensors_that_are_more_than_numbers_are_not_gathered() -> None:
    torch = pytest.importorskip("torch")
    for tensor in (
        torch.ones(3, requires_grad=True),
        torch.nn.Parameter(torch.ones(3)),
        torch.eye(3).to_sparse(),
        torch.ones(3, device="meta"),
    ):
        assert layout_of(TensorDataset(tensor)) is None
    assert layout_of(ConcatDataset([ROWS, torch.from_numpy(ROWS)])) is None


def test_torchs_classes_are_gathered_and_subclasses_are_called() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.data import TensorDataset as Theirs

    class Own(Theirs):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            return index

    tensor = torch.from_numpy(ROWS)
    assert gatherer(Theirs(tensor)) is not None
    assert gatherer(Own(tensor)) is None


def test_tensor_replaced_by_another_shape_is_an_error() -> None:
    torch = pytest.importorskip("torch")
    data = TensorDataset(torch.ones(5, 3))
    out = out_for(data, 2)
    data.tensors = (torch.ones(5, 4),)
    with pytest.raises(ValueError, match=r"row of shape \(4,\) does not fit one of \(3,\)"):
        data.gather(np.array([0, 1]), out)


def test_tensors_that_are_not_what_lies_in_memory_decline() -> None:
    torch = pytest.importorskip("torch")
    numbers = torch.tensor([[1 + 2j], [3 - 4j]])
    for tensor in (numbers.conj(), numbers.conj().imag):
        assert TensorDataset(tensor).gather_layout() is None
        assert gatherer(tensor) is not None and layout_of(tensor) is None
        assert layout_of(tensor.resolve_conj().resolve_neg()) is not None


def test_subset_reads_its_indices_anew() -> None:
    chosen = [1, 2, 3]
    data: Subset[Any] = Subset(ROWS, chosen)
    out = out_for(data, 1)
    chosen[0] = 7
    data.gather(np.array([0]), out)
    assert out.tolist() == ROWS[[7]].tolist()


def test_subset_asks_its_indices_as_they_are_meant() -> None:
    class Labelled(list[int]):
        """As a pandas Series whose labels are 2, 1, 0; or a file, which is not to be read whole."""

        dtype = np.dtype(np.int64)

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise AssertionError("read whole")

        def __getitem__(self, label: Any) -> Any:
            return super().__getitem__(2 - label)

    data: Subset[Any] = Subset(ROWS, Labelled([7, 8, 9]))
    for places in ([0], [0, 2]):
        out = out_for(data, len(places))
        data.gather(np.array(places), out)
        assert out.tolist() == [data[place].tolist() for place in places] == ROWS[9 - np.array(places)].tolist()


def test_subset_of_names_declines() -> None:
    data: Subset[Any] = Subset(ROWS, ["a", "b"])
    assert data.gather(np.array([0]), out_for(data, 1)) is NotImplemented


def test_concat_declines_where_each_dataset_has_but_few() -> None:
    data: ConcatDataset[Any] = ConcatDataset([ROWS] * 20)
    everywhere = np.arange(0, 400, 7)
    assert data.gather(everywhere, out_for(data, len(everywhere))) is NotImplemented
    some = np.array([3, 399, 2, 1, 398, 0])
    out = out_for(data, len(some))
    assert data.gather(some, out) is None
    assert out.tolist() == ROWS[some % 20].tolist()


def test_concat_asks_each_dataset_once() -> None:
    asked: list[list[int]] = []

    class Noted(TensorDataset):
        stoker_protocol = True

        def gather(self, indices: Any, out: Any) -> None:
            asked.append(indices.tolist())
            super().gather(indices, out)

    data: ConcatDataset[Any] = ConcatDataset([Noted(ROWS), Noted(ROWS)])
    out = out_for(data, 6)
    data.gather(np.array([25, 1, 25, -1, 0, 39]), out)
    assert asked == [[1, 0], [5, 5, 19, 19]]
    assert out[0].tolist() == ROWS[[5, 1, 5, 19, 0, 19]].tolist()


def test_indices_from_both_ends() -> None:
    assert inside(np.array([0, -1, 4]), 5).tolist() == [0, 4, 4]
    for outside in (5, -6):
        with pytest.raises(IndexError, match=f"index {outside} is out of bounds for a dataset of 5"):
            inside(np.array([0, outside]), 5)


def arrays(length: int) -> st.SearchStrategy[Any]:
    def made(code: str, shape: list[int], layout: str) -> Any:
        values = np.random.default_rng(0).integers(0, 2, (length, *shape)).astype(code)
        return {"C": values, "F": np.asfortranarray(values), "reversed": values[::-1]}[layout]

    return st.builds(made, st.sampled_from("?bHilefdF"), st.lists(st.integers(0, 3), max_size=2), st.sampled_from("CF"))


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> Any:
    """A dataset made of datasets, with at least one sample."""
    kind = draw(st.sampled_from(["array", "tensors", "subset", "concat", "stack", "named"] if depth else ["array"]))
    if kind == "array":
        return draw(arrays(draw(st.integers(1, 30))))
    if kind == "tensors":
        length = draw(st.integers(1, 30))
        return TensorDataset(*[draw(arrays(length)) for _ in range(draw(st.integers(1, 3)))])
    below = draw(trees(depth - 1))
    length = len(below)
    if kind == "subset":
        indices = st.lists(st.integers(-length, length - 1), min_size=1, max_size=9)
        return Subset(below, draw(st.one_of(indices, indices.map(np.array), st.just(range(length - 1, -1, -1)))))
    if kind == "concat":
        return ConcatDataset([below, Subset(below, range(0, length, 2)), below])
    return StackDataset(below, below) if kind == "stack" else StackDataset(a=below, b=below)


@settings(max_examples=200)
@given(data=trees(), draws=st.data())
def test_gathered_batch_equals_the_collated_batch(data: Any, draws: Any) -> None:
    """For whatever is made of arrays, batch after batch, in both outputs."""
    source = gatherer(data)
    assert source is not None
    for collate_fn in (collate.numpy_collate, collate.default_collate):
        gathered = collate.gathering(collate_fn, data, source)
        assert gathered is not None
        for _ in range(3):
            indices = draws.draw(st.lists(st.integers(-len(data), len(data) - 1), min_size=1, max_size=40))
            batch = gathered(indices)
            if batch is not collate.NOT_GATHERED:
                expected = collate_fn([data[index] for index in indices])
                assert not list(differences(batch, expected))


class Careless(TensorDataset):
    """Gathers full batches as it should; of smaller ones it returns rows, or puts them in the place of a leaf."""

    stoker_protocol = True

    def __init__(self, returns: bool) -> None:
        super().__init__(ROWS)
        self.returns = returns

    def gather(self, indices: Any, out: Any) -> Any:
        if len(indices) >= 8:
            return super().gather(indices, out)
        rows = self.tensors[0][indices]
        if self.returns:
            return rows
        out[0] = rows
        return None


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("combine", [StackDataset, ZipDataset, lambda *both: ConcatDataset(both)])
def test_rows_left_unwritten_by_a_source_are_no_batch(combine: Any, returns: bool) -> None:
    data = combine(Careless(returns), Careless(returns))
    gathered = collate.gathering(collate.numpy_collate, data, gatherer(data))
    assert gathered is not None
    gathered(list(range(8)))
    if returns:
        with pytest.raises(BatchError, match=r"Careless.gather\(\) returned a ndarray"):
            gathered(list(range(5)))
    else:
        assert gathered(list(range(5))) is collate.NOT_GATHERED


def test_indices_beyond_64_bits_do_not_come_from_the_end() -> None:
    places = np.array([0, 2**64 - 1], np.uint64)
    data = TensorDataset(ROWS)
    gathered = collate.gathering(collate.numpy_collate, data, gatherer(data))
    assert gathered is not None and gathered(places) is collate.NOT_GATHERED
    within = Subset(data, places)
    gathered = collate.gathering(collate.numpy_collate, within, gatherer(within))
    assert gathered is not None and gathered([0, 1]) is collate.NOT_GATHERED
    with pytest.raises(IndexError):
        columns([10, 11, 12]).__getitems__(places)


@pytest.mark.skipif(native.functions is None, reason=f"not here: {native.why}")
@given(
    dtype=st.sampled_from(["u1", "f4", "c16", ">i4", "O", "i4,f8"]),
    indices=st.lists(st.integers(-20, 19), max_size=12),
    width=st.integers(0, 40),
)
def test_large_plain_rows_are_copied_past_the_caches(dtype: str, indices: list[int], width: int) -> None:
    """Objects are counted, and strange layouts converted: these are left to NumPy."""
    rows = np.random.default_rng(width).integers(0, 100, (20, width)).astype(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LARGE_HERE", 1)
        patch.setattr(module, "LARGE_ROW", 1)
        for source in (rows, rows[::-1], np.asfortranarray(rows)):
            out = np.empty((len(indices), width), dtype)
            gather_rows(source, np.array(indices, np.int64), out)
            assert np.array_equal(out, source[indices] if indices else out)


@pytest.mark.skipif(native.functions is None, reason=f"not here: {native.why}")
def test_index_out_of_range_is_found_before_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LARGE_HERE", 1)
    monkeypatch.setattr(module, "LARGE_ROW", 1)
    with pytest.raises(IndexError, match="out of bounds for a dataset of 20 samples"):
        gather_rows(ROWS, np.array([0, 20]), np.empty((2, 3), np.float32))


@pytest.mark.skipif(native.functions is None, reason=f"not here: {native.why}")
def test_objects_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LARGE_HERE", 1)
    monkeypatch.setattr(module, "LARGE_ROW", 1)
    thing = object()
    rows, out = np.array([[thing], [object()]]), np.empty((2, 1), object)
    before = sys.getrefcount(thing)
    gather_rows(rows, np.array([0, 0]), out)
    assert sys.getrefcount(thing) == before + 2
