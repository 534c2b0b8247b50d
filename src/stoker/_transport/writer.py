"""The worker's side of the transport: a batch is collated into a slot, and what lies elsewhere is copied in once."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from stoker import _native, errors
from stoker._machine.reserve import check
from stoker._transport import leaves, segments
from stoker._transport.arena import Slot
from stoker._transport.leaves import SMALL, Leaf
from stoker._transport.segments import Mapping

Lent = tuple[Mapping, "weakref.ref[Any]"]
"""A mapping, and a part of it that was lent."""

ALIGNMENT = 64
IN_MESSAGE = 16 * 1024
"""A pickle below this many bytes travels in the message, a larger one in the slot."""


class Written(NamedTuple):
    """A batch on its way: in `slot` (its number, or None), with its leaves, and its pickle here or at a place there.

    Of a leaf that is no array but a column of texts, `texts` has the pickled runs, by the leaf's number.
    """

    slot: int | None
    used: int
    leaves: Sequence[Leaf]
    pickle: bytes | tuple[int, int]
    texts: dict[int, list[bytes]] = {}  # noqa: RUF012 - never written

    def packed(self) -> tuple[Any, ...]:
        """As it travels; begins with `slot` and `used`."""
        return self.slot, self.used, leaves.pack(self.leaves), self.pickle, self.texts

    @classmethod
    def unpacked(cls, value: tuple[Any, ...]) -> Written:
        """What `packed` gave."""
        slot, used, packed, pickle, texts = value
        return cls(slot, used, leaves.unpack(packed), pickle, texts)


def aligned(size: int) -> int:
    """Where the next leaf may begin, behind one of so many bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class SlotWriter:
    """Writes batches into slots of one arena, one after the other. Single threaded.

    Args:
        descriptor: the arena's shared file.
        ask: gives a slot of at least so many bytes in exchange for the one held; raises MemoryLimitError.
    """

    def __init__(self, descriptor: int, ask: Callable[[int], Slot]) -> None:
        self._descriptor = descriptor
        self._ask = ask
        self._mappings: dict[int, Mapping] = {}
        self._slot: Slot | None = None
        self._mapping: Mapping | None = None
        self._used = 0
        self._lends = True
        self._lent: list[Lent] = []
        self._detached: list[tuple[Mapping, list[weakref.ref[Any]]]] = []  # of which somebody has kept some

    def begin(self, slot: Slot | None) -> None:
        """The next batch is written into `slot`."""
        if self._detached:
            self._detached = [kept for kept in self._detached if any(part() is not None for part in kept[1])]
        self._slot = slot
        self._used = 0
        self._mapping = None if slot is None else self.map(slot)

    def lend(self, size: int) -> ctypes.Array[ctypes.c_char] | None:
        """Memory of the slot for a collator, or None: too small to be worth it, or more than is left.

        Raises:
            MemoryLimitError: the memory cannot hold the batch. Said before it is written, since then it would be late.
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
        """What was lent for this unit, and `also` that, is the trainer's from now on, and then other batches'.

        Whoever has kept some of it (a `collate_fn` that remembers its last batch) finds it unchanged: the pages there
        are replaced by copies. It would be so for each batch, so nothing is lent any more.
        """
        lent, self._lent = [*self._lent, *also], []
        if any(part() is not None for _, part in lent):
            gc.collect()  # a cycle, as an exception that was kept in a variable and raised, is no keeping
        kept = {id(mapping): mapping for mapping, part in lent if part() is not None}
        for mapping in kept.values():
            self._lends = False
            self._detach(mapping, [part for owner, part in lent if owner is mapping])

    def _detach(self, mapping: Mapping, parts: Sequence[weakref.ref[Any]] = ()) -> None:
        """What was lent of this mapping stays as it is, whoever writes into the slot."""
        if not segments.CAN_DETACH:
            return
        self._mappings = {number: known for number, known in self._mappings.items() if known is not mapping}
        mapping.detach()
        self._detached.append((mapping, list(parts) or [part for owner, part in self._lent if owner is mapping]))

    def finish(self, batch: Any) -> Written:
        """Pickles the batch, its large leaves taken out and into the slot."""
        outside: list[Any] = []  # leaves that lie elsewhere, kept alive until they are copied
        placed: list[tuple[Any, Leaf]] = []

        def place(thing: Any) -> int | None:
            described = describe(thing)
            if described is None:
                return None
            source, address, leaf = described
            inside = self._offset_of(address, leaf.size)
            if inside is None:
                outside.append(source)
            placed.append((None if inside is not None else source, leaf._replace(offset=inside or 0)))
            return len(placed) - 1

        data = leaves.dumps(batch, place)
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
        """The slot held, written or not."""
        return self._slot

    def _make_room(self, extra: int) -> None:
        """Exchanges the slot for a larger one where `extra` bytes do not fit, and takes along what is written."""
        if self._slot is not None and self._used + extra <= self._slot.capacity:
            return
        used, before = self._used, self._mapping
        if before is not None and any(mapping is before and part() is not None for mapping, part in self._lent):
            self._detach(before)  # the batch that is being made still looks there
        kept = bytes(before.part(0, used)) if before is not None and used else b""
        # Given in exchange: from now on it may be somebody else's
        self._slot, self._mapping, self._used = None, None, 0
        slot = self._ask(used + extra)
        mapping = self.map(slot)
        ctypes.memmove(mapping.address, kept, len(kept))
        self._slot, self._mapping, self._used = slot, mapping, used

    def _copy(self, source: Any, size: int) -> int:
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
        """The slot in this process's memory."""
        mapping = self._mappings.get(slot.number)
        if mapping is None:
            mapping = self._mappings[slot.number] = Mapping(self._descriptor, slot.offset, slot.capacity)
        return mapping


def copy_to(target: ctypes.Array[ctypes.c_char], source: Any, size: int) -> None:
    """Copies an array or tensor, as `describe` gave it: its memory has no gaps."""
    begin = source.ctypes.data if isinstance(source, np.ndarray) else source.data_ptr()
    if (functions := _native.for_large(size)) is not None:
        functions.stack(ctypes.addressof(target), [begin], size)
    else:
        ctypes.memmove(target, begin, size)


def copied(source: Any) -> Any:
    """An array or tensor, as `describe` gave it, in memory of its own."""
    return source.copy() if isinstance(source, np.ndarray) else source.clone()


def describe(thing: Any, smallest: int = SMALL) -> tuple[Any, int, Leaf] | None:
    """(what to copy from, its address, what it is), or None for what stays in the pickle, as all that is smaller."""
    if isinstance(thing, np.ndarray):
        if thing.nbytes < smallest or thing.dtype.hasobject or not thing.size:
            return None
        tensor = type(thing) is not np.ndarray
        array = np.ascontiguousarray(thing)
        dtype = array.dtype.name if tensor else _as_text(array.dtype)
        return array, array.ctypes.data, Leaf(0, array.nbytes, tensor, dtype, array.shape, None, False)
    torch = sys.modules["torch"]
    if thing.device.type not in ("cpu", "meta"):
        raise errors.DeviceInWorkerError(
            f"a worker made a batch with a tensor on {thing.device}: workers hand over memory of the CPU. Leave the "
            "tensor on the CPU in the dataset and the collate_fn, and move the batch in the training loop "
            "(batch.to(device, non_blocking=True), with pin_memory=True)."
        )
    if thing.layout is not torch.strided or thing.is_nested or thing.is_quantized or thing.device.type != "cpu":
        return None
    size = thing.numel() * thing.element_size()
    if size < smallest or (thing.requires_grad and not thing.is_leaf):
        return None
    source, strides = leaves.memory_of(thing)
    name = str(source.dtype).removeprefix("torch.")
    size = source.numel() * source.element_size()
    kept = None if source.shape == thing.shape else strides
    leaf = Leaf(0, size, True, name, tuple(thing.shape), kept, thing.requires_grad)
    return source, source.data_ptr(), leaf


def _as_text(dtype: np.dtype[Any]) -> Any:
    """A type of NumPy's own as text, which is pickled in a tenth of the time; any other as it is."""
    return dtype.str if dtype.isbuiltin == 1 and dtype.metadata is None else dtype
