from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from stoker.collate import memory

FLOAT32 = np.dtype(np.float32)


def test_memory_is_fresh_unless_some_is_lent(new_slot: Any) -> None:
    slot = new_slot()
    assert memory.empty((2, 3), FLOAT32).shape == (2, 3)
    with memory.lent_by(slot):
        array = memory.empty((2, 3), FLOAT32)
    assert array.shape == (2, 3) and array.dtype == FLOAT32 and array.flags.c_contiguous and array.flags.writeable
    assert slot.holds(array) and slot.given == [24]
    assert not slot.holds(memory.empty((2, 3), FLOAT32))


def test_lenders_nest_and_end_with_their_context(new_slot: Any) -> None:
    outer, inner = new_slot(), new_slot()
    with memory.lent_by(outer):
        with pytest.raises(KeyError), memory.lent_by(inner):
            assert inner.holds(memory.empty((1,), FLOAT32))
            raise KeyError
        assert outer.holds(memory.empty((1,), FLOAT32))


def test_a_lender_is_its_threads_alone(slot: Any) -> None:
    arrays: list[Any] = []
    thread = threading.Thread(target=lambda: arrays.append(memory.empty((4,), FLOAT32)))
    thread.start()
    thread.join()
    assert not slot.holds(arrays[0]) and slot.given == []


def test_a_lender_that_has_no_more_is_done_without(new_slot: Any) -> None:
    slot = new_slot(size=16)
    with memory.lent_by(slot):
        assert not slot.holds(memory.empty((5,), FLOAT32))


@pytest.mark.parametrize("dtype", [object, "U0", "V0"])
def test_what_has_no_bytes_to_lend_is_fresh(slot: Any, dtype: Any) -> None:
    assert memory.empty((3,), np.dtype(dtype)).shape == (3,)
    assert memory.empty((0, 7), FLOAT32).shape == (0, 7)
    assert slot.given == []


def test_tensors_lie_in_lent_memory(slot: Any) -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.bfloat16, torch.bool, torch.complex64, torch.uint16):
        tensor = memory.empty_tensor((2, 3), dtype)
        assert tensor.shape == (2, 3) and tensor.dtype == dtype and tensor.is_contiguous()
        start = slot.buffer.ctypes.data
        assert start <= tensor.data_ptr() < start + len(slot.buffer)
    assert memory.empty_tensor((0, 7), torch.float32).shape == (0, 7)
    assert memory.empty_tensor((), torch.float32).shape == ()
    assert len(slot.given) == 5


def test_who_has_a_quicker_way_than_given_memory_is_told_that_there_is_none(new_slot: Any) -> None:
    torch = pytest.importorskip("torch")
    assert memory.lent_tensor((2, 3), torch.float32) is None
    slot = new_slot(size=16)
    with memory.lent_by(slot):
        assert memory.lent_tensor((0, 7), torch.float32) is None
        assert slot.holds(memory.lent_tensor((2, 2), torch.float32))
        assert memory.lent_tensor((2, 2), torch.float32) is None
