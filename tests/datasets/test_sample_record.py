from __future__ import annotations

import collections
import struct
from typing import Any

import hypothesis
import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest

from stoker.datasets.sample_record import is_pickle, recorded, sample_of


def back(sample: Any) -> tuple[Any, int]:
    """A sample as it comes from its pickle, and how large that is."""
    data = recorded(sample, 0, plain=False)
    return sample_of(data, 0), len(data)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in type, dtype, bits, order in memory and in what may be written to."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, np.ndarray):
        of_both = [(value.dtype, value.dtype.char, value.shape, value.tobytes(), value.flags) for value in (one, other)]
        return of_both[0][:4] == of_both[1][:4] and same_order(*(flags for *_, flags in of_both))
    if isinstance(one, np.generic):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return same((one.real, one.imag), (other.real, other.imag))
    return bool(one == other)


def same_order(one: Any, other: Any) -> bool:
    fortran = one.f_contiguous and not one.c_contiguous
    return one.writeable == other.writeable and fortran == (other.f_contiguous and not other.c_contiguous)


def plain(sample: Any) -> Any:
    """A sample as it comes from its record, which is none of a pickle."""
    data = recorded(sample, 0)
    assert not is_pickle(data)
    return sample_of(data, 0)


def count(number: int) -> bytes:
    """A count as a record has it."""
    return struct.pack("<Q", number)


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True, allow_subnormal=True)
    | st.complex_numbers()
    | st.text(st.characters(exclude_categories=()), max_size=60)
    | st.binary(max_size=60)
    | arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, min_side=0, max_dims=4, max_side=3))
    | arrays.arrays(arrays.array_dtypes(), 2)
    | arrays.from_dtype(np.dtype("<f4"))
    | arrays.from_dtype(np.dtype("<M8[ns]"))
    | arrays.from_dtype(np.dtype("<c16"))
)
trees = st.recursive(
    leaves,
    lambda below: (
        st.lists(below, max_size=6)
        | st.lists(st.integers(), max_size=8)
        | st.lists(st.floats(), max_size=8).map(tuple)
        | st.tuples(below, below)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.tuples(st.integers()), below, max_size=4)
    ),
    max_leaves=8,
)


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(trees)
def test_a_sample_is_read_as_it_was_written(sample: Any) -> None:
    data = recorded(sample, 0)
    assert same(sample_of(data, 0), sample)
    assert not is_pickle(data) or has_pickled_dtype(sample)


def has_pickled_dtype(sample: Any) -> bool:
    """Whether a sample has an array whose elements have no bytes, which is pickled."""
    if isinstance(sample, dict):
        return any(map(has_pickled_dtype, sample.values()))
    if isinstance(sample, (list, tuple)):
        return any(map(has_pickled_dtype, sample))
    return isinstance(sample, np.ndarray) and (not sample.dtype.itemsize or sample.dtype.names is not None)


ROWS = np.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize(
    "sample",
    [
        ROWS[:, ::2],
        ROWS.T,
        ROWS[::-1],
        np.broadcast_to(np.float32(3), (2, 3)),
        np.frombuffer(b"12345678", ">i2"),
        np.empty((0, 2**40)),
        np.array(5, ">u4"),
        np.array(["a", "bcd"]),
        np.array([(1, 2.5)], [("a", "i4"), ("b", ">f8", (2,))]),
        np.array([0x7FF0000000000001], "u8").view("f8"),
        [np.longdouble("1.1"), np.bool_(True), np.str_("a\0"), np.bytes_(b"b\0"), np.timedelta64(3, "s")],
        [1, True, 2, 3, 4],
        [1, 2**70, 3, 4],
        (1, 2, 3, 4),
        ["\ud800" * 40, b"x" * 40],
        {},
        {"a": [1.5, "b", None, True, -0.0, float("inf"), 10**18], "c": {"d": [[], {}, "\x00é€"]}},
        {"a": [float("nan"), 1], "b": "\ud83d\ude00", "\udcff": [2**64, 1.0, 2**5000]},
        {1: "a", None: (), (1, 2): [], True is None: 2.0},
        -(2**63),
        2**63,
    ],
    ids=repr,
)
def test_plain_data_need_no_pickle(sample: Any) -> None:
    assert same(plain(sample), sample)


class Text(str):
    __slots__ = ()


class Count(int):
    pass


Point = collections.namedtuple("Point", "x y")
LOOP: tuple[Any, ...] = ([],)
LOOP[0].append(LOOP)


@pytest.mark.parametrize(
    "sample",
    [
        Text("a"),
        Count(1),
        Point(1, 2),
        collections.OrderedDict(a=1),
        {1, 2},
        bytearray(b"a"),
        np.array([None, 1], object),
        np.array([({},)], [("a", object)]),
        np.array([1]).view(type("Sub", (np.ndarray,), {"__module__": __name__})),
        np.zeros(2, np.dtype("i4", metadata={"a": 1})),
        np.zeros(2, np.dtype([("a", "u1"), ("b", "i4")], align=True)),
        LOOP,
    ],
    ids=lambda sample: type(sample).__name__,
)
def test_everything_else_is_pickled(sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if type(sample).__name__ == "Sub":
        monkeypatch.setitem(globals(), "Sub", type(sample))
    assert is_pickle(recorded(sample, 0))
    assert type(sample_of(recorded(sample, 0), 0)) is type(sample)


def test_an_object_that_occurs_twice_is_one_object() -> None:
    row, text = np.arange(3), "x" * 100
    items: list[Any] = [row, (row, 1), text]
    items += [items, {"row": row, "text": text}, items[1], [items[1]]]
    again = plain(items)
    assert again[1][0] is again[4]["row"] is again[0]
    assert again[3] is again and again[4]["text"] is again[2]
    assert again[5] is again[6][0] is again[1]
    numbers = [1, "a"]
    for sample, places in (  # JSON has no name for a part of it
        ((numbers, {"a": [numbers]}), lambda got: (got[0], got[1]["a"][0])),
        (({"a": [numbers]}, numbers), lambda got: (got[0]["a"][0], got[1])),
        (([numbers, numbers], row), lambda got: got[0]),
        (([numbers], [numbers]), lambda got: (got[0][0], got[1][0])),
    ):
        one, other = places(plain(sample))
        assert one is other and one == numbers
    deep: tuple[Any, ...] = ()
    for _ in range(40):
        deep = (deep, deep)
    data = recorded(deep, 0)
    assert not is_pickle(data) and len(data) < 2_000


@pytest.mark.parametrize("nested", [lambda value: (value,), lambda value: [value, (1,)], lambda value: {"a": value}])
def test_a_deep_nest_is_pickled(nested: Any) -> None:
    deep: Any = nested("a")
    for depth in range(1, 470):
        if depth < 20 or depth in (40, 60, 350, 469):
            data = recorded(deep, 0)
            assert is_pickle(data) == (depth > 50)
            assert sample_of(data, 0) == deep
        deep = nested(deep)


def test_a_record_that_is_too_deep_is_damaged() -> None:
    for record in (b"P" + (b"T" + count(1)) * 60 + b"n", b"PJ" + count(200_000) + b"[" * 100_000 + b"]" * 100_000):
        with pytest.raises(RuntimeError, match="sample 0 was cached, but its record is damaged: "):
            sample_of(record, 0)


def test_a_long_text_that_occurs_again_is_written_once() -> None:
    text, key = "x" * 1000, "k" * 40
    for sample in ([text] * 300, {"a": text, "b": [{"c": text}]}, ({"a": text}, {key: text}), [{"a": text}, (), text]):
        data = recorded(sample, 0)
        assert not is_pickle(data) and len(data) < 6000
        assert same(sample_of(data, 0), sample)
    again = plain(({"a": text}, text))
    assert again[0]["a"] is again[1]


@pytest.mark.parametrize(
    "key", [None, True, 1, 2**70, 0.5, "a", b"a", np.int64(3), np.str_("a"), (1, "a"), (1, 2, 3, 4)]
)
def test_scalars_and_flat_tuples_are_keys(key: Any) -> None:
    assert same(plain([{key: 1}]), [{key: 1}])


@pytest.mark.parametrize("key", [((1,), 2), ((), ()), frozenset([1]), tuple(range(1000))], ids=str)
def test_dicts_with_other_keys_are_pickled(key: Any) -> None:
    data = recorded({key: 1}, 0)
    assert is_pickle(data)
    assert sample_of(data, 0) == {key: 1}


def test_a_planted_key_is_not_hashed() -> None:
    # 30 tuples in each other, the second part of each is its first one again: hash() would take 2**30 steps
    nest = (b"T" + count(2)) * 30 + b"T" + count(0) + b"".join(b"=" + count(number) for number in range(31, 1, -1))
    with pytest.raises(RuntimeError, match=r"damaged: .*a key of type tuple"):
        sample_of(b"PD" + count(1) + nest + b"n", 0)


@pytest.mark.parametrize("dtype", ["S0", "U0", "V0", "(0,)f4", "[('a', 'S0')]"])
def test_elements_without_bytes_need_a_pickle(dtype: str) -> None:
    text = dtype.encode()
    record = b"Pa" + count(len(text)) + text + b"\0\1" + count(1 << 32)
    with pytest.raises(RuntimeError, match=r"damaged: .*without bytes"):
        sample_of(record, 0)
    if dtype[0] in "SUV":
        empty = np.zeros(5, [("a", dtype)])["a"]
        data = recorded(empty, 0)
        assert not empty.itemsize and is_pickle(data) and same(sample_of(data, 0), empty)


def test_a_record_names_no_attribute_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    named: list[str] = []
    monkeypatch.setattr(torch, "__getattr__", named.append)
    for text in (b"_dynamo", b"no_such_name", b"load", b"__file__"):
        with pytest.raises(RuntimeError, match=r"damaged: KeyError"):
            sample_of(b"Pp" + count(len(text)) + text + b"\1" + count(4) + count(1) + bytes(64), 0)
    assert not named


def test_tensors_of_parts_of_bytes_are_not_cached() -> None:
    torch = pytest.importorskip("torch")
    for name in ("uint4", "int1"):
        if hasattr(torch, name):
            with pytest.raises(TypeError, match=r"sample 3 \(Tensor\) cannot be cached, because it cannot be pickled"):
                recorded(torch.empty(4, dtype=torch.uint8).view(getattr(torch, name)), 3)


def test_damaged_records_are_refused() -> None:
    data = recorded({"image": ROWS, "label": 3, "name": "a photograph of 40 letters, or a few more", "ids": [1] * 9}, 0)
    for end in range(1, len(data)):
        with pytest.raises(RuntimeError, match=r"sample 5 was cached, but its record is damaged: "):
            sample_of(data[:end], 5)
    random = np.random.default_rng(0)
    for _ in range(2000):
        broken = bytearray(data)
        broken[random.integers(1, len(data))] = random.integers(256)
        try:
            sample_of(bytes(broken), 0)
        except RuntimeError as error:
            assert "damaged" in str(error)
    for record in (
        b"",
        b"P",
        b"Pp" + struct.pack("<Q", 4) + b"load",
        b"Pa" + struct.pack("<Q", 1) + b"O\0\1" + bytes(8),
    ):
        with pytest.raises(RuntimeError, match="sample 0 was cached, but"):
            sample_of(record, 0)


@pytest.mark.parametrize(
    "tensor",
    [
        lambda torch: torch.arange(6).bfloat16().reshape(2, 3),
        lambda torch: torch.rand(2, 3, 4).permute(2, 0, 1),
        lambda torch: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda torch: torch.rand(8)[2:4],
        lambda torch: torch.rand(4, 4)[:, 1],
        lambda torch: torch.tensor(True),
        lambda torch: torch.empty(0, 3, dtype=torch.uint16),
        lambda torch: torch.randn(3, dtype=torch.complex64),
        lambda torch: torch.rand(3).to(torch.float8_e5m2),
    ],
)
def test_tensors_need_no_pickle(tensor: Any) -> None:
    torch = pytest.importorskip("torch")
    value = tensor(torch)
    again = plain([value, value])
    assert again[0] is again[1]
    assert (again[0].dtype, again[0].shape) == (value.dtype, value.shape)
    if value.is_contiguous() or value.clone().stride() == value.stride():
        assert again[0].stride() == value.stride()
    bits = [one.contiguous().reshape(-1).view(torch.uint8) for one in (again[0], value)]
    assert bits[0].equal(bits[1])
    again[0].resize_(100)  # its memory is torch's


def test_tensors_with_more_than_values_are_pickled() -> None:
    torch = pytest.importorskip("torch")
    whole = torch.rand(3)
    marked = torch.rand(3)
    marked.label = "a"
    for value in (torch.nn.Parameter(whole), whole.expand(9, 3), whole.to_sparse(), whole.to("meta"), marked):
        data = recorded(value, 0)
        assert is_pickle(data)
        assert type(sample_of(data, 0)) is type(value)


@pytest.mark.parametrize(
    "view",
    [
        lambda data: data[3],
        lambda data: data[:, 3],
        lambda data: data[5:5],
        lambda data: data[3].conj(),
        lambda data: data[3].requires_grad_(),
        lambda data: data.requires_grad_()[3],
        lambda data: data[:2].t(),
        lambda data: data[1, 1],
    ],
    ids=["row", "column", "empty", "conjugate", "leaf", "with history", "transposed", "number"],
)
def test_view_is_pickled_without_the_rest_of_its_array(view: Any) -> None:
    torch = pytest.importorskip("torch")
    tensor = view(torch.randn(100, 1000, dtype=torch.complex64))
    (again, _), size = back((tensor, 1))
    assert size < 25_000
    assert (again.shape, again.dtype, again.requires_grad) == (tensor.shape, tensor.dtype, tensor.requires_grad)
    assert again.equal(tensor)


def test_array_that_is_no_view_is_pickled_as_it_is() -> None:
    torch = pytest.importorskip("torch")
    whole = torch.arange(6.0)
    parts, _ = back([whole, whole, torch.nn.Parameter(whole), whole.expand(1000, 6), whole.to_sparse()])
    assert parts[0] is parts[1]
    assert type(parts[2]) is torch.nn.Parameter
    assert parts[3].stride() == (0, 1)
    assert parts[4].layout is torch.sparse_coo


def test_a_sample_without_a_pickle_is_named() -> None:
    with pytest.raises(TypeError, match=r"sample 7 \(function\) cannot be cached"):
        recorded(lambda: 0, 7)
    with pytest.raises(RuntimeError, match="sample 7 was cached, but cannot be unpickled"):
        sample_of(b"", 7)
