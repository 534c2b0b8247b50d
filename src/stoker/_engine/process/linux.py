"""Calls to the kernel beyond Python's `os`: descriptors of processes, death signals, names, a timer with a descriptor.

Written for Linux first; if a call does not exist, a closed socket shows a death instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import mmap
import os
import select
import selectors
import signal
import sys
import time
from pathlib import Path

from stoker._core.machine.reserve import DENIED
from stoker._engine.process.deadlines import REAP

_SET_DEATH_SIGNAL = 1
_SET_NAME = 15
_EXITING = 4  # among the flags of a process
_FUTEX = {"x86_64": "202", "aarch64": "98"}

_libc = ctypes.CDLL(None) if sys.platform != "win32" else None
_prctl = getattr(_libc, "prctl", None)  # Linux
_malloc_trim = getattr(_libc, "malloc_trim", None)  # glibc


CLOSED = -256
"""Stands for the exit code of a worker that was ended because it closed its connection and continued."""


def process_descriptor(pid: int) -> int | None:
    """Returns a descriptor that becomes readable when the process ends, whichever process reaps it; or None."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # a kernel before 5.3, or a filter of system calls
        return None


def has_ended(descriptor: int | None) -> bool:
    """Whether the process behind a descriptor has ended. False if user code has closed it, or opened another file in
    its place.
    """
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


def selector() -> selectors.BaseSelector:
    """Returns the platform's selector, or `poll` where a filter of system calls denies epoll."""
    try:
        return selectors.DefaultSelector()
    except OSError as error:
        if error.errno not in DENIED:
            raise
        return selectors.PollSelector()


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when the thread that forked it ends. Leaves at once if that has happened
    already.
    """
    if _prctl is not None:
        _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def die_within(seconds: float) -> None:
    """Ends this process after this time, whatever it does."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=open(os.devnull, "w"))  # noqa: SIM115 - written to later


def die_with_writers(pipe: int) -> None:
    """Makes the kernel kill this process when no process holds the pipe's other end, even while it is stopped."""
    import fcntl  # Windows has none, and no zygote either

    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC)
    if has_no_writer(pipe):  # it happened already
        os._exit(1)


def has_no_writer(pipe: int) -> bool:
    """Whether no process holds the pipe's other end."""
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


def die_first(pid: int) -> None:
    """Makes the kernel prefer this process and its children when memory runs out, over processes that cannot be
    replaced.
    """
    with contextlib.suppress(OSError):  # there is no /proc, or the process has ended
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


def name_process(name: str) -> None:
    """Sets the name that `ps` and `top` show for this process."""
    if _prctl is not None:
        _prctl(_SET_NAME, name.encode()[:15], 0, 0, 0)


def give_back() -> None:
    """Returns freed memory that `malloc` keeps for later to the kernel. Does nothing without glibc."""
    if _malloc_trim is not None:
        _malloc_trim(0)


def kill(pid: int, descriptor: int | None = None) -> None:
    """Sends SIGKILL to a process; nothing if it is gone. Without a descriptor it must be a child that is not yet
    reaped.
    """
    with contextlib.suppress(ProcessLookupError):
        if descriptor is None:
            os.kill(pid, signal.SIGKILL)
        else:  # another process may have reaped it, and its number may be another's by now
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)


def reap(pid: int, seconds: float) -> int | None:
    """Waits for a child's end; returns its exit code (negative for a signal), or None if reaped or late."""
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


def reaped(pid: int) -> bool:
    """Whether a child has ended, and been waited for. Does not wait."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def end(pid: int) -> None:
    """Kills a child that no other component knows of yet, and waits for its end."""
    kill(pid)
    reap(pid, REAP)


def exit_text(code: int | None) -> str:
    """Returns in words how a process ended; its exit code is the negative number of a signal that killed it."""
    if code is None:
        return "ended, and other code of this process has taken its exit status"
    if code == CLOSED:
        how = "os.closerange(), or a library that makes it a daemon?"
        return f"has closed its connection to the trainer ({how}) and was ended"
    if code < 0:
        return f"is killed by signal: {signal.strsignal(-code) or -code}"
    return f"exited unexpectedly with exit code {code}"


def waits_for_a_lock(pid: int) -> bool:
    """Whether every thread of the process sleeps in a futex without an end. False if the kernel does not say."""
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
    """Returns the memory of the process that is neither a file's nor shared, in bytes; 0 if the kernel does not say."""
    try:
        descriptor = os.open(f"/proc/{pid}/statm", os.O_RDONLY)  # in a sixth of the time that `Path` takes
        try:
            fields = os.read(descriptor, 256).split()
        finally:
            os.close(descriptor)
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * mmap.PAGESIZE


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal or a debugger. False if the kernel does not say."""
    return _status(pid)[:1] in (["T"], ["t"])


def is_ending(pid: int) -> bool:
    """Whether the process is on its way out, or gone. True if the kernel does not say."""
    fields = _status(pid)
    return not fields or bool(int(fields[6]) & _EXITING)


def dies_of(pid: int, number: int) -> bool:
    """Whether the process neither handles this signal nor ignores it. False if the kernel does not say."""
    try:
        lines = dict(line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        handled = int(lines["SigCgt"], 16) | int(lines["SigIgn"], 16)
    except (OSError, KeyError, ValueError):
        return False
    return not handled >> (number - 1) & 1


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time that the process has used, in seconds; 0.0 if the kernel does not say."""
    fields = _status(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def cpu_seconds_wanted(pid: int) -> float:
    """Returns the CPU time that the process's threads have used or waited for while others had the CPUs, in seconds."""
    used = 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            ran, waited, _ = (thread / "schedstat").read_text().split()
            used += int(ran) + int(waited)
    except (OSError, ValueError):
        return cpu_seconds(pid)
    return used / 1e9


def _status(pid: int) -> list[str]:
    """Returns the kernel's fields of a process, from its state on; empty if there are none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
