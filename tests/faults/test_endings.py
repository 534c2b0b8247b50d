"""However a program or an iterator ends: no process, memory, descriptor or thread stays, and it takes no second."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import util
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader
from stoker._engine.process import linux

QUICK = 2.0
"""Seconds. A second is promised; the machine that tests this may be busy."""

SAMPLES = [np.full(20_000, index) for index in range(40)]


def open_iterator(birth: str, **settings: Any) -> Any:
    settings = {"batch_size": 2, "num_workers": 2, "output": "numpy", "multiprocessing_context": birth} | settings
    iterator = iter(DataLoader(SAMPLES, **settings))
    assert next(iterator)[1, 0] == 1
    return iterator


@contextmanager
def quickly() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < QUICK


# In one process. What stays behind is found by the fixture of all tests.


def test_break_out_of_the_loop_ends_the_workers(birth: str) -> None:
    loader: Any = DataLoader(SAMPLES, num_workers=2, output="numpy", multiprocessing_context=birth)
    start = None
    for _ in loader:
        start = time.monotonic()
        break
    assert start is not None and time.monotonic() - start < QUICK


def test_exception_in_the_loop_ends_the_workers(birth: str) -> None:
    def train() -> None:
        nonlocal start
        for _ in open_iterator(birth):
            start = time.monotonic()
            raise ZeroDivisionError

    start = 0.0
    with pytest.raises(ZeroDivisionError):
        train()
    assert time.monotonic() - start < QUICK


def test_del_while_a_batch_is_kept(birth: str) -> None:
    iterator = open_iterator(birth)
    batch = next(iterator)
    with quickly():
        del iterator
    assert batch[1, 0] == 3  # it stays its user's
    assert (batch + batch)[0, 0] == 4


def test_collected_iterator_ends_its_workers(birth: str) -> None:
    gc.freeze()  # what the tests before have left is not to be looked through again
    try:
        iterator = open_iterator(birth)
        cycle = [iterator]
        cycle.append(cycle)
        del iterator, cycle
        with quickly():
            gc.collect()
    finally:
        gc.unfreeze()


def test_close_may_be_called_twice(birth: str) -> None:
    iterator = open_iterator(birth)
    with quickly():
        iterator.close()
        iterator.close()
    with pytest.raises(RuntimeError, match="is closed"):
        next(iterator)


def test_asked_again_after_the_end(birth: str) -> None:
    iterator = open_iterator(birth)
    assert sum(1 for _ in iterator) == 19
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


def test_iter_in_a_thread_that_ends(birth: str) -> None:
    """A death signal from the parent would fire now: it follows the thread that forked."""
    iterators: list[Any] = []
    thread = threading.Thread(target=lambda: iterators.append(open_iterator(birth)))
    thread.start()
    thread.join()
    assert sum(1 for _ in iterators.pop()) == 19


def test_zygote_reaped_by_other_code_is_handled() -> None:
    iterator = open_iterator("fork", max_restarts=0)
    zygote = iterator._backend.pids[0]
    os.kill(zygote, signal.SIGKILL)
    assert os.waitpid(-1, 0)[0] == zygote
    with (
        pytest.raises(RuntimeError, match=r"exited unexpectedly.*other code of this process has taken its exit status"),
        quickly(),
    ):
        while True:
            next(iterator)


def test_batches_from_before_a_zygote_death_are_delivered(birth: str) -> None:
    iterator = open_iterator(birth, num_workers=1, max_restarts=0)  # one worker's answers come in order
    backend = iterator._backend
    while not backend._inbox:
        assert backend._poll_for(20.0)
        backend._listen()
    os.kill(backend.pids[0], signal.SIGKILL)
    assert select.select([backend._life.descriptor], [], [], 20)[0]
    assert next(iterator)[0, 0] == 2
    with pytest.raises(RuntimeError, match=r"the helper process .* is killed by signal"), quickly():
        for _ in range(20):
            next(iterator)


def test_sigchld_is_ignored(birth: str) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        iterator = open_iterator(birth)
        zygote = iterator._backend.pids[0]
        with quickly():
            iterator.close()
        with pytest.raises(ChildProcessError):
            os.waitpid(zygote, os.WNOHANG)
    finally:
        signal.signal(signal.SIGCHLD, before)


def arena_blocks(pid: int) -> int:
    """How much memory the arenas take whose file the process holds."""
    files = [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    return sum(os.stat(file).st_blocks for file in files if "memfd:stoker" in os.readlink(file))


def test_children_that_hold_our_sockets(birth: str) -> None:
    """A fork by other code has copies of all descriptors: zygote and memory must end all the same."""
    iterator = open_iterator(birth)
    ear, mouth = os.pipe()
    bystander = os.fork()
    if not bystander:
        os.close(mouth)
        os.read(ear, 1)
        os._exit(0)
    os.close(ear)
    life = iterator._backend._life
    with quickly():
        iterator.close()
    assert life.status == 0  # the zygote has left by itself
    assert os.waitpid(bystander, os.WNOHANG) == (0, 0)
    assert arena_blocks(bystander) == 0
    os.close(mouth)
    os.waitpid(bystander, 0)


def test_a_forked_child_does_not_disturb(birth: str) -> None:
    """It can neither ask for batches nor end the workers, and its copies are gone with it."""
    iterator = open_iterator(birth, prefetch_factor=1)
    child = os.fork()
    if not child:
        code = 1
        try:
            for _ in range(50):
                next(iterator)
        except RuntimeError as error:
            code = 0 if "was forked from it" in str(error) else 2
        finally:
            del iterator
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert [batch[0, 0] for batch in iterator] == list(range(2, 40, 2))


def test_report_in_a_forked_child_leaves_its_parent_alone(birth: str) -> None:
    how: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "output": "numpy", "prefetch_factor": 1}
    made = DataLoader(SAMPLES, multiprocessing_context=birth, **how)
    iterator: Any = iter(made)
    first = next(iterator)[0, 0]
    select.select([iterator._backend._life.channel.fileno()], [], [])  # the next lies there
    child = os.fork()
    if not child:
        code = 1
        try:
            report = made.report(stacks=True)
            code = 0 if "only the process that made the iterator" in str(report) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert [first, *(batch[0, 0] for batch in iterator)] == list(range(0, 40, 2))


def test_ctrl_c_while_the_zygote_is_born(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        pid = real()
        if pid:
            signal.raise_signal(signal.SIGINT)
        return pid

    real = os.fork
    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(KeyboardInterrupt):
        open_iterator("fork")


def test_ctrl_c_while_a_clean_one_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def spawnv(*arguments: Any) -> int:
        pid: int = real(*arguments)
        signal.raise_signal(signal.SIGINT)
        return pid

    real = util.spawnv_passfds
    monkeypatch.setattr(util, "spawnv_passfds", spawnv)
    with pytest.raises(KeyboardInterrupt):
        open_iterator("forkserver")


def test_ctrl_c_in_the_last_steps_of_a_birth(monkeypatch: pytest.MonkeyPatch, birth: str) -> None:
    """No other process knows of the zygote then."""

    def descriptor(pid: int) -> int | None:
        if pid != os.getpid():
            signal.raise_signal(signal.SIGINT)
        return real(pid)

    real = linux.process_descriptor
    monkeypatch.setattr(linux, "process_descriptor", descriptor)
    with pytest.raises(KeyboardInterrupt):
        open_iterator(birth)


def test_threads_of_the_thread_backend() -> None:
    loader: Any = DataLoader(SAMPLES, num_workers=2, output="numpy", worker_method="thread")
    iterator = iter(loader)
    next(iterator)
    with quickly():
        del iterator


# Programs


EXITS = {
    "open iterator": "it = iter(loader(Data())); next(it); say_pids(it)",
    "open iterator, workers busy": "it = iter(loader(Stuck())); next(it); say_pids(it)",
    "open iterator in a cycle": "it = iter(loader(Data())); next(it); say_pids(it); it.me = it; del it",
    "open iterator and a kept batch": "it = iter(loader(Data())); b = next(it); v = b[0]; say_pids(it)",
    "persistent workers": "l = loader(Data(), persistent_workers=True); it = iter(l); next(it); say_pids(it)",
    "worker threads": "it = iter(DataLoader(Data(), num_workers=2, worker_method='thread')); next(it); say('pids')",
    "sys.exit": "it = iter(loader(Data())); next(it); say_pids(it); sys.exit(0)",
}


@pytest.mark.parametrize("how", EXITS)
def test_interpreter_exit(start: Any, birth: str, how: str) -> None:
    program = start(birth, EXITS[how])
    program.watched()
    with quickly():
        program.all_gone()
    assert program.end() == (0, "")


@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c(start: Any, birth: str, signals: int) -> None:
    """To the whole process group, as a terminal sends it, while all workers are busy."""
    program = start(birth, "it = iter(loader(Stuck())); next(it); say_pids(it); next(it); say('waits'); next(it)")
    pids = program.watched()
    program.is_stuck()
    program.hears("waits")
    with quickly():
        os.killpg(program.pid, signal.SIGINT)
        if signals == 2:
            os.killpg(program.pid, signal.SIGINT)
        program.all_gone()
    status, errors = program.end()
    assert status == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert len(pids) == 3 and "stoker-" not in errors


def test_ctrl_c_that_the_program_survives(start: Any, birth: str) -> None:
    """Workers do not hear it: the epoch goes on where it was."""
    program = start(
        birth,
        """
        it = iter(loader([np.full(20_000, index) for index in range(40)]))
        numbers = [next(it)[0, 0]]
        say_pids(it)
        try:
            say("waits")
            while True:
                pass
        except KeyboardInterrupt:
            numbers += [batch[0, 0] for batch in it]
        assert numbers == list(range(0, 40, 2)), numbers
        """,
    )
    program.watched()
    program.hears("waits")
    os.killpg(program.pid, signal.SIGINT)
    assert program.end() == (0, "")


WAITS = "it = iter(loader({data}())); next(it); say_pids(it); signal.pause()"


@pytest.mark.parametrize("data", ["Data", "Stuck"])
def test_trainer_is_killed(start: Any, birth: str, data: str) -> None:
    program = start(birth, WAITS.format(data=data))
    program.watched()
    if data == "Stuck":
        program.is_stuck()
    with quickly():
        os.kill(program.pid, signal.SIGKILL)
        program.all_gone()


@pytest.mark.parametrize("data", ["Data", "Stuck"])
def test_trainer_and_zygote_are_killed(start: Any, birth: str, data: str) -> None:
    program = start(birth, WAITS.format(data=data))
    zygote, *_ = program.watched()
    if data == "Stuck":
        program.is_stuck()
    with quickly():
        os.kill(zygote, signal.SIGKILL)
        os.kill(program.pid, signal.SIGKILL)
        program.all_gone()


@pytest.mark.parametrize("data", ["Data", "Stuck"])
def test_trainer_is_killed_while_the_zygote_is_stopped(start: Any, birth: str, data: str) -> None:
    program = start(birth, WAITS.format(data=data))
    zygote, *_ = program.watched()
    if data == "Stuck":
        program.is_stuck()
    with quickly():
        os.kill(zygote, signal.SIGSTOP)
        os.kill(program.pid, signal.SIGKILL)
        program.all_gone()


def test_trainer_is_killed_and_a_child_of_it_holds_our_sockets(start: Any, birth: str) -> None:
    program = start(
        birth,
        """
        it = iter(loader(Stuck()))
        next(it)
        bystander = os.fork()
        if bystander:
            say_pids(it)
        signal.pause()
        """,
    )
    program.watched()
    program.is_stuck()
    with quickly():
        os.kill(program.pid, signal.SIGKILL)
        program.all_gone()


def test_trainer_is_killed_while_a_clean_zygote_is_born(start: Any) -> None:
    """It imports modules and unpacks the dataset, which may take minutes."""
    program = start(
        "spawn",
        """
        class Slow(Data):
            def __reduce__(self):
                return select.select, ([], [], [])
        it = iter(loader(Slow()))
        say_pids(it)
        signal.pause()
        """,
    )
    program.watched()
    with quickly():
        os.kill(program.pid, signal.SIGKILL)
        program.all_gone()


@pytest.mark.parametrize("victim", ["nobody", "zygote"])
def test_trainer_is_pid_1(start: Any, birth: str, victim: str) -> None:
    """It inherits orphans, and must reap those that are ours."""
    if subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True).returncode:
        pytest.skip("no process namespace can be made here")
    program = start(
        birth,
        f"""
        assert os.getpid() == 1
        it = iter(loader(Data()))
        next(it)
        start = time.monotonic()
        if {victim!r} == "zygote":
            os.kill(it._backend.pids[0], signal.SIGKILL)
        it.close()
        assert time.monotonic() - start < {QUICK}
        others = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        names = {{other: __import__("pathlib").Path(f"/proc/{{other}}/comm").read_text().strip() for other in others}}
        say("left", *(other for other in others if names[other] != "stoker-template"))  # which ends with the loader
        """,
        before=["unshare", "--pid", "--fork", "--mount-proc"],
    )
    assert program.hears("left") == []
    assert program.end() == (0, "")


def test_a_trainer_that_never_reads(start: Any, birth: str) -> None:
    """The requested batches are made, and then no process uses any CPU."""
    program = start(
        birth,
        """
        class Counted(Data):
            def __init__(self):
                self.ear, self.mouth = os.pipe()
                os.set_blocking(self.ear, False)
            def __getitem__(self, index):
                os.write(self.mouth, b".")
                return super().__getitem__(index)

        def cpu():
            texts = [Path(f"/proc/{pid}/schedstat").read_text() for pid in it._backend.pids]
            return [int(text.split()[0]) / 1e9 for text in texts]

        data = Counted() if BIRTH == "fork" else Data()
        it = iter(loader(data, prefetch_factor=3))
        next(it)
        if BIRTH == "fork":  # 6 batches under way and the one that was delivered
            made = 0
            while made < 14:
                select.select([data.ear], [], [], 10)
                made += len(os.read(data.ear, 1000))
            gone = select.select([data.ear], [], [], 0.2)[0]
            assert not gone and made == 14, made
        else:
            select.select([], [], [], 0.5)
        before = cpu()
        select.select([], [], [], 1.0)
        used = [after - start for after, start in zip(cpu(), before)]
        assert max(used) < 0.005, used
        assert len(it._backend._units) <= 6
        say("idle")
        """,
    )
    program.hears("idle")
    assert program.end() == (0, "")


def test_forked_child_has_workers_of_its_own(birth: str) -> None:
    loader = DataLoader(
        SAMPLES,
        batch_size=2,
        num_workers=2,
        output="numpy",
        persistent_workers=True,
        multiprocessing_context=birth,
        timeout=20,
    )
    iterator = iter(loader)
    first = next(iterator)[0, 0]
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if [batch[0, 0] for batch in loader] == list(range(0, 40, 2)) else 2
            loader.close()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert [first, *(batch[0, 0] for batch in iterator)] == list(range(0, 40, 2))
    loader.close()


@pytest.mark.parametrize("how", [{"worker_method": "thread"}, {}], ids=["threads", "processes"])
def test_a_forked_child_is_refused_a_batch_of_its_parents(how: Any) -> None:
    iterator = iter(DataLoader(SAMPLES, batch_size=2, num_workers=2, output="numpy", prefetch_factor=1, **how))
    first = next(iterator)[0, 0]
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(20)
            for _ in range(50):
                next(iterator)
        except RuntimeError as error:
            code = 0 if "was forked from it" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert [first, *(batch[0, 0] for batch in iterator)] == list(range(0, 40, 2))
