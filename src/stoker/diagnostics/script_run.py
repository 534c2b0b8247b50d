"""`ScriptRun`: runs an unchanged program in a process of its own, and measures its loaders and its processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from stoker._core.machine.gpu_activity import GpuActivity
from stoker.diagnostics import attach
from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.process_tree import ProcessTree

ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals after which a program counts as interrupted. Windows lacks the last one."""

PASSED_ON = (*ENDING, "SIGUSR1", "SIGUSR2")
"""Signals that are passed on to the program. Slurm announces the end of a job by the last two."""

POLL = 0.1
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
        command: the program and its arguments.
        engine: "torch" measures the loaders as they are, "stoker" puts Stoker's engine in their place.
        stdout: its standard output; None for this process's.
        composition: whether the samples of batches are noted: their order, classes and lengths.

    Attributes:
        measurements: what is known so far.
    """

    def __init__(
        self,
        command: Sequence[str],
        engine: Literal["torch", "stoker"] = "torch",
        stdout: IO[Any] | int | None = None,
        composition: bool = False,
    ) -> None:
        self._command = list(command)
        self._engine = engine
        self._stdout = stdout
        self._composition = composition
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
        environment = self._environment(folder)
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
                    process.wait(POLL)
            gpus.close()
            known.interrupted = bool(interrupts)
            known.until = time.perf_counter()
            known.read(folder)
        return process.returncode if process.returncode >= 0 else 128 - process.returncode

    def _environment(self, folder: str) -> dict[str, str]:
        path = [STARTUP, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            attach.FOLDER: folder,
            attach.ENGINE: self._engine,
            attach.DETAILED: "1",
            attach.COMPOSITION: "1" if self._composition else "",
        }


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
