"""What torch's default collation and conversion make of random structures, ours makes too: types, dtypes, values."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stoker import collate
from stoker.collate import default, registry
from stoker.collate.tensors import lent_by
from stoker.errors import BatchError

torch = pytest.importorskip("torch")
from torch.utils.data import default_collate as torchs_collate  # noqa: E402
from torch.utils.data import default_convert as torchs_convert  # noqa: E402

Maker = Callable[[np.random.Generator], Any]


class Point(NamedTuple):
    x: Any
    y: Any


class Record(dict[str, Any]):
    """A mapping that carries something beside its items."""

    def __init__(self, items: Mapping[str, Any], origin: str = "unknown") -> None:
        super().__init__(items)
        self.origin = origin


class ReadOnly(Mapping[str, Any]):
    def __init__(self, items: Mapping[str, Any]) -> None:
        self.items_ = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self.items_[key]

    def __iter__(self) -> Any:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


class Unbuildable(ReadOnly):
    def __init__(self, one: object, two: object) -> None:
        super().__init__({"one": one, "two": two})


NUMPY_DTYPES = [np.dtype(code) for code in "?bBhHiIlLqefdFD"]
TORCH_DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool, torch.complex64]
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def array_of(shape: tuple[int, ...], dtype: np.dtype[Any], layout: str) -> Maker:
    def make(rng: np.random.Generator) -> Any:
        array = np.asarray(rng.integers(0, 100, shape)).astype(dtype)
        if layout == "F":
            return np.asfortranarray(array)
        return np.repeat(array, 2, axis=0)[::2] if layout == "strided" and array.ndim else array

    return make


arrays = st.builds(array_of, shapes, st.sampled_from(NUMPY_DTYPES), st.sampled_from(["C", "F", "strided"]))
tensors = st.builds(
    lambda shape, dtype: lambda rng: torch.as_tensor(rng.integers(0, 100, shape)).to(dtype),
    shapes,
    st.sampled_from(TORCH_DTYPES),
)
permuted = st.just(lambda rng: torch.as_tensor(rng.random((4, 3, 2))).permute(2, 0, 1))
# (torch itself refuses uint64 scalars.)
scalars = st.sampled_from([d for d in NUMPY_DTYPES if d != np.uint64]).map(
    lambda dtype: lambda rng: dtype.type(rng.integers(0, 2))
)
numbers = st.sampled_from(
    [
        lambda rng: int(rng.integers(-(2**63), 2**63 - 1)),
        lambda rng: float(rng.normal()),
        lambda rng: bool(rng.integers(2)),
        lambda rng: float(rng.normal()) if rng.random() < 0.5 else int(rng.integers(9)),
        lambda rng: bool(rng.integers(2)) if rng.random() < 0.5 else int(rng.integers(9)),
        lambda rng: np.float32(rng.normal()) if rng.random() < 0.5 else int(rng.integers(9)),
        lambda rng: np.int16(3) if rng.random() < 0.5 else float(rng.normal()),
        lambda rng: np.array(3, "i2") if rng.random() < 0.5 else torch.tensor(2),
    ]
)
strings = st.sampled_from([lambda rng: "ab", lambda rng: b"cd", lambda rng: np.str_("ef")])
mixed_dtypes = st.lists(st.sampled_from("?bBhilefdFD"), min_size=2, max_size=3).map(
    lambda codes: lambda rng: np.ones(2, rng.choice(list(codes)))
)
leaves = st.one_of(arrays, tensors, permuted, scalars, numbers, strings)


def nested(inner: st.SearchStrategy[Maker]) -> st.SearchStrategy[Maker]:
    several = st.lists(inner, max_size=3)
    pair = st.tuples(inner, inner)

    def built(build: Callable[[list[Any]], Any]) -> Callable[[Any], Maker]:
        return lambda makers: lambda rng: build([make(rng) for make in makers])

    named = lambda values: {f"k{at}": value for at, value in enumerate(values)}  # noqa: E731
    return st.one_of(
        several.map(built(named)),
        several.map(built(tuple)),
        several.map(built(list)),
        several.map(built(collections.deque)),
        several.map(built(collections.UserList)),
        several.map(built(lambda values: collections.OrderedDict(named(values)))),
        several.map(built(lambda values: collections.defaultdict(int, named(values)))),
        several.map(built(lambda values: Record(named(values), origin="disk"))),
        several.map(built(lambda values: ReadOnly(named(values)))),
        pair.map(built(lambda values: Unbuildable(*values))),
        pair.map(built(lambda values: Point(*values))),
        several.map(built(lambda values: dict(enumerate(values)))),
        st.just(lambda rng: range(3)),
    )


makers = st.recursive(leaves, nested, max_leaves=6)


@st.composite
def batches(draw: st.DrawFn, makers: st.SearchStrategy[Maker] = makers) -> list[Any]:
    make, rng = draw(makers), np.random.default_rng(draw(st.integers(0, 2**32)))
    return [make(rng) for _ in range(draw(st.integers(1, 5)))]


def outcome(fn: Callable[[Any], Any], data: Any) -> Any:
    try:
        return fn(data)
    except Exception as error:
        return error


def leaves_of(batch: Any) -> Iterator[Any]:
    if isinstance(batch, (str, bytes)) or not isinstance(batch, (Mapping, Sequence)):
        yield batch
    else:
        for value in batch.values() if isinstance(batch, Mapping) else batch:
            yield from leaves_of(value)


def deferred(batch: Any) -> Any:
    """What `deferred_collate` does where torch is not loaded."""
    return default.collated_by(batch, registry.functions(registry.DEFERRED))


@pytest.mark.parametrize("lent", [False, True])
@settings(max_examples=300)
@given(batch=batches())
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays")
def test_collates_as_torch_does(lent: bool, batch: list[Any], assert_same: Any, new_slot: Any) -> None:
    expected = outcome(torchs_collate, batch)
    with lent_by(new_slot() if lent else lambda size: None):
        got = outcome(collate.default_collate, batch)
    if isinstance(expected, Exception):
        assert isinstance(got, type(expected)), repr(got)
    else:
        assert not isinstance(got, Exception), repr(got)
        assert_same(expected, got)


@st.composite
def rows_of_batches(draw: st.DrawFn) -> list[list[Any]]:
    """Batches of one dataset, some of whose samples, or all from one batch on, are of another kind."""
    make, other = draw(makers), draw(makers)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    change = draw(st.sampled_from(["never", "a sample", "from then on", "swapped"]))
    several = [[make(rng) for _ in range(draw(st.integers(1, 5)))] for _ in range(4)]
    if change == "a sample":
        at = draw(st.integers(0, len(several[2]) - 1))
        several[2][at] = other(rng)
    elif change == "from then on":
        several[2:] = [[other(rng) for _ in range(3)] for _ in range(2)]
    elif change == "swapped" and type(several[2][0]) is dict:  # keys in another order, and one more
        several[2] = [dict(reversed([*sample.items(), ("extra", 1)])) for sample in several[2]]
    return several


@pytest.mark.parametrize("output", [collate.default_collate, collate.numpy_collate, collate.deferred_collate])
@settings(max_examples=200)
@given(several=rows_of_batches())
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays")
def test_compiled_it_is_the_same(output: Any, several: list[list[Any]], assert_same: Any, new_slot: Any) -> None:
    """Batch by batch what the general path gives: types, values, errors and their words, and in lent memory."""
    compiled = collate.compiling(output)
    assert compiled is not output
    for batch in several:
        slots = new_slot(), new_slot()
        with lent_by(slots[0]):
            expected = outcome(output, batch)
        with lent_by(slots[1]):
            got = outcome(compiled, batch)
        assert type(got) is type(expected), (got, expected)
        if isinstance(expected, Exception):
            assert str(got) == str(expected)
        else:
            assert_same(expected, got)
            inside = [
                [slot.holds(leaf) for leaf in arrays_in(batch)]
                for slot, batch in zip(slots, (expected, got), strict=True)
            ]
            assert inside[0] == inside[1]


def arrays_in(batch: Any) -> list[Any]:
    """The leaves that may lie in lent memory, and that NumPy can tell it of."""
    kinds = (np.ndarray, torch.Tensor)
    return [
        leaf for leaf in leaves_of(batch) if isinstance(leaf, kinds) and leaf.nbytes and leaf.dtype != torch.bfloat16
    ]


@given(batch=batches(mixed_dtypes))
def test_dtypes_are_promoted_as_torch_does(batch: list[Any], assert_same: Any) -> None:
    expected = torchs_collate(batch)
    assert_same(expected, collate.default_collate(batch))
    assert_same(expected, collate.default_collate([torch.as_tensor(array) for array in batch]))
    assert_same(expected.numpy(), collate.numpy_collate(batch))


def test_every_pair_of_dtypes_has_torchs_common_dtype() -> None:
    for one in NUMPY_DTYPES:
        for two in NUMPY_DTYPES:
            batch = [np.ones(2, one), np.ones(2, two)]
            expected, got = outcome(torchs_collate, batch), outcome(collate.numpy_collate, batch)
            if isinstance(expected, Exception):
                assert isinstance(got, type(expected)), (one, two)
                assert str(expected).split(",")[0] in str(got)
            else:
                assert got.dtype == expected.numpy().dtype, (one, two)


@settings(max_examples=150)
@given(batch=batches(st.recursive(st.one_of(arrays, scalars, numbers, strings), nested, max_leaves=4)))
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays")
def test_all_outputs_are_one_collation(batch: list[Any], assert_same: Any) -> None:
    """NumPy's and the deferred leaves have the dtypes and values of the tensors."""
    expected = outcome(collate.default_collate, batch)
    assume(not isinstance(expected, Exception))
    converted = collate.numpy_collate(batch)
    assert_same(expected, converted, bare=True)
    assert_same(expected, deferred(batch), bare=True)
    assert not any(isinstance(leaf, torch.Tensor) for leaf in leaves_of([converted, deferred(batch)]))


@settings(max_examples=200)
@given(batch=batches())
def test_converts_as_torch_does(batch: list[Any], assert_same: Any) -> None:
    for sample in batch:
        assert_same(torchs_convert(sample), collate.default_convert(sample))


REFUSED: list[list[Any]] = [
    [None],
    [1, None],
    [1.0, None],
    [1, "a"],
    [1.0, "a"],
    [1.0, 1j],
    [1j, 2j],
    [1, [1, 2]],
    [1, {}],
    [object()],
    [{1, 2}],
    [torch.ones(2), None],
    [torch.ones(2), 1],
    [torch.ones(2), np.ones(2)],
    [torch.ones(2), torch.ones(3)],
    [torch.ones(2), torch.ones(2, 1)],
    [np.ones(2), np.ones(3)],
    [np.ones(2), None],
    [np.array(["a"])],
    [np.array([None])],
    [np.array([1]), np.array(["a"])],
    [np.array(["2020-01-01"], "M8[D]")],
    [np.ones(2, np.longdouble)],
    [np.timedelta64(1, "s")],
    [np.datetime64(1, "s")],
    [torch.eye(2).to_sparse(), torch.eye(2).to_sparse()],
    [{"a": 1}, 5],
    [{"a": 1}, [1]],
    [{"a": 1}, {"b": 1}],
    [{"a": {"b": None}}],
    [(1, 2), 5],
    [(1, 2), (1, 2, 3)],
    [[1, [2]], [1, [2, 3]]],
    [],
]


@pytest.mark.parametrize("batch", REFUSED)
def test_batch_refused_by_torch_raises_the_same_error_class(batch: list[Any]) -> None:
    expected = outcome(torchs_collate, batch)
    assert isinstance(expected, Exception)
    got = outcome(collate.default_collate, batch)
    assert isinstance(got, type(expected)), repr(got)
    assert isinstance(got, BatchError) or batch == []
    assert isinstance(outcome(deferred, batch), type(got))


@pytest.mark.parametrize("name", ["requires_grad", "parameter", "subclass", "quantized", "meta"])
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_tensors_that_are_not_plain_are_stacked_by_torch(name: str, slot: Any) -> None:
    class Image(torch.Tensor):
        pass

    make = {
        "requires_grad": lambda: torch.ones(2, requires_grad=True),
        "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
        "subclass": lambda: torch.ones(2).as_subclass(Image),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
        "meta": lambda: torch.ones(2, device="meta"),
    }[name]
    expected, got = torchs_collate([make(), make()]), collate.default_collate([make(), make()])
    assert type(got) is type(expected) and got.dtype == expected.dtype and got.device == expected.device
    assert got.requires_grad == expected.requires_grad and got.shape == expected.shape
    assert slot.given == []
    if name != "meta":
        assert torch.equal(torch.as_tensor(got), torch.as_tensor(expected))


def test_conjugate_views_are_resolved(slot: Any) -> None:
    batch = [torch.tensor([1 + 2j]).conj()]
    assert collate.default_collate(batch).tolist() == [[1 - 2j]] and slot.given == [8]


def test_one_tensor_with_grad_among_plain_ones_keeps_its_graph(slot: Any) -> None:
    followed = torch.ones(2, requires_grad=True)
    collate.default_collate([torch.zeros(2), followed]).sum().backward()
    assert followed.grad.tolist() == [1, 1]


def test_nested_tensors_are_refused_in_torchs_words() -> None:
    nested_tensor = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(RuntimeError, match="Batches of nested tensors are not currently supported"):
        collate.default_collate([nested_tensor])


def test_reversed_and_big_endian_arrays_collate_unlike_torch() -> None:
    batch = [np.arange(3, dtype=">i4")[::-1], np.arange(3, dtype=">i4")]
    collated = collate.default_collate(batch)
    assert collated.dtype == torch.int32 and collated.tolist() == [[2, 1, 0], [0, 1, 2]]
    assert collate.default_convert(batch[0]).tolist() == [2, 1, 0]


def test_read_only_arrays_make_no_warning() -> None:
    array = np.ones(2)
    array.flags.writeable = False
    assert collate.default_collate([array, array]).tolist() == [[1, 1], [1, 1]]


def test_arrays_of_the_user_become_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        calls = 0

        def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += function is torch.as_tensor
            return function(*args, **(kwargs or {}))

    samples = [(1, np.zeros(3)), (2, np.ones(3))]
    fake = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode
    for mode in (torch.device("meta"), fake(), torch.device("cpu")):
        with mode:
            ours, theirs = default.default_collate(samples), torchs_collate(samples)
        assert [(type(one), one.device) for one in ours] == [(type(one), one.device) for one in theirs]
    with Seen() as seen:
        default.default_collate(samples)
    assert seen.calls == 2
    for inner in ("_len_torch_function_stack", "_len_torch_dispatch_stack", "_get_default_device"):
        with monkeypatch.context() as patch, torch.device("meta"):
            patch.delattr(torch._C, inner)
            assert all(one.device.type == "meta" for one in default.default_collate(samples))
