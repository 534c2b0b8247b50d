"""`WatchedProgram`: a program with our hooks in a process of its own, which we end, with all that it has started.

`stoker run` lets a program go on until it ends, on the user's terminal. `stoker compare` and `stoker tune` start
programs many times, and `stoker profile` ends them early: output goes to a file, and Ctrl-C ends them at once.
`ScriptRun` measures the loaders and processes of a program that runs so.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

from stoker._core.machine import memory, reserve
from stoker._core.machine.gpu_activity import GpuActivity
from stoker.diagnostics import attach
from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.process_tree import ProcessTree
from stoker.diagnostics.settings.batch_limit import BatchLimit, ProfileOrder
from stoker.diagnostics.settings.setting_trial import Override

POLL = 0.05
"""Seconds between two looks at the program."""

GRACE = 5.0
"""Seconds that a program may take to end itself, once enough was measured."""

LEFT = 64 << 20
"""Bytes of memory below which a program is killed: between two looks it may take some of them."""

SHARE = 0.03
"""Share of one CPU that reading the memory may take: runs are short."""

TAIL = 8192
"""Bytes at the end of the output in which an error is looked for."""

DELETED = (
    "unknown, because its output and the records of the measurement were deleted from the folder for temporary files "
    "while it ran: if the program cleans that folder, have it delete its own files only"
)
"""In place of the last line of a program's output."""

TOO_LATE = "it had not given enough batches in time"
"""The failure of a program that was ended before it had reached its limit."""

Engine = Literal["torch", "stoker"]


class WatchedProgram:
    """A program while it runs, as a context manager; the end of the block kills what is left of it.

    It has no standard input, and a process group of its own: a terminal's Ctrl-C reaches this process only.

    Args:
        engine: "torch" leaves the loaders as they are, "stoker" puts Stoker's engine in their place.
        limit: ends the program after some batches.
        asked: whether the program is sent lines on its standard input.
        profile: what is to be profiled in it; None for no profile.

    Attributes:
        measurements: of its loaders and processes, up to the last `look()`.
        shortage: why it was killed, if it took too much memory; else None.
    """

    def __init__(
        self,
        command: Sequence[str],
        engine: Engine = "torch",
        limit: BatchLimit | None = None,
        override: Override | None = None,
        asked: bool = False,
        profile: ProfileOrder | None = None,
    ) -> None:
        self._command = list(command)
        self._variables = {
            attach.ENGINE: engine,
            attach.LIMIT: "" if limit is None else limit.as_text(),
            attach.OVERRIDE: "" if override is None else override.as_text(),
            attach.PROFILE: "" if profile is None else profile.as_text(),
        }
        self._stdin = subprocess.PIPE if asked else subprocess.DEVNULL
        self.measurements = Measurements()
        self.shortage: str | None = None

    def __enter__(self) -> Self:
        self._folder = tempfile.mkdtemp(prefix="stoker-run-")
        self.log = os.path.join(self._folder, "output")
        records = os.path.join(self._folder, "records")
        os.mkdir(records)
        self.measurements.begun = time.perf_counter()
        try:
            with open(self.log, "wb") as log:
                self._process = subprocess.Popen(
                    self._command,
                    env=_environment(records, self._variables),
                    stdin=self._stdin,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._records = records
        self._tree = ProcessTree(self._process.pid, SHARE)
        self._gpus = GpuActivity()
        self.measurements.samples, self.measurements.gpus = self._tree.samples, self._gpus.samples
        return self

    @property
    def stdin(self) -> IO[bytes]:
        """Returns the end of the pipe to its standard input."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def code(self) -> int | None:
        """Returns its exit code, 128 + n if signal n ended it; None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def look(self, wait: float = POLL) -> bool:
        """Reads what is new, and kills the program if memory runs out; returns whether the program runs.

        Args:
            wait: seconds until it ends, at most.
        """
        self._tree.sample_if_due()
        self._gpus.sample_if_due()
        self.measurements.read(self._records)
        if self.shortage is None and (short := shortage()) is not None:
            self.shortage = short
            self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait)
        self.measurements.until = time.perf_counter()
        if self._process.returncode is not None:
            self.measurements.read(self._records)
        return self._process.returncode is None

    def interrupt(self, wait: float) -> None:
        """Interrupts the program as Ctrl-C does, so that it ends by itself; reads what is new.

        Args:
            wait: seconds until it ends, at most.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait)
        self.measurements.read(self._records)

    def kill(self) -> None:
        """Kills the program and all that it has started. Idempotent."""
        if not hasattr(os, "killpg"):  # Windows
            self._process.kill()
            return
        for pid in self._tree.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def last_words(self) -> str:
        """Returns the last line of its output: of a traceback, the error."""
        try:
            with open(self.log, "rb") as file:
                file.seek(max(0, os.path.getsize(self.log) - TAIL))
                lines = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return DELETED
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:300] if said else "it printed nothing"

    def said(self, text: str) -> str | None:
        """Returns the first line of its output with this text; None if there is none."""
        with contextlib.suppress(FileNotFoundError), open(self.log, "rb") as file:
            for line in file:
                if text.encode() in line:
                    return line.decode(errors="replace").strip()
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._gpus.close()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def shortage() -> str | None:
    """Returns what is short, if less memory is left than half of what Stoker keeps free, or 64 MiB; else None.

    Of a small limit an eighth is enough.
    """
    left = memory.available()
    if left.bytes >= max(reserve.kept_free(left.limit) // 2, min(LEFT, left.limit // 8)):
        return None
    return f"{left.bytes >> 20} MiB of memory were left, limited by {left.source}"


def run_to_limit(program: WatchedProgram, seconds: float | None = None) -> str | None:
    """Waits until a program has reached its limit, and has ended; returns why it failed, or None.

    A program that has reached its limit has not failed, whatever its exit code is: other processes of it may have lost
    their partner.

    Args:
        seconds: that it may take; None for any.
    """
    begun, patience = time.perf_counter(), None
    while program.look():
        now = time.perf_counter()
        if program.measurements.enough is not None:
            patience = now + GRACE if patience is None else patience
            if now > patience:
                program.kill()
        elif seconds is not None and now - begun > seconds:
            program.kill()
            program.look(1.0)
            return TOO_LATE
    if program.shortage is not None:
        return program.shortage
    if program.measurements.enough is None and program.code:
        return f"it ended with exit code {program.code}: {program.last_words()}"
    return None


ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals after which a program counts as interrupted. Windows lacks the last one."""

PASSED_ON = (*ENDING, "SIGUSR1", "SIGUSR2")
"""Signals that are passed on to the program. Slurm announces the end of a job by the last two."""

LOOK = 0.1
"""Seconds between two looks at the program."""

STARTUP = str(Path(__file__).with_name("_startup"))
"""The folder with our `sitecustomize`."""


def command_of(script: str | None, module: str | None, arguments: Sequence[str]) -> list[str]:
    """Returns the command that runs a script or a module with this Python."""
    if module is not None:
        return [sys.executable, "-m", module, *arguments]
    assert script is not None
    return [sys.executable, script, *arguments]


class ScriptRun:
    """One run of a program, measured.

    Args:
        engine: "torch" measures the loaders as they are, "stoker" puts Stoker's engine in their place.
        stdout: its standard output; None for this process's.
        composition: whether the samples of batches are noted: their order, classes and lengths.
        auto: whether Stoker's engine also finds the number of workers of each loader.
    """

    def __init__(
        self,
        command: Sequence[str],
        engine: Literal["torch", "stoker"] = "torch",
        stdout: IO[Any] | int | None = None,
        composition: bool = False,
        auto: bool = False,
    ) -> None:
        self._command = list(command)
        self._variables = {
            attach.ENGINE: engine,
            attach.DETAILED: "1",
            attach.COMPOSITION: "1" if composition else "",
            attach.AUTO: "1" if auto else "",
        }
        self._stdout = stdout
        self.measurements = Measurements()

    def run(self, watch: Callable[[Measurements], None] | None = None) -> int:
        """Runs the program to its end; returns its exit code, 128 + n if signal n ended it.

        Ctrl-C, and signals to this process, reach the program as without us; a second Ctrl-C or SIGTERM while it still
        runs ends it by SIGKILL.

        Args:
            watch: called some times in a second.
        """
        folder = tempfile.mkdtemp(prefix="stoker-run-")
        try:
            before = _seconds_of_children()
            code = self._run(folder, watch)
            self.measurements.ended(_seconds_of_children() - before)
            return code
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, folder: str, watch: Callable[[Measurements], None] | None) -> int:
        known = self.measurements
        known.begun = time.perf_counter()
        environment = _environment(folder, self._variables)
        process = subprocess.Popen(self._command, env=environment, stdout=self._stdout)
        with process, _passed_on(process.pid) as interrupts:
            tree, gpus = ProcessTree(process.pid), GpuActivity(environment)
            known.samples, known.gpus, known.memory = tree.samples, gpus.samples, tree.memory
            while process.returncode is None:
                tree.sample_if_due()
                gpus.sample_if_due()
                known.read(folder)
                if watch is not None:
                    watch(known)
                if sum(kind in (signal.SIGINT, signal.SIGTERM) for kind in interrupts) > 1:
                    process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK)
            gpus.close()
            known.interrupted = bool(interrupts)
            known.until = time.perf_counter()
            known.read(folder)
        return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _environment(records: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a program that is measured into a folder of records."""
    path = [STARTUP, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), attach.FOLDER: records, **variables}


def _seconds_of_children() -> float:
    import resource  # here: Windows has none

    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextlib.contextmanager
def _passed_on(pid: int) -> Iterator[list[int]]:
    """Counts the interrupts that reach this process, and passes on signals that have not reached the program as well.

    A terminal sends Ctrl-C to both. Where this process ignores a signal, as SIGINT in the background of a shell, or
    SIGHUP under `nohup`, it still does. After a SIGHUP it is ignored: the kernel and a shell both send it.
    """
    counted: list[int] = []
    ending = {getattr(signal, name, None) for name in ENDING}

    def receive(number: int, frame: object) -> None:
        if number in ending:
            counted.append(number)
        if number != signal.SIGINT or not _in_foreground():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    kinds = [getattr(signal, name) for name in PASSED_ON if hasattr(signal, name)]
    before = {kind: signal.signal(kind, receive) for kind in kinds if signal.getsignal(kind) is not signal.SIG_IGN}
    try:
        yield counted
    finally:
        hangup = getattr(signal, "SIGHUP", None)
        for kind, handler in before.items():
            signal.signal(kind, signal.SIG_IGN if kind == hangup and hangup in counted else handler)


def _in_foreground() -> bool:
    """Returns whether this process is in the foreground of a terminal, which then sends its signals to the program."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
