"""The worker's side of the transport: collates a batch into a slot, and copies leaves that lie elsewhere once."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable, Sequence
from pickle import loads as plain_loads
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import numpy as np

from stoker import errors
from stoker._core import native
from stoker._core.machine.reserve import check
from stoker._engine.transport import leaves, segments
from stoker._engine.transport.arena import Slot
from stoker._engine.transport.leaves import SMALL, Dtype, Leaf, Loads, Opaque
from stoker._engine.transport.owned import Array
from stoker._engine.transport.segments import ArenaFiles, Mapping

if TYPE_CHECKING:
    import torch

Part = ctypes.Array[ctypes.c_char]
"""Memory of a mapping."""

Memory: TypeAlias = "Array | torch.Tensor"
"""An array, or a tensor, whose memory travels in a slot."""

Lent = tuple[Mapping, "weakref.ref[Part]"]
"""A mapping, and a weak reference to a part of it that was lent to a collator."""

ALIGNMENT = 64
IN_MESSAGE = 16 * 1024
"""Bytes below which a pickle travels in the message; a larger pickle travels in the slot."""


Packed = tuple["int | None", int, bytes, "bytes | tuple[int, int]", dict[int, list[bytes]]]
"""A `Written` as messages carry it: slot, used, packed leaves, pickle, texts."""


class Written(NamedTuple):
    """A batch to be sent: the number of its slot or None, its leaves, and its pickle or the pickle's place in the slot.

    For a leaf that is a column of texts, `texts` has the pickled runs, by the number of the leaf.
    """

    slot: int | None
    used: int
    leaves: Sequence[Leaf]
    pickle: bytes | tuple[int, int]
    texts: dict[int, list[bytes]] = {}  # noqa: RUF012 - never written

    def packed(self) -> Packed:
        """Returns the tuple that messages carry; it begins with `slot` and `used`."""
        return self.slot, self.used, leaves.pack(self.leaves), self.pickle, self.texts

    @staticmethod
    def size_of(value: Packed) -> int:
        """Returns the bytes of a packed batch: those in its slot, and those of its pickle where this is not there."""
        return value[1] + (len(value[3]) if isinstance(value[3], bytes) else 0)

    @classmethod
    def unpacked(cls, value: Packed, read: Loads = plain_loads) -> Written:
        """Returns the batch from the result of `packed`."""
        slot, used, packed, pickle, texts = value
        return cls(slot, used, leaves.unpack(packed, read), pickle, texts)


def aligned(size: int) -> int:
    """Returns `size` rounded up to the alignment of leaves, in bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class SlotWriter:
    """Writes batches into slots of one arena, one after the other. Not thread safe.

    Args:
        files: of the arena.
        ask: exchanges the held slot for one of at least the given bytes; raises MemoryLimitError.
    """

    def __init__(self, files: ArenaFiles, ask: Callable[[int], Slot]) -> None:
        self._files = files
        self._ask = ask
        self._mappings: dict[int, Mapping] = {}
        self._slot: Slot | None = None
        self._mapping: Mapping | None = None
        self._used = 0
        self._lends = True
        self._lent: list[Lent] = []
        self._detached: list[tuple[Mapping, list[weakref.ref[Part]]]] = []  # mappings with parts still in use

    def begin(self, slot: Slot | None) -> None:
        """Begins a batch, to be written into `slot`."""
        if self._detached:
            self._detached = [entry for entry in self._detached if any(part() is not None for part in entry[1])]
        self._slot = slot
        self._used = 0
        self._mapping = None if slot is None else self.map(slot)

    def lend(self, size: int) -> ctypes.Array[ctypes.c_char] | None:
        """Returns memory of the slot for a collator; None if the size is small or exceeds the rest of the slot.

        Raises:
            MemoryLimitError: the memory cannot hold the batch. Raised before the batch is written.
        """
        if size < SMALL or not self._lends:
            return None
        if not self._used:
            self._make_room(size)
        if self._slot is None or self._used + size > self._slot.capacity:
            check(size)
            return None
        assert self._mapping is not None
        at, self._used = self._used, aligned(self._used + size)
        part = self._mapping.part(at, size)
        self._lent.append((self._mapping, weakref.ref(part)))
        return part

    def let_go(self, also: Sequence[Lent] = ()) -> None:
        """Ends the use of the memory lent for this unit, and of `also`: it belongs to the trainer, then to other
        batches.

        If user code keeps some of it (a `collate_fn` that remembers its last batch), the pages are replaced by a
        private copy, so their contents stay. Nothing is lent any more then, since this would happen for each batch.
        """
        lent, self._lent = [*self._lent, *also], []
        if any(part() is not None for _, part in lent):
            gc.collect()  # parts held only by a cycle, such as a raised exception kept in a variable, do not count
        lent_mappings = {id(mapping): mapping for mapping, part in lent if part() is not None}
        for mapping in lent_mappings.values():
            self._lends = False
            self._detach(mapping, [part for owner, part in lent if owner is mapping])

    def _detach(self, mapping: Mapping, parts: Sequence[weakref.ref[Part]] = ()) -> None:
        """Makes lent parts of this mapping independent of the slot."""
        if not segments.CAN_DETACH:
            return
        self._mappings = {number: known for number, known in self._mappings.items() if known is not mapping}
        mapping.detach()
        self._detached.append((mapping, list(parts) or [part for owner, part in self._lent if owner is mapping]))

    def finish(self, batch: Opaque) -> Written:
        """Returns the pickled batch; its large leaves are in the slot."""
        outside: list[Memory] = []  # leaves outside the slot, kept alive until they are copied
        placed: list[tuple[Memory | None, Leaf]] = []

        def place(thing: Opaque) -> int | None:
            described = describe(cast("Memory", thing))
            if described is None:
                return None
            source, address, leaf = described
            inside = self._offset_of(address, leaf.size)
            if inside is None:
                outside.append(source)
            placed.append((None if inside is not None else source, leaf._replace(offset=inside or 0)))
            return len(placed) - 1

        data = leaves.dumps(batch, place, SMALL)
        in_slot = len(data) >= IN_MESSAGE
        extra = sum(aligned(leaf.size) for source, leaf in placed if source is not None)
        extra += aligned(len(data)) if in_slot else 0
        if extra:
            self._make_room(extra)
        out: list[Leaf] = []
        for source, leaf in placed:
            out.append(leaf if source is None else leaf._replace(offset=self._copy(source, leaf.size)))
        where: bytes | tuple[int, int] = data
        if in_slot:
            where = (self._copy(np.frombuffer(data, np.uint8), len(data)), len(data))
        used = bool(out) or in_slot
        return Written(self._slot.number if used and self._slot else None, self._used if used else 0, out, where)

    @property
    def slot(self) -> Slot | None:
        """The held slot, written or not."""
        return self._slot

    def _make_room(self, extra: int) -> None:
        """Exchanges the slot for a larger one if `extra` bytes do not fit, and copies the written bytes."""
        if self._slot is not None and self._used + extra <= self._slot.capacity:
            return
        used, before = self._used, self._mapping
        if before is not None and any(mapping is before and part() is not None for mapping, part in self._lent):
            self._detach(before)  # leaves of the unfinished batch still point to it
        content = bytes(before.part(0, used)) if before is not None and used else b""
        # The old slot may belong to another batch from here on.
        self._slot, self._mapping, self._used = None, None, 0
        slot = self._ask(used + extra)
        mapping = self.map(slot)
        ctypes.memmove(mapping.address, content, len(content))
        self._slot, self._mapping, self._used = slot, mapping, used

    def _copy(self, source: Memory, size: int) -> int:
        assert self._mapping is not None and self._slot is not None
        at, self._used = self._used, aligned(self._used + size)
        copy_to(self._mapping.part(at, size), source, size)
        return at

    def _offset_of(self, address: int, size: int) -> int | None:
        if self._mapping is None:
            return None
        at = address - self._mapping.address
        return at if at >= 0 and at + size <= self._used else None

    def map(self, slot: Slot) -> Mapping:
        """Returns the slot's mapping in this process."""
        mapping = self._mappings.get(slot.number)
        if mapping is None:
            mapping = self._mappings[slot.number] = Mapping(*self._files.at(slot.offset), slot.capacity)
        return mapping


def copy_to(target: Part, source: Memory, size: int) -> None:
    """Copies an array or tensor without gaps, as `describe` returns it."""
    begin = source.ctypes.data if isinstance(source, np.ndarray) else source.data_ptr()
    if (functions := native.for_large(size)) is not None:
        functions.stack(ctypes.addressof(target), [begin], size)
    else:
        ctypes.memmove(target, begin, size)


def copied(source: Memory) -> Memory:
    """Returns a private copy of an array or tensor as `describe` returns it."""
    return source.copy() if isinstance(source, np.ndarray) else source.clone()


def describe(thing: Memory, smallest: int = SMALL) -> tuple[Memory, int, Leaf] | None:
    """Returns a leaf's gapless memory, its address and its type; None for a leaf that stays in the pickle."""
    if isinstance(thing, np.ndarray):
        if thing.nbytes < smallest or thing.dtype.hasobject or not thing.size:
            return None
        tensor = type(thing) is not np.ndarray
        array = np.ascontiguousarray(thing)
        dtype: Dtype = array.dtype.name if tensor else array.dtype
        if not tensor and array.dtype.isbuiltin == 1 and array.dtype.metadata is None:
            dtype = array.dtype.str  # pickled in a tenth of the time
        return array, array.ctypes.data, Leaf(0, array.nbytes, tensor, dtype, array.shape, None, False)
    torch = sys.modules["torch"]
    if thing.device.type not in ("cpu", "meta"):
        raise errors.DeviceInWorkerError(
            f"a worker made a batch with a tensor on {thing.device}: workers can only send memory of the CPU. Leave "
            "the tensor on the CPU in the dataset and the collate_fn, and pass device= to the loader, or move the "
            "batch in the training loop (batch.to(device, non_blocking=True), with pin_memory=True)."
        )
    if thing.layout is not torch.strided or thing.is_nested or thing.is_quantized or thing.device.type != "cpu":
        return None
    size = thing.numel() * thing.element_size()
    if size < smallest or (thing.requires_grad and not thing.is_leaf):
        return None
    source, strides = leaves.memory_of(thing)
    name = str(source.dtype).removeprefix("torch.")
    size = source.numel() * source.element_size()
    layout = None if source.shape == thing.shape else strides
    leaf = Leaf(0, size, True, name, tuple(thing.shape), layout, thing.requires_grad)
    return source, source.data_ptr(), leaf
