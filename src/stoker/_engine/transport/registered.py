"""Slots that a device reads in place: registered as its pinned memory, for as long as they are mapped here.

A device keeps the pages that a slot has when it is registered. So a registered slot is never punched, which the board
tells the arena's owner (`arena.py`), and it is unregistered before its mapping ends. Only `next()` and `close()` of a
loader may call a device. So a reader that ends elsewhere leaves its registrations in `left`, with their mappings, and
the next of these calls ends them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Protocol

from stoker._engine.transport.segments import Mapping


class _Lease(Protocol):
    """What tells when a batch's slot is no longer read."""

    over: bool


left: deque[RegisteredSlot] = deque()
"""Registrations of readers that are closed, of all loaders."""

_sizes: list[int] = []  # of the registered slots, of all loaders


class RegisteredSlot:
    """A registered slot.

    Args:
        mapping: of the slot, kept as long as it is registered.
        unregister: ends the registration of the memory at an address.
        lease: of the batch that lies in the slot.
    """

    def __init__(self, mapping: Mapping, unregister: Callable[[int], None], lease: _Lease) -> None:
        self._mapping = mapping
        self._unregister = unregister
        self.lease = lease
        _sizes.append(mapping.size)

    def end(self) -> None:
        """Unregisters the slot. Called within `next()` or `close()` alone, and by whom no copy of the slot is kept."""
        _sizes.remove(self._mapping.size)
        self._unregister(self._mapping.address)


def total() -> int:
    """Returns the bytes that are registered now."""
    return sum(_sizes)


def end_left() -> None:
    """Ends the registrations of closed readers, except of slots that a copy still reads."""
    for _ in range(len(left)):
        try:
            registration = left.popleft()
        except IndexError:  # another thread took it
            return
        if registration.lease.over:
            registration.end()
        else:
            left.append(registration)


def _forget() -> None:
    left.clear()
    _sizes.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # a device belongs to the process that registered memory with it
