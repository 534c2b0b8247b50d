"""Small leaves travel in the pickle: as NumPy arrays where nothing is lost, else as torch pickles them."""

from __future__ import annotations

import abc
import collections
import copyreg
import datetime
import decimal
import itertools
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from stoker._engine.transport import leaves
from stoker._engine.transport.leaves import Leaf
from stoker._engine.transport.reader import array_or_tensor
from stoker.collate import TensorLeaf
from stoker.collate._compiled.collate_plan import RunTexts
from tests.ownership import moved, named_like

torch = pytest.importorskip("torch")


SMALLEST = pytest.mark.parametrize("smallest", [0, leaves.SMALL], ids=["in the pickle", "in the frame"])


def travelled(batch: Any, smallest: int = leaves.SMALL) -> Any:
    return leaves.loads(leaves.dumps(batch, lambda leaf: None, smallest), ())


TENSORS = {
    "integers": lambda: torch.arange(64),
    "a number": lambda: torch.tensor(1.5),
    "none": lambda: torch.zeros(3, 0),
    "transposed": lambda: torch.rand(3, 4).t(),
    "channels last": lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "spread": lambda: torch.rand(1).expand(5),
    "bfloat16": lambda: torch.rand(3).bfloat16(),
    "a number in bfloat16": lambda: torch.tensor(1.5).bfloat16(),
    "uint16": lambda: torch.ones(3, dtype=torch.uint16),
    "uint16, transposed": lambda: torch.ones(3, 4, dtype=torch.uint16).t(),
    "uint16, spread": lambda: torch.ones(1, dtype=torch.uint16).expand(5),
    "overlapping": lambda: torch.arange(9).unfold(0, 4, 1),
    "negated": lambda: torch._neg_view(torch.rand(3)),
    "float8": lambda: torch.rand(3, 4).to(torch.float8_e4m3fn),
    "conjugated": lambda: torch.rand(3, dtype=torch.complex64).conj(),
    "a leaf of autograd": lambda: torch.rand(3, requires_grad=True),
    "sparse": lambda: torch.eye(3).to_sparse(),
}


@SMALLEST
@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_a_small_tensor_arrives_as_it_was(make: Any, smallest: int) -> None:
    sent = make()
    got = travelled(sent, smallest)
    for what in ("dtype", "shape", "layout", "requires_grad"):
        assert getattr(got, what) == getattr(sent, what)
    if sent.layout is torch.strided:
        assert got.stride() == sent.stride()
        assert torch.equal(numbers(got), numbers(sent))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:TypedStorage is deprecated")  # torch's
def test_a_quantized_tensor_keeps_its_scale() -> None:
    sent = torch.quantize_per_tensor(torch.arange(6.0).reshape(2, 3), 0.5, 1, torch.quint8)
    for part in (sent, sent.t()):
        assert torch.equal(travelled(part).dequantize(), part.dequantize())


def test_the_memory_of_a_tensor_arrives_by_itself() -> None:
    sent = torch.arange(3, dtype=torch.int16).untyped_storage()
    first, second = travelled([sent, sent])
    assert first is second and type(first) is torch.UntypedStorage
    assert first.tolist() == sent.tolist() == [0, 0, 1, 0, 2, 0]


def numbers(tensor: Any) -> Any:
    """The bits of a tensor, as integers that can be compared."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


def test_a_row_of_a_large_tensor_travels_alone() -> None:
    row = torch.rand(1000, 100)[3]
    assert len(leaves.dumps(row, lambda leaf: None)) < 1000
    assert travelled(row).untyped_storage().nbytes() == row.nbytes


TABLE_PARTS = {
    "a column": lambda table: table[:, 3],
    "some columns": lambda table: table[:, :3],
    "every second": lambda table: table[0, ::2],
    "a column, spread": lambda table: table[:, 3].expand(2, -1),
    "followed by autograd": lambda table: table[3].requires_grad_(),
    "uint16": lambda table: table.to(torch.uint16)[:, 3],
    "bfloat16": lambda table: table.bfloat16()[:, 3],
}


@pytest.mark.parametrize("part", TABLE_PARTS.values(), ids=TABLE_PARTS)
def test_a_part_of_a_large_tensor_travels_alone(part: Any) -> None:
    sent = part(torch.arange(100_000.0).reshape(500, 200))
    assert len(leaves.dumps(sent, lambda leaf: None)) < 8_000
    got = travelled(sent)
    assert got.dtype == sent.dtype and torch.equal(got, sent) and got.requires_grad == sent.requires_grad


def test_a_tensor_that_a_batch_holds_twice_arrives_as_one() -> None:
    tensor = torch.arange(3)
    first, second = travelled([tensor, tensor])
    first += 1
    assert first is second


FLAT = {
    "list": lambda a, b: [a, b],
    "tuple": lambda a, b: (a, b),
    "dict": lambda a, b: {"b": b, "a": a},
}

ARRAYS = [
    *(np.ones((2, 3), kind) for kind in "?bBhHiIlLqQefdgFDG"),
    *(np.ones(3, kind) for kind in ("M8[s]", "m8[ms]", "U5", "S3", "V8", ">i4", ">U2")),
    *(np.array(one) for one in (1.5, "text", [], np.zeros((2, 0, 3)))),
    np.zeros(2, [("a", "<f4"), ("b", "<i8")]),
    np.zeros(2, np.dtype("<i4", metadata={"unit": "m"})),
    np.array([1, None], object),
    np.arange(6)[::2],
    np.arange(6).reshape(2, 3).T,
]


@SMALLEST
@pytest.mark.parametrize("sent", ARRAYS, ids=[f"{array.dtype.str} {array.shape}" for array in ARRAYS])
def test_a_small_array_arrives_as_it_was(sent: Any, smallest: int) -> None:
    other = np.arange(3)
    for batch in (sent, [sent, other], (sent, other), {"a": sent, "b": other}):
        got = travelled(batch, smallest)
        assert type(got) is type(batch)
        got = got["a"] if isinstance(got, dict) else got if isinstance(batch, np.ndarray) else got[0]
        assert got.dtype == sent.dtype and got.shape == sent.shape
        assert got.flags.c_contiguous or not sent.flags.c_contiguous
        assert got.tolist() == sent.tolist() and got.flags.writeable and not np.shares_memory(got, sent)
        assert (got.dtype.metadata or {}) == (sent.dtype.metadata or {})


@pytest.mark.parametrize("dtype", ["O", np.dtype([("a", "O")])], ids=str)
def test_no_array_over_memory_holds_addresses(dtype: Any) -> None:
    small = b"S" + pickle.dumps(("leaf", [(False, dtype, (1,), bytearray(8))]), 5)
    with pytest.raises(pickle.UnpicklingError, match="addresses"):
        leaves.loads(small, ())
    with pytest.raises(pickle.UnpicklingError, match="addresses"):
        array_or_tensor(Leaf(0, 8, False, dtype, (1,), None, False), bytearray(8))


@pytest.mark.parametrize("make", FLAT.values(), ids=FLAT)
def test_small_leaves_travel_beside_placed_ones(make: Any) -> None:
    sent = make(np.arange(3), np.arange(leaves.SMALL))
    placed: list[Any] = []

    def place(leaf: Any) -> int:
        placed.append(leaf)
        return len(placed) - 1

    data = leaves.dumps(sent, place, leaves.SMALL)
    assert not data.startswith(b"\x80") and [len(leaf) for leaf in placed] == [leaves.SMALL]
    got = leaves.loads(data, placed)
    assert type(got) is type(sent) and repr(got) == repr(sent)


@SMALLEST
@pytest.mark.parametrize("order", ["C", "F"])
def test_read_only_array_arrives_writable(order: Any, smallest: int) -> None:
    sent = np.arange(6).reshape(2, 3).copy(order)
    sent.flags.writeable = False
    assert travelled([sent, np.arange(3)], smallest)[0].flags.writeable
    got = travelled([sent, sent], smallest)
    assert got[0] is got[1] and got[0].strides == sent.strides
    assert got[0].tolist() == sent.tolist()
    assert got[0].flags.writeable and not sent.flags.writeable


OTHER = {
    "a leaf": lambda a, b: a,
    "nothing": lambda a, b: [],
    "the same twice": lambda a, b: [a, a],
    "with a number": lambda a, b: [a, b, 3],
    "nested": lambda a, b: [[a], b],
    "keys that are numbers": lambda a, b: {1: a, 2: b},
    "a named tuple": lambda a, b: Unit(a, b),
    "ordered": lambda a, b: OrderedDict(a=a, b=b),
    "an array that has a class": lambda a, b: [a.view(Signal), b],
}


@pytest.mark.parametrize("make", [*FLAT.values(), *OTHER.values()], ids=[*FLAT, *OTHER])
def test_batches_arrive_as_they_were(make: Any) -> None:
    sent = make(np.arange(3), np.arange(4))
    taken: list[Any] = []

    def place(leaf: Any) -> int:
        taken.append(leaf)
        return len(taken) - 1

    got = leaves.loads(leaves.dumps(sent, place), taken)
    assert type(got) is type(sent) and repr(got) == repr(sent)
    assert len(taken) == len({id(leaf) for leaf in taken})
    if isinstance(sent, dict):
        assert list(got) == list(sent)


class Abstract(abc.ABC):  # noqa: B024
    """A class whose class is not `type`: it is pickled by its name."""


class Registered:
    """A class with a reducer in `copyreg`."""

    def __init__(self, value: int) -> None:
        self.value = value


@pytest.fixture
def registered() -> Iterator[None]:
    copyreg.pickle(Registered, lambda thing: (Registered, (thing.value + 1,)))  # type: ignore[arg-type,return-value]
    yield
    del copyreg.dispatch_table[Registered]


@pytest.mark.usefixtures("registered")
def test_other_objects_are_pickled_as_pickle_would() -> None:
    day = datetime.date(2026, 1, 2)
    one = [day, day, Unit(1, [2]), np.float32(1.5), OrderedDict(a=1), Abstract, Unit, len, datetime.UTC]
    sent = [*one, *one, Registered(7), {"a": {3}, "b": slice(1, 2)}, decimal.Decimal("1.50"), torch.float16]
    assert leaves.dumps(sent, lambda leaf: None) == pickle.dumps(sent, 5)


def test_objects_of_one_class_ask_for_its_reducer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[type] = []
    reducer = leaves._Leaves.reducer
    monkeypatch.setattr(leaves._Leaves, "reducer", lambda self, kind: asked.append(kind) or reducer(self, kind))
    sent = [datetime.date(2026, 1, 1 + day) for day in range(20)]
    assert travelled(sent) == sent and asked == [datetime.date]


@pytest.mark.parametrize("make", FLAT.values(), ids=FLAT)
def test_flat_batch_travels_as_its_frame_only(make: Any) -> None:
    numbers = itertools.count()
    data = leaves.dumps(make(np.arange(3), np.arange(4)), lambda leaf: next(numbers))
    assert not data.startswith(b"\x80") and len(data) < 40


def test_leaves_that_stay_in_the_pickle_are_not_taken_twice() -> None:
    taken: list[Any] = []

    def place(leaf: Any) -> int | None:
        if len(leaf) < 4:
            return None
        taken.append(leaf)
        return len(taken) - 1

    sent = [np.arange(5), np.arange(3), np.arange(4)]
    got = leaves.loads(leaves.dumps(sent, place), taken)
    assert [list(leaf) for leaf in got] == [list(leaf) for leaf in sent]
    assert [len(leaf) for leaf in taken] == [5, 4]


def test_leaves_travel_packed() -> None:
    sent = [Leaf(0, 24, False, np.dtype([("a", "<f4"), ("b", "<i8")]), (2,), None, False)]
    sent.append(Leaf(64, 24, True, "bfloat16", (3, 4), (1, 3), True))
    assert leaves.unpack(leaves.pack(sent)) == tuple(sent)
    assert leaves.unpack(leaves.pack([])) == ()


class Signal(np.ndarray):  # type: ignore[type-arg]
    pass


class Unit(NamedTuple):
    number: int
    indices: Any


def test_a_unit_travels_as_a_tuple() -> None:
    sent = pickle.loads(leaves.dumps_unit(Unit(3, [1, 2])))
    assert type(sent) is tuple
    assert Unit(*sent) == Unit(3, [1, 2])
    assert pickle.loads(leaves.dumps_unit(7)) == 7


def test_unit_with_a_class_of_no_module_travels_by_value() -> None:
    class Index(str):
        pass

    (_, indices) = pickle.loads(leaves.dumps_unit(Unit(3, [Index("a")])))
    assert indices == ["a"]
    assert type(indices[0]).__name__ == "Index"


def test_tensor_in_a_unit_travels_without_its_base() -> None:
    torch = pytest.importorskip("torch")
    indices = list(torch.randperm(100_000)[:8])
    sent = leaves.dumps_unit(Unit(3, indices))
    assert len(sent) < 4000
    (_, arrived) = pickle.loads(sent)
    assert arrived == indices
    followed = torch.ones(2, requires_grad=True)
    (_, arrived) = pickle.loads(leaves.dumps_unit(Unit(3, followed)))
    assert arrived.requires_grad


@pytest.mark.parametrize("name", ["Texts", "TensorLeaf"])
def test_classes_of_the_users_may_have_the_names_of_ours(name: str) -> None:
    kind = collections.namedtuple(name, ["ids", "n"])
    batch = {"q": kind(np.zeros(3), 1)}
    placed: list[Any] = []
    leaves.dumps(batch, lambda leaf: placed.append(leaf))
    assert [type(leaf) for leaf in placed] == [np.ndarray]


def test_leaves_of_ours_are_known_wherever_their_file_is() -> None:
    batch = {"x": np.zeros(3).view(TensorLeaf), "t": RunTexts(["a"])}
    users = {"x": np.zeros(3).view(named_like(TensorLeaf)), "t": named_like(RunTexts, list)(["a"])}

    def places(batch: Any) -> list[Any]:
        placed: list[Any] = []
        leaves.dumps(batch, lambda leaf: placed.append(leaf) or len(placed))  # type: ignore[func-returns-value]
        return placed

    assert {*map(id, places(batch))} == {*map(id, batch.values())}
    with moved(TensorLeaf, RunTexts):
        assert {*map(id, places(batch))} == {*map(id, batch.values())}
    assert [type(leaf) for leaf in places(users)] == []
