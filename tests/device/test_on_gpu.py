"""`device=` on a GPU: right bytes whatever the streams do, one context, and registered slots."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker import DataLoader
from stoker._engine.transport import owned, registered
from stoker.device import accelerator
from tests.device.test_registration import DeviceLine

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
import contextlib, os, shutil, subprocess, torch, stoker
from pathlib import Path

class Table:
    def __len__(self): return 400
    def __getitem__(self, index): return torch.full((40_000,), float(index))

def descendants(pid):
    children = []
    for one in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            if Path("/proc", one, "stat").read_text().rpartition(") ")[2].split()[1] == str(pid):
                children.append(int(one))
    return [*children, *(each for child in children for each in descendants(child))]

def opens_a_gpu(pid):
    found = False
    for one in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found |= "/dev/nvidia" in os.readlink(f"/proc/{pid}/fd/{one}")
    return found

loader = stoker.DataLoader(Table(), 4, device="cuda", num_workers=3)
iterator = iter(loader)
assert not torch.cuda.is_initialized()
for _ in range(20):
    next(iterator)
others = descendants(os.getpid())
assert len(others) >= 3, others
print(opens_a_gpu(os.getpid()), any(map(opens_a_gpu, others)))
ask = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
told = subprocess.run(ask, capture_output=True, text=True).stdout if shutil.which("nvidia-smi") else ""
users = told.split()  # in a container it may tell none
print(len({*users} & {str(pid) for pid in others}))
for _ in iterator:
    pass
"""


def test_one_context_and_none_in_workers() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["True", "False", "0"], run.stdout


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceLine]:
    device = SimpleNamespace(registered={}, punched={}, finish=torch.cuda.synchronize)
    line = DeviceLine(device, monkeypatch)
    yield line
    line.close()
    line.stage.close()


def needs_registration() -> None:
    if not accelerator.accelerator_of(torch.device("cuda", 0)).registers:
        pytest.skip("this GPU shares the host's memory")


def test_arena_is_trimmed_between_batches(line: DeviceLine) -> None:
    needs_registration()
    for _ in range(300):
        assert line.batch()
        line.arena.trim(0)
    assert line.stage.counts.registered == 1 and line.arena.reserved_bytes


def test_punched_slot_has_its_old_bytes(line: DeviceLine) -> None:
    """The mistake that the board prevents, on the device that makes it."""
    needs_registration()
    line.arena.registered = set()
    right = []
    for _ in range(4):
        right.append(line.batch())
        line.arena.trim(0)
    assert line.stage.counts.registered and not all(right)


def test_images_decoded_on_the_gpu(tmp_path: Path) -> None:
    """By nvJPEG: in order, with the boxes of the workers' decoding, while the device is busy."""
    pytest.importorskip("torchcodec")
    pytest.importorskip("PIL")
    from stoker import ImageFolder, images
    from tests.images import pictures

    (tmp_path / "a").mkdir()
    kinds = ("4:2:0", "4:4:4", "4:2:2", "progressive", "grey")
    for number in range(60):
        data = pictures.jpeg(kinds[number % 5], 200 + number, 300 - number, number)
        (tmp_path / "a" / f"{number:03}.jpg").write_bytes(data)
    crop = images.Compose([images.RandomResizedCrop(96), images.RandomHorizontalFlip()])
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 1, "num_workers": 2}
    wanted = [batch for batch, _ in DataLoader(ImageFolder(tmp_path, crop), **options)]
    loader = DataLoader(ImageFolder(tmp_path, crop, decode_device="cuda"), device="cuda", **options)
    for _ in range(3):
        found = []
        for batch, _ in loader:
            busy()
            found.append(batch.clone())
            del batch
            torch.empty(8, 3, 300, 300, dtype=torch.uint8, device="cuda").fill_(255)
        for one, other in zip(found, wanted, strict=True):
            difference = (one.cpu().float() - other.float()).abs()
            assert float(difference.mean()) < 2, "pixels are those of other pictures, or of another decoder"
    copies = loader.report().copies
    assert copies["decoded"] == 180 and copies["decoded_by_cpu"] == 36
    print(
        f"nvJPEG and libjpeg differ by {float(difference.mean()):.3f} on average, {float(difference.max()):.0f} at most"
    )


def test_damaged_image_on_the_gpu() -> None:
    """Damage within a scan: the rest of the batch is decoded, and CUDA goes on."""
    pytest.importorskip("torchcodec")
    from stoker.images import Resize, encoded
    from tests.images import pictures

    files = [pictures.jpeg("4:2:0", 160, 120, seed) for seed in range(4)]
    scan = files[1].rindex(b"\xff\xda") + 20
    damaged = files[1][:scan] + b"\x55" * 200 + files[1][scan + 200 :]
    want = encoded.collated([encoded.encoded(file, Resize((60, 80))) for file in files]).to("cpu")
    files[1] = damaged
    batch = encoded.collated([encoded.encoded(file, Resize((60, 80))) for file in files])
    found = batch.to("cuda").cpu()
    for place in (0, 2, 3):
        assert float((found[place].float() - want[place].float()).abs().mean()) < 2
    assert float(torch.ones(3, device="cuda").sum()) == 3
    print(f"decoded by the CPU: {sorted(batch.by_cpu)}")


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


def test_operations_wait_for_nothing() -> None:
    """They are called behind the step that is computed: a wait would be one for that."""
    from stoker import device

    whole = device.Compose(
        [
            device.RandomResizedCrop(24),
            device.RandomHorizontalFlip(),
            device.ColorJitter(0.4, 0.4, 0.4, 0.1),
            device.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2), dtype="bfloat16", channels_last=True),
            device.RandomErasing(1.0),
            device.CutMix(num_classes=8),
        ]
    )
    images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8, device="cuda")
    labels = torch.arange(8, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        pixels, shares = whole((images, labels))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert pixels.shape == (8, 3, 24, 24) and shares.shape == (8, 8)
