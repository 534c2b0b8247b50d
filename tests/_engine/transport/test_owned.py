"""Memory copied out for a tensor stays as long as a view of it exists, wherever its storage is moved."""

from __future__ import annotations

import gc
import multiprocessing
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import resource_sharer
from typing import Any

import numpy as np
import pytest

from stoker._engine.transport import owned, reader
from stoker._engine.transport.leaves import SMALL, dumps, loads
from stoker._engine.transport.owned import AT_ONCE, Owned, tensor_over

torch = pytest.importorskip("torch")


class Memory(bytearray):
    """That can be seen to go."""


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()
    for _ in range(1 + len(owned.moved) // AT_ONCE):
        owned.look_again()
    assert not owned.moved


def memory(value: int = 1, size: int = 4096) -> tuple[Any, weakref.ref[Memory]]:
    buffer = Memory(bytes([value]) * size)
    return tensor_over(Owned(len(buffer), np.uint8, buffer)), weakref.ref(buffer)


def test_memory_goes_with_its_tensor() -> None:
    tensor, buffer = memory()
    part = tensor.detach()[5:].view(torch.int8).numpy()
    del tensor
    assert buffer() is not None and (part == 1).all()
    del part
    assert buffer() is None and not owned.moved


def by_queue(tensor: Any) -> None:
    queue = multiprocessing.SimpleQueue()
    queue.put(tensor)
    assert (queue.get() == 1).all()
    queue.close()
    resource_sharer.stop()


@pytest.mark.parametrize("move", [lambda tensor: tensor.share_memory_(), by_queue], ids=["share_memory_", "queue"])
@pytest.mark.parametrize("look", [lambda tensor: tensor, lambda tensor: tensor.detach()[1:]], ids=["it", "a part"])
def test_a_view_keeps_what_its_tensor_was_moved_away_from(
    move: Callable[[Any], Any], look: Callable[[Any], Any]
) -> None:
    tensor, buffer = memory()
    view = look(tensor).numpy()
    move(tensor)
    for _ in range(3):
        owned.look_again()
    assert buffer() is not None and (view == 1).all()
    del tensor
    owned.look_again()
    assert buffer() is not None and (view == 1).all()
    del view
    owned.look_again()
    assert buffer() is None


def test_kept_tensors_are_checked_in_turns() -> None:
    kept = [memory(1, 64) for _ in range(3 * AT_ONCE)]
    views = [tensor.numpy() for tensor, _ in kept]
    for tensor, _ in kept:
        tensor.share_memory_()
    buffers = [buffer for _, buffer in kept]
    kept.clear()
    del tensor
    last = views.pop()
    views.clear()
    for _ in range(3):
        owned.look_again()
    assert [buffer() is not None for buffer in buffers] == [False] * (len(buffers) - 1) + [True]
    assert (last == 1).all()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(8.0),
        torch.arange(8.0).bfloat16(),
        torch.arange(8.0).reshape(2, 4).t(),
        torch.arange(8.0).requires_grad_(),
        torch.tensor(3),
    ],
    ids=["plain", "bfloat16", "transposed", "followed", "no dimension"],
)
def test_tensor_that_travels_in_a_message_stays_valid(tensor: Any) -> None:
    arrived = loads(dumps([{"a": tensor}], lambda leaf: None), ())[0]["a"]
    as_numbers = arrived.detach() if arrived.dtype != torch.bfloat16 else arrived.view(torch.int16)
    view, expected = as_numbers.numpy(), as_numbers.numpy().copy()
    arrived.data.share_memory_()
    for _ in range(10):
        np.full(8, 9.0)
    assert len(owned.moved) == 1
    assert (view == expected).all()
    assert arrived.requires_grad == tensor.requires_grad and (arrived == tensor).all()


class Rows:
    """Small ones travel in the message; of both, if two workers make them, in a slot."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        large = torch.full((SMALL // 8,), float(index))
        return torch.full((16,), float(index)), index, large, large.bfloat16()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("budget", [None, 6 << 20], ids=["leased", "copied"])
def test_batches_of_a_loader(workers: int, budget: int | None) -> None:
    import stoker

    with stoker.DataLoader(Rows(), batch_size=16, num_workers=workers, memory_budget=budget) as loader:  # type: ignore[arg-type]
        batches = list(loader)
        views = [[leaf.view(torch.int16).numpy() for leaf in batch] for batch in batches]
        expected = [[view.copy() for view in batch] for batch in views]
        for batch in batches:
            for leaf in batch:
                leaf.share_memory_()
        del batches, batch, leaf
        list(loader)
        for ours, theirs in zip(views, expected, strict=True):
            assert all((view == copy).all() for view, copy in zip(ours, theirs, strict=True))
        del views, ours
        gc.collect()
        for _ in range(4):
            owned.look_again()
        for _ in range(len(reader._moved)):
            reader._moved.popleft().look_again()
