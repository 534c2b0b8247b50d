"""What befalls workers, as events for the user: the same words whoever minds them."""

from __future__ import annotations

from typing import NamedTuple

from stoker import errors
from stoker._engine.base import Where
from stoker._engine.process import fates
from stoker._engine.process.deadlines import PATIENCE
from stoker._events import Event
from stoker._supervision.rules import Rules


class Death(NamedTuple):
    """The end of a worker that another takes the place of.

    Attributes:
        worker: its number.
        pid: its process.
        code: its exit code; of a signal, negative; None where that is unknown.
        unit: what it had in hand, or None.
        mark: where in the unit it was.
        stack: its last Python stack, where it could still write it.
        stalled: whether it was ended because it stalled there.
        blamed: whether the place is proven guilty.
    """

    worker: int
    pid: int
    code: int | None
    unit: int | None
    mark: int
    stack: str = ""
    stalled: bool = False
    blamed: bool = False


def death(rules: Rules, end: Death, where: Where | None) -> Event:
    """A worker has ended; `where` is its unit and mark, or None if it was idle."""
    then = "It was replaced, and what it had in hand is done again. "
    there = None if where is None else where.told
    then += f"Whoever tries {there} dies of it." if end.blamed else f"(max_restarts={rules.max_restarts})"
    if end.stalled:
        told = f"worker {end.worker} (pid {end.pid}) was ended at {there}, where it stalled. {then}"
    else:
        told = str(fates.died(end.worker, end.pid, end.code, there, stack=end.stack, then=then))
    return _of_death("blamed" if end.blamed else "death", end, where, told)


def last_death(end: Death, where: Where | None, error: errors.WorkerDiedError) -> Event:
    """A worker has ended, and the run with it: the error is the user's."""
    event = _of_death("death", end, where, str(error))
    event.details["ends"] = True
    return event


def _of_death(kind: str, end: Death, where: Where | None, told: str) -> Event:
    at = where or Where("")
    details = {"unit": end.unit, "mark": end.mark, "code": end.code, "stalled": end.stalled, "index": at.index}
    return Event(kind, told, worker=end.worker, batch=at.batch, details=details)


def stall(rules: Rules, worker: int, unit: int, mark: int, where: Where, seconds: float, stack: str) -> Event:
    """A worker has been at a unit for too long; the stack is as it is now."""
    follows = {
        "warn": "It goes on (stall_action='warn').",
        "restart": "It is ended, and another tries (stall_action='restart').",
        "raise": "That is the end (stall_action='raise').",
    }
    told = f"{_stalls(worker, where, seconds)} {follows[rules.stall_action]} This is where it is:\n{stack}"
    details = {"unit": unit, "mark": mark, "seconds": seconds, "index": where.index}
    return Event("stall", told, worker=worker, batch=where.batch, details=details)


def stall_error(worker: int, where: Where, seconds: float, stack: str) -> errors.StalledError:
    """The same, where it ends the run."""
    return errors.StalledError(f"{_stalls(worker, where, seconds)} Raise stall_warning, or see where it is:\n{stack}")


def _stalls(worker: int, where: Where, seconds: float) -> str:
    return f"worker {worker} has been at {where.told} for {seconds:.3g} s."


def retired(worker: int, pid: int, reason: str) -> Event:
    """A worker is to leave, because it has grown too large or old."""
    told = f"worker {worker} (pid {pid}) is replaced between two batches: {reason}"
    return Event("retired", told, worker=worker)


def stays(worker: int, pid: int, reason: str) -> Event:
    """A worker is to leave as well, and cannot."""
    told = (
        f"worker {worker} (pid {pid}) cannot be replaced, because its stream cannot be opened again where it stands. "
        "Give the dataset state_dict() and load_state_dict(state), or build it from stoker's streams. Why it was to "
        f"be: {reason}"
    )
    return Event("stays", told, worker=worker)


def crowded(working: int, workers: int, growth: int, left: int, limit: int, source: str) -> Event:
    """So many of the workers work at once, because one takes so many bytes for its samples, and so many are left."""
    told = (
        f"there is memory for {working} of {workers} workers at once: one takes up to {growth / 2**20:,.0f} MiB for "
        f"what it has in hand, and {left / 2**20:,.0f} MiB are left of {limit / 2**20:,.0f} (limited by {source}). The "
        "others wait for their turn, so that nothing is killed. Use a smaller batch_size or fewer workers, leave "
        "collation to the loader (it writes large samples into the batch as they come), let go of batches that are "
        "kept, or give the container more memory."
    )
    return Event("crowded", told, details={"working": working, "growth": growth, "available": left, "limit": limit})


def held_back(worker: int, error: OSError | str, others: bool) -> Event:
    """A worker's replacement cannot be started yet; there are `others`, or none."""
    meanwhile = "The others go on" if others else f"No other is left: in {PATIENCE:g} s that is the end"
    told = f"worker {worker} cannot be started anew yet: {error}. {meanwhile}; it is tried again and again."
    return Event("held_back", told, worker=worker)
