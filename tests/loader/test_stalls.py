"""Samples that take too long: told of once, with where they are, by who watches while the trainer trains."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import DataLoader, StalledError, StokerWarning
from stoker.events import Event
from tests.faults.runs import Once

N = 24
AFTER = 0.3
"""Seconds after which a batch stalls here."""

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::stoker.StokerWarning")]


@pytest.fixture(params=["fork", pytest.param("forkserver", marks=pytest.mark.long)])
def birth(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Numbers(stoker.Dataset[Any]):
    """Sample k is k and a random number; some samples do something more."""

    def __init__(self, at: dict[int, Callable[[], object]] | None = None) -> None:
        self._at = at or {}

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index in self._at:
            self._at[index]()
        return np.array([index, random.random()]), np.full(20_000, index)


class Gate:
    """A sample that waits here goes on when it is opened, in whichever process: a named pipe."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self.path = str(folder / name)
        os.mkfifo(self.path)

    def wait(self) -> None:
        os.close(os.open(self.path, os.O_RDONLY))

    def open(self) -> None:
        """Waits until a sample waits."""
        os.close(os.open(self.path, os.O_WRONLY))


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hold_the_gil() -> None:
    sum(range(60_000_000))


class Run:
    """An epoch: its batches, and what was told of meanwhile. `heard` is called with each event."""

    def __init__(
        self, dataset: Any, birth: str | None = "fork", heard: Callable[[], object] | None = None, **settings: Any
    ) -> None:
        self.events: list[Event] = []
        self._heard = heard
        default = {"batch_size": 4, "num_workers": 2, "output": "numpy", "seed": 5, "shuffle": True}
        default |= {"multiprocessing_context": birth, "stall_warning": AFTER, "on_event": self.hear}
        self.loader: Any = DataLoader(dataset, **default | settings)

    def hear(self, event: Event) -> None:
        self.events.append(event)
        if self._heard is not None and event.kind == "stall":
            self._heard()

    def batches(self) -> list[bytes]:
        return bytes_of(self.loader)

    def firsts(self) -> list[int]:
        return [int(batch[0][0, 0]) for batch in self.loader]

    @property
    def told(self) -> list[str]:
        return [event.kind for event in self.events]


def bytes_of(batches: Any) -> list[bytes]:
    return [b"".join(np.asarray(leaf).tobytes() for leaf in batch) for batch in batches]


CALM: list[bytes] = []


def calm() -> list[bytes]:
    if not CALM:
        CALM.extend(Run(Numbers(), None, num_workers=0).batches())
    return CALM


# It goes on


def test_stall_is_reported_once_and_the_run_goes_on(birth: str, gate: Gate) -> None:
    def heard() -> None:
        threading.Event().wait(AFTER)  # in which it could be told again
        gate.open()

    run = Run(Numbers({17: gate.wait}), birth, heard)
    with pytest.warns(StokerWarning, match=r"worker [01] has been at batch \d, sample 17 for"):
        assert run.batches() == calm()
    (event,) = run.events
    assert event.kind == "stall" and event.worker in (0, 1)
    assert AFTER <= event.details["seconds"] < 20
    assert "in wait" in event.message and "in __getitem__" in event.message  # the stack
    assert run.loader.report().event_counts == {"stall": 1}


def test_stall_is_noticed_while_the_trainer_trains(birth: str, gate: Gate) -> None:
    run = Run(Numbers({9: gate.wait}), birth, gate.open, shuffle=False)
    iterator = iter(run.loader)
    batches = [next(iterator)]
    _arrives(iterator, b"Stalled")  # a long step
    assert run.told == []
    batches += iterator
    assert [int(batch[0][0, 0]) for batch in batches] == list(range(0, N, 4))
    assert run.told == ["stall"] and "batch 2, sample 9" in run.events[0].message


def _arrives(iterator: Any, name: bytes) -> None:
    """Waits until the zygote has sent a message of this name, and leaves it unread."""
    ears = socket.socket(fileno=os.dup(iterator._backend._life.channel.fileno()))
    until = time.monotonic() + 20
    with ears:
        while time.monotonic() < until:
            if select.select([ears], [], [], 0)[0] and name in ears.recv(1 << 20, socket.MSG_PEEK):
                return
            threading.Event().wait(0.01)
    raise AssertionError("nothing was sent")


def test_a_worker_that_holds_the_gil_gives_its_stack(birth: str) -> None:
    run = Run(Numbers({17: hold_the_gil}), birth)
    assert run.batches() == calm()
    assert run.told == ["stall"] and "in hold_the_gil" in run.events[0].message


def test_each_stalled_worker_is_reported(tmp_path: Path) -> None:
    gates = {index: Gate(tmp_path, str(index)) for index in (4, 9)}

    def open_both_after_the_second() -> None:  # else a worker is reported at the sample behind the one that stalled
        if run.told == ["stall", "stall"]:
            for gate in gates.values():
                gate.open()

    run = Run(
        Numbers({index: gate.wait for index, gate in gates.items()}), heard=open_both_after_the_second, shuffle=False
    )
    assert run.firsts() == list(range(0, N, 4))
    assert run.told == ["stall", "stall"]
    assert sorted(event.message.split(" for ")[0][-8:] for event in run.events) == ["sample 4", "sample 9"]


def test_a_whole_batch_and_a_collation_are_named(gate: Gate, tmp_path: Path) -> None:
    class Whole(Numbers):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            if 8 in indices:
                gate.wait()
            return [self[index] for index in indices]

    run = Run(Whole(), heard=gate.open, shuffle=False)
    assert run.firsts() == list(range(0, N, 4))
    assert "batch 2, in __getitems__" in run.events[0].message

    def collate(samples: list[Any]) -> Any:
        if samples[0][0][0] == 8:
            gate.wait()
        return tuple(np.stack(leaves) for leaves in zip(*samples, strict=True))

    run = Run(Numbers(), heard=gate.open, shuffle=False, collate_fn=collate)
    assert run.firsts() == list(range(0, N, 4))
    assert "batch 2, in collate_fn" in run.events[0].message

    def transform(batch: Any) -> Any:
        if batch[0][0][0] == 8:
            gate.wait()
        return batch

    run = Run(Numbers(), heard=gate.open, shuffle=False, batch_transform=transform)
    assert run.firsts() == list(range(0, N, 4))
    assert "batch 2, in batch_transform" in run.events[0].message


def test_stall_warning_can_be_switched_off(gate: Gate) -> None:
    run = Run(Numbers({9: gate.wait}), stall_warning=None, shuffle=False)
    iterator = iter(run.loader)
    batches = [next(iterator), next(iterator)]
    threading.Event().wait(AFTER)
    gate.open()
    batches += iterator
    assert len(batches) == N / 4 and run.told == []


# It is ended


def test_a_stopped_worker_is_replaced(birth: str, tmp_path: Path) -> None:
    run = Run(Numbers({17: Once(tmp_path / "stopped", stop)}), birth, stall_action="restart")
    assert run.batches() == calm()
    assert run.told == ["stall", "death"] and "stopped, by SIGSTOP" in run.events[0].message


def test_a_sample_that_always_stalls_is_left_out(birth: str, gate: Gate) -> None:
    run = Run(Numbers({9: gate.wait}), birth, stall_action="restart", on_error="skip", shuffle=False)
    samples = [batch[0][:, 0].astype(int).tolist() for batch in run.loader]
    assert samples == [[k for k in range(first, first + 4) if k != 9] for first in range(0, N, 4)]
    assert run.told == ["stall", "death", "stall", "poison_sample", "error"]
    fault = run.events[-1].details
    assert fault["kind"] == "stall" and fault["index"] == 9 and "in wait" in fault["traceback"]
    assert run.loader.report().epoch.quarantined == 1


def test_or_raised_in_its_place(gate: Gate) -> None:
    iterator = iter(Run(Numbers({9: gate.wait}), stall_action="restart", shuffle=False).loader)
    firsts = [int(next(iterator)[0][0, 0]) for _ in range(2)]
    with pytest.raises(StalledError, match="takes longer than stall_warning at this sample"):
        next(iterator)
    firsts += [int(batch[0][0, 0]) for batch in iterator]
    assert firsts == [0, 4, 12, 16, 20]


def test_repeated_stalls_cost_no_restarts(gate: Gate) -> None:
    run = Run(
        Numbers(dict.fromkeys((1, 6, 11), gate.wait)),
        stall_action="restart",
        on_error="skip",
        shuffle=False,
        max_restarts=1,
        num_workers=1,
        stall_warning=0.1,
    )
    assert [len(batch[0]) for batch in run.loader] == [3, 3, 3, 4, 4, 4]
    assert run.told.count("poison_sample") == 3


def test_stall_may_end_the_run(birth: str, gate: Gate) -> None:
    """Nothing is left behind, as the fixture of all tests knows."""
    iterator = iter(Run(Numbers({9: gate.wait}), birth, stall_action="raise", shuffle=False).loader)
    assert [int(next(iterator)[0][0, 0]) for _ in range(2)] == [0, 4]
    with pytest.raises(StalledError, match=r"(?s)worker [01] has been at batch 2, sample 9 for .*in wait"):
        next(iterator)
    with pytest.raises(stoker.errors.IteratorClosedError):
        next(iterator)


# What is no stall


def test_a_slow_trainer_is_none(birth: str) -> None:
    run = Run(Numbers(), birth, prefetch_factor=1, stall_action="raise")
    batches = []
    for batch in run.loader:
        batches.append(batch)
        if len(batches) in (1, 3):
            threading.Event().wait(2 * AFTER)
    assert bytes_of(batches) == calm() and run.told == []


MIB = 1 << 20


class Sized(stoker.Dataset[Any]):
    """Samples of a given size in bytes."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return np.full(self._size, index, np.uint8)


@pytest.mark.parametrize("workers", [1, 3])
def test_waiting_for_memory_is_no_stall(workers: int) -> None:
    run = Run(
        Sized(3 * MIB),
        batch_size=1,
        num_workers=workers,
        prefetch_factor=3,
        memory_budget=20 * MIB,
        stall_action="raise",
        shuffle=False,
    )
    seen = []
    for batch in run.loader:
        seen.append(int(batch[0, 0]))
        if len(seen) in (1, 4):
            threading.Event().wait(2 * AFTER)  # the batch is kept meanwhile
    assert seen == list(range(12)) and run.told == []


@pytest.mark.parametrize("first", ["zygote", "workers"])
def test_suspended_job_is_no_stall(first: str, tmp_path: Path) -> None:
    """A job that is suspended. The trainer only waits here, as if it were frozen as well."""
    begun, gate = Gate(tmp_path, "begun"), Gate(tmp_path)

    def slow() -> None:
        begun.open()
        gate.wait()

    run = Run(Numbers({9: slow}), shuffle=False, stall_warning=1.0, stall_action="raise")
    iterator = iter(run.loader)
    batches = [next(iterator)]
    begun.wait()
    backend = iterator._backend
    backend._listen()
    zygote, *workers = backend.pids
    for pid in (zygote, *workers):
        os.kill(pid, signal.SIGSTOP)
    threading.Event().wait(2.5)
    for pid in (zygote, *workers) if first == "zygote" else (*workers, zygote):
        os.kill(pid, signal.SIGCONT)
    gate.open()
    batches += iterator
    assert [int(batch[0][0, 0]) for batch in batches] == list(range(0, N, 4))
    assert run.told == []
