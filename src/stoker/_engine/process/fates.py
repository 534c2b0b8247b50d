"""What became of a worker, as the error that the user gets. The same words whoever minds the workers."""

from __future__ import annotations

from stoker import errors
from stoker._engine.base import Failure
from stoker._engine.process import kernel


def died(number: int, pid: int, code: int | None, units: list[int], deaths: int = 1) -> errors.WorkerDiedError:
    """A worker has ended by itself, with this exit code, while it held these units; one of several deaths of late."""
    how = kernel.told(code)
    doing = f" while it made batch {units[0]}" if units else " while it was idle"
    several = f" It was the {deaths}. death of a worker within ten minutes (see `max_restarts`)." if deaths > 1 else ""
    return errors.WorkerDiedError(
        f"DataLoader worker (pid(s) {pid}) exited unexpectedly: DataLoader worker (pid {pid}) {how}. It was worker "
        f"{number}, and ended{doing}.{several} SIGKILL is most often the kernel's, for want of memory (see `dmesg`): "
        "use fewer workers or smaller batches. SIGSEGV comes from a library in C: num_workers=0 shows where."
    )


def broken(failure: Failure) -> BaseException:
    """A worker could not be started, or could not open what it was sent."""
    error: BaseException
    if failure.kind is not None and issubclass(failure.kind, errors.StokerError):
        error = failure.kind(failure.text.partition(": ")[2])
    else:
        error = errors.WorkerStartError(
            f"the workers could not be started: {failure.text}. With a clean interpreter (spawn, forkserver) the "
            "modules that the dataset needs must be importable there."
        )
    error.__cause__ = errors.WorkerTraceback(failure.traceback)
    return error
