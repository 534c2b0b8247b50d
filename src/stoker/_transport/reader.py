"""The trainer's side of the transport: batches as leases on slots.

Under the arrays and tensors of a delivered batch lies an exporter, a ctypes array over the slot. NumPy and torch keep
it alive through views of views, `.numpy()`, DLPack, storages and autograd. When it is gone, so is the last of them:
the slot is posted on the board, or its number appears in `returned()`, and it may be written again.

Weak references' callbacks run anywhere, at any time, in any thread: they only append to a deque, and write that byte.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker._machine.reserve import check, punch
from stoker._transport import leaves, owned, segments
from stoker._transport.arena import Slot
from stoker._transport.board import Board
from stoker._transport.leaves import SMALL, Leaf
from stoker._transport.owned import Owned, tensor_over
from stoker._transport.segments import Mapping
from stoker._transport.writer import Written
from stoker.errors import MemoryLimitError

MEANWHILE = 3
"""So many times as much as a batch takes may others take while it is copied: a slot for the next one, and what that is
made of. Who looks here and who looks there do not know of each other."""

_open: set[Lease] = set()  # leases whose exporter lives; also beyond the loader's end
_moved: deque[Lease] = deque()  # leases with a storage that was moved away, and may have views left here
_born_by: dict[int, ForkHold] = {}  # by the thread that makes a fork of ours
_forks: list[int] = []  # threads in which forks are under way, of whomever


class Home:
    """What the leases of one reader need of it when they end."""

    def __init__(self, board: Board | None) -> None:
        self.gone: deque[Lease] = deque()
        self.board = board  # None: there is none, or nobody looks any more


class Lease:
    """A slot in the user's hands: whether its exporter lives, and whether it may ever be written again."""

    def __init__(self, slot: Slot, home: Home) -> None:
        self.slot = slot
        self._mapping: Mapping | None = None  # kept as long as the exporter
        self.holds = 0
        self.begun = False
        self.retired = False
        self.posted = False
        self.over = False
        self.settled = False
        self._home = home
        self._reference: Any = None  # to the exporter
        self._storages: list[tuple[Any, Any]] = []  # made over it, with their class

    def export(self, mapping: Mapping) -> Any:
        """A buffer over the slot: the lease lasts until it is gone."""
        self._mapping = mapping
        self.begun = True
        exporter = mapping.part(0, self.slot.capacity)
        self._reference = weakref.ref(exporter, self._exporter_gone)
        _open.add(self)
        return exporter

    def watch_storage(self, storage: Any) -> None:
        """Extends the lease if `storage`, made over the exporter, outlives it.

        `share_memory_()` and multiprocessing queues move a storage to other memory while an earlier NumPy view of a
        tensor may still point here; exactly then the storage survives the exporter. Such a view keeps its tensor, and
        that keeps the storage: when the storage is gone, so are the views.
        """
        self._storages.append((storage._weak_ref(), type(storage)))

    def hold_released(self) -> None:
        """A zygote that could see the slot has ended."""
        self.holds -= 1
        self._home.gone.append(self)

    def _exporter_gone(self, reference: Any) -> None:
        if sys.is_finalizing():
            return
        self._forget_gone_storages()
        self._reference = None
        self._over_or_moved()

    def _forget_gone_storages(self) -> None:
        left = []
        for weak, kind in self._storages:
            if kind._expired(weak):
                kind._free_weak_ref(weak)
            else:
                left.append((weak, kind))
        self._storages = left

    def look_again(self) -> None:
        """Ends the lease if the storages that were moved away are gone by now. Only by who has taken it from `_moved`:
        a storage is forgotten once."""
        self._forget_gone_storages()
        self._over_or_moved()

    def _over_or_moved(self) -> None:
        if self._storages:
            _moved.append(self)
            return
        self._mapping = None
        _open.discard(self)
        self.retired = self.retired or bool(_forks and not self.holds)  # a fork that is under way may see it
        board = self._home.board
        self.posted = board is not None and board.has(self.slot.number) and not (self.holds or self.retired)
        self.over = True
        self._home.gone.append(self)  # before others may write the slot: who reads it then has settled this
        if board is not None and self.posted:
            board.post(self.slot.number)


class ForkHold:
    """What one forked zygote can see: the leases that were out when it was born. Released when it has ended."""

    def __init__(self) -> None:
        self.leases: set[Lease] = set()

    def release(self) -> None:
        for lease in self.leases:
            lease.hold_released()
        self.leases = set()


@contextlib.contextmanager
def forking(hold: ForkHold) -> Iterator[None]:
    """A fork within is ours: `hold` keeps the slots that are leased now, instead of retiring them for ever."""
    thread = threading.get_ident()
    _born_by[thread] = hold
    try:
        yield
    finally:
        _born_by.pop(thread, None)


def _mark_open() -> None:
    hold = _born_by.get(threading.get_ident())
    for lease in list(_open):
        if hold is None:
            lease.retired = True
        elif lease not in hold.leases:
            lease.holds += 1
            hold.leases.add(lease)


def _before_fork() -> None:
    """Other threads go on until the fork is made, and behind it: what ends meanwhile, the child sees."""
    _forks.append(threading.get_ident())
    _mark_open()


def _after_fork_in_parent() -> None:
    try:
        _mark_open()  # those that began meanwhile
    finally:
        with contextlib.suppress(ValueError):  # this module was imported while the fork was under way
            _forks.remove(threading.get_ident())


def _after_fork_in_child() -> None:
    _born_by.clear()
    _forks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


class Reader:
    """Rebuilds batches from slots. One thread at a time; leases may end in any thread.

    Args:
        descriptor: the arena's shared file; the reader does not close it.
        budget: bytes of leased slots above which batches are copied out of their slots, if there is memory for it.
        board: where whoever hands out slots looks for those that came back; None where they are told.
    """

    def __init__(self, descriptor: int, budget: int, board: Board | None = None) -> None:
        self._descriptor = descriptor
        self._budget = budget
        self._mappings: dict[int, Mapping] = {}
        self._kept: dict[int, Slot] = {}  # leased, or seen by a fork
        self._home = Home(board)
        self._returned: list[int] = []
        self._came_back = False
        self.leased_bytes = 0
        self.copied_batches = 0

    def read(self, slot: Slot | None, written: Written) -> Any:
        """The batch. Large leaves are views of the slot, which is leased until they are gone.

        Raises:
            MemoryLimitError: so many batches are kept that the system maps no more of them, and there is no memory for
                a copy.
        """
        if slot is None or written.slot is None:
            return leaves.loads(written.pickle, ())
        self._settle()
        assert slot.number not in self._kept, "a slot was written again while somebody could see it"
        mapping = self._map(slot)
        copies = mapping is None or self.leased_bytes + slot.capacity > self._budget
        if copies:
            try:
                check(slot.capacity, spoken_for=0 if mapping is None else MEANWHILE * slot.capacity)
            except MemoryLimitError:
                if mapping is None:
                    self.discard(slot)
                    raise
                copies = False  # where it lies it needs no more
        lease = Lease(slot, self._home)
        exporter: Any = None
        made: list[Any] = []
        try:
            for number, leaf in enumerate(written.leaves):
                if number in written.texts:
                    made.append(_joined(leaf, written.texts[number]))
                elif mapping is None or copies or leaf.size < SMALL:
                    made.append(_copied(leaf, self._copy(slot, leaf.offset, leaf.size)))
                else:
                    if exporter is None:
                        exporter = lease.export(mapping)
                    made.append(_built(leaf, exporter, leaf.offset))
                    if leaf.tensor:
                        lease.watch_storage(made[-1].untyped_storage())
            where = written.pickle
            return leaves.loads(where if isinstance(where, bytes) else self._copy(slot, *where), made)
        finally:
            if lease.begun:
                self.leased_bytes += slot.capacity
                self._kept[slot.number] = slot
            else:
                self._let_go(slot)
                self.copied_batches += copies

    def _copy(self, slot: Slot, offset: int, size: int) -> bytearray:
        mapping = self._map(slot)
        if mapping is None:
            return segments.read(self._descriptor, slot.offset + offset, size)
        return bytearray(mapping.part(offset, size))

    def _map(self, slot: Slot) -> Mapping | None:
        """None where the system has no more mappings for this process, as with tens of thousands of batches kept."""
        mapping = self._mappings.get(slot.number)
        if mapping is None:
            try:
                mapping = self._mappings[slot.number] = Mapping(self._descriptor, slot.offset, slot.capacity)
            except OSError:
                return None
        return mapping

    def discard(self, slot: Slot) -> None:
        """The batch in the slot is not wanted."""
        self._let_go(slot)

    def _let_go(self, slot: Slot) -> None:
        self._came_back = True
        board = self._home.board
        if board is not None and board.has(slot.number):
            board.post(slot.number)
        else:
            self._returned.append(slot.number)

    def close(self) -> None:
        """No more batches come, and nobody writes any more. What is leased stays until its last view is gone.

        The rest goes back to the system now, also where a fork of this process holds the arena's file or a mapping.
        """
        self._home.board = None
        self._settle()
        self._mappings.clear()
        at = 0
        end = Slot(-1, os.fstat(self._descriptor).st_size, 0)
        for slot in [*sorted(self._kept.values(), key=lambda slot: slot.offset), end]:
            if slot.offset > at:
                punch(self._descriptor, at, slot.offset - at)
            at = slot.offset + slot.capacity

    def returned(self) -> list[int]:
        """Numbers of the slots that came back since the last call, but for those on the board."""
        self._settle()
        numbers, self._returned = self._returned, []
        return numbers

    def has_returned(self) -> bool:
        """Whether any came back since the last call."""
        self._settle()
        came_back, self._came_back = self._came_back, False
        return came_back

    def _settle(self) -> None:
        if owned.moved:
            owned.look_again()
        for _ in range(len(_moved)):  # of all readers: some have no loader any more
            try:
                lease = _moved.popleft()
            except IndexError:  # another thread looks at them
                break
            lease.look_again()
        while self._home.gone:
            lease = self._home.gone.popleft()
            # What was posted is over, whoever has forked meanwhile: nobody could see it any more
            if lease.over and not lease.settled and (lease.posted or not lease.holds):
                lease.settled = True
                self.leased_bytes -= lease.slot.capacity
                if lease.posted or not lease.retired:
                    self._came_back = True
                    del self._kept[lease.slot.number]
                    if not lease.posted:
                        self._returned.append(lease.slot.number)


def _joined(leaf: Leaf, runs: list[bytes]) -> Any:
    """A column of texts, of the runs in which it was made."""
    texts = [text for run in runs for text in pickle.loads(run)]
    return tuple(texts) if leaf.dtype == "tuple" else texts


def _copied(leaf: Leaf, memory: bytearray) -> Any:
    """The array or tensor that this is a copy of."""
    if not leaf.tensor:
        return _built(leaf, memory, 0)
    dtype = _IN_NUMPY.get(leaf.dtype)
    if leaf.strides is None and dtype is not None:
        tensor = tensor_over(Owned(leaf.shape, dtype, memory))
    else:
        import torch

        flat = tensor_over(Owned(len(memory), np.uint8, memory)).view(getattr(torch, leaf.dtype))
        tensor = flat.view(leaf.shape) if leaf.strides is None else flat.as_strided(leaf.shape, leaf.strides)
    return tensor.requires_grad_() if leaf.requires_grad else tensor


def _built(leaf: Leaf, buffer: Any, offset: int) -> Any:
    """The array or tensor over this buffer, from `offset` on."""
    if not leaf.tensor:
        return np.ndarray(leaf.shape, leaf.dtype, buffer, offset)
    import torch

    if leaf.strides is None and (dtype := _IN_NUMPY.get(leaf.dtype)) is not None:  # half the time of the other way
        tensor = torch.from_numpy(np.ndarray(leaf.shape, dtype, buffer, offset))
    else:
        kind = getattr(torch, leaf.dtype)
        flat = torch.frombuffer(buffer, dtype=kind, count=leaf.size // kind.itemsize, offset=offset)
        tensor = flat.view(leaf.shape) if leaf.strides is None else flat.as_strided(leaf.shape, leaf.strides)
    return tensor.requires_grad_() if leaf.requires_grad else tensor


_IN_NUMPY = {
    np.dtype(kind).name: np.dtype(kind) for kind in ("?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")
}
"""What torch and NumPy call by the same name."""
