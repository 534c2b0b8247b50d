"""Leases that are held by something else than a view: a copy to a device, which reads the slot until it completes.

A lease lasts as long as the exporter under a batch's arrays and tensors (see `reader.py`). A `Hold` is one
more reference to that exporter, which is given up by `release()`, or once an event has come (`until`). The transfer of
a batch to a device takes one with `Reader.hold()`, right after the batch is read:

    batch = reader.read(slot, written)
    hold = reader.hold()
    event = start_copy(batch)  # returns at once
    hold.until(event.query)

The copy has to be complete before the process unmaps the slot. So its owner, when it closes, waits for its events
(`event.synchronize()`) and then calls `look()`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

_waiting: deque[tuple[Hold, Callable[[], bool]]] = deque()  # of all readers: a loader may end before its copies


class Hold:
    """Keeps the slot of a batch from being written again. Any thread may release it.

    Args:
        exporter: memory of the batch; None if it lies in no slot.
    """

    def __init__(self, exporter: object | None) -> None:
        self._exporter = exporter

    @property
    def is_active(self) -> bool:
        """Whether a slot is held."""
        return self._exporter is not None

    def release(self) -> None:
        """Gives up the hold. Idempotent."""
        self._exporter = None

    def until(self, is_over: Callable[[], bool]) -> None:
        """Releases the hold once `is_over()` returns true, or raises. It is asked whenever a loader's trainer looks for
        slots, thus at each batch, and must not wait.
        """
        if self.is_active:
            _waiting.append((self, is_over))


def look() -> None:
    """Releases the holds whose events have come. An exception of an event ends its hold, and is raised."""
    for _ in range(len(_waiting)):
        try:
            hold, is_over = _waiting.popleft()
        except IndexError:  # another thread took it
            return
        if not hold.is_active:
            continue
        over = True
        try:
            over = is_over()
        finally:
            if over:
                hold.release()
            else:
                _waiting.append((hold, is_over))


def pending() -> bool:
    """Returns whether a hold waits for its event."""
    return bool(_waiting)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_waiting.clear)  # an event belongs to the process that made it
