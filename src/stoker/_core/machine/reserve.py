"""Shared memory and descriptors: reserves memory so that a shortage raises an exception, makes anonymous files, keeps
descriptors 0 to 2 free.

Inside a memory cgroup the kernel answers a reservation beyond the limit by killing a process, not by an error. So the
available memory is checked first, and a refusal states the numbers. Other processes may take memory between the check
and the reservation: a short-lived child, marked as the first process to kill, therefore makes large reservations.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import sys
import tempfile
import threading
from typing import NoReturn

from stoker._core.machine.memory import Available, available
from stoker.errors import MemoryLimitError

_MIB = 1 << 20
_FENCED_SHARE = 4
"""A reservation of more than this fraction (a quarter) of the available memory is made by a short-lived child."""
_DEADLINE = 10.0
"""Seconds that the child may take, in addition to the time for the memory at `_SLOWEST` bytes per second."""
_SLOWEST = 100 * _MIB
_PR_SET_PDEATHSIG = 1
_KEEP_SIZE, _PUNCH_HOLE = 1, 2

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def reserve(fd: int, offset: int, size: int, spoken_for: int = 0) -> None:
    """Reserves `size` bytes of a memory file from `offset` on, and lengthens the file if necessary.

    Touching the range afterwards cannot raise SIGBUS. Bytes that are reserved already cost nothing again, but count as
    needed. A twentieth of the limit stays free, at least 64 MiB and at most 1 GiB, in small containers a quarter
    (`kept_free`), and in addition `spoken_for` bytes, which workers are about to take for their samples.

    Forks if the reservation exceeds a quarter of the available memory and the process has one thread; with more
    threads, or if a fork fails, the check of the available memory is the only protection. On systems without
    `posix_fallocate`, zeros are written to the file.

    Raises:
        MemoryLimitError: there is not enough memory; nothing new is reserved then.
        OSError: the descriptor does not support reservations.
    """
    memory = check(size, spoken_for)
    fenced = _libc is not None and size > memory.bytes // _FENCED_SHARE and threading.active_count() == 1
    failure = _reserve_in_child(fd, offset, size) if fenced else _reserve_here(fd, offset, size)
    if (why := refused(failure)) is not None:
        raise refusal(size, memory, f"but {why}")
    if failure == errno.EINTR:
        raise refusal(size, memory, "but another process took it meanwhile and the kernel stopped the reservation")
    if failure:
        raise OSError(failure, os.strerror(failure))


def refused(number: int | None) -> str | None:
    """Returns the reason, in words, for an `errno` that refuses memory to a file; None for other numbers."""
    if number == errno.EFBIG:
        return "the limit on file sizes (`ulimit -f`), which also applies to files in memory, is lower: raise it"
    if number not in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
        return None
    reason = f"the system refused it: {os.strerror(number)}"
    replaced = None if number == errno.ENOMEM else replaced_by()
    return reason if replaced is None else f"{reason}. It would lie in {replaced}: free space there, or set TMPDIR"


def file_limit() -> int:
    """Returns the limit on file sizes (`ulimit -f`) in bytes, which also applies to files in memory."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_FSIZE, getrlimit
    except ImportError:  # Windows has none
        return sys.maxsize
    soft = getrlimit(RLIMIT_FSIZE)[0]
    return sys.maxsize if soft == RLIM_INFINITY else soft


def lengthen(fd: int, size: int) -> None:
    """Lengthens a shared file to `size` bytes and reserves them, without a look at the available memory.

    Raises:
        MemoryLimitError: there is no room for them.
        OSError: the limit on file sizes is lower.
    """
    failure = _reserve_here(fd, 0, size)
    if failure != errno.EFBIG and (why := refused(failure)) is not None:
        raise MemoryLimitError(f"cannot reserve {size} bytes of shared memory: {why}")
    if failure:
        raise OSError(failure, os.strerror(failure))


def check(size: int, spoken_for: int = 0) -> Available:
    """Returns the available memory if it holds `size` bytes, shared or private, besides `spoken_for` bytes of others.

    Raises:
        MemoryLimitError: it does not.
    """
    memory = available()
    if size > memory.bytes - kept_free(memory.limit) - spoken_for:
        samples = f", and {_text(spoken_for)} for the samples that workers are making" if spoken_for else ""
        raise refusal(size, memory, kept_in_words(memory) + samples)
    return memory


def punch(fd: int, offset: int, size: int) -> None:
    """Gives the memory of a range back to the system; the file keeps its length, and the range reads as zeros.

    The range must be reserved again before it is written. Whole pages are given back, parts of pages are zeroed. Does
    nothing on systems other than Linux, and where the file system cannot do it.

    Raises:
        OSError: the descriptor is not of a memory file.
    """
    if _libc is None:
        return
    where = ctypes.c_int64(offset), ctypes.c_int64(size)
    if _libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, *where) and ctypes.get_errno() != errno.EOPNOTSUPP:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def kept_free(limit: int) -> int:
    """Returns the bytes of a limit that reservations leave free for other needs of the processes."""
    return min(max(64 * _MIB, limit // 20), limit // 4, 1024 * _MIB)


def _reserve_here(fd: int, offset: int, size: int) -> int:
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, offset, size)
        else:
            _lengthen(fd, offset + size)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _lengthen(fd: int, end: int) -> None:
    at = os.lseek(fd, 0, os.SEEK_END)
    while at < end:
        at += os.write(fd, bytes(min(_MIB, end - at)))


def _reserve_in_child(fd: int, offset: int, size: int) -> int:
    """Returns 0, the child's errno, or EINTR if it was killed or took too long; nothing is reserved by it then."""
    try:
        hear, say = os.pipe()
    except OSError:  # no free descriptor
        return _reserve_here(fd, offset, size)
    try:
        pid = os.fork()
    except OSError:  # no further process
        os.close(hear)
        os.close(say)
        return _reserve_here(fd, offset, size)
    if not pid:
        _be_the_first_to_die(fd, offset, size, say)
    os.close(say)
    end = select.poll()
    end.register(hear, select.POLLIN)
    answer = b""
    try:
        if end.poll(1000 * (_DEADLINE + size / _SLOWEST)):
            answer = os.read(hear, 1)
    finally:
        os.close(hear)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # other code may have reaped the child
            if not answer:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return answer[0] if answer else errno.EINTR


def _be_the_first_to_die(fd: int, offset: int, size: int, say: int) -> NoReturn:
    try:
        assert _libc is not None
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
        os.write(say, bytes([_reserve_here(fd, offset, size)]))
    finally:
        os._exit(0)


def kept_in_words(memory: Available) -> str:
    """Returns the bytes that a reservation leaves free, in words."""
    return f"{_text(kept_free(memory.limit))} of it are kept free so that the kernel kills no process"


def refusal(size: int, memory: Available, why: str) -> MemoryLimitError:
    """Returns the error: the bytes needed, the bytes available, the reason and the remedy."""
    return MemoryLimitError(
        f"cannot reserve {_text(size)} of memory for batches: {_text(memory.bytes)} are available of "
        f"{_text(memory.limit)} (limited by {memory.source}), {why}. Use a smaller batch_size, fewer workers or a "
        "smaller prefetch_factor, delete batches that are still kept, or give the container more memory."
    )


def _text(size: int) -> str:
    return f"{size / _MIB:,.1f} MiB"


# Files without a name: memory shared by processes, freed with its last descriptor and mapping.


NAME = "stoker"

DENIED = (errno.EPERM, errno.EACCES, errno.ENOSYS)
"""Errors of a system call that a filter (seccomp) denies, or that the kernel lacks."""


def anonymous() -> int:
    """Returns the descriptor, not inherited, of a new, empty file without a name; in memory if the system can.

    Otherwise the file lies in the folder of temporary files (`TMPDIR`): its blocks are to be reserved before they are
    written by a mapping (`stoker._core.machine.reserve`), because a write to a full disk would be a bus error.
    """
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create(NAME, os.MFD_CLOEXEC)
        except OSError as error:
            if error.errno not in DENIED:
                raise
    descriptor, path = tempfile.mkstemp(prefix=NAME)
    os.unlink(path)
    return descriptor


def replaced_by() -> str | None:
    """Returns what replaces files in memory, and why, in words; None where the system has them."""
    why = "this system has no memfd_create"
    if hasattr(os, "memfd_create"):
        try:
            os.close(os.memfd_create(NAME, os.MFD_CLOEXEC))
        except OSError as error:
            if error.errno not in DENIED:
                return None
            why = f"memfd_create is denied ({os.strerror(error.errno or 0)})"
        else:
            return None
    folder = tempfile.gettempdir()
    free = ""
    with contextlib.suppress(AttributeError, OSError):
        there = os.statvfs(folder)
        free = f", {there.f_bavail * there.f_frsize / 2**20:,.0f} MiB free"
    return f"an unlinked file in {folder}{free}, because {why}"


def occupy() -> None:
    """Opens the null device for each standard descriptor that is closed, permanently, for child processes too.

    Otherwise an opened file gets the number: a C library's message about a damaged image would be written into a batch,
    and a worker would read its standard input from one of Stoker's files.
    """
    while (nothing := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(nothing, True)
    os.close(nothing)
