from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.collate import PadCollator, padded
from stoker.errors import BatchError

INTS = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20), min_size=1, max_size=9)
FLOATS = st.lists(st.lists(st.floats(), max_size=20), min_size=1, max_size=9)


@given(INTS | FLOATS)
def test_numbers_are_those_of_the_lists(given_lists: list[list[Any]]) -> None:
    found = padded.numbers_of(given_lists)
    if not any(given_lists):
        assert found is None
        return
    assert found is not None
    assert found.lengths.tolist() == [*map(len, given_lists)]
    expected = np.concatenate([np.asarray(numbers) for numbers in given_lists if numbers])
    assert found.values.dtype == expected.dtype
    assert found.values.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "given_lists",
    [
        [[1, True]],
        [[True, False]],
        [[1, 2.0]],
        [[2.0, 1]],
        [[1], [2.0]],
        [[1, 2**31]],
        [[-(2**31) - 1]],
        [[1, 2**70]],
        [[1, None]],
        [[1, "two"]],
        [[1.0, 1j]],
        [[1, np.int64(2)]],
        [[1.0, np.float64(2)]],
        [[1, np.int32(2)]],
        [[1, [2]]],
        [[1, object]],
        [[1], (2,)],
        [[1], [2], np.array([3])],
        [[]],
        [["a"]],
    ],
    ids=repr,
)
def test_anything_else_is_left_to_others(given_lists: list[Any]) -> None:
    assert padded.numbers_of(given_lists) is None


@pytest.mark.parametrize("other", [b"", "", (), [], {}], ids=repr)
def test_text_as_long_as_a_number_is_no_number(other: Any) -> None:
    assert padded.numbers_of([[1, other]]) is None
    assert padded.numbers_of([[1], [other]]) is None


class Own(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 1


def test_a_list_with_a_mind_of_its_own() -> None:
    assert padded.numbers_of([Own([1, 2])]) is None


@given(
    INTS | FLOATS,
    st.sampled_from(["right", "left"]),
    st.sampled_from([None, 1, 7]),
    st.sampled_from([1, 8]),
    st.sampled_from([None, "_mask"]),
    st.sampled_from([0, 3, -100, 0.5, math.nan, True, 2**70]),
    st.booleans(),
)
def test_number_lists_are_padded_as_one_by_one(
    given_lists: list[list[Any]],
    side: Any,
    max_length: int | None,
    multiple_of: int,
    mask: str | None,
    value: Any,
    in_fields: bool,
) -> None:
    how: dict[str, Any] = {"side": side, "max_length": max_length, "multiple_of": multiple_of, "mask": mask}
    samples: list[Any] = given_lists
    if in_fields:
        samples = [{"deep": {"ids": numbers}, "label": 1} for numbers in given_lists]
    pad = PadCollator({("deep", "ids"): value} if in_fields else value, output="numpy", **how)
    ours = outcome(pad, samples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(padded, "numbers_of", lambda _: None)
        assert outcome(pad, samples) == ours


def outcome(pad: PadCollator, samples: list[Any]) -> Any:
    """What a batch is to the bit, or its error."""
    try:
        return bits(pad(samples))
    except BatchError as error:
        return str(error)


def bits(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: bits(value) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(bits, batch))
    return batch.dtype, batch.shape, batch.tobytes()


def test_padded_in_lent_memory(slot: Any) -> None:
    batch = PadCollator(output="numpy")([[1, 2, 3], [4]])
    assert slot.given == [48, 6]
    assert slot.holds(batch.values)
    assert slot.holds(batch.mask)
    assert batch.values.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert batch.mask.tolist() == [[True] * 3, [True, False, False]]


def test_padded_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    batch = PadCollator(output="torch")([[1, 2, 3], [4]])
    assert torch.equal(batch.values, torch.tensor([[1, 2, 3], [4, 0, 0]]))
    assert batch.mask.dtype == torch.bool


def test_floats_to_the_bit() -> None:
    found = padded.numbers_of([[-0.0, math.nan, math.inf], [5e-324]])
    assert found is not None
    assert found.values.tobytes() == np.array([-0.0, math.nan, math.inf, 5e-324]).tobytes()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted")
def test_no_page_of_a_forked_worker_is_written() -> None:
    numbers = [[*range(1000 * at, 1000 * at + 200)] for at in range(1, 1001)]  # 1,600 pages

    def faults(read: Callable[[Any], object]) -> int:
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            try:
                assert read(numbers[:50]) is not None
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                for start in range(50, 1000, 50):
                    assert read(numbers[start : start + 50]) is not None
                os.write(theirs, str(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        said = os.read(ours, 64)
        os.close(ours)
        os.waitpid(child, 0)
        return int(said)

    assert faults(padded.numbers_of) < 200  # the lists themselves are counted, and a number of each batch
    assert faults(np.asarray) > 1000
