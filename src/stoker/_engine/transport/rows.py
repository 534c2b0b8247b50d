"""Rows of a batch that several workers write into one slot: their layout, and the worker's side.

A batch can be split by rows if it consists of leaves whose rows have one size each, and of columns of texts: the rest
of its pickle is then the same for every run of rows. The leaves of the whole batch lie in the slot one behind the
other; a worker writes its rows of each. Texts travel in the message. See `docs/design/11-parts.md`.
"""

from __future__ import annotations

import ctypes
import pickle
import weakref
from collections.abc import Callable
from typing import NamedTuple, cast

from stoker._core.machine import reserve
from stoker._engine.transport import leaves
from stoker._engine.transport.leaves import Dtype, Leaf, Opaque
from stoker._engine.transport.reader import array_or_tensor, joined_texts
from stoker._engine.transport.segments import Mapping
from stoker._engine.transport.writer import IN_MESSAGE, Lent, Memory, Written, aligned, copied, copy_to, describe

HEAVY = 8 << 20
"""Bytes of a batch above which the worker checks the memory before it holds rows a second time."""


class MisfitError(Exception):
    """These samples cannot be written as rows of a shared batch: one worker has to join them with the others.

    Args:
        why: in words.
        for_good: whether no batch of these samples can be split.
    """

    def __init__(self, why: str, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good


class LeafRows(NamedTuple):
    """The type of one leaf's rows, and the bytes of one row. For a column of texts: size 0, and the column's type."""

    size: int
    tensor: bool
    dtype: Dtype
    shape: tuple[int, ...]


class Layout(NamedTuple):
    """The leaves of a batch, and the pickle without them."""

    rows: tuple[LeafRows, ...]
    pickle: bytes

    def offsets(self, count: int) -> list[int]:
        """Returns the offsets of the leaves of a batch of `count` rows, and behind them the end of the last leaf."""
        offsets = [0]
        for rows in self.rows:
            offsets.append(offsets[-1] + aligned(rows.size * count))
        return offsets

    def written(self, slot: int, count: int, texts: dict[int, list[bytes]]) -> Written:
        """Returns the whole batch, with the texts of all runs in order."""
        *begins, end = self.offsets(count)
        whole = [
            Leaf(at, rows.size * count, rows.tensor, rows.dtype, (count, *rows.shape), None, False)
            for at, rows in zip(begins, self.rows, strict=True)
        ]
        return Written(slot, end, whole, self.pickle, texts)

    def read(self, mapping: Mapping, count: int, first: int, last: int, texts: dict[int, bytes]) -> Opaque:
        """Returns rows of a batch, copied out of its memory: leaves of NumPy's dtypes are arrays."""
        read_leaves: list[Opaque] = []
        for number, (at, rows) in enumerate(zip(self.offsets(count), self.rows, strict=False)):
            shape = (last - first, *rows.shape)
            leaf = Leaf(0, rows.size * (last - first), rows.tensor, rows.dtype, shape, None, False)
            if number in texts:
                read_leaves.append(joined_texts(leaf, [texts[number]]))
            else:
                memory = bytearray(mapping.part(at + first * rows.size, leaf.size))
                read_leaves.append(array_or_tensor(leaf, memory))
        return leaves.loads(self.pickle, read_leaves)


class WrittenRows(NamedTuple):
    """A worker's report on the rows that it has written: their layout, and the pickled texts by leaf number."""

    layout: Layout
    texts: dict[int, bytes]


class RowWriter:
    """Writes a run of the rows of one batch.

    Args:
        first: the first row.
        last: the row behind the last.
        count: rows of the whole batch.
        layout: the layout of the rows, if it is known already.
        ask: returns the batch's memory, of at least the given bytes, for this layout if it was not known.
        check: raises MemoryLimitError if processes cannot take the given bytes.
    """

    def __init__(
        self,
        first: int,
        last: int,
        count: int,
        layout: Layout | None,
        ask: Callable[[int, Layout | None], Mapping],
        check: Callable[[int], object] = reserve.check,
    ) -> None:
        self._first = first
        self._rows = last - first
        self._count = count
        self._layout = layout
        self._expected = [] if layout is None else [number for number, rows in enumerate(layout.rows) if rows.size]
        self._ask = ask
        self._check = check
        self._mapping: Mapping | None = None
        self._offsets: list[int] = []
        self.lent: list[Lent] = []

    def lend(self, size: int) -> ctypes.Array[ctypes.c_char] | None:
        """Returns memory for a leaf: for the first unused leaf of this size. Collators request memory in the order of
        the leaves, after the requests for leaves that are written as samples arrive. Returns None if no leaf fits.

        Raises:
            MisfitError: no leaf has this size, so the samples differ from earlier ones.
            MemoryLimitError: the layout is unknown, and if all workers of the batch took private memory for their
                rows, there would be no room for the batch itself.
        """
        layout, whole = self._layout, size * self._count // self._rows
        if layout is None:
            if whole >= HEAVY:
                self._check(2 * whole)
            return None
        number = next((one for one in self._expected if layout.rows[one].size * self._rows == size), None)
        if number is None:
            if whole >= HEAVY and all(rows.size * self._rows != size for rows in layout.rows):
                raise MisfitError("a leaf that earlier samples do not have")
            return None
        self._expected.remove(number)
        part = self._place(layout, number)
        assert self._mapping is not None
        self.lent.append((self._mapping, weakref.ref(part)))
        return part

    def finish(self, batch: Opaque) -> WrittenRows:
        """Copies leaves that lie elsewhere into the batch, and returns the layout and texts of the rows.

        Raises:
            MisfitError: the leaves are no rows, or their layout differs from the known one.
        """
        rows: list[LeafRows] = []
        written: list[tuple[int, Memory, int]] = []
        texts: dict[int, bytes] = {}

        def place(thing: Opaque) -> int:
            number = len(rows)
            if isinstance(thing, list):
                rows.append(LeafRows(0, False, thing.joined.__name__, ()))  # type: ignore[attr-defined]
                texts[number] = pickle.dumps(list(thing), 5)
                return number
            source = describe(cast("Memory", thing), smallest=1)
            if source is None:
                raise MisfitError("a leaf without memory of its own")
            what, address, leaf = source
            if leaf.strides is not None or leaf.requires_grad or leaf.shape[:1] != (self._rows,):
                raise MisfitError("a leaf whose first dimension is not the batch")
            rows.append(LeafRows(leaf.size // self._rows, leaf.tensor, leaf.dtype, tuple(leaf.shape[1:])))
            written.append((number, what, address))
            return number

        frame = leaves.dumps(batch, place)
        layout = Layout(tuple(rows), frame)
        if not written or (self._layout is not None and layout != self._layout):
            raise MisfitError("other leaves than those of earlier samples")
        if len(frame) + sum(map(len, texts.values())) >= IN_MESSAGE:
            raise MisfitError("texts that are too long for a message")
        targets = [self._place(layout, number) for number, _, _ in written]
        elsewhere = []
        for target, (number, what, address) in zip(targets, written, strict=True):
            if ctypes.addressof(target) != address:
                # Memory lent in another order than the leaves are pickled in is about to be overwritten.
                what = copied(what) if self._has_lent(address) else what
                elsewhere.append((target, what, layout.rows[number].size * self._rows))
        for target, what, size in elsewhere:
            copy_to(target, what, size)
        return WrittenRows(layout, texts)

    def _has_lent(self, address: int) -> bool:
        return self._mapping is not None and 0 <= address - self._mapping.address < self._offsets[-1]

    def _place(self, layout: Layout, number: int) -> ctypes.Array[ctypes.c_char]:
        """Returns the memory of this worker's rows of a leaf."""
        if self._mapping is None:
            self._offsets = layout.offsets(self._count)
            self._mapping = self._ask(self._offsets[-1], None if self._layout else layout)
        size = layout.rows[number].size
        return self._mapping.part(self._offsets[number] + self._first * size, size * self._rows)
