"""Spawned workers, for platforms without fork: how they end, die, grow and share, beside what conformance asks."""

from __future__ import annotations

import ast
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._core.machine import reserve
from stoker._core.machine.memory import Available
from stoker._core.machine.reserve import kept_free
from stoker._engine import supervisor
from stoker._engine.spawn import trainer
from stoker._engine.supervision import dispatch, slot_allocator
from stoker._engine.transport import arena
from stoker._engine.transport.segments import ArenaFiles

HERE = Path(__file__).parent
QUICK = 2.0
"""Seconds. A second is promised; the machine that tests this may be busy."""
MIB = 1 << 20

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have one CPU


@pytest.fixture(autouse=True)
def no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork", raising=False)


def loader(dataset: Any, **settings: Any) -> Any:
    return stoker.DataLoader(dataset, **{"batch_size": 2, "num_workers": 2, "output": "numpy", **settings})


class Data:
    """Samples above the size from which they travel in a slot."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return np.full(20_000, index)


class Stuck(Data):
    """Busy for ever from sample 4 on."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) if index < 4 else threading.Event().wait()


class Ends(Data):
    """Ends its worker at sample 5."""

    def __init__(self, end: Callable[[], object]) -> None:
        self.end = end

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) if index != 5 else self.end()


def test_spawn_is_the_default_without_fork() -> None:
    text = loader(Data()).describe()
    assert "2 processes, clean interpreters, each of which unpickles the dataset; arrays are shared" in text
    assert f"({sys.platform} has no fork)" in text


# Endings. What stays behind is found by the fixture of all tests.


def test_close_with_idle_workers_and_a_batch_that_is_kept() -> None:
    iterator = iter(loader(Data()))
    batch = next(iterator)
    start = time.monotonic()
    iterator.close()
    assert time.monotonic() - start < QUICK
    assert (batch[:, -1] == [0, 1]).all()
    with pytest.raises(stoker.errors.IteratorClosedError):
        next(iterator)


def test_close_with_busy_workers() -> None:
    iterator = iter(loader(Stuck()))
    assert [next(iterator)[1, 0] for _ in range(2)] == [1, 3]
    start = time.monotonic()
    iterator.close()
    assert time.monotonic() - start < QUICK


def test_collected_iterator_ends_its_spawned_workers() -> None:
    cycle: list[Any] = [iter(loader(Data()))]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert not multiprocessing.active_children()


PROGRAM = """
import os, signal, sys, threading
import numpy as np
del os.fork
from stoker import DataLoader

class Data:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return np.full(20_000, index)

class Slow(Data):
    def __getitem__(self, index):
        return super().__getitem__(index) if index < 4 else threading.Event().wait(0.3)

if __name__ == "__main__":
    iterator = iter(DataLoader(globals()[sys.argv[1]](), batch_size=2, num_workers=2, output="numpy"))
    batch = next(iterator)
    print(*(child.pid for child in iterator._backend._life.children.values()), flush=True)
    if sys.argv[2] == "exit":
        sys.exit()
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "end", "code"),
    [("Data", "exit", 0), ("Data", "SIGKILL", -9), ("Slow", "SIGKILL", -9), ("Slow", "SIGINT", -2)],
)
def test_a_program_that_ends(data: str, end: str, code: int, tmp_path: Path) -> None:
    """Also a worker that was busy when the trainer was killed leaves, behind its sample."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    environment = {**os.environ, "STOKER_TORCH": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = subprocess.run(
        [sys.executable, str(path), data, end], env=environment, capture_output=True, text=True, timeout=60
    )
    assert program.returncode == code, program.stderr
    assert len(program.stdout.split()) == 2
    assert not program.stderr or end == "SIGINT"


# Deaths, where none is to be survived. Others are in test_spawn_faults.py.


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "is killed by signal: Killed"),
        (lambda: sys.exit(4), "exited unexpectedly with exit code 4"),
    ],
)
def test_a_worker_that_ends_by_itself(end: Callable[[], object], words: str) -> None:
    iterator = iter(loader(Ends(end), num_workers=1, max_restarts=0))
    pid = iterator._backend._life.children[0].pid
    assert [next(iterator)[1, 0] for _ in range(2)] == [1, 3]  # what was done before is delivered
    told = rf"DataLoader worker \(pid(\(s\))? {pid}\) {words}.* while it made batch 2"
    with pytest.raises(stoker.WorkerDiedError, match=told):
        next(iterator)
    assert not multiprocessing.active_children()


def test_an_idle_worker_that_is_killed() -> None:
    iterator = iter(loader(Data(), num_workers=1, prefetch_factor=1, max_restarts=0))
    next(iterator)
    os.kill(iterator._backend._life.children[0].pid, signal.SIGKILL)
    with pytest.raises(stoker.WorkerDiedError, match="is killed by signal: Killed"):
        list(iterator)


def test_spawned_workers_honour_the_timeout() -> None:
    with (
        loader(Stuck(), timeout=0.5, persistent_workers=True, num_workers=1) as slow,
        pytest.raises(stoker.errors.LoaderTimeoutError, match=r"DataLoader timed out after 0.5 seconds: .* 1 worker"),
    ):
        list(slow)


# What is sent


def test_unpicklable_part_is_named_and_no_worker_starts() -> None:
    dataset = [1, {"file": threading.Lock()}]
    with pytest.raises(stoker.CannotSendError, match=r"dataset\[1\]\['file'\]: a lock between threads"):
        iter(loader(dataset))
    assert not multiprocessing.active_children()


class Unreadable:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_payload_that_cannot_be_rebuilt_gives_its_traceback() -> None:
    with pytest.raises(
        stoker.errors.WorkerStartError, match="could not rebuild what it was sent: ValueError"
    ) as caught:
        list(loader([Unreadable()]))
    assert "Traceback" in str(caught.value.__cause__)


def assert_one_place(dataset: Any) -> None:
    samples = [sample for batch in loader(dataset, worker_init_fn=int, collate_fn=list) for sample in batch]
    pids, files, places = zip(*samples, strict=True)
    assert len(set(pids)) == 2  # batch k is made by worker k mod 2
    assert len(set(files)) == 1 and files[0]
    assert len(set(places)) == 1


class Place(Data):
    """Tells where its array lies: in which file, and from which byte on."""

    def __init__(self) -> None:
        self.array = np.arange(100_000)

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        address = self.array.ctypes.data
        for line in Path("/proc/self/maps").read_text().splitlines():
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            if start <= address < end:
                return os.getpid(), int(line.split()[4]), int(line.split()[2], 16) + address - start
        raise AssertionError


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux what is mapped")
def test_a_large_array_is_mapped_by_all() -> None:
    assert_one_place(Place())


class Counted(Place):
    """Counts for all workers how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = multiprocessing.get_context("spawn").Value("i", 0)

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        with self.asked.get_lock():
            self.asked.value += 1
        return super().__getitem__(index)


@pytest.mark.leaves_behind("multiprocessing keeps the memory of its values for the next")
def test_memory_shared_by_multiprocessing_is_not_copied() -> None:
    dataset = Counted()
    assert_one_place(dataset)
    assert dataset.asked.value == 40


# Units and batches of all sizes


class Talkative(Data):
    """Samples whose errors are longer than a pipe takes."""

    def __len__(self) -> int:
        return 500_000

    def __getitem__(self, index: int) -> Any:
        raise ValueError("x" * 300_000)


def test_long_messages_both_ways_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "SLOW_UNIT", 60.0)  # each worker is handed a second unit while it makes one
    iterator = iter(loader(Talkative(), batch_size=50_000, shuffle=True, prefetch_factor=4))
    for _ in range(10):
        with pytest.raises(ValueError, match=r"x{300000}"):
            next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


class Growing(Data):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return np.full((index + 1, 30_000), index)


def test_batches_that_grow_and_are_kept() -> None:
    kept = list(loader(Growing(), batch_size=1, num_workers=1))
    for index, batch in enumerate(kept):
        assert batch.shape == (1, index + 1, 30_000) and (batch == index).all()
        batch[:] = -1  # it is ours


def test_slots_are_used_again() -> None:
    iterator = iter(loader(Data(), num_workers=1, prefetch_factor=1))
    for batch in iterator:
        size = batch.nbytes
        slots = iterator._backend._life.arena.reserved_bytes if iterator._backend else 0
        assert slots <= 6 * arena.rounded(size)


# What the supervisor does for them as for forked workers


class Told(Data):
    """A sample tells its worker's pid."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return np.array([index, os.getpid()])


def test_spawned_workers_can_become_more() -> None:
    with iter(loader(Told(), num_workers=1, prefetch_factor=6)) as iterator:
        batches = [next(iterator)]
        iterator._backend.grow(3)
        while len({int(batch[0, 1]) for batch in batches}) < 3:
            batches.append(next(iterator))
        assert iterator._backend.workers_there == iterator._backend.grown == 3
    samples = np.concatenate(batches)[:, 0]
    assert samples.tolist() == list(range(len(samples)))


def test_spawned_workers_share_slow_batches() -> None:
    with iter(loader(Told(), batch_size=32)) as iterator:
        batches = [next(iterator)]
        while len(set(batches[-1][:, 1].tolist())) < 2:  # until both workers are there, and neither is behind
            batches.append(next(iterator))
    samples = np.concatenate(batches)[:, 0]
    assert samples.tolist() == list(range(len(samples)))


class Leaks(Data):
    """Keeps 5 MiB of each sample."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def __getitem__(self, index: int) -> Any:
        self._kept.append(np.ones(5 * MIB, np.uint8))
        return index


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say what a process has")
def test_spawned_worker_that_leaks_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOOK", 0.0)  # at each answer
    kinds: list[str] = []
    made = loader(
        Leaks(),
        sampler=range(12),
        num_workers=1,
        memory_budget=40 * MIB,
        on_event=lambda event: kinds.append(event.kind),
    )
    with pytest.warns(stoker.StokerWarning, match=r"private memory has grown by \d+ MiB"):
        assert np.concatenate(list(made)).tolist() == list(range(12))
    assert set(kinds) == {"retired"}


def test_spawned_workers_take_turns_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is memory for the samples of one worker."""
    growth = 1 << 30
    there = Available(kept_free(4 * growth) + growth + growth // 2, 4 * growth, "a test")
    monkeypatch.setattr(trainer.memory, "available", lambda: there)
    monkeypatch.setattr(
        slot_allocator.WorkerMemory, "showed", lambda self, worker, own: None
    )  # they take as much as before
    told: list[Any] = []
    made = loader(Told(), on_event=told.append)
    stoker.loader.record.record_of(made).ledger.growth = growth
    with pytest.warns(stoker.StokerWarning, match="there is memory for 1 of 2 workers at once"), iter(made) as iterator:
        for number, batch in enumerate(iterator):
            assert batch[:, 0].tolist() == [2 * number, 2 * number + 1]
            if told:
                break
    assert [event.kind for event in told] == ["memory_throttled"]


# Memory


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Makes the trainer see a machine of the given size, where only arenas take memory."""
    total: list[int] = [0]
    arenas: list[ArenaFiles] = []
    real = arena.Arena.__init__

    def remembered(self: arena.Arena, files: ArenaFiles, limit: int | None = None) -> None:
        arenas.append(files)
        real(self, files, limit)

    def available() -> Available:
        return Available(total[0] - arenas[-1].reserved_bytes, total[0], "a test")

    monkeypatch.setattr(arena.Arena, "__init__", remembered)
    monkeypatch.setattr(arena, "available", available)
    monkeypatch.setattr(reserve, "available", available)
    monkeypatch.setattr(reserve, "_FENCED_SHARE", 1)  # no child is forked to reserve a large share
    yield total


class Sized(Data):
    """Batch k has `sizes[k]` MiB; a sample is a view of one small row, so only batches take memory."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        return np.broadcast_to(np.full((1, MIB // 8), index, np.float64), (self.sizes[index], MIB // 8))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_batch_that_does_not_fit(limit: list[int], workers: int) -> None:
    limit[0] = 400 * MIB
    iterator = iter(loader(Sized([10, 10, 10, 500, 10]), batch_size=1, num_workers=workers, timeout=60))
    kept = [next(iterator) for _ in range(3)]
    with pytest.raises(stoker.MemoryLimitError, match=r"cannot reserve 5\d\d.* are available of 400.0 MiB .*a test"):
        next(iterator)
    kept.append(next(iterator))
    assert [int(batch[0, -1, -1]) for batch in kept] == [0, 1, 2, 4]


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_that_fit_one_by_one_are_all_delivered(limit: list[int], workers: int) -> None:
    """Work ahead takes what there is, and waits for the rest; what lies in cycles is found."""
    limit[0] = 130 * MIB
    seen = []
    for batch in loader(Sized([20] * 8), batch_size=1, num_workers=workers, prefetch_factor=4, timeout=60):
        seen.append(int(batch[0, -1, -1]))
        cycle: list[Any] = [batch]
        cycle.append(cycle)
        del batch, cycle
    assert seen == list(range(8))


# Without what only POSIX has

WITHOUT = """
import mmap, os, select, signal, subprocess, sys, types

gone = "fork memfd_create pidfd_open posix_fallocate preadv pread pwrite register_at_fork sched_getaffinity sysconf"
for name in gone.split():
    delattr(os, name)
del select.poll, signal.pthread_sigmask
sys.modules.update(fcntl=types.ModuleType("fcntl"), resource=types.ModuleType("resource"))
"""

AS_WINDOWS = """
mmap.ALLOCATIONGRANULARITY = 1 << 16

class Granular(mmap.mmap):
    def __new__(kind, descriptor, size, *, access=mmap.ACCESS_DEFAULT, offset=0):
        assert offset % mmap.ALLOCATIONGRANULARITY == 0, offset
        return super().__new__(kind, descriptor, size, access=access, offset=offset)

mmap.mmap = Granular
os.O_SHORT_LIVED = os.O_NOINHERIT = os.O_BINARY = 0
os.O_TEMPORARY = 1 << 30
real = os.open

def open_and_forget(path, flags, *mode, **more):
    descriptor = real(path, flags & ~os.O_TEMPORARY, *mode, **more)
    if flags & os.O_TEMPORARY:
        os.unlink(path)
    return descriptor

os.open = open_and_forget
handles = {"get_osfhandle": lambda descriptor: descriptor, "open_osfhandle": lambda handle, flags: handle}
sys.modules["msvcrt"] = types.SimpleNamespace(**handles)
from stoker._core.machine import reserve
reserve._libc = None
"""


POSIX_ALONE = {"fcntl", "resource", "pwd", "grp", "termios", "_posixsubprocess"}


def test_posix_only_modules_are_imported_where_used() -> None:
    """Or behind a condition: an import at the top of a file would keep all of it from Windows."""
    for path in Path(stoker.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = {alias.name for alias in node.names} if isinstance(node, (ast.Import, ast.ImportFrom)) else set()
            assert names.isdisjoint(POSIX_ALONE), f"{path}:{node.lineno}"
            assert getattr(node, "module", None) not in POSIX_ALONE, f"{path}:{node.lineno}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "half"), [(WITHOUT, "segments"), (WITHOUT + AS_WINDOWS, "segments_windows")], ids=["posix", "windows"]
)
def test_spawned_workers_run_without_posix_only_functions(start: str, half: str, tmp_path: Path) -> None:
    """Every Python of the program begins so, its workers included."""
    (tmp_path / "sitecustomize.py").write_text(start)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    program = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "anywhere.py")],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path), "STOKER_TORCH": "0"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (program.returncode, program.stderr) == (0, "")
    assert program.stdout.split() == [f"stoker._engine.transport.{half}"]
