from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from stoker.collate import tensors

FLOAT32 = np.dtype(np.float32)


def test_memory_is_fresh_unless_some_is_lent(new_slot: Any) -> None:
    slot = new_slot()
    assert tensors.empty((2, 3), FLOAT32).shape == (2, 3)
    with tensors.lent_by(slot):
        array = tensors.empty((2, 3), FLOAT32)
    assert array.shape == (2, 3) and array.dtype == FLOAT32 and array.flags.c_contiguous and array.flags.writeable
    assert slot.holds(array) and slot.given == [24]
    assert not slot.holds(tensors.empty((2, 3), FLOAT32))


def test_lenders_nest_and_end_with_their_context(new_slot: Any) -> None:
    outer, inner = new_slot(), new_slot()
    with tensors.lent_by(outer):
        with pytest.raises(KeyError), tensors.lent_by(inner):
            assert inner.holds(tensors.empty((1,), FLOAT32))
            raise KeyError
        assert outer.holds(tensors.empty((1,), FLOAT32))


def test_a_lender_is_its_threads_alone(slot: Any) -> None:
    arrays: list[Any] = []
    thread = threading.Thread(target=lambda: arrays.append(tensors.empty((4,), FLOAT32)))
    thread.start()
    thread.join()
    assert not slot.holds(arrays[0]) and slot.given == []


def test_a_lender_that_has_no_more_is_done_without(new_slot: Any) -> None:
    slot = new_slot(size=16)
    with tensors.lent_by(slot):
        assert not slot.holds(tensors.empty((5,), FLOAT32))


@pytest.mark.parametrize("dtype", [object, "U0", "V0"])
def test_leaf_without_bytes_gets_fresh_memory(slot: Any, dtype: Any) -> None:
    assert tensors.empty((3,), np.dtype(dtype)).shape == (3,)
    assert tensors.empty((0, 7), FLOAT32).shape == (0, 7)
    assert slot.given == []


def test_tensors_lie_in_lent_memory(slot: Any) -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.bfloat16, torch.bool, torch.complex64, torch.uint16):
        tensor = tensors.empty_tensor((2, 3), dtype)
        assert tensor.shape == (2, 3) and tensor.dtype == dtype and tensor.is_contiguous()
        start = slot.buffer.ctypes.data
        assert start <= tensor.data_ptr() < start + len(slot.buffer)
    assert tensors.empty_tensor((0, 7), torch.float32).shape == (0, 7)
    assert tensors.empty_tensor((), torch.float32).shape == ()
    assert len(slot.given) == 5


def test_lent_tensor_is_none_without_lent_memory(new_slot: Any) -> None:
    """A caller with a quicker way learns that no memory is lent to it."""
    torch = pytest.importorskip("torch")
    assert tensors.lent_tensor((2, 3), torch.float32) is None
    slot = new_slot(size=16)
    with tensors.lent_by(slot):
        assert tensors.lent_tensor((0, 7), torch.float32) is None
        assert slot.holds(tensors.lent_tensor((2, 2), torch.float32))
        assert tensors.lent_tensor((2, 2), torch.float32) is None
