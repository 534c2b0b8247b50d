from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from stoker import collate
from stoker.collate import default, registry, tensors
from stoker.errors import BatchError, LeafTypeError, MemoryLimitError


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Record:
    image: Any
    name: str
    late: Any = dataclasses.field(init=False)


def sample(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "weight": number / 2,
        "flag": number % 2 == 0,
        "name": f"sample {number}",
        "image": np.full((2, 3), number, np.uint8),
        "scalar": np.float32(number),
        "nested": {"pair": (number, [np.arange(3)]), "point": Point(number, b"ab")},
    }


BATCHES = [[sample(number) for number in range(start, start + 5)] for start in (0, 5, 10)]


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of the batches that took the general path."""
    taken: list[int] = []
    whole = default.collated_by

    def counted(batch: Any, fn_map: Any) -> Any:
        taken.append(len(batch))
        return whole(batch, fn_map)

    monkeypatch.setattr(default, "collated_by", counted)
    return taken


def test_only_the_first_batch_takes_the_general_path(general: list[int], assert_same: Any) -> None:
    compiled = collate.compiling(collate.numpy_collate)
    for batch in BATCHES:
        assert_same(compiled(batch), collate.numpy_collate(batch))
    at_first = len(general)
    assert general.count(5) == at_first
    general.clear()
    compiled(BATCHES[1])
    assert general == []


def test_dataclasses_keep_their_fields(assert_same: Any) -> None:
    compiled = collate.compiling(collate.numpy_collate)
    for _ in range(2):
        record = compiled([Record(np.ones(2), "a"), Record(np.zeros(2), "b")])
        assert type(record) is Record and not hasattr(record, "late")
        assert record.name == ["a", "b"] and record.image.tolist() == [[1, 1], [0, 0]]
    with_late = Record(np.ones(2), "a")
    object.__setattr__(with_late, "late", 7)
    assert compiled([with_late]).late.tolist() == [7]


def test_batch_beyond_the_plan_falls_back_and_names_the_fault() -> None:
    compiled = collate.compiling(collate.numpy_collate)
    for batch in ([{"x": 1}], [{"x": 2**70}], [{"x": 1}, {"y": 1}], [{"x": 1}, {"x": None}], [{"x": 1}, 5]):
        expected = got = None
        try:
            expected = collate.numpy_collate(batch)
        except BatchError as error:
            expected = error
        try:
            got = compiled(batch)
        except BatchError as error:
            got = error
        assert type(got) is type(expected) and str(got) == str(expected)


def test_a_larger_batch_later_and_a_change_of_all_samples(assert_same: Any) -> None:
    compiled = collate.compiling(collate.numpy_collate)
    for samples in ([1] * 3, [1] * 1000, [1.5] * 4, [2, True], [True, False], [{"a": 1}], [{"b": 1}], [(1, 2)] * 3):
        assert_same(compiled(samples), collate.numpy_collate(samples))


def test_a_dataset_that_never_fits_is_left_to_the_general_path(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr("stoker.collate._compiled.compiled.plan_of", lambda *given: made.append(given) or Never())
    compiled = collate.compiling(collate.numpy_collate)
    for _ in range(100):
        assert compiled([1, 2]).tolist() == [1, 2]
    assert len(made) < 20


class Never:
    def check(self, column: Any) -> Any:
        raise KeyError

    def make(self, checked: Any) -> Any:
        raise AssertionError


def test_functions_registered_meanwhile_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = collate.compiling(collate.numpy_collate)
    for _ in range(2):
        assert compiled([{"x": 1}])["x"].tolist() == [1]
    monkeypatch.setitem(registry.default_collate_fn_map, int, lambda batch, *, collate_fn_map: sum(batch))
    for _ in range(2):
        assert compiled([{"x": 1}, {"x": 2}]) == {"x": 3}


def test_memory_is_requested_once_even_for_an_oversized_batch(new_slot: Any) -> None:
    compiled = collate.compiling(collate.numpy_collate)
    row = np.zeros(4)
    compiled([{"a": row, "b": 1}])
    slot = new_slot()
    with tensors.lent_by(slot):
        compiled([{"a": row, "b": 1}] * 2)
        assert slot.given == [64, 16]
        compiled([{"a": row, "b": 1}, {"a": row, "b": 1.5}])  # known before memory is asked for
    assert slot.given[2:] == [64, 8]


def test_tensors_of_other_dtypes_are_promoted_in_lent_memory(new_slot: Any) -> None:
    torch = pytest.importorskip("torch")
    usual, wider = torch.zeros(4), torch.full((4,), 1 / 3, dtype=torch.float64)
    for lender in (new_slot(), None):
        compiled = collate.compiling(collate.default_collate)
        compiled([usual, usual])
        with tensors.lent_by(lender):
            assert compiled([usual, usual]).dtype == torch.float32
            mixed = compiled([usual, wider])
        assert mixed.dtype == torch.float64
        assert mixed[1].equal(wider)


def test_runs_of_rows_have_the_dtype_of_the_first() -> None:
    torch = pytest.importorskip("torch")
    compiled = collate.compiling(collate.default_collate)
    assert compiled.rows([torch.zeros(4)] * 2).dtype == torch.float32
    with pytest.raises(Exception, match=r"^$"):
        compiled.rows([torch.zeros(4), torch.zeros(4, dtype=torch.float64)])


def test_memory_that_is_refused_is_refused_once() -> None:
    asked: list[int] = []

    def refuses(size: int) -> None:
        asked.append(size)
        raise MemoryLimitError("none left")

    compiled = collate.compiling(collate.numpy_collate)
    compiled([1, 2])
    with tensors.lent_by(refuses), pytest.raises(MemoryLimitError):
        compiled([1, 2])
    assert asked == [16]


def test_only_the_default_collation_is_compiled() -> None:
    for other in (list, collate.PadCollator({"x": 0}), collate.default_convert):
        assert collate.compiling(other) is other
    assert collate.is_ours(collate.compiling(collate.default_collate))


def outcome(fn: Any, batch: list[Any]) -> Any:
    try:
        return fn(batch)
    except Exception as error:
        return error


ONES = [
    (np.ones(4, "f4"), np.ones(4, "f8")),  # promoted
    (np.ones(4, "i8"), np.ones(4, "i4")),
    (np.ones(4, "i4"), np.ones(4, ">i4")),
    (np.ones((4, 2)), np.ones((4, 3))),
    (np.ones(4), np.ones(())),
    (np.ones(4), np.ones((4, 1))),
    (np.ones(4), [1.0] * 4),
    (np.float32(1), np.float64(1)),
    (np.float32(1), 1.0),
    (1, True),
    (True, 1),
    (1.0, 1),
    (1, 1.0),
    ("a", None),
    ((1, 2), [1, 2]),
    ((1, 2), Point(1, 2)),
    ({"a": 1}, {"a": 1, "b": 2}),
    ({"a": 1, "b": 2}, {"a": 1}),
]


@pytest.mark.parametrize(("usual", "odd"), ONES, ids=repr)
@pytest.mark.parametrize("place", [0, 1])
def test_one_odd_sample_among_equal_ones_is_collated(usual: Any, odd: Any, place: int, assert_same: Any) -> None:
    batch = [usual, usual, usual]
    batch[place] = odd
    compiled = collate.compiling(collate.numpy_collate)
    for samples in ([usual] * 2, batch, [odd] * 2, [usual] * 2):
        expected, got = outcome(collate.numpy_collate, samples), outcome(compiled, samples)
        assert type(got) is type(expected)
        if isinstance(expected, Exception):
            assert str(got) == str(expected)
        else:
            assert_same(expected, got)


def test_arrays_that_are_together_as_long_as_they_should_be() -> None:
    compiled = collate.compiling(collate.numpy_collate)
    compiled([np.ones(4)])
    with pytest.raises(BatchError, match="equal size"):
        compiled([np.ones(3), np.ones(5)])


def test_odd_tensors(assert_same: Any) -> None:
    torch = pytest.importorskip("torch")
    usual = torch.ones(4, dtype=torch.int32)
    followed = torch.ones(4, requires_grad=True)
    odd_ones = (usual.long(), usual[:3], usual.numpy(), followed, usual.to("meta"), torch.nn.Parameter(usual.float()))
    for odd in odd_ones:
        for samples in ([usual, odd], [odd, usual], [odd, odd]):
            compiled = collate.compiling(collate.default_collate)
            compiled([usual, usual])
            expected, got = outcome(collate.default_collate, samples), outcome(compiled, samples)
            assert type(got) is type(expected) and str(got) == str(expected)
            if not isinstance(expected, Exception):
                assert got.dtype == expected.dtype and got.requires_grad == expected.requires_grad


@dataclasses.dataclass
class Corners:
    """Has an array beside its fields, which is no rows of the batch."""

    x: Any

    def __post_init__(self) -> None:
        self.corners = np.full((4, 3), np.sum(self.x))

    @functools.cached_property
    def total(self) -> float:
        return float(np.sum(self.x))


def test_attribute_that_is_no_field_is_not_joined_as_rows() -> None:
    compiled = collate.compiling(collate.numpy_collate)
    assert isinstance(compiled, collate.Compiled)
    samples = [Corners(float(i)) for i in range(8)]
    assert compiled.rows(samples[:4]) is None
    assert compiled(samples).corners.tolist() == np.full((4, 3), 0.0).tolist()


def test_cached_property_of_a_sample_is_not_the_batchs() -> None:
    compiled = collate.compiling(collate.numpy_collate)
    samples = [Corners(np.full(2, i)) for i in (1, 2)]
    assert samples[0].total == 2
    for _ in range(2):
        batch = compiled(samples)
        assert batch.total == 6
    assert samples[0].total == 2


def test_functions_registered_between_batches_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    compiled = collate.compiling(collate.default_collate)
    assert isinstance(compiled, collate.Compiled)
    assert compiled.rows([1.0, 2.0]).tolist() == [1, 2]
    theirs = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(theirs, float, lambda batch, *, collate_fn_map: "the user's")
    assert compiled([1.0, 2.0]) == "the user's"
    assert compiled.rows([1.0, 2.0]) is None


@pytest.mark.parametrize(
    "samples",
    [
        [np.float64(1.5), np.str_("a")],
        [np.ones(2), np.array(["a", "b"])],
        [np.int64(1), np.bytes_(b"a")],
        [np.timedelta64(1, "s"), np.int64(5)],
    ],
    ids=str,
)
def test_numbers_do_not_become_texts(samples: Any) -> None:
    with pytest.raises(BatchError, match="of different kinds"):
        collate.numpy_collate(samples)


@pytest.mark.parametrize("value", [np.longdouble(1), np.ones(2, np.longdouble)], ids=["a number", "an array"])
def test_array_without_tensor_dtype_is_refused_in_runs(value: Any) -> None:
    compiled = collate.compiling(collate.for_output(collate.default_collate, "deferred"))  # type: ignore[arg-type]
    assert isinstance(compiled, collate.Compiled)
    with pytest.raises(LeafTypeError):
        compiled.rows([{"a": value}] * 2)
