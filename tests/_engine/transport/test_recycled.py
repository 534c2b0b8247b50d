"""Memory for large batches of this process is free again after the last view is gone, and never before."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import numpy as np
import pytest

from stoker._engine.transport import owned
from stoker._engine.transport.owned import LEAST, REQUESTS, Recycled

pytestmark = pytest.mark.skipif(not owned._COUNTS, reason="nobody counts references here")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory need not be large to be kept."""
    monkeypatch.setattr(owned, "LEAST", 1)


def array(memory: Recycled, size: int = 1000) -> np.ndarray[Any, Any]:
    """As a collator makes one."""
    return np.frombuffer(memory.lend(size), np.uint8, size).reshape(-1, 10)


def address(of: np.ndarray[Any, Any]) -> int:
    return int(of.ctypes.data)


def test_small_memory_is_left_to_the_allocator() -> None:
    memory = Recycled()
    assert memory.lend(LEAST - 1) is None
    assert memory.lend(LEAST).nbytes == LEAST


@pytest.mark.usefixtures("small")
def test_memory_is_lent_again_when_the_last_view_is_gone() -> None:
    memory = Recycled()
    first = array(memory)
    where = address(first)
    assert where % 64 == 0 and first.flags.writeable
    view = first[1:][:, ::2]
    del first
    second = array(memory)
    assert address(second) != where  # there is a view
    del view
    assert address(array(memory)) == where
    assert address(array(memory)) == where


@pytest.mark.usefixtures("small")
def test_kept_memory_is_never_written() -> None:
    memory, kept = Recycled(), []
    for number in range(3 * REQUESTS):
        kept.append(array(memory))
        kept[-1][:] = number
    assert all((batch == number).all() for number, batch in enumerate(kept))
    assert len(memory._blocks) <= REQUESTS + 1  # it need not know of what the user has for good


@pytest.mark.usefixtures("small")
def test_views_may_end_in_any_thread() -> None:
    memory, batches = Recycled(), [None] * 1
    batches[0] = array(memory)  # type: ignore[call-overload]
    where = address(batches[0])  # type: ignore[arg-type]
    thread = threading.Thread(target=batches.clear)
    thread.start()
    thread.join()
    assert address(array(memory)) == where


@pytest.mark.usefixtures("small")
def test_memory_that_is_much_too_large_or_of_no_use_goes_back() -> None:
    memory = Recycled()

    def sizes() -> list[int]:
        return [len(block.memory) - 64 for block in memory._blocks]

    array(memory, 10_000)
    array(memory, 9_000)
    assert sizes() == [10_000]  # it had room
    held = array(memory, 10_000)
    array(memory, 5_000)
    assert sizes() == [10_000, 5_000]
    del held
    for _ in range(REQUESTS):
        array(memory, 5_000)
    assert sizes() == [5_000]


@pytest.mark.usefixtures("small")
def test_batches_of_many_sizes_keep_no_more_than_one_besides() -> None:
    memory = Recycled()
    for number in range(100):
        batch = array(memory, 1000 * (1 + number * 37 % 50))
    assert batch is not None and len(memory._blocks) <= 2


@pytest.mark.usefixtures("small")
def test_a_debugger_keeps_nothing_and_frees_nothing() -> None:
    memory = Recycled()

    def look(frame: FrameType, event: str, argument: object) -> Any:
        assert frame.f_locals is not None
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        kept = array(memory)
        other = array(memory)
        where = address(other)
        del other
        assert address(array(memory)) == where != address(kept)
    finally:
        sys.settrace(before)


@pytest.mark.usefixtures("small")
def test_tensors_keep_it_as_arrays_do() -> None:
    torch = pytest.importorskip("torch")
    memory = Recycled()
    tensor = torch.frombuffer(memory.lend(800), dtype=torch.float64, count=100).view(10, 10)
    where, column = tensor.data_ptr(), tensor.numpy()[:, 3]
    del tensor
    assert address(array(memory, 800)) != where
    exchanged = torch.utils.dlpack.from_dlpack(torch.from_numpy(column))
    del column
    assert address(array(memory, 800)) != where
    del exchanged
    several = [array(memory, 800) for _ in range(3)]
    assert where in map(address, several)
