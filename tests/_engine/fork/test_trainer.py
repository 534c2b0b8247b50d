"""The trainer's end of the process backend: what it says of its own accord."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._engine import supervisor
from stoker._engine.backend import JobSource
from stoker._engine.fork import heap_sharing, start_zygote, trainer, zygote_handle
from stoker._engine.fork.zygote import Zygote
from stoker._engine.fork.zygote_handle import ZygoteHandle
from stoker._engine.messages import Delivery, MarkingHeap, Message, Pulse, WorkersLocked
from stoker._engine.process.channel import Channel
from stoker._engine.process.deadlines import REAP
from stoker._engine.supervision.rules import held_bytes
from stoker._engine.transport import arena


def test_batch_memory_that_trainer_drops_is_rewritten() -> None:
    size, page = 1 << 20, arena.SIZE
    dataset = [np.zeros(size, np.uint8)] * 20
    with stoker.DataLoader(dataset, batch_size=1, num_workers=1, output="numpy", seed=0, timeout=20) as loader:
        iterator = iter(loader)
        for _ in dataset:
            assert next(iterator).nbytes == size
        # at most three under way, one in the loop's hands, and one whose return is still to be sent
        assert iterator._backend._life.bytes_of_batches <= 5 * size + page


def test_zygote_that_the_kernel_takes_down_slowly_is_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a zombie of the user's program is left behind, as the fixture of all tests would find."""
    loader = stoker.DataLoader([np.zeros(1)] * 3, batch_size=1, num_workers=1, output="numpy", timeout=20)
    iterator = iter(loader)
    next(iterator)
    life, ready, waitpid = iterator._backend._life, [0.0], os.waitpid

    def slow(pid: int, options: int) -> tuple[int, int]:
        if pid == life.pid:
            ready[0] = ready[0] or time.monotonic() + 2 * REAP
            if time.monotonic() < ready[0]:
                return 0, 0
        return waitpid(pid, options)

    monkeypatch.setattr(os, "waitpid", slow)
    iterator.close()
    assert life.status == 0


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_first_batch_does_not_wait_for_the_last_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, opener = os.pipe()
    fork = Zygote._fork

    def waits(self: Zygote, number: int) -> None:
        if number == 1:
            select.select([self._children[0].channel.fileno()], [], [], 20)  # until the first worker has answered
        elif number == 2:
            os.read(gate, 1)
        fork(self, number)

    monkeypatch.setattr(Zygote, "_fork", waits)
    with open(gate), open(opener, "wb", buffering=0) as write:
        iterator = forked(NUMBERS, num_workers=3)
        batches = [next(iterator).item()]
        assert len(iterator._backend.pids) == 3  # the helper's, and of two workers
        write.write(b".")
        assert batches + [batch.item() for batch in iterator] == list(range(50))


def test_a_forked_child_gets_no_batch_that_has_arrived() -> None:
    with stoker.DataLoader([np.zeros(1)] * 3, batch_size=1, num_workers=1, output="numpy", timeout=20) as loader:
        iterator = iter(loader)
        next(iterator)
        backend = iterator._backend
        for _ in range(2):
            iterator._units._receive(backend, None)  # as where another comes before the one that is due
        next(iterator)  # nothing is left to plan: no other check is on the way to the last one
        pid = os.fork()
        if not pid:
            try:
                next(iterator)
            except stoker.errors.IteratorClosedError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert len(list(iterator)) == 1


# Another zygote


def forked(dataset: Any, **settings: Any) -> Iterator[Any]:
    """Batches of one sample, by a worker of a forked zygote. A loader that hangs is told by its timeout."""
    default = {"batch_size": 1, "num_workers": 1, "output": "numpy", "seed": 0, "timeout": 10}
    return iter(stoker.DataLoader(dataset, **default | {"multiprocessing_context": "fork"} | settings))


def kill_the_zygote(iterator: Any) -> None:
    os.kill(iterator._backend.pids[0], signal.SIGKILL)


def first_fails(error: BaseException, call: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    left = [error] * times

    def fails(*arguments: Any) -> Any:
        if left:
            raise left.pop()
        return call(*arguments)

    return fails


NUMBERS = [np.full(1, number) for number in range(50)]


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("at", ["its birth", "the end of the last one", "the pause between"])
def test_zygote_that_cannot_be_replaced_is_an_error_each_time(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, at: str
) -> None:
    iterator = forked(NUMBERS)
    next(iterator)
    if at == "its birth":
        monkeypatch.setattr(trainer, "ZygoteHandle", first_fails(error, ZygoteHandle))
    elif at == "the end of the last one":
        monkeypatch.setattr(ZygoteHandle, "_await_end", first_fails(error, ZygoteHandle._await_end))
    else:
        monkeypatch.setattr(trainer.time, "sleep", first_fails(error, lambda seconds: None))
    kill_the_zygote(iterator)
    with pytest.raises(type(error)):
        list(iterator)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(stoker.errors.IteratorClosedError, match="KeyboardInterrupt interrupted"):
            next(iterator)
        return
    with pytest.raises(stoker.errors.WorkerStartError, match="no other was started") as caught:
        list(iterator)  # a batch that the zygote had sent before may come first
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("what", ["process_descriptor", "held_bytes"])
def test_failure_after_the_zygotes_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """The fixture looks for the zygote, and for what was open for it."""
    if what == "held_bytes":
        monkeypatch.setattr(zygote_handle, what, first_fails(KeyboardInterrupt(), held_bytes))
    else:
        asked = iter(
            [
                zygote_handle.linux.process_descriptor,
                first_fails(KeyboardInterrupt(), zygote_handle.linux.process_descriptor),
            ]
        )
        monkeypatch.setattr(zygote_handle.linux, what, lambda pid: next(asked)(pid))
    with pytest.raises(KeyboardInterrupt):
        forked(NUMBERS)


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_replacement_zygote_waits_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "HELD_BACK", 0.0)
    iterator = forked(NUMBERS)
    seen = [next(iterator)]
    monkeypatch.setattr(trainer, "ZygoteHandle", first_fails(stoker.MemoryLimitError("full"), ZygoteHandle, times=3))
    kill_the_zygote(iterator)
    seen += iterator
    assert [int(batch[0, 0]) for batch in seen] == list(range(50))


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_replacement_zygote_waits_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "PATIENCE", -1.0)
    iterator = forked(NUMBERS)
    next(iterator)
    monkeypatch.setattr(trainer, "ZygoteHandle", first_fails(stoker.MemoryLimitError("full"), ZygoteHandle))
    kill_the_zygote(iterator)
    with pytest.raises(stoker.MemoryLimitError, match="full"):
        list(iterator)
    with pytest.raises(stoker.MemoryLimitError, match="full"):
        next(iterator)


class Large(stoker.Dataset[Any]):
    """Samples that travel in slots."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return np.full(1 << 17, index, np.uint8)


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_message_of_a_replaced_zygote_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slots lie in an arena that is gone, and its units are made again."""
    iterator: Any = forked(Large(), num_workers=2)
    replaced = iterator._backend._life.channel
    receive, were_late = Channel.receive, []

    def received(channel: Channel) -> list[Any]:
        messages = receive(channel)
        late = [message for message in messages if isinstance(message, Delivery)]
        if channel is not replaced or not late:
            return messages
        were_late.extend(late)
        return [WorkersLocked("stacks"), *late]

    monkeypatch.setattr(Channel, "receive", received)
    assert [batch[0].tolist() for batch in iterator] == [[index] * (1 << 17) for index in range(12)]
    assert were_late


def test_a_zygote_that_marks_a_large_heap_is_not_taken_for_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    ear, mouth = os.pipe()
    send, receive = Channel.send, Channel.receive

    def received(channel: Channel) -> list[Any]:
        messages = receive(channel)
        if any(isinstance(message, MarkingHeap) for message in messages):
            monkeypatch.setattr(trainer, "HUNG", 0.0)
        return messages

    def mark_heap() -> None:
        os.read(ear, 1)

    def spied(channel: Channel, message: Message) -> None:
        if isinstance(message, Pulse):  # it was silent for longer than it may be later
            monkeypatch.setattr(trainer, "HUNG", 30.0)
            os.write(mouth, b"x")
        send(channel, message)

    monkeypatch.setattr(heap_sharing, "worth_it", lambda: True)
    monkeypatch.setattr(heap_sharing, "mark_heap", mark_heap)
    monkeypatch.setattr(trainer, "PULSE", 0.05)
    monkeypatch.setattr(Channel, "receive", received)
    iterator = forked(NUMBERS)
    monkeypatch.setattr(Channel, "send", spied)
    assert [int(batch[0, 0]) for batch in iterator] == list(range(50))
    os.close(ear)
    os.close(mouth)


def test_a_worker_that_never_ends_unpickling_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a clean worker's; here of a forked one, which has the shorter patience set."""

    def hanging(recipe: Any, unpickles: bool) -> JobSource:
        return JobSource(lambda: select.select([], [], []), unpickles=True)  # type: ignore[arg-type, return-value]

    monkeypatch.setattr(supervisor, "OPENED", 0.2)
    monkeypatch.setattr(start_zygote, "JobSource", hanging)
    with pytest.raises(stoker.errors.WorkerStartError, match=r"(?s)is not done.*test_trainer.py.*in <lambda>"):
        list(stoker.DataLoader(range(4), num_workers=1, multiprocessing_context="fork"))
