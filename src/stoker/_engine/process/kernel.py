"""What the process backend asks of the kernel beyond Python's `os`: descriptors of processes, death signals, names.

Linux first; where a call does not exist, sockets closing tell of a death instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from stoker._engine.process.deadlines import REAP

_SET_DEATH_SIGNAL = 1
_SET_NAME = 15
_EXITING = 4  # among the flags of a process
_FUTEX = {"x86_64": "202", "aarch64": "98"}


CLOSED = -256
"""Stands for the exit code of a worker that has closed its connection and went on, for which it was ended."""


def process_descriptor(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends, whoever reaps it; None where there is none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # a kernel before 5.3, or a filter of system calls
        return None


def has_ended(descriptor: int | None) -> bool:
    """Whether the process behind a descriptor has ended. False where user code has closed it, or opened another file
    in its place."""
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, 0)
    except OSError as error:
        if error.errno == errno.EBADF:
            return False
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when the thread that forked it ends. Leaves at once if that happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def die_with_writers(pipe: int) -> None:
    """The kernel kills this process when nobody holds the pipe's other end, also while it is stopped."""
    import fcntl  # Windows has none, and no zygote either

    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC)
    poll = select.poll()
    poll.register(pipe, 0)
    if poll.poll(0):  # it happened already
        os._exit(1)


def die_first(pid: int) -> None:
    """Where memory runs out, the kernel ends this process, and none that cannot be replaced. Its children too."""
    with contextlib.suppress(OSError):  # there is no /proc, or the process has ended
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


def name_process(name: str) -> None:
    """What `ps` and `top` show for this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_NAME, name.encode()[:15], 0, 0, 0)


def give_back() -> None:
    """Memory that this process has freed, and that its `malloc` keeps for later, goes back to the kernel. Nothing where
    it is not glibc's."""
    trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def kill(pid: int, descriptor: int | None = None) -> None:
    """SIGKILL to a process; nothing if it is gone. Without a descriptor it must be a child that is not yet reaped."""
    with contextlib.suppress(ProcessLookupError):
        if descriptor is None:
            os.kill(pid, signal.SIGKILL)
        else:  # somebody else may have reaped it, and its number may be another's by now
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)


def reap(pid: int, seconds: float) -> int | None:
    """Waits for a child's end; its exit code (a signal's number negative), None if it was reaped or takes too long."""
    until = time.monotonic() + seconds
    pause = 0.0005
    while True:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(pause)
        pause = min(pause * 2, 0.01)


def end(pid: int) -> None:
    """Kills a child that nobody else knows of yet, and waits for its end."""
    kill(pid)
    reap(pid, REAP)


def told(code: int | None) -> str:
    """How a process ended, in words; its exit code is the negative number of a signal that killed it."""
    if code is None:
        return "ended, and its status was taken by somebody else's wait"
    if code == CLOSED:
        return "has closed its connection to us (os.closerange(), or a library that makes it a daemon?) and was ended"
    if code < 0:
        return f"is killed by signal: {signal.strsignal(-code) or -code}"
    return f"exited unexpectedly with exit code {code}"


def waits_for_a_lock(pid: int) -> bool:
    """Whether every thread of the process sleeps in a futex without an end. False where the kernel does not say."""
    number = _FUTEX.get(os.uname().machine)
    threads = 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            call = (thread / "syscall").read_text().split()
            if call[0] != number or int(call[4], 16):  # the fourth argument is a timeout: that one only waits
                return False
            threads += 1
    except OSError:
        return False
    return threads > 0


def private_bytes(pid: int) -> int:
    """Memory of the process that is not a file's or shared, in bytes; 0 where the kernel does not say."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * mmap.PAGESIZE


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal or a debugger. False where the kernel does not say."""
    return _status(pid)[:1] in (["T"], ["t"])


def is_ending(pid: int) -> bool:
    """Whether the process is on its way out, or gone. True where the kernel does not say."""
    fields = _status(pid)
    return not fields or bool(int(fields[6]) & _EXITING)


def dies_of(pid: int, number: int) -> bool:
    """Whether the process neither handles this signal nor ignores it. False where the kernel does not say."""
    try:
        lines = dict(line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        handled = int(lines["SigCgt"], 16) | int(lines["SigIgn"], 16)
    except (OSError, KeyError, ValueError):
        return False
    return not handled >> (number - 1) & 1


def cpu_seconds(pid: int) -> float:
    """CPU time that the process has used, in seconds; 0.0 where the kernel does not say."""
    fields = _status(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def cpu_seconds_wanted(pid: int) -> float:
    """CPU time that the process's threads have used, and for which they have waited while others had the CPUs."""
    used = 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            ran, waited, _ = (thread / "schedstat").read_text().split()
            used += int(ran) + int(waited)
    except (OSError, ValueError):
        return cpu_seconds(pid)
    return used / 1e9


def _status(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on; empty where it says nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
