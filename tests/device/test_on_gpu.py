"""`device=` on a GPU: right bytes whatever the streams do, one context, and registered slots."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
from typing import Any

import pytest

from stoker import DataLoader
from stoker._engine.transport import owned, registered
from stoker.device import accelerator

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.leaves_behind("torch keeps what it opened of the GPU"),
]
ROWS, WIDTH = 16, 1 << 16  # 4 MB a batch
KINDS: list[dict[str, Any]] = [{}, {"num_workers": 4, "worker_method": "thread"}, {"num_workers": 4}]


class Table:
    def __init__(self, batches: int) -> None:
        self.rows = batches * ROWS

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Any:
        return torch.full((WIDTH,), float(index)), index


def busy(cycles: int = 2_000_000) -> None:
    torch.cuda._sleep(cycles)


def wrong_in(images: Any, labels: Any) -> Any:
    """Queues the comparison; the result is on the device."""
    return (images != labels[:, None]).any()


@pytest.mark.parametrize("kind", KINDS, ids=["in process", "threads", "processes"])
def test_batches_arrive_while_the_device_is_busy(kind: dict[str, Any]) -> None:
    loader, wrong, numbers = DataLoader(Table(100), ROWS, device="cuda", **kind), [], []
    for images, labels in loader:
        assert images.is_cuda and labels.is_cuda
        busy()
        wrong.append(wrong_in(images, labels))
        numbers.append(labels[0])
        del images, labels
        torch.empty(ROWS, WIDTH, device="cuda").fill_(-1)  # takes memory that was freed
    assert not any(map(bool, wrong)) and [int(number) for number in numbers] == list(range(0, 100 * ROWS, ROWS))
    copies = loader.report().copies
    assert copies["bytes"] >= 100 * ROWS * WIDTH * 4 and copies["seconds"] > 0
    if kind.get("num_workers") and "worker_method" not in kind and copies["registered"] == 0:
        assert not accelerator.accelerator_of(torch.device("cuda", 0)).registers


@pytest.mark.parametrize("seed", range(6))
def test_loops_at_random(seed: int) -> None:
    chance, other = random.Random(seed), torch.cuda.Stream()
    default = torch.cuda.current_stream()
    loader = DataLoader(Table(200), ROWS, device="cuda", num_workers=4, persistent_workers=bool(seed % 2))
    for _ in range(3):
        wrong, kept = [], []
        iterator = iter(loader)
        for _ in range(chance.randrange(1, 220)):
            stream = other if chance.random() < 0.3 else default
            stream.wait_stream(default if stream is other else other)
            with torch.cuda.stream(stream):
                batch = next(iterator, None)
                if batch is None:
                    break
                if chance.random() < 0.5:
                    busy(chance.randrange(3_000_000))
                wrong.append(wrong_in(*batch))
            (default if stream is other else other).wait_stream(stream)
            if chance.random() < 0.05:
                kept.append(batch)
            del batch
        torch.cuda.synchronize()
        assert not any(map(bool, wrong)) and not any(bool(wrong_in(*batch)) for batch in kept)
        del iterator
    loader.close()
    torch.cuda.synchronize()
    gc.collect()
    owned.look()
    registered.end_left()
    assert not registered.total()


def test_killed_workers_and_trimmed_slots() -> None:
    loader, wrong = DataLoader(Table(200), ROWS, device="cuda", num_workers=4, max_restarts=50), []
    iterator = iter(loader)
    with pytest.warns(UserWarning):
        for number, (images, labels) in enumerate(iterator):
            busy()
            wrong.append(wrong_in(images, labels))
            if number % 40 == 20:
                pids = iterator._backend.pids
                os.kill(pids[0] if number == 100 else pids[1], signal.SIGKILL)
            del images, labels
    assert len(wrong) == 200 and not any(map(bool, wrong))


def test_graph_over_fixed_buffers() -> None:
    loader = DataLoader(Table(20), ROWS, device="cuda", num_workers=2, device_buffers=1)
    graph, sums, total = torch.cuda.CUDAGraph(), [], torch.zeros((), device="cuda")
    for number, (images, _) in enumerate(loader):
        if number == 0:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                images.sum(1).mean()
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph):
                total.copy_(images[:, 0].sum())
        graph.replay()
        sums.append(total.clone())
    assert [int(each) for each in sums] == [sum(range(ROWS * number, ROWS * number + ROWS)) for number in range(20)]


def test_refused_registration_leaves_no_error() -> None:
    device = accelerator.accelerator_of(torch.device("cuda", 0))
    if not device.registers:
        pytest.skip("this GPU shares the host's memory")
    assert "cudaHostRegister" in (device.register(4096, 4096) or "")
    assert float(torch.ones(3, device="cuda").sum()) == 3


PROGRAM = """
import os, torch, stoker

class Table:
    def __len__(self): return 400
    def __getitem__(self, index): return torch.full((40_000,), float(index))

loader = stoker.DataLoader(Table(), 4, device="cuda", num_workers=3)
iterator = iter(loader)
assert not torch.cuda.is_initialized()
for _ in range(20):
    next(iterator)
print(os.getpid(), *iterator._backend.pids)
import subprocess
ask = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
print(subprocess.run(ask, capture_output=True, text=True).stdout.split())
for _ in iterator:
    pass
"""


def test_one_context_and_none_in_workers() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    pids, users = (line.strip("[]").replace("'", "").replace(",", "").split() for line in run.stdout.splitlines()[:2])
    assert not set(pids[1:]) & set(users)


def test_device_that_is_full() -> None:
    taken = []
    with pytest.raises(torch.OutOfMemoryError):
        while True:
            taken.append(torch.empty(1 << 28, dtype=torch.uint8, device="cuda"))
    with pytest.raises(torch.OutOfMemoryError):
        while True:
            taken.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
    iterator = iter(DataLoader(Table(4), ROWS, device="cuda"))
    with pytest.raises(torch.OutOfMemoryError) as caught:
        next(iterator)
    assert "The batch is not lost" in "".join(caught.value.__notes__)
    taken.clear()
    assert [int(labels[0]) for _, labels in iterator] == [0, 16, 32, 48]
