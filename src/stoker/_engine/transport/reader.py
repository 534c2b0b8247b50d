"""The trainer's side of the transport: batches as leases on slots.

An exporter, a ctypes array over the slot, lies under the arrays and tensors of a delivered batch. NumPy and torch keep
it alive through views of views, `.numpy()`, DLPack, storages and autograd. When the exporter is gone, no view is left:
the slot is posted on the board, or its number appears in `returned()`, and it may be written again.

Callbacks of weak references run at any time in any thread: they only append to a deque and write the board's byte.
The file is long because leases and their callbacks hold only together.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

import numpy as np

from stoker._core.machine.reserve import check, punch
from stoker._engine.transport import leaves, owned, registered, segments
from stoker._engine.transport.arena import Board, Slot
from stoker._engine.transport.leaves import SMALL, Leaf, Loads, Opaque
from stoker._engine.transport.owned import Array, Hold, Owned, tensor_over
from stoker._engine.transport.segments import ArenaFiles, Mapping
from stoker._engine.transport.writer import Written
from stoker.errors import MemoryLimitError

if TYPE_CHECKING:
    import torch

Exporter = ctypes.Array[ctypes.c_char]
"""A buffer over a slot, under the arrays and tensors of a batch."""

MEANWHILE = 3
"""Multiple of a batch's bytes that others may take while the batch is copied: the next batch's slot and samples.
Needed because the reader and the zygote check the available memory independently."""

_open: set[Lease] = set()  # leases whose exporter lives; may outlive the loader
_moved: deque[Lease] = deque()  # leases whose storage was moved elsewhere while views may still point to the slot
_born_by: dict[int, ForkHold] = {}  # by the thread that forks a zygote
_forks: list[int] = []  # threads with a fork in progress, by Stoker or any other code


class Home:
    """The part of a reader that its leases use when they end."""

    def __init__(self, board: Board | None) -> None:
        self.gone: deque[Lease] = deque()
        self.board = board  # None: there is no board, or the zygote no longer reads it
        self.registered: dict[int, registered.RegisteredSlot] = {}  # by the number of the slot

    def post(self, number: int) -> bool:
        """Posts a released slot on the board, and whether it is registered; returns whether the board has it."""
        if self.board is None or not self.board.has(number):
            return False
        self.board.post(number, number in self.registered)
        return True


class Lease:
    """A slot that the user holds: whether its exporter lives, and whether the slot may be written again."""

    def __init__(self, slot: Slot, home: Home) -> None:
        self.slot = slot
        self.mapping: Mapping | None = None  # lives as long as the exporter
        self.views = 0  # arrays and tensors over the slot, as the batch was read
        self.holds = 0
        self.begun = False
        self.retired = False
        self.posted = False
        self.over = False
        self.settled = False
        self._home = home
        self._reference: weakref.ref[Exporter] | None = None  # weak reference to the exporter
        self._storages: list[tuple[Opaque, type[torch.UntypedStorage]]] = []  # weak references to storages, their class

    def export(self, mapping: Mapping) -> Exporter:
        """Returns a buffer over the slot. The lease ends when the buffer is garbage collected."""
        self.mapping = mapping
        self.begun = True
        exporter = mapping.part(0, self.slot.capacity)
        self._reference = weakref.ref(exporter, self._exporter_gone)
        _open.add(self)
        return exporter

    def hold(self) -> Hold:
        """Returns a hold of the slot, which lasts beyond the last view; an inactive one if no view is left."""
        return Hold(None if self._reference is None else self._reference())

    @property
    def is_registered(self) -> bool:
        """Whether a device reads the slot in place."""
        return self.slot.number in self._home.registered

    @property
    def can_register(self) -> bool:
        """Whether the slot may be registered: its owner learns of it by the board alone."""
        board = self._home.board
        return self.mapping is not None and board is not None and board.has(self.slot.number)

    def note_registered(self, unregister: Callable[[int], None]) -> None:
        """Records that the slot is registered with a device, until `unregister` is called with its address."""
        assert self.mapping is not None
        self._home.registered[self.slot.number] = registered.RegisteredSlot(self.mapping, unregister, self)

    def unregister(self) -> None:
        """Ends the registration of the slot, which no copy reads now."""
        self._home.registered.pop(self.slot.number).end()

    def watch_storage(self, storage: torch.UntypedStorage) -> None:
        """Extends the lease if `storage`, made over the exporter, outlives it.

        `share_memory_()` and multiprocessing queues move a storage to other memory while an earlier NumPy view of a
        tensor may still point to the slot; only then does the storage outlive the exporter. Such a view keeps its
        tensor alive, and the tensor its storage: when the storage is gone, so are the views.
        """
        self._storages.append((storage._weak_ref(), type(storage)))

    def hold_released(self) -> None:
        """Records that a zygote that could see the slot has ended."""
        self.holds -= 1
        self._home.gone.append(self)

    def _exporter_gone(self, reference: object) -> None:
        if sys.is_finalizing():
            return
        self._forget_gone_storages()
        self._reference = None
        self._over_or_moved()

    def _forget_gone_storages(self) -> None:
        left = []
        for weak, kind in self._storages:
            if kind._expired(weak):
                kind._free_weak_ref(weak)  # type: ignore[no-untyped-call]
            else:
                left.append((weak, kind))
        self._storages = left

    def look_again(self) -> None:
        """Ends the lease if its moved storages are gone. The caller must have taken the lease out of `_moved`, because
        a storage's weak reference may be freed only once."""
        self._forget_gone_storages()
        self._over_or_moved()

    def _over_or_moved(self) -> None:
        if self._storages:
            _moved.append(self)
            return
        self.mapping = None
        _open.discard(self)
        self.retired = self.retired or bool(_forks and not self.holds)  # a fork in progress may see the slot
        board = self._home.board
        self.posted = board is not None and board.has(self.slot.number) and not (self.holds or self.retired)
        self.over = True
        self._home.gone.append(self)  # before the post: the reader settles this lease before it reads the slot again
        if self.posted:
            self._home.post(self.slot.number)


class ForkHold:
    """The leases that existed when a zygote was forked, and that it can see. Released when the zygote has ended."""

    def __init__(self) -> None:
        self.leases: set[Lease] = set()

    def release(self) -> None:
        for lease in self.leases:
            lease.hold_released()
        self.leases = set()


@contextlib.contextmanager
def forking(hold: ForkHold) -> Iterator[None]:
    """Assigns the leases to `hold` when a zygote is forked within the block, instead of retiring their slots."""
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
    """Marks the open leases. Other threads run on during the fork: the child also sees leases that end meanwhile."""
    _forks.append(threading.get_ident())
    _mark_open()


def _after_fork_in_parent() -> None:
    try:
        _mark_open()  # leases that began during the fork
    finally:
        with contextlib.suppress(ValueError):  # this module was imported during the fork
            _forks.remove(threading.get_ident())


def _after_fork_in_child() -> None:
    _born_by.clear()
    _forks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


class Reader:
    """Rebuilds batches from slots. Used by one thread at a time; leases may end in any thread.

    Args:
        files: of the arena; the reader does not close them.
        budget: bytes of leased slots above which batches are copied out of their slots, if there is memory for it.
        board: receives released slots; None: `returned()` is the only way.
    """

    def __init__(self, files: ArenaFiles, budget: int, board: Board | None = None) -> None:
        self._files = files
        self._budget = budget
        self._mappings: dict[int, Mapping] = {}
        self._kept: dict[int, Slot] = {}  # slots that are leased or that a fork can see
        self._home = Home(board)
        self._latest: Lease | None = None  # of the batch that was read last
        self._returned: list[int] = []
        self._came_back = False
        self.leased_bytes = 0
        self.copied_batches = 0

    def read(self, slot: Slot | None, written: Written, read: Loads = pickle.loads) -> Opaque:
        """Returns the batch. Its large leaves are views of the slot, which is leased until they are gone. Pickles go
        through `read`.

        Raises:
            MemoryLimitError: the user holds more batches than the system allows mappings, and there is no memory for a
                copy.
        """
        self._latest = None
        if slot is None or written.slot is None:
            return leaves.loads(cast("bytes", written.pickle), (), read)
        self._settle()
        assert slot.number not in self._kept, "a slot was written again while a view of it existed"
        mapping = self._map(slot)
        copies = mapping is None or self.leased_bytes + slot.capacity > self._budget
        if copies:
            try:
                check(slot.capacity, spoken_for=0 if mapping is None else MEANWHILE * slot.capacity)
            except MemoryLimitError:
                if mapping is None:
                    self.discard(slot)
                    raise
                copies = False  # a view needs no further memory
        lease = Lease(slot, self._home)
        exporter: Exporter | None = None
        read_leaves: list[Opaque] = []
        try:
            for number, leaf in enumerate(written.leaves):
                if number in written.texts:
                    read_leaves.append(joined_texts(leaf, written.texts[number], read))
                elif mapping is None or copies or leaf.size < SMALL:
                    read_leaves.append(_copied(leaf, self._copy(slot, leaf.offset, leaf.size)))
                else:
                    if exporter is None:
                        exporter = lease.export(mapping)
                    view = _built(leaf, exporter, leaf.offset)
                    lease.views += 1
                    read_leaves.append(view)
                    if not isinstance(view, np.ndarray):
                        lease.watch_storage(view.untyped_storage())
            where = written.pickle
            return leaves.loads(where if isinstance(where, bytes) else self._copy(slot, *where), read_leaves, read)
        finally:
            if lease.begun:
                self._latest = lease
                self.leased_bytes += slot.capacity
                self._kept[slot.number] = slot
                if lease.is_registered:
                    self._home.registered[slot.number].lease = lease
            else:
                self.discard(slot)
            self.copied_batches += copies

    @property
    def latest(self) -> Lease | None:
        """The lease of the batch that was read last; None if no view of a slot is in it."""
        return self._latest

    def unregister_idle(self) -> list[int]:
        """Unregisters the slots that are not leased, so that their owner may punch them; returns their numbers."""
        self._settle()
        idle = [number for number in self._home.registered if number not in self._kept]
        for number in idle:
            self._home.registered.pop(number).end()
        return idle

    def hold(self) -> Hold:
        """Returns a hold of the slot of the batch that was read last (see `owned.py`); an inactive one if
        no view of the slot is left, as of a batch that was copied out of it.
        """
        return Hold(None) if self._latest is None else self._latest.hold()

    def _copy(self, slot: Slot, offset: int, size: int) -> bytearray:
        mapping = self._map(slot)
        if mapping is None:
            return segments.read(*self._files.at(slot.offset + offset), size)
        return bytearray(mapping.part(offset, size))

    def _map(self, slot: Slot) -> Mapping | None:
        """Returns None if the process has too many mappings, as with tens of thousands of leases."""
        mapping = self._mappings.get(slot.number)
        if mapping is None:
            try:
                mapping = self._mappings[slot.number] = Mapping(*self._files.at(slot.offset), slot.capacity)
            except OSError:
                return None
        return mapping

    def discard(self, slot: Slot) -> None:
        """Releases the slot of a batch that is not delivered, or that was copied out of it."""
        self._came_back = True
        if not self._home.post(slot.number):
            self._returned.append(slot.number)

    def close(self) -> None:
        """Stops reading; no worker may write any more. Leased slots stay until their last view is gone.

        All other memory is given back to the system now, even if a fork of this process holds the arena's files or a
        mapping.
        """
        self._home.board = None
        self._settle()
        registered.left.extend(self._home.registered.values())  # with their mappings
        self._home.registered.clear()
        self._mappings.clear()
        slots = sorted(self._kept.values(), key=lambda slot: slot.offset)
        for begin, size in self._files.sizes():
            at, end = begin, begin + size
            for slot in [*(slot for slot in slots if begin <= slot.offset < end), Slot(-1, end, 0)]:
                if slot.offset > at:
                    punch(*self._files.at(at), slot.offset - at)
                at = slot.offset + slot.capacity

    def returned(self) -> list[int]:
        """Returns the numbers of the slots released since the last call and not posted on the board."""
        if owned.pending():
            owned.look()
        self._settle()
        numbers, self._returned = self._returned, []
        return numbers

    def has_returned(self) -> bool:
        """Returns whether a slot was released since the last call."""
        if owned.pending():
            owned.look()
        self._settle()
        came_back, self._came_back = self._came_back, False
        return came_back

    def _settle(self) -> None:
        if owned.moved:
            owned.look_again()
        for _ in range(len(_moved)):  # of all readers, since a loader may have ended
            try:
                lease = _moved.popleft()
            except IndexError:  # another thread took it
                break
            lease.look_again()
        while self._home.gone:
            lease = self._home.gone.popleft()
            # A posted lease is over even if the process forked meanwhile: no view of it was left.
            if lease.over and not lease.settled and (lease.posted or not lease.holds):
                lease.settled = True
                self.leased_bytes -= lease.slot.capacity
                if lease.posted or not lease.retired:
                    self._came_back = True
                    del self._kept[lease.slot.number]
                    if not lease.posted:
                        self._returned.append(lease.slot.number)


def joined_texts(
    leaf: Leaf, runs: list[bytes], read: Loads = pickle.loads
) -> list[str | bytes] | tuple[str | bytes, ...]:
    """Returns a column of texts, joined from its runs."""
    texts = [text for run in runs for text in cast("list[str | bytes]", read(run))]
    return tuple(texts) if leaf.dtype == "tuple" else texts


def _copied(leaf: Leaf, memory: bytearray) -> Array | torch.Tensor:
    """Returns the array or tensor over a copy of the leaf's bytes."""
    if not leaf.tensor:
        return _built(leaf, memory, 0)
    dtype = _IN_NUMPY.get(str(leaf.dtype))
    if leaf.strides is None and dtype is not None:
        tensor = tensor_over(Owned(leaf.shape, dtype, memory))
    else:
        import torch

        flat = tensor_over(Owned(len(memory), np.uint8, memory)).view(getattr(torch, str(leaf.dtype)))
        tensor = flat.view(leaf.shape) if leaf.strides is None else flat.as_strided(leaf.shape, leaf.strides)
    return tensor.requires_grad_() if leaf.requires_grad else tensor


def array_or_tensor(leaf: Leaf, memory: bytearray) -> Array | torch.Tensor:
    """Returns the leaf's values over this memory: an array if NumPy has the dtype, also of a tensor."""
    dtype = _IN_NUMPY.get(str(leaf.dtype)) if leaf.tensor else leaf.dtype
    return _copied(leaf, memory) if dtype is None else owned.array_over(leaf.shape, dtype, memory)


def _built(leaf: Leaf, buffer: Exporter | bytearray, offset: int) -> Array | torch.Tensor:
    """Returns the array or tensor over this buffer, beginning at `offset`."""
    if not leaf.tensor:
        return owned.array_over(leaf.shape, leaf.dtype, buffer, offset)
    import torch

    if leaf.strides is None and (dtype := _IN_NUMPY.get(str(leaf.dtype))) is not None:  # takes half the time
        tensor = torch.from_numpy(np.ndarray(leaf.shape, dtype, buffer, offset))  # type: ignore[arg-type]
    else:
        kind = getattr(torch, str(leaf.dtype))
        flat = torch.frombuffer(buffer, dtype=kind, count=leaf.size // kind.itemsize, offset=offset)
        tensor = flat.view(leaf.shape) if leaf.strides is None else flat.as_strided(leaf.shape, leaf.strides)
    return tensor.requires_grad_() if leaf.requires_grad else tensor


_IN_NUMPY = {
    np.dtype(kind).name: np.dtype(kind) for kind in ("?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")
}
"""The dtypes that have the same name in torch and NumPy."""
