"""What befalls workers, as events for the user: the same words whoever minds them."""

from __future__ import annotations

from stoker import errors
from stoker._engine.process import fates
from stoker._events import Event
from stoker._supervision.rules import Rules


def death(
    rules: Rules,
    worker: int,
    pid: int,
    code: int | None,
    unit: int | None,
    mark: int,
    where: str | None,
    *,
    stack: str = "",
    blamed: bool = False,
) -> Event:
    """A worker has ended, and another takes its place.

    Args:
        rules: the loader's.
        worker: its number.
        pid: its process.
        code: its exit code; of a signal, negative.
        unit: what it had in hand, or None.
        mark: where in the unit it was.
        where: the same in words; None if it was idle.
        stack: its last Python stack, where it could still write it.
        blamed: whether the place is proven guilty.
    """
    then = "It was replaced, and what it had in hand is done again. "
    then += f"{where} ends all who try it." if blamed else f"(max_restarts={rules.max_restarts})"
    told = str(fates.died(worker, pid, code, where, stack=stack, then=then))
    details = {"unit": unit, "mark": mark, "code": code}
    return Event("blamed" if blamed else "death", told, worker=worker, details=details)


def stall(rules: Rules, worker: int, unit: int, mark: int, where: str, seconds: float, stack: str) -> Event:
    """A worker has been at a unit for too long. Arguments as those of `death`; the stack is as it is now."""
    follows = {
        "warn": "It goes on (stall_action='warn').",
        "restart": "It is ended, and another tries (stall_action='restart').",
        "raise": "That is the end (stall_action='raise').",
    }
    told = f"{_stalls(worker, where, seconds)} {follows[rules.stall_action]} This is where it is:\n{stack}"
    return Event("stall", told, worker=worker, details={"unit": unit, "mark": mark, "seconds": seconds})


def stall_error(worker: int, where: str, seconds: float, stack: str) -> errors.StalledError:
    """The same, where it ends the run."""
    return errors.StalledError(f"{_stalls(worker, where, seconds)} Raise stall_warning, or see where it is:\n{stack}")


def _stalls(worker: int, where: str, seconds: float) -> str:
    return f"worker {worker} has been at {where} for {seconds:.3g} s."


def retired(worker: int, pid: int, reason: str) -> Event:
    """A worker is to leave, because it has grown too large or old."""
    told = f"worker {worker} (pid {pid}) is replaced between two batches: {reason}"
    return Event("retired", told, worker=worker)


def held_back(worker: int, error: OSError | str) -> Event:
    """A worker's replacement cannot be started yet."""
    told = f"worker {worker} cannot be started anew yet: {error}. The others go on, and it is tried again."
    return Event("held_back", told, worker=worker)
