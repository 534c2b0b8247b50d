"""Columns copied by the compiled part: the results and errors are those of the way without it."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import collate
from stoker._core.native import collation
from stoker.collate import tensors

torch: Any = None
with suppress(ImportError):
    torch = importlib.import_module("torch")

needs_it = pytest.mark.skipif(collation.functions is None, reason=f"not here: {collation.why}")
needs_table = pytest.mark.skipif(
    torch is None or not collation.are_tensors_known(torch), reason="no exchange table, or no library"
)


class Words(np.ndarray[Any, Any]):
    pass


ARRAYS: list[Callable[[int], Any]] = [
    lambda n: np.arange(n, n + 6, dtype=np.float32).reshape(2, 3),
    lambda n: np.arange(n, n + 6, dtype=np.float32).reshape(3, 2).T,
    lambda n: np.arange(n, n + 12, dtype=np.float32).reshape(2, 6)[:, ::2],
    lambda n: np.broadcast_to(np.float32(n), (2, 3)),
    lambda n: np.arange(n, n + 6, dtype=">f4").reshape(2, 3),
    lambda n: np.arange(n, n + 6, dtype=np.float64).reshape(2, 3),
    lambda n: np.arange(n, n + 6, dtype=np.int32).reshape(2, 3),
    lambda n: np.arange(n, n + 6, dtype=np.float32),
    lambda n: np.arange(n, n + 6, dtype=np.float32).reshape(3, 2),
    lambda n: np.arange(n, n + 6, dtype=np.float32).reshape(2, 3).view(Words),
    lambda n: np.full((2, 3), n, np.complex64),
    lambda n: np.zeros((2, 0), np.float32),
    lambda n: np.array(n, np.float32),
]
NUMBERS: list[Callable[[int], Any]] = [
    lambda n: n,
    lambda n: -n,
    lambda n: n + 2**63 - 2,
    lambda n: -(2**63) + n,
    lambda n: 2**80 + n,
    lambda n: n + 0.5,
    lambda n: float("-inf") if n else -0.0,
    lambda n: n % 2 == 0,
    np.int64,
    lambda n: np.float32(n),
    str,
    lambda n: None,
]


def graded(n: int) -> Any:
    return torch.full((2, 3), float(n), requires_grad=True)


TENSORS: list[Callable[[int], Any]] = [
    lambda n: torch.arange(n, n + 6.0).reshape(2, 3),
    lambda n: torch.arange(n, n + 12.0).reshape(2, 2, 3)[n % 2],
    lambda n: torch._neg_view(torch.arange(n, n + 6.0).reshape(2, 3)),
    lambda n: torch.arange(n, n + 6.0).reshape(3, 2).t(),
    lambda n: torch.tensor(float(n)).expand(2, 3),
    graded,
    lambda n: graded(n)[:],
    lambda n: torch.nn.Parameter(torch.zeros(2, 3)),
    lambda n: torch.zeros(2, 3, dtype=torch.float64),
    lambda n: torch.zeros(2, 3, dtype=torch.bfloat16),
    lambda n: torch.zeros(2, 3, dtype=torch.complex64),
    lambda n: torch.full((2, 3), complex(n, n)).conj(),
    lambda n: torch.full((2, 3), complex(n, n)).conj().imag,
    lambda n: torch.tensor(complex(n, n)).conj().imag,
    lambda n: torch.tensor(float(n)),
    lambda n: torch.ones(2, 3).to_sparse(),
    lambda n: torch.ones(2, 3, device="meta"),
    lambda n: torch.ones(2, 3, dtype=torch.bool),
    lambda n: torch.ones(2, 3).to_mkldnn(),
    lambda n: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.quint8),
    lambda n: torch.zeros(3, 2),
    lambda n: torch.zeros(2, 3, 1),
    lambda n: torch.zeros(0),
]


def outcome(compiled: Any, column: Any, is_lent: bool) -> tuple[Any, ...]:
    lent = np.zeros(1 << 16, np.uint8)
    used = [0]

    def lender(size: int) -> memoryview:
        start = -(-used[0] // 64) * 64
        used[0] = start + size
        return memoryview(lent)[start : used[0]]

    try:
        with tensors.lent_by(lender if is_lent else None):
            batch = compiled(column)
    except Exception as error:
        return type(error), str(error)
    if isinstance(batch, np.ndarray):
        return "array", batch.dtype.str, batch.shape, batch.tobytes()
    if torch is None or type(batch) is not torch.Tensor:
        return type(batch), batch
    if batch.layout is not torch.strided or batch.is_quantized or batch.is_meta:
        return batch.layout, batch.dtype, batch.shape, str(batch)
    bits = batch.detach().resolve_neg().resolve_conj().contiguous()
    seen = bits.reshape(-1).view(torch.uint8).tolist()
    resizable = batch.untyped_storage().resizable()
    return batch.dtype, batch.shape, batch.stride(), batch.requires_grad, batch.is_neg(), resizable, seen


def same_without_it(patch: Any, columns: list[Any], output: Any, is_lent: bool) -> None:
    """Collates batches one after another, as a loader does, with the compiled part and without it."""
    function = {"numpy": collate.numpy_collate, "torch": collate.default_collate}[output]
    got = [outcome(compiled, column, is_lent) for compiled in [collate.compiling(function)] for column in columns]
    patch.setattr(collation, "functions", None)
    compiled = collate.compiling(function)
    assert got == [outcome(compiled, column, is_lent) for column in columns]


outputs = st.sampled_from(["numpy"] if torch is None else ["numpy", "torch"])


@st.composite
def columns(draw: Any, kinds: list[Callable[[int], Any]]) -> list[Any]:
    """Two batches of the usual value, one with others in it, and one of another value."""
    sequence = draw(st.sampled_from([list, tuple]))
    usual, other = draw(st.sampled_from(kinds)), draw(st.sampled_from(kinds))
    count = draw(st.integers(1, 5))
    mixed = [usual(n) for n in range(count)]
    mixed[draw(st.integers(0, count - 1))] = other(7)
    return [sequence(map(usual, range(count))), [usual(3)] * 2, sequence(mixed), [other(1), other(2)]]


@needs_it
@given(columns=columns(NUMBERS), output=outputs, is_lent=st.booleans())
def test_numbers_are_as_without_it(columns: list[Any], output: str, is_lent: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        same_without_it(patch, columns, output, is_lent)


@needs_it
@given(columns=columns(ARRAYS), output=outputs, is_lent=st.booleans())
def test_arrays_are_as_without_it(columns: list[Any], output: str, is_lent: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        same_without_it(patch, columns, output, is_lent)


@needs_table
@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor:UserWarning", "ignore:Sparse")
@given(columns=columns(TENSORS), output=outputs, is_lent=st.booleans())
def test_tensors_are_as_without_it(columns: list[Any], output: str, is_lent: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        same_without_it(patch, columns, output, is_lent)


@needs_table
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint8", "int16", "uint16", "bool", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (1, 1, 4), (2, 1, 1, 2), (1, 2, 3, 1, 1)])
def test_shapes_and_dtypes_keep_torchs_strides(dtype: str, shape: tuple[int, ...]) -> None:
    column = [torch.arange(max(1, int(np.prod(shape)))).reshape(shape).to(getattr(torch, dtype)) for _ in range(3)]
    compiled = collate.compiling(collate.default_collate)
    compiled(column)
    batch, expected = compiled(column), torch.stack(column)
    assert batch.dtype == expected.dtype and batch.stride() == expected.stride()
    assert batch.view(-1).view(torch.uint8).equal(expected.view(-1).view(torch.uint8))


@needs_table
def test_plain_tensors_are_copied_and_others_refused() -> None:
    """Otherwise the tests above would compare the other way with itself."""
    assert collation.functions is not None
    out = torch.empty(2, 2, 3)
    usual = torch.arange(6.0).reshape(2, 3)
    assert collation.functions.tensors([usual, torch.stack([usual, usual])[1]], out, 24)
    assert out.equal(torch.stack([usual, usual]))
    for number, make in enumerate(TENSORS[2:-6]):
        assert not collation.functions.tensors([usual, make(1)], out, 24), number
    assert not collation.functions.tensors([usual], out, 24)
    assert not collation.functions.tensors({0: usual, 1: usual}, out, 24)  # type: ignore[arg-type]


@needs_it
def test_plain_arrays_and_numbers_are_copied_and_others_refused() -> None:
    assert collation.functions is not None
    out = np.zeros((2, 2, 3), np.float32)
    assert collation.functions.arrays((ARRAYS[0](1), ARRAYS[0](9)), out, 24)
    assert np.array_equal(out, [ARRAYS[0](1), ARRAYS[0](9)])
    for number, make in enumerate(ARRAYS[1:]):
        assert not collation.functions.arrays([ARRAYS[0](1), make(1)], out, 24), number
    for numbers, dtype in (([3, -4], np.int64), ([0.5, float("inf")], np.float64), ([True, False], np.bool_)):
        row = np.zeros(2, dtype)
        assert collation.functions.numbers(numbers, row, ord(row.dtype.kind)) and row.tolist() == numbers
        assert not collation.functions.numbers([numbers[0], "1"], row, ord(row.dtype.kind))


@needs_table
def test_modes_of_torch_see_the_call_of_stack() -> None:
    from torch.overrides import TorchFunctionMode

    class Counting(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += function is torch.stack
            return function(*args, **(kwargs or {}))

    compiled = collate.compiling(collate.default_collate)
    column = [torch.zeros(3), torch.ones(3)]
    compiled(column)
    with Counting() as mode:
        compiled(column)
    assert mode.calls == 1


@needs_it
def test_no_reference_is_kept_or_dropped() -> None:
    """Of the values, the column, the types, and the memory; whether the column is taken or refused at its end."""
    array = np.zeros(4, np.float32)
    columns: list[tuple[Any, Any, Any]] = [
        ([array] * 8, np.zeros((8, 4), np.float32), "arrays"),
        ([array] * 7 + [None], np.zeros((8, 4), np.float32), "arrays"),
        ([10**6 + 7, 1.5], np.zeros(2, np.int64), "numbers"),
        ((2**70, 1), np.zeros(2, np.int64), "numbers"),
    ]
    if torch is not None and collation.are_tensors_known(torch):
        tensor = torch.zeros(4)
        columns += [([tensor] * 8, torch.zeros(8, 4), "tensors"), ([tensor, graded(1)], torch.zeros(2, 4), "tensors")]

    def counts() -> list[int]:
        objects = [each for column, out, _ in columns for each in (column, out, *column, type(column), type(column[0]))]
        gc.collect()
        return [sys.getrefcount(each) for each in objects]

    def call(column: Any, out: Any, name: str) -> None:
        for _ in range(1000):
            getattr(collation.functions, name)(column, out, 16 if name != "numbers" else ord("i"))

    before = counts()
    for each in columns:
        call(*each)
    del each
    assert counts() == before


@needs_it
def test_a_large_batch_is_left_to_numpy_and_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collation, "LARGE", 8)
    compiled = collate.compiling(collate.numpy_collate)
    for _ in range(3):
        assert compiled([1, 2]).tolist() == [1, 2]


def test_an_older_torch_goes_the_other_way() -> None:
    class Older:
        class Tensor:
            pass

    assert not collation.are_tensors_known(Older)
