"""What goes wrong beside the samples: the disk, the clock, the limits on processes and memory."""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import StokerWarning, WorkerDiedError
from stoker._engine import supervisor
from stoker._engine.messages import SlotWanted
from stoker._engine.process import worker
from stoker._engine.supervision import slot_allocator, split_policy
from stoker.errors import QuarantineError, WorkerStartError
from tests.faults.runs import (
    BACKENDS,
    BAD,
    CALM,
    N,
    Once,
    Samples,
    fates,
    faults_in,
    indices,
    is_killed,
    loader,
    plain,
    story,
)

quiet = pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
EVERYWHERE = [None, "three threads", "two workers", "clean workers"]
FORKED = BACKENDS["two workers"]


LIMITED = """
import os, resource, sys
import stoker
loader = stoker.DataLoader(range(40), 4, num_workers=4, output="numpy", multiprocessing_context="fork")
list(loader)  # all is imported by now, which others may not be allowed to read
user = int(sys.argv[1])
os.setgid(user)
os.setuid(user)
resource.setrlimit(resource.RLIMIT_NPROC, (3, 3))  # this program, the zygote, one worker
try:
    list(loader)
except stoker.errors.WorkerStartError as error:
    print(error)
left = -1  # this one
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        left += os.stat(f"/proc/{pid}").st_uid == user
    except FileNotFoundError:  # somebody else's, which has ended
        pass
print(left, "left")
"""


def settings_of(backend: str | None) -> dict[str, Any]:
    return BACKENDS[backend] if backend else {}


class TestQuarantineFile:
    @pytest.mark.parametrize("backend", EVERYWHERE)
    @pytest.mark.parametrize("below", ["away/bad", "file/bad", "folder"])
    def test_quarantine_file_that_cannot_be_opened_is_an_error(
        self, below: str, backend: str | None, tmp_path: Path
    ) -> None:
        """It is said before anything is started."""
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir()
        made = loader(Samples(BAD), on_error="skip", quarantine=tmp_path / below, **settings_of(backend))
        with pytest.raises(QuarantineError, match="cannot be opened for writing"):
            iter(made)

    @quiet
    @pytest.mark.parametrize("backend", EVERYWHERE)
    def test_full_quarantine_disk_costs_no_batch(self, backend: str | None) -> None:
        events: list[Any] = []
        made = loader(
            Samples(BAD), on_error="skip", quarantine="/dev/full", on_event=events.append, **settings_of(backend)
        )
        with pytest.warns(StokerWarning, match="/dev/full cannot be written: .*No space left.* are complete"):
            batches = indices(story(made))
        assert {index for batch in batches for index in batch} == set(range(N)) - set(BAD)
        counts = fates(made)
        assert (counts["delivered"], counts["quarantined"], counts["skipped"]) == (N - 6, 4, 2)
        failed = [event for event in events if event.kind == "quarantine_failed"]
        assert failed and failed[0].details["errno"] == errno.ENOSPC
        assert made.report().event_counts["quarantine_failed"] == len(failed)

    def test_full_quarantine_disk_is_warned_of_once(self) -> None:
        made = loader(Samples(BAD), on_error="skip", quarantine="/dev/full")
        with pytest.warns(StokerWarning) as told:
            story(made)
            story(made)
        assert sum("cannot be written" in str(warning.message) for warning in told) == 1

    @quiet
    def test_missing_quarantine_lines_are_written_later(self, tmp_path: Path) -> None:
        file = tmp_path / "bad"
        made = loader(Samples(BAD), on_error="skip", quarantine=file)
        iterator = iter(made)
        with no_room():
            for _ in range(3):
                next(iterator)
        assert file.read_bytes() == b""
        list(iterator)
        assert [fault["index"] for fault in faults_in(file)] == sorted(BAD)


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """No file can grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Filled:
    """Samples of 128 KiB."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return np.full(1 << 15, index, np.float32)


@pytest.mark.parametrize("birth", ["fork", "forkserver"])
def test_batches_exceed_the_limit_on_file_sizes_together(birth: str) -> None:
    """Not one batch by itself: that one is refused, and the message names the limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600 << 10, before[1]))
    try:
        options: Any = {"num_workers": 2, "output": "numpy", "multiprocessing_context": birth}
        kept = list(stoker.DataLoader(Filled(), batch_size=4, **options))
        assert [batch[:, -1].tolist() for batch in kept] == [[*range(at, at + 4)] for at in range(0, 24, 4)]
        with pytest.raises(stoker.MemoryLimitError, match=r"`ulimit -f`.*is 0\.6 MiB"):
            list(stoker.DataLoader(Filled(), batch_size=6, **options))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_small_batches_need_no_file_that_grows() -> None:
    """They travel in messages: there is no slot, and no board for slots that come back."""
    with no_room(), stoker.DataLoader([np.zeros(4)] * 8, batch_size=2, num_workers=2, output="numpy") as loader:
        assert len(list(loader)) == 4


@quiet
class TestClock:
    @pytest.fixture(autouse=True)
    def jumps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By years, to and fro, in workers and zygotes too."""
        times = itertools.cycle([4e9, 0.0, 1.8e9, 86_400.0])
        monkeypatch.setattr(time, "time", lambda: next(times))

    @pytest.mark.parametrize("backend", [None, "three threads", "two workers"])
    def test_clock_that_jumps_changes_nothing(self, backend: str | None, tmp_path: Path) -> None:
        events: list[Any] = []
        settings = settings_of(backend)
        settings = {**settings, "stall_warning": 5.0, "timeout": 20} if settings else settings
        file = tmp_path / "bad"
        made = loader(Samples(BAD), on_error="skip", quarantine=file, on_event=events.append, **settings)
        assert [index for batch in indices(story(made)) for index in batch] == [i for i in range(N) if i not in BAD]
        assert {event.kind for event in events} == {"error", "skip"}
        assert [fault["index"] for fault in faults_in(file)] == sorted(BAD)
        assert made.report().epoch.waited >= 0 and "waiting" in str(made.report())

    def test_deaths_are_counted_while_the_clock_jumps(self, tmp_path: Path) -> None:
        killed = {index: Once(tmp_path / str(index), is_killed) for index in (0, 16, 32)}
        iterator = iter(loader(Samples(killed), max_restarts=2, num_workers=1, multiprocessing_context="fork"))
        with pytest.raises(WorkerDiedError, match="3 workers have died"):
            list(iterator)


class Refusals:
    """An `os.fork` that refuses, in the zygote alone: there the first births of its workers succeed."""

    def __init__(self, patch: pytest.MonkeyPatch, births: int, refusals: int, again: int = 0) -> None:
        self._again = again  # how many later births are refused so often first
        self._trainer = os.getpid()
        self._fork = os.fork
        self._births, self._refusals = births, refusals
        patch.setattr(os, "fork", self)
        patch.setattr(supervisor, "HELD_BACK", 0.02)

    def __call__(self) -> int:
        if os.getpid() != self._trainer:
            self._births -= 1
            if self._births < 0 and self._births >= -self._refusals:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            if self._again and self._births < 0:
                self._again, self._births = self._again - 1, 0
        return self._fork()


class TestNoProcessCanBeStarted:
    @quiet
    def test_worker_start_refused_for_a_while_is_tried_again(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """The other worker goes on meanwhile."""
        Refusals(monkeypatch, births=2, refusals=3)
        events: list[Any] = []
        made = loader(Samples({9: Once(tmp_path / "once", is_killed)}), on_event=events.append, **FORKED)
        assert indices(story(made)) == CALM
        assert [event.kind for event in events] == ["death", "restart_delayed"]  # told once, however often it is tried
        assert "cannot be started again yet: [Errno 11]" in events[1].message
        assert "The other workers go on" in events[1].message

    @quiet
    def test_loader_waits_until_its_only_worker_is_back(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        Refusals(monkeypatch, births=1, refusals=3, again=1)
        settings = {"num_workers": 1, "multiprocessing_context": "fork"}
        twice = {index: Once(tmp_path / str(index), is_killed) for index in (9, 30)}
        made = loader(Samples(twice), **settings)
        assert indices(story(made)) == CALM
        assert made.report().event_counts == {"death": 2, "restart_delayed": 2}  # of each death once
        told = [event.message for event in made.report().events["restart_delayed"]]
        assert all("No other worker is left" in message and "go on" not in message for message in told)

    @quiet
    @pytest.mark.parametrize("workers", [1, 2])
    def test_worker_that_can_never_be_started_again_ends_the_run(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int
    ) -> None:
        monkeypatch.setattr(supervisor, "PATIENCE", 0.3)
        Refusals(monkeypatch, births=workers, refusals=10**6)
        killed = {index: Once(tmp_path / str(index), is_killed) for index in (12, 24)}
        iterator = iter(loader(Samples(killed), num_workers=workers, multiprocessing_context="fork"))
        batches: list[Any] = []
        with pytest.raises(WorkerStartError, match=r"could not start worker \d of \d: .*ulimit -u"):
            for batch in iterator:
                batches.append(plain(batch))
        assert indices(batches) == CALM[: len(batches)] and len(batches) >= 3
        assert not iterator.is_open

    @pytest.mark.slow
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody whose processes are so few")
    def test_limit_on_processes_of_the_kernel_is_an_error(self) -> None:
        """The kernel counts the processes of a user; this test has a user of its own."""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", LIMITED, str(40_000 + os.getpid() % 20_000)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        said, left = done.stdout.splitlines()
        assert re.match(r"could not start worker 1 of 4: \[Errno 11\].*`ulimit -u`", said)
        assert left == "0 left"

    def test_first_worker_that_cannot_be_started_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Refusals(monkeypatch, births=1, refusals=1)
        with pytest.raises(WorkerStartError, match="could not start worker 1 of 2"):
            list(loader(Samples(), **FORKED))

    @quiet
    def test_zygote_restart_is_tried_until_it_succeeds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        iterator = iter(loader(Samples(), **FORKED))
        batches = [plain(next(iterator))]
        real, left = os.fork, [2]

        def refuses() -> int:
            if left[0]:
                left[0] -= 1
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            return real()

        monkeypatch.setattr(os, "fork", refuses)
        os.kill(iterator._backend.pids[0], signal.SIGKILL)
        batches += map(plain, iterator)
        assert indices(batches) == CALM and left == [0]


class Rows(Samples):
    """Half a MiB for each batch of four."""

    def __getitem__(self, index: Any) -> Any:
        super().__getitem__(index)
        return np.full(1 << 14, index)


@quiet
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("when", ["it makes a sample", "it waits for memory"])
def test_worker_is_replaced_while_the_arena_is_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, when: str, workers: int
) -> None:
    """There is memory for three batches, of which the user keeps two: what the dead had comes back, each time."""
    send, grant = worker.ZygotesWorker.send, slot_allocator.SlotAllocator.grant
    once = {index: Once(tmp_path / str(index), is_killed) for index in (14, 22, 30, 38, 46)}

    def dies(self: Any, message: Any) -> None:
        send(self, message)
        if isinstance(message, SlotWanted):
            once.get(self._unit * 4 + 2, int)(0)

    def notes(self: Any, *arguments: Any, **more: Any) -> Iterator[Any]:
        yield from grant(self, *arguments, **more)
        if self.is_asked:
            (tmp_path / "full").touch()

    monkeypatch.setattr(slot_allocator.SlotAllocator, "grant", notes)
    if when == "it waits for memory":
        monkeypatch.setattr(worker.ZygotesWorker, "send", dies)
        monkeypatch.setattr(slot_allocator.SlotAllocator, "offer", lambda self, unit, run: [])  # so that each unit asks
    monkeypatch.setattr(split_policy, "WORTH", math.inf)  # parts of one do not wait for memory
    settings = {"num_workers": workers, "multiprocessing_context": "fork", "memory_budget": 3 << 20, "timeout": 20}
    kept, seen = [], []
    for batch in loader(Rows(once if when == "it makes a sample" else {}), max_restarts=9, **settings):
        seen.append(batch[:, 0].tolist())
        kept = [*kept[-1:], batch]
    assert seen == CALM and len(kept) == 2
    assert all((tmp_path / str(index)).exists() for index in once)
    if workers > 1:
        assert (tmp_path / "full").exists()


@quiet
def test_worker_that_waits_for_memory_replaces_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is memory for one batch, and the second worker waits for it until the first batch is made."""
    monkeypatch.setattr(supervisor, "PATIENCE", 0.3)
    Refusals(monkeypatch, births=2, refusals=10**6)
    ear, mouth = os.pipe()
    send = worker.ZygotesWorker.send

    def spied(self: Any, message: Any) -> None:
        send(self, message)
        if isinstance(message, SlotWanted):
            os.write(mouth, b"x")

    def dies(index: Any) -> None:
        os.read(ear, 1)
        is_killed(index)

    monkeypatch.setattr(worker.ZygotesWorker, "send", spied)
    settings = {"memory_budget": 3 << 19, "timeout": 10, "max_restarts": 9, "prefetch_factor": 1}
    with pytest.raises(WorkerStartError, match="could not start worker 0 of 2"):
        next(iter(loader(Rows({0: dies}), **FORKED | settings)))
    os.close(ear)
    os.close(mouth)


def test_policy_that_cannot_be_pickled_is_an_error() -> None:
    lock = threading.Lock()

    def policy(record: Any) -> str:
        with lock:
            return "skip"

    with pytest.raises(stoker.CannotSendError, match="on_error"):
        iter(loader(Samples(BAD), on_error=policy, **BACKENDS["clean workers"]))
