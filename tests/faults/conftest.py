"""Programs that are brought to their end: each says what it has reached, and every wait for it has a deadline."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from types import TracebackType

import pytest

DEADLINE = 100.0
"""Until a program says what it is waited for: machines are busy."""

PRELUDE = r'''
import gc, multiprocessing, os, select, signal, sys, threading, time, warnings
from pathlib import Path
import numpy as np
from stoker import DataLoader

class Data:
    """Samples above the size from which they travel in a slot."""
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return np.full(20_000, index)

class Stuck(Data):
    """From a sample on, workers are busy for ever, and say so."""
    def __getitem__(self, index):
        if index >= 4:
            os.write(1, b"stuck\n")
            select.select([], [], [])
        return super().__getitem__(index)

BIRTH = sys.argv[1]
warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than CPUs

def loader(data, **settings):
    settings = dict(batch_size=2, num_workers=2, output="numpy", multiprocessing_context=BIRTH) | settings
    return DataLoader(data, **settings)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # at once, since workers say things too

def say_pids(iterator):
    say("pids", *iterator._backend.pids)
'''


class Program:
    """A running program that says words, line by line."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._said = b""
        self._lines: list[list[str]] = []
        self._pidfds: list[int] = []

    def hears(self, name: str) -> list[str]:
        """Waits for a line that begins with this word; returns the words behind it. Each line is heard once."""
        assert self._process.stdout is not None
        until = time.monotonic() + DEADLINE
        while True:
            for place, words in enumerate(self._lines):
                if words[:1] == [name]:
                    return self._lines.pop(place)[1:]
            ready = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))[0]
            data = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                pytest.fail(f"the program did not say {name!r}, but {self._lines} and {self.end()}", pytrace=False)
            *lines, self._said = (self._said + data).split(b"\n")
            self._lines += [line.decode().split() for line in lines]

    def told(self) -> None:
        """Writes it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def watched(self) -> list[int]:
        """Its zygote's and workers' pids, as it says them; from now on `all_gone` waits for them."""
        pids = [int(word) for word in self.hears("pids")]
        self._pidfds = [os.pidfd_open(self.pid)]  # our child: at least its corpse is there
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself, since it was named
                self._pidfds.append(os.pidfd_open(pid))
        return pids

    def is_stuck(self) -> None:
        """Waits until both its workers are busy for ever."""
        self.hears("stuck")
        self.hears("stuck")

    def all_gone(self, within: float = 2.0, but: int | None = None) -> None:
        """Waits for the end of all processes that it named, and its own, unless that is `but`."""
        until = time.monotonic() + within
        for descriptor in self._pidfds[1:] if but == self.pid else self._pidfds:
            assert select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0], "a process has stayed"

    def end(self) -> tuple[int, str]:
        """Its exit status, and what it wrote to its standard error."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, errors = self._process.communicate(timeout=DEADLINE)
            return self._process.returncode, errors.decode()
        self._process.kill()
        self._process.communicate()
        pytest.fail("the program did not end", pytrace=False)

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.communicate()
        for descriptor in self._pidfds:
            os.close(descriptor)


Start = Callable[..., Program]


@pytest.fixture(autouse=True)
def no_core_dumps() -> Iterator[None]:
    """Workers crash on purpose, and leave no files about it."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.fixture(params=["fork", "forkserver"])
def birth(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program of these lines, behind `PRELUDE`; `before` is a command that runs it."""
    with contextlib.ExitStack() as programs:

        def program(birth: str, lines: str, before: Sequence[str] = ()) -> Program:
            path = tmp_path / "program.py"
            main = "\nif __name__ == '__main__':\n" + "\n".join("    " + line for line in dedent(lines).splitlines())
            path.write_text(PRELUDE + main)
            environment = {**os.environ, "STOKER_TORCH": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            command = [*before, sys.executable, "-W", "error", str(path), birth]
            return programs.enter_context(Program(command, environment))

        yield program
