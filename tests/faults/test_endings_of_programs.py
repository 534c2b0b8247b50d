"""Programs that end, or go on, as real ones do: what they exit with, that nothing is printed, and that nothing stays.

A process of theirs is known by its session and by a mark in its environment, which it inherits from the program. All
are in one file, since all state the same: `Ending.over`.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

pytestmark = pytest.mark.slow

QUICK = 2.0
"""Seconds after the program's end when nothing of it is left."""

DEADLINE = 100.0
"""Until a program ends: machines are busy."""

FROZEN = 1.2
"""Seconds for which a program is frozen."""

LINES = """
import atexit

def right(it, first, count):
    numbers = [int(next(it)[1, -1]) for _ in range(count)]
    assert numbers == list(range(2 * first + 1, 2 * (first + count), 2)), numbers

def joined(thread):
    thread.join(20)
    assert not thread.is_alive()

def told():
    assert sys.stdin.readline()
"""


def is_of(program: Any, mark: bytes, pid: int) -> bool:
    """Whether this process belongs to the program. Corpses do not: an orphan's is init's business."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[:4]
        marked = mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return state not in "ZX" and (int(session) == program.pid or marked)


class Ending:
    """A program of which it will be stated how it ended."""

    def __init__(self, program: Any, mark: str, scratch: Path) -> None:
        self._program = program
        self._mark = mark.encode()
        self._scratch = scratch
        self._shared = set(os.listdir("/dev/shm"))
        self.pid: int = program.pid
        self.descriptor = os.pidfd_open(program.pid)
        self.hears: Callable[[str], list[str]] = program.hears
        self.told: Callable[[], None] = program.told
        self.is_stuck: Callable[[], None] = program.is_stuck

    def processes(self) -> list[int]:
        numbers = (int(name) for name in os.listdir("/proc") if name.isdigit())
        return [pid for pid in numbers if is_of(self._program, self._mark, pid)]

    def over(self, within: float = DEADLINE) -> tuple[int, str]:
        """Its exit status and its standard error, when all its processes have gone in time, and left nothing."""
        assert select.select([self.descriptor], [], [], within)[0], f"the program did not end within {within:g} s"
        until = time.monotonic() + QUICK
        while left := self.processes():
            with contextlib.suppress(ProcessLookupError):  # it has gone meanwhile
                descriptor = os.pidfd_open(left[0])
                ended = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]
                os.close(descriptor)
                assert ended, f"{len(left)} processes have stayed"
        said, errors = self._program._process.communicate(timeout=QUICK)
        print(errors.decode())  # pytest shows it where something fails
        assert not said and not self._program._said and not self._program._lines, "it said more"
        assert os.listdir(self._scratch) == []
        assert not self._shared_files()
        return self._program._process.returncode, errors.decode()

    def _shared_files(self) -> set[str]:
        """What is new in /dev/shm and bears our name or the program's number: others run beside."""
        new = set(os.listdir("/dev/shm")) - self._shared
        return {name for name in new if "stoker" in name or str(self.pid) in name}

    def close(self) -> None:
        os.close(self.descriptor)


Begin = Callable[..., Ending]


@pytest.fixture
def begin(start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Starts a program of these lines, behind `PRELUDE` and `LINES`."""
    mark = f"STOKER_PROGRAM={tmp_path}"
    with contextlib.ExitStack() as endings:
        # Sockets lie in it, whose paths may be no longer than 107 bytes
        scratch = Path(endings.enter_context(tempfile.TemporaryDirectory(prefix="st-", ignore_cleanup_errors=True)))

        def program(birth: str, lines: str) -> Ending:
            monkeypatch.setenv(*mark.split("="))
            monkeypatch.setenv("TMPDIR", str(scratch))
            ending = Ending(start(birth, LINES + dedent(lines)), mark, scratch)
            endings.callback(ending.close)
            return ending

        yield program


# Signals

IDLE = """
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever the caller of this test has set, as by nohup
        it = iter(loader(Data()))
        right(it, 0, 3)
        say("here")
        signal.pause()
        """
BUSY = "it = iter(loader(Stuck())); right(it, 0, 2); say('here'); next(it)"


@pytest.mark.parametrize(
    ("number", "how", "lines"),
    [
        (signal.SIGTERM, "fork", BUSY),
        (signal.SIGTERM, "forkserver", BUSY),
        (signal.SIGHUP, "fork", IDLE),
    ],
    ids=["SIGTERM, fork", "SIGTERM, clean", "SIGHUP, idle, fork"],
)
def test_a_signal_that_ends_the_trainer(begin: Begin, number: int, how: str, lines: str) -> None:
    program = begin(how, lines)
    program.hears("here")
    if lines == BUSY:
        program.is_stuck()
    os.kill(program.pid, number)
    assert program.over() == (-number, "")


@pytest.mark.parametrize(("how", "whom"), [("fork", os.killpg), ("forkserver", os.kill)], ids=["group", "trainer"])
def test_a_handler_that_leaves(begin: Begin, how: str, whom: Callable[[int, int], None]) -> None:
    """As where a job's scheduler warns all its processes. The handler is the trainer's: no worker runs it."""
    program = begin(
        how,
        """
        def leave(number, frame):
            say("leaves")
            sys.exit(3)
        signal.signal(signal.SIGTERM, leave)
        """
        + f"\n        {BUSY}",
    )
    program.hears("here")
    program.is_stuck()
    whom(program.pid, signal.SIGTERM)
    program.hears("leaves")
    assert program.over() == (3, "")


def test_a_hang_up_that_is_ignored(begin: Begin, birth: str) -> None:
    """As under nohup: workers ignore it too."""
    program = begin(
        birth,
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        it = iter(loader(Data()))
        right(it, 0, 3)
        say("here")
        told()
        right(it, 3, 30)
        """,
    )
    program.hears("here")
    os.killpg(program.pid, signal.SIGHUP)
    program.told()
    assert program.over() == (0, "")


FREEZES = """
        from stoker._engine.fork import trainer
        trainer.PULSE, trainer.HUNG, trainer.FROZEN = PULSE, 0.4, 0.1

        class Gated(Data):
            def __getitem__(self, index):
                if index == 10:
                    say("waits")
                    os.read(os.open(GATE, os.O_RDONLY), 1)
                return super().__getitem__(index)

        it = iter(loader(Gated(), **SETTINGS))
        right(it, 0, 5)
        say("asks")
        right(it, 5, 30)
"""


@pytest.mark.parametrize(
    ("whom", "ready", "settings", "pulse"),
    [
        (os.kill, "in time", {"timeout": 1}, 0.2),
        (os.kill, "later", {}, 0.2),
        (os.killpg, "later", {"timeout": 1}, 0.2),
        (os.killpg, "later", {"timeout": 1}, 5.0),
    ],
    ids=["trainer, with a timeout", "trainer", "group, with a timeout", "group, with a timeout before the next look"],
)
def test_a_program_that_is_frozen(
    begin: Begin, tmp_path: Path, whom: Callable[[int, int], None], ready: str, settings: dict[str, Any], pulse: float
) -> None:
    """For longer than any of its deadlines, while it waits for a batch. The time that it slept does not count."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    program = begin(
        "fork",
        FREEZES.replace("SETTINGS", repr(settings)).replace("GATE", repr(str(gate))).replace("= PULSE", f"= {pulse}"),
    )
    program.hears("waits")
    program.hears("asks")
    key = os.open(gate, os.O_RDWR)  # which does not wait for a reader
    try:
        whom(program.pid, signal.SIGSTOP)
        if ready == "in time":
            os.write(key, b"x")
        assert not select.select([program.descriptor], [], [], FROZEN)[0]
        whom(program.pid, signal.SIGCONT)
        if ready == "later":
            os.write(key, b"x")
        assert program.over() == (0, "")
    finally:
        os.close(key)


# Leaving


def test_os_exit(begin: Begin) -> None:
    """Nothing of Python's runs: neither finalisers nor what `atexit` knows."""
    program = begin(
        "fork",
        """
        atexit.register(say, "never")
        quick, it = iter(loader(Data())), iter(loader(Stuck()))
        right(quick, 0, 7)
        right(it, 0, 2)
        say("here")
        told()
        threading.Thread(target=os._exit, args=(7,)).start()
        next(it)
        """,
    )
    program.hears("here")
    program.is_stuck()
    program.told()
    assert program.over() == (7, "")


ERRORS = {
    "sample": (
        """
        class Fails(Data):
            def __getitem__(self, index):
                if index == 11:
                    raise ZeroDivisionError("of a sample")
                return super().__getitem__(index)
        it = iter(loader(Fails()))
        """,
        r"ZeroDivisionError: Caught ZeroDivisionError in DataLoader worker process \d, at sample 11\.",
    ),
    "sampler": (
        """
        def indices():
            yield from range(10)
            raise ZeroDivisionError("of a sampler")
        class Sampler:
            def __iter__(self):
                return indices()
        it = iter(loader(Data(), sampler=Sampler()))
        """,
        r"ZeroDivisionError: of a sampler$",
    ),
}


@pytest.mark.parametrize("whose", ERRORS)
def test_uncaught_error_ends_the_workers(begin: Begin, whose: str) -> None:
    lines, text = ERRORS[whose]
    program = begin("fork", lines + "\n        right(it, 0, 5)\n        for batch in it: say('too many')")
    status, errors = program.over()
    assert status == 1
    assert re.search(text, errors, re.MULTILINE)
    assert not re.search("ignored|resource_tracker|Warning", errors)


def test_iterators_that_are_kept(begin: Begin) -> None:
    """By a thread, by a thread that waits for the end, by a module, by an error in whose traceback they stand."""
    program = begin(
        "fork",
        """
        def work():
            it = iter(loader(Data()))
            right(it, 0, 3)
            ready.set()
            threading.main_thread().join()
            right(it, 3, 3)

        def train():
            it = iter(loader(Data()))
            it.me = it
            right(it, 0, 3)
            raise ZeroDivisionError

        keeps = threading.local()
        keeps.it, threading.kept = iter(loader(Data())), iter(loader(Data()))
        right(keeps.it, 0, 3)
        right(threading.kept, 0, 3)
        ready = threading.Event()
        threading.Thread(target=work).start()
        assert ready.wait(20)
        try:
            train()
        except ZeroDivisionError as error:
            kept = error
        """,
    )
    assert program.over() == (0, "")


def test_functions_that_ask_for_more_at_exit(begin: Begin) -> None:
    """They run before ours, if they were registered after the first iterator began. Python 3.12 forks no more then."""
    program = begin(
        "fork",
        """
        it = iter(loader(Data()))
        right(it, 0, 3)
        atexit.register(right, it, 3, 3)
        if sys.version_info[:2] != (3, 12):
            atexit.register(lambda: right(iter(loader(Data())), 0, 3))
        """,
    )
    assert program.over() == (0, "")


def test_a_function_that_asks_too_late(begin: Begin) -> None:
    program = begin(
        "fork",
        """
        def more():
            try:
                next(it)
            except RuntimeError as error:
                say("error", error)
        atexit.register(more)  # before anything of ours: so it runs after all of ours
        it = iter(loader(Data()))
        right(it, 0, 3)
        """,
    )
    assert "closed" in program.hears("error")
    assert program.over() == (0, "")


# Threads

NO_FORK_AT_THE_END = pytest.mark.skipif(
    sys.version_info[:2] == (3, 12), reason="os.fork raises an error as soon as this Python begins to end"
)

DAEMONS = {
    "waiting": """
        def work(ready):
            it = iter(loader(Stuck()))
            right(it, 0, 2)
            ready.set()
            next(it)
        """,
    "iterating": """
        def work(ready):
            it = iter(loader(range(100_000_000), batch_size=1))
            for number, batch in enumerate(it):
                assert batch == number
                if number == 10:
                    ready.set()
        """,
    "beginning": """
        def work(ready):
            while True:
                right(iter(loader(Data())), 0, 2)
                ready.set()
        """,
}


@pytest.mark.parametrize(
    ("how", "doing"),
    [
        ("fork", "waiting"),
        ("fork", "iterating"),
        pytest.param("fork", "beginning", marks=NO_FORK_AT_THE_END),
        ("forkserver", "waiting"),
    ],
)
def test_daemon_threads_at_the_end(begin: Begin, how: str, doing: str) -> None:
    program = begin(
        how,
        DAEMONS[doing]
        + """
        all_ready = [threading.Event() for _ in range(3)]
        for ready in all_ready:
            threading.Thread(target=work, args=(ready,), daemon=True).start()
        for ready in all_ready:
            assert ready.wait(20)
        say("here")
        """,
    )
    program.hears("here")
    if doing == "waiting":
        for _ in range(3):
            program.is_stuck()
    assert program.over(within=QUICK) == (0, "")


@pytest.mark.parametrize("how", ["fork", "forkserver"])
def test_a_thread_that_trains_after_the_main_one_has_ended(begin: Begin, how: str) -> None:
    """The program is over when its last thread is that is no daemon."""
    program = begin(
        how,
        """
        def work(iterator):
            threading.main_thread().join(20)
            right(iterator, 3, 10)
            for _ in range(2):
                right(iter(loader(Data())), 0, 30)
            say("trained")
        it = iter(loader(Data()))
        right(it, 0, 3)
        threading.Thread(target=work, args=(it,)).start()
        """,
    )
    program.hears("trained")
    assert program.over() == (0, "")


def test_sys_exit_in_a_thread(begin: Begin) -> None:
    """It ends the thread, and what the thread alone held; another's iterator goes on."""
    program = begin(
        "fork",
        """
        def work():
            mine = iter(loader(Data()))
            right(mine, 0, 3)
            pids.extend(mine._backend.pids)
            sys.exit(4)
        it, pids = iter(loader(Data())), []
        right(it, 0, 3)
        thread = threading.Thread(target=work)
        thread.start()
        joined(thread)
        assert not Path(f"/proc/{pids[0]}").exists()
        right(it, 3, 30)
        """,
    )
    assert program.over() == (0, "")


def test_nested_in_threads(begin: Begin) -> None:
    """Threads that iterate over loaders, whose own threads make samples of batches of further loaders' processes."""
    program = begin(
        "fork",
        """
        class Nested:
            def __init__(self):
                self.of_thread = threading.local()
            def __len__(self):
                return 6
            def __getitem__(self, index):
                if not hasattr(self.of_thread, "it"):
                    self.of_thread.it, self.of_thread.done = iter(loader(Data(), num_workers=1)), 0
                right(self.of_thread.it, self.of_thread.done, 2)
                self.of_thread.done += 2
                return index

        def work(workers):
            for _ in range(2):
                batches = DataLoader(Nested(), 2, num_workers=workers, worker_method="thread")
                assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]
            finished.append(workers)

        finished = []
        threads = [threading.Thread(target=work, args=(workers,)) for workers in (2, 0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            joined(thread)
        assert len(finished) == 3
        """,
    )
    assert program.over() == (0, "")


# Other processes

CHILDREN = """
        def use(how):
            right(iter(data), 0, 4)
            if how == "sys.exit":
                sys.exit(3)
            if how == "os._exit":
                os._exit(3)

        def fork(how):
            child = os.fork()
            if not child:
                use(how)
                os._exit(1)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        def process(how):
            child = multiprocessing.get_context("fork").Process(target=use, args=(how,))
            child.start()
            child.join(20)
            return child.exitcode

        data = loader(Data())
        it = iter(data)
        right(it, 0, 3)
        done = 3
        for kind, how in [(fork, "sys.exit"), (fork, "os._exit"), (process, "sys.exit"), (process, "return")]:
            assert kind(how) == (0 if how == "return" else 3)
            right(it, done, 3)
            done += 3
        right(it, done, 30)
"""


def test_a_trainer_that_forks(begin: Begin) -> None:
    """Its children open iterators of their own over its loader, in the middle of its epoch."""
    assert begin("fork", CHILDREN).over() == (0, "")


def test_a_child_that_outlives_the_trainer(begin: Begin) -> None:
    """It has copies of all that the trainer held, and an iterator of its own: that one goes on, and nothing else."""
    program = begin(
        "fork",
        """
        it = iter(loader(Data()))
        right(it, 0, 3)
        ear, mouth = os.pipe()
        if not os.fork():
            os.close(mouth)
            theirs = [os.pidfd_open(pid) for pid in it._backend.pids]
            mine = iter(loader(Data()))
            right(mine, 0, 3)
            say("here")
            assert os.read(ear, 1) == b""  # the trainer has ended
            for descriptor in theirs:
                assert select.select([descriptor], [], [], 2.0)[0]
            right(mine, 3, 30)
            say("right")
            sys.exit(0)
        told()
        """,
    )
    program.hears("here")
    program.told()
    program.hears("right")
    assert program.over() == (0, "")


WORK = """
import numpy as np
from stoker import DataLoader

class Data:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return np.full(20_000, index)

def work(number):
    global kept
    it = iter(DataLoader(Data(), batch_size=2, num_workers=1, output="numpy"))
    numbers = [int(next(it)[1, -1]) for _ in range(4)]
    if number == 3:
        kept = it  # until its process ends
    return numbers
"""


@pytest.mark.parametrize(
    ("how", "pools"),
    [("fork", ["context.Pool(2)", "ProcessPoolExecutor(2, context)"]), ("forkserver", ["context.Pool(1)"])],
    ids=["fork", "clean"],
)
def test_loader_in_a_process_pool_ends_with_the_pool(begin: Begin, tmp_path: Path, how: str, pools: list[str]) -> None:
    """Also where they are daemons, to which multiprocessing allows no children, and which it ends by SIGTERM."""
    (tmp_path / "of_the_pool.py").write_text(WORK)
    program = begin(
        how,
        f"""
        from concurrent.futures import ProcessPoolExecutor
        from of_the_pool import work
        context = multiprocessing.get_context(BIRTH)
        for make in {pools}:
            with eval(make) as pool:
                assert list(pool.map(work, range(4))) == [[1, 3, 5, 7]] * 4
        """,
    )
    assert program.over() == (0, "")


def test_nested_in_processes(begin: Begin, birth: str) -> None:
    """A worker whose samples come from workers of its own; some are at work when the outermost iterator ends."""
    program = begin(
        birth,
        """
        class Nested:
            def __len__(self):
                return 8
            def __getitem__(self, index):
                it = iter(loader(Data(), num_workers=1, multiprocessing_context="fork"))
                right(it, 0, 3)
                if index == 3:
                    self.kept = it
                return np.full(20_000, index)

        right(iter(loader(Nested())), 0, 4)
        it = iter(loader(Nested()))
        right(it, 0, 2)
        """,
    )
    assert program.over() == (0, "")
