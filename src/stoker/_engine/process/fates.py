"""What became of a worker, as the error that the user gets. The same words whoever minds the workers."""

from __future__ import annotations

import contextlib
import errno
import signal
from collections.abc import Iterable, Iterator
from typing import Any

from stoker import errors
from stoker._engine.base import COLLATE, DESCRIBE, IDLE, POLICY, START, WHOLE, WRITE, Failure
from stoker._engine.process import kernel
from stoker._supervision.restarts import OWN_SIGNALS

_FROM_OUTSIDE = (
    "SIGKILL is most often the kernel's, for want of memory (see `dmesg`): use fewer workers or smaller batches."
)
_ITS_OWN = "Such a signal comes from a library in C: num_workers=0 shows where."
_LEFT = "It left by itself: by sys.exit() or os._exit() in the dataset or in a library, or by what ends any process."

MINDER = "the process that minds the workers"
"""The zygote, to people."""

_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def died(
    number: int,
    pid: int,
    code: int | None,
    where: str | None,
    deaths: int = 1,
    stack: str = "",
    then: str = "",
    before: Iterable[str] = (),
) -> errors.WorkerDiedError:
    """A worker has ended by itself.

    Args:
        number: the worker's.
        pid: its process.
        code: its exit code; of a signal, negative.
        where: what it worked on, in words; None if it was idle.
        deaths: how many there were of late, this one included.
        stack: its last Python stack, where it could still write it.
        then: what follows from it.
        before: the latest of the other deaths, a line each.
    """
    doing = " while it was idle" if where is None else f" while it made {where}"
    several = f" {deaths} workers have died within ten minutes (see `max_restarts`)." if deaths > 1 else ""
    return errors.WorkerDiedError(
        f"{_ended(pid, code)}. It was worker {number}, and ended{doing}.{several}{_cause(code)}"
        f"{_earlier(before)}{then and chr(10) + then}{_with(stack)}"
    )


DOING = {
    IDLE: "before it began",
    START: "in worker_init_fn, or before its first sample",
    WHOLE: "in __getitems__",
    COLLATE: "in collate_fn",
    WRITE: "while it was handed over",
    DESCRIBE: "in the dataset's describe()",
    POLICY: "in on_error",
}
"""Marks that are no sample's, in words."""


def blamed(pid: int, code: int | None, mark: int) -> str:
    """The story of a place in a unit that ended several workers, the last one like this."""
    return f"{_ended(pid, code)}. So has each that tried this batch before it, {_there(mark)}.{_cause(code)}"


def stalled(seconds: float, mark: int) -> str:
    """The story of a place in a unit that took too long, again and again."""
    return (
        f"this batch takes longer than stall_warning {_there(mark)}, and each worker that tried it was ended "
        f"(stall_action='restart'), the last one after {seconds:.3g} s."
    )


def in_short(number: int, code: int | None, where: str | None) -> str:
    """A worker's death, on one line."""
    return f"worker {number} {kernel.told(code)}, {'idle' if where is None else f'while it made {where}'}"


def doubted() -> dict[str, Any]:
    """The story of a unit that was made together with others by a worker that has died."""
    return {"kind": "death", "message": "a worker has died that made it and others at once", "stack": ""}


def _ended(pid: int, code: int | None) -> str:
    """In torch's words."""
    return f"DataLoader worker (pid(s) {pid}) exited unexpectedly: DataLoader worker (pid {pid}) {kernel.told(code)}"


def _cause(code: int | None) -> str:
    """What it most likely comes from, as a sentence behind others."""
    if code is None or code == kernel.CLOSED:
        return ""
    if code >= 0:
        return f" {_LEFT}"
    if code == -getattr(signal, "SIGKILL", 9):
        return f" {_FROM_OUTSIDE}"
    return f" {_ITS_OWN}" if code in OWN_SIGNALS else ""


def _earlier(deaths: Iterable[str]) -> str:
    told = "".join(f"\n- {death}" for death in deaths)
    return told and f"\nBefore it:{told}"


def _there(mark: int) -> str:
    return DOING.get(mark, "at this sample (on_error='skip' or 'replace' goes on without it)")


def _with(stack: str) -> str:
    return f"\nIts last Python stack:\n{stack.strip()}" if stack else ""


def not_started(who: str, error: OSError) -> errors.WorkerStartError:
    """A process cannot be started: `who` it is, in words."""
    why = "The limit on processes (`ulimit -u`, or the container's `pids.max`) or the memory is reached"
    if error.errno in _DESCRIPTORS:
        why = "The limit on open files is reached (`ulimit -n`; of the whole machine: `fs.file-max`)"
    return errors.WorkerStartError(f"could not start {who}: {error}. {why}: use fewer workers, or raise it.")


@contextlib.contextmanager
def starting(who: str) -> Iterator[None]:
    """While a process is started: what there is none of any more is named."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ENOMEM, *_DESCRIPTORS):
            raise
        raise not_started(who, error) from error


def broken(failure: Failure) -> BaseException:
    """A worker could not be started, or could not open what it was sent."""
    error: BaseException
    kind = failure.known_kind
    if kind is not None and issubclass(kind, errors.StokerError):
        error = kind(failure.text.partition(": ")[2])
    else:
        error = errors.WorkerStartError(
            f"the workers could not be started: {failure.text}. With a clean interpreter (spawn, forkserver) the "
            "modules that the dataset needs must be importable there."
        )
    error.__cause__ = errors.WorkerTraceback(failure.traceback)
    return error
