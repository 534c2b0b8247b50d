"""Spawned workers that die or stall: others take their place, and the batches are those of a calm run."""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._engine import supervisor
from stoker._engine.spawn import trainer, worker_processes
from stoker._engine.supervision import slot_allocator as lending
from stoker.events import Event
from tests.faults.runs import Once

N = 24

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::stoker.StokerWarning")]


@pytest.fixture(autouse=True)
def no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork", raising=False)


class Numbers:
    """Sample k is k and a random number; some samples do something more."""

    def __init__(self, at: dict[int, Callable[[], object]] | None = None) -> None:
        self._at = at or {}

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index in self._at:
            self._at[index]()
        return np.array([index, random.random()]), np.full(20_000, index)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class Run:
    """An epoch: its batches, and what was told of meanwhile."""

    def __init__(self, dataset: Any, **settings: Any) -> None:
        self.events: list[Event] = []
        default: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "output": "numpy", "seed": 5}
        if not isinstance(dataset, stoker.IterableDataset):
            default["shuffle"] = True
        self.loader = stoker.DataLoader(dataset, **default | {"on_event": self.events.append} | settings)

    def batches(self) -> list[bytes]:
        return [b"".join(np.asarray(leaf).tobytes() for leaf in batch) for batch in self.loader]

    def numbers(self) -> list[list[int]]:
        return [batch[0][:, 0].astype(int).tolist() for batch in self.loader]

    @property
    def told(self) -> list[str]:
        return [event.kind for event in self.events]


CALM: list[bytes] = []


def calm() -> list[bytes]:
    if not CALM:
        CALM.extend(Run(Numbers(), num_workers=0).batches())
    return CALM


# Deaths


@pytest.mark.parametrize("end", [die, lambda: sys.exit(4)], ids=["killed", "left"])
def test_a_worker_that_dies_at_a_sample(end: Callable[[], object], tmp_path: Path) -> None:
    run = Run(Numbers({17: Once(tmp_path / "died", end)}))
    with pytest.warns(stoker.StokerWarning, match=r"DataLoader worker .*batch \d, sample 17.*\n.*replaced"):
        assert run.batches() == calm()
    assert run.told == ["death"] and run.events[0].details["mark"] >= 0


def test_a_worker_that_dies_in_its_init_function(tmp_path: Path) -> None:
    once = Once(tmp_path / "died", die)
    run = Run(Numbers(), worker_init_fn=lambda number: once())
    assert run.batches() == calm()
    assert run.told == ["death"] and "in worker_init_fn" in run.events[0].message


def close_all() -> None:
    """As a library that makes itself a daemon."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def test_worker_whose_descriptors_a_sample_closes_has_died(tmp_path: Path) -> None:
    run = Run(Numbers({17: Once(tmp_path / "closed", close_all)}))
    with pytest.warns(stoker.StokerWarning, match=r"exited unexpectedly.*exit code 1"):
        assert run.batches() == calm()
    assert run.told == ["death"]


def kill_first(iterator: Any) -> None:
    """Returns when it is dead: on a busy machine a whole epoch may be over before the kernel has come to it."""
    children = iterator._backend._life.children
    pid = children[min(children)].pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_workers_that_are_killed_from_outside() -> None:
    settings = {"batch_size": 1, "prefetch_factor": 1}
    run = Run(Numbers(), **settings)
    iterator = iter(run.loader)
    batches = []
    for number, batch in enumerate(iterator):
        batches.append(b"".join(leaf.tobytes() for leaf in batch))
        if number in (0, 10):
            kill_first(iterator)
    assert batches == Run(Numbers(), num_workers=0, batch_size=1).batches()
    assert 1 <= len(run.told) <= 2 and set(run.told) == {"death"}  # the second may have had nothing in hand


def test_persistent_workers_between_epochs() -> None:
    run, model = Run(Numbers(), persistent_workers=True), Run(Numbers(), num_workers=0)
    with run.loader as loader:
        for _ in range(3):
            assert run.batches() == model.batches()
            kill_first(loader._iterator)
    assert 1 <= len(run.told) <= 2 and set(run.told) == {"death"}


def test_a_sample_that_always_crashes_is_left_out_or_raised() -> None:
    run = Run(Numbers({9: crash}), shuffle=False, on_error="skip")
    assert run.numbers()[1:4] == [[4, 5, 6, 7], [8, 10, 11], [12, 13, 14, 15]]
    assert run.told == ["death", "poison_sample", "error"]
    iterator = iter(Run(Numbers({9: crash}), shuffle=False).loader)
    assert [next(iterator)[0][0, 0] for _ in range(2)] == [0, 4]
    with pytest.raises(stoker.WorkerDiedError, match="is killed by signal: Segmentation fault"):
        next(iterator)


def test_too_many_deaths_end_the_run() -> None:
    run = Run(Numbers(dict.fromkeys(range(N), die)), max_restarts=1, num_workers=1)
    with pytest.raises(stoker.WorkerDiedError, match="2 workers have died within ten minutes"):
        run.batches()
    assert run.told == ["death", "death"]  # the last one ends it


class NeverArrives(Numbers):
    def __setstate__(self, state: Any) -> None:
        os._exit(3)


def test_workers_that_are_never_ready_are_not_tried_again() -> None:
    run = Run(NeverArrives())
    with pytest.raises(stoker.WorkerDiedError, match="with exit code 3"):
        run.batches()
    assert run.told == ["death"]


def test_replacement_gets_the_dataset_of_the_first_worker(tmp_path: Path) -> None:
    """Not what the trainer has made of its dataset since."""
    dataset = Numbers({0: Once(tmp_path / "died", die), 20: int})
    run = Run(dataset, shuffle=False)
    iterator = iter(run.loader)
    dataset._at[20] = crash
    assert [int(batch[0][0, 0]) for batch in iterator] == list(range(0, N, 4))
    assert run.told == ["death"]


def test_more_workers_than_one_wait_call_takes_are_watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trainer, "AT_ONCE", 1)
    run = Run(Numbers({17: Once(tmp_path / "died", die)}))
    assert run.batches() == calm() and run.told == ["death"]


def test_replacement_is_tried_again_until_it_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(supervisor, "HELD_BACK", 0.01)
    start, refused = worker_processes.WorkerProcesses.start, []

    def sometimes(life: Any, number: int) -> None:
        if len(refused) < 2:
            refused.append(number)
            raise BlockingIOError("no more processes")
        start(life, number)

    run = Run(Numbers({17: Once(tmp_path / "died", die)}))
    iterator = iter(run.loader)
    monkeypatch.setattr(worker_processes.WorkerProcesses, "start", sometimes)
    with pytest.warns(stoker.StokerWarning, match="cannot be started again yet: no more processes"):
        assert [b"".join(leaf.tobytes() for leaf in batch) for batch in iterator] == calm()
    assert run.told == ["death", "restart_delayed"]  # once, however often it is tried


def test_waiting_for_a_replacement_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "HELD_BACK", 0.01)
    monkeypatch.setattr(supervisor, "PATIENCE", 0.05)

    def refuse(life: Any, number: int) -> None:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    run = Run(Numbers({5: die}), shuffle=False, num_workers=1)
    iterator = iter(run.loader)
    monkeypatch.setattr(worker_processes.WorkerProcesses, "start", refuse)
    with (
        pytest.warns(stoker.StokerWarning, match="cannot be started again"),
        pytest.raises(
            stoker.errors.WorkerStartError, match=r"could not start worker 0 of 1: .*no more processes\. The limit"
        ),
    ):
        list(iterator)


# Stalls


class Waits:
    """A sample that waits until the file is there."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self) -> None:
        while not self._file.exists():
            threading.Event().wait(0.01)


def test_stall_is_reported_once_and_the_run_goes_on(tmp_path: Path) -> None:
    events: list[Event] = []

    def told(event: Event) -> None:
        events.append(event)
        (tmp_path / "told").touch()

    run = Run(Numbers({17: Waits(tmp_path / "told")}), stall_warning=0.3, on_event=told)
    with pytest.warns(stoker.StokerWarning, match=r"worker \d has been at batch \d, sample 17 for"):
        assert run.batches() == calm()
    assert [event.kind for event in events] == ["stall"]
    assert events[0].details["seconds"] >= 0.3


def test_wait_for_memory_while_unwatched_is_not_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer computes for longer than a unit may take, and comes back to a worker that has asked it for memory."""
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(trainer, "time", clock)
    monkeypatch.setattr(lending.SlotAllocator, "offer", lambda lending, unit, run: [])  # so that each unit asks
    run = Run(Numbers(), shuffle=False, num_workers=1, prefetch_factor=2, stall_warning=600)
    iterator: Any = iter(run.loader)
    backend = iterator._backend
    stalls = backend._supervisor._stalls
    stalls.tick = 0.0  # it looks whenever it can
    seen = [next(iterator)]
    assert stalls._since  # the next unit is under way
    assert backend._life.children[0].pipe.poll(20)
    clock.monotonic = lambda: time.monotonic() + 1000
    seen += iterator
    assert [batch[0][0, 0] for batch in seen] == list(range(0, N, 4)) and run.told == []


def test_a_stopped_worker_is_replaced(tmp_path: Path) -> None:
    run = Run(Numbers({17: Once(tmp_path / "stopped", stop)}), stall_warning=0.3, stall_action="restart")
    with pytest.warns(stoker.StokerWarning, match="another makes the batch"):
        assert run.batches() == calm()
    assert run.told == ["stall", "death"]
    assert "stalled at batch" in run.events[1].message


def test_a_sample_that_always_stalls_is_to_blame(tmp_path: Path) -> None:
    dataset = Numbers({9: Waits(tmp_path / "never")})
    run = Run(dataset, shuffle=False, stall_warning=0.3, stall_action="restart", on_error="skip")
    assert run.numbers()[1:4] == [[4, 5, 6, 7], [8, 10, 11], [12, 13, 14, 15]]
    assert run.told == ["stall", "death", "stall", "poison_sample", "error"]


def test_a_stall_may_be_an_error(tmp_path: Path) -> None:
    run = Run(Numbers({9: Waits(tmp_path / "never")}), stall_warning=0.3, stall_action="raise")
    with pytest.raises(stoker.StalledError, match=r"at batch \d, sample 9 for"):
        run.batches()


# What goes on


class Keeping(stoker.IterableDataset[Any]):
    """Shares itself out among the workers, and knows where it stands."""

    def __init__(self, at: dict[int, Callable[[], object]] | None = None) -> None:
        self._at = at or {}
        self._next: int | None = None

    def __iter__(self) -> Iterator[Any]:
        info = stoker.get_worker_info()
        assert info is not None
        if self._next is None:
            self._next = info.id
        while self._next < N:
            number, self._next = self._next, self._next + info.num_workers
            if number in self._at:
                self._at[number]()
            yield np.array([number, random.random()]), np.full(20_000, number)

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


@pytest.mark.parametrize("at", [0, 13])
def test_a_stream_goes_on_where_it_stood(at: int, tmp_path: Path) -> None:
    expected = Run(Keeping()).batches()
    run = Run(Keeping({at: Once(tmp_path / "died", die)}))
    assert run.batches() == expected and run.told == ["death"]


def test_workers_that_have_made_enough_are_replaced() -> None:
    run = Run(Numbers(), max_samples_per_worker=8)
    with pytest.warns(stoker.StokerWarning, match=r"replaced between two batches: it has made \d+ samples"):
        assert run.batches() == calm()
    assert set(run.told) == {"retired"} and len(run.told) >= 2
