"""What training loops do with batches on a device: each batch is whole and comes once, however the loop goes on."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import pytest

from stoker import DataLoader, errors
from tests.device.test_transfer import ROWS, Loop, Table, loader_of
from tests.device.test_transformed import Raised, queued
from tests.device.test_transformed import at_once as at_once

torch = pytest.importorskip("torch")
N = 6
FORKED = {"num_workers": 2, "prefetch_to_device": 2}


@pytest.mark.parametrize("end", range(N + 1))
def test_break_at_any_batch(late: Any, end: int) -> None:
    """Three epochs follow, each whole; the iterator is dropped, closed, or kept for the next epoch."""
    device = late(end)
    loader = loader_of(N, persistent_workers=bool(end % 2), **FORKED)
    loop = Loop(device)
    for number, batch in enumerate(loader):
        if number == end:
            break
        loop.step(batch)
        del batch
    loop.check(range(end))
    for _ in range(3):
        loop = Loop(device)
        for batch in loader:
            loop.step(batch)
            del batch
        loop.check(range(N))
    assert len(loader) == N
    loader.close()


@pytest.mark.parametrize("kind", [{}, FORKED], ids=["in process", "processes"])
def test_loop_that_raises_goes_on_with_its_iterator(late: Any, kind: dict[str, Any]) -> None:
    loop = Loop(late(4))
    iterator = iter(loader_of(N, **kind))
    done = 0
    while done < N:
        try:
            for batch in iterator:
                done += 1
                loop.step(batch)
                del batch
                if done % 2:
                    raise KeyError
        except KeyError:
            continue
    loop.check(range(N))
    iterator.close()


@pytest.mark.parametrize("sets", [0, 2])
def test_loop_that_keeps_all_batches(late: Any, sets: int) -> None:
    """Without fixed buffers, all stay as they are; with them, the latest."""
    device = late(6)
    kept = list(loader_of(N, device_buffers=sets or None, **FORKED))
    device.finish()
    valid = range(N - sets if sets else 0, N)
    assert [float(kept[number][0][-1, -1]) for number in valid] == [ROWS * number + ROWS - 1.0 for number in valid]


def test_loop_that_skips_batches(late: Any) -> None:
    loop = Loop(late(1))
    iterator = iter(loader_of(12, **FORKED))
    for number, batch in enumerate(iterator):
        if number % 3 == 0:
            loop.step(batch)
        del batch
    loop.check(range(0, 12, 3))


@pytest.mark.parametrize("seed", range(3))
def test_loop_on_several_streams_with_a_transform(late: Any, seed: int) -> None:
    device, chance = late(seed), random.Random(seed)
    streams = [device.default, device.stream("one"), device.stream("two")]
    loop = Raised(device)
    iterator = iter(queued(device, 12, **FORKED))
    for _ in range(12):
        stream = chance.choice(streams)
        with device.using(stream):
            batch = next(iterator)
            loop.step(batch)
        for other in streams:
            if other is not stream:
                other.wait_event(stream.record_event())
        del batch
    assert next(iterator, None) is None
    loop.check(range(12))


@pytest.mark.parametrize("transformed", [False, True])
def test_worker_that_is_killed(late: Any, transformed: bool) -> None:
    device = late(2)
    loop = Raised(device) if transformed else Loop(device)
    loader = queued(device, 16, **FORKED) if transformed else loader_of(16, **FORKED)
    iterator = iter(loader)
    with pytest.warns(errors.StokerWarning):
        for number, batch in enumerate(iterator):
            loop.step(batch)
            del batch
            if number == 4:
                os.kill(iterator._backend.pids[1], signal.SIGKILL)
    loop.check(range(16))


def test_compiled_step(at_once: Any) -> None:
    step = torch.compile(lambda images: (images * 2).sum(1), backend="eager")
    loader = DataLoader(Table(4), ROWS, device="cuda", num_workers=1)
    for _ in range(2):
        found = [step(images)[0].item() / (2 * images.shape[1]) for images, _ in loader]
        assert found == [float(ROWS * number) for number in range(4)]


def test_loop_in_inference_mode_trains_afterwards(at_once: Any) -> None:
    """Batches are no inference tensors, so autograd may keep them."""
    weight = torch.ones(4096, requires_grad=True)
    loader = loader_of(2, num_workers=1)
    with torch.inference_mode():
        for images, _ in loader:
            assert (images @ weight).shape == (ROWS,)
        kept = images
    (kept @ weight).sum().backward()
    assert weight.grad is not None and not kept.is_inference()


class Graph:
    """As a CUDA graph: work that was captured, with the addresses that it had then."""

    def __init__(self, loop: Loop, batch: Any) -> None:
        self.key = tuple(part.data_ptr() for part in batch)
        self._replayed = lambda: loop.step(batch)

    def replay(self) -> None:
        self._replayed()


@pytest.mark.parametrize("sets", [1, 2, 3])
def test_graphs_read_the_sets_that_they_were_captured_with(late: Any, sets: int) -> None:
    device = late(sets)
    loop = Loop(device)
    loader = loader_of(N, device_buffers=sets, **FORKED)
    graphs: dict[Any, Graph] = {}
    for _ in range(2):
        for batch in loader:
            key = tuple(part.data_ptr() for part in batch)
            graph = graphs.get(key) or graphs.setdefault(key, Graph(loop, batch))
            assert graph.key == key
            graph.replay()
            del batch
    assert len(graphs) == sets
    loop.check([*range(N), *range(N)])


def test_loop_that_is_interrupted_within_next(late: Any) -> None:
    """Ctrl-C in a transform closes the iterator; the loader's state has the batch that was due."""
    device, calls = late(), []

    def interrupted(batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return batch

    loader, loop = queued(device, 3, interrupted), Loop(device)
    iterator = iter(loader)
    loop.step(next(iterator))
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    loader.load_state_dict(loader.state_dict())
    for batch in loader:
        loop.step(batch)
    loop.check(range(3))
