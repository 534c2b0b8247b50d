"""Rows of a batch that several workers write into one slot: how they lie there, and a worker's side of it.

A batch can be shared out by rows where all that it holds are leaves with rows of one size, and columns of texts: what
is left of its pickle is then the same for any run of its rows. Each leaf of the whole batch has its place in the slot,
one behind the other; a worker writes its rows of each. Texts travel in the message. See `docs/design/11-parts.md`.
"""

from __future__ import annotations

import ctypes
import pickle
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from stoker._machine import reserve
from stoker._transport import leaves
from stoker._transport.leaves import Leaf
from stoker._transport.segments import Mapping
from stoker._transport.writer import IN_MESSAGE, Lent, Written, aligned, copied, copy_to, describe

HEAVY = 8 << 20
"""Bytes of a batch whose rows nobody should hold a second time unasked."""


class MisfitError(Exception):
    """These samples cannot be written as rows of a shared batch: it has to be made as a whole.

    Args:
        why: in words.
        for_good: whether no batch of theirs can be shared.
    """

    def __init__(self, why: str, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good


class Rows(NamedTuple):
    """The rows of one leaf: bytes in one, and what it is. Of a column of texts: 0, and what the column is to be."""

    size: int
    tensor: bool
    dtype: Any
    shape: tuple[int, ...]


class Layout(NamedTuple):
    """The leaves of a batch, and the pickle from which they were taken out."""

    rows: tuple[Rows, ...]
    pickle: bytes

    def offsets(self, count: int) -> list[int]:
        """Where the leaves of a batch of so many rows begin; the last is where they end."""
        found = [0]
        for rows in self.rows:
            found.append(found[-1] + aligned(rows.size * count))
        return found

    def written(self, slot: int, count: int, texts: dict[int, list[bytes]]) -> Written:
        """The whole batch, with the texts of all runs in order."""
        *begins, end = self.offsets(count)
        whole = [
            Leaf(at, rows.size * count, rows.tensor, rows.dtype, (count, *rows.shape), None, False)
            for at, rows in zip(begins, self.rows, strict=True)
        ]
        return Written(slot, end, whole, self.pickle, texts)


class Run(NamedTuple):
    """What a worker says of the rows that it has written: how they are laid out; texts, by the number of their leaf."""

    layout: Layout
    texts: dict[int, bytes]


class RowWriter:
    """Writes a run of the rows of one batch.

    Args:
        first: the first row.
        last: behind the last row.
        count: rows of the whole batch.
        layout: how they lie, where that is known already.
        ask: gives the batch's memory, of at least so many bytes.
        check: raises MemoryLimitError where there is not so much that processes can take.
    """

    def __init__(
        self,
        first: int,
        last: int,
        count: int,
        layout: Layout | None,
        ask: Callable[[int], Mapping],
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
        """Memory for a leaf: the first of this size that nobody has asked for. Collators ask in the order of leaves;
        for those that are written as samples come they ask before.

        Raises:
            MisfitError: it is another size than those of all leaves, so the samples are others.
            MemoryLimitError: nobody knows how the rows lie, and if all who make some of them took memory of their own
                for theirs, the batch would have no place beside it.
        """
        layout, whole = self._layout, size * self._count // self._rows
        if layout is None:
            if whole >= HEAVY:
                self._check(2 * whole)
            return None
        number = next((one for one in self._expected if layout.rows[one].size * self._rows == size), None)
        if number is None:
            if whole >= HEAVY and all(rows.size * self._rows != size for rows in layout.rows):
                raise MisfitError("a leaf that those of the samples before do not have")
            return None
        self._expected.remove(number)
        part = self._place(layout, number)
        assert self._mapping is not None
        self.lent.append((self._mapping, weakref.ref(part)))
        return part

    def finish(self, batch: Any) -> Run:
        """Writes what lies elsewhere, and says how the rows are laid out.

        Raises:
            MisfitError: they are no rows, or not laid out as was known.
        """
        found: list[Rows] = []
        written: list[tuple[int, Any, int]] = []
        texts: dict[int, bytes] = {}

        def place(thing: Any) -> int:
            number = len(found)
            if isinstance(thing, list):
                found.append(Rows(0, False, thing.joined.__name__, ()))  # type: ignore[attr-defined]
                texts[number] = pickle.dumps(list(thing), 5)
                return number
            source = describe(thing, smallest=1)
            if source is None:
                raise MisfitError("a leaf without memory of its own")
            what, address, leaf = source
            if leaf.strides is not None or leaf.requires_grad or leaf.shape[:1] != (self._rows,):
                raise MisfitError("a leaf whose first dimension is not the batch")
            found.append(Rows(leaf.size // self._rows, leaf.tensor, leaf.dtype, tuple(leaf.shape[1:])))
            written.append((number, what, address))
            return number

        frame = leaves.dumps(batch, place)
        layout = Layout(tuple(found), frame)
        if not written or (self._layout is not None and layout != self._layout):
            raise MisfitError("other leaves than those of the samples before")
        if len(frame) + sum(map(len, texts.values())) >= IN_MESSAGE:
            raise MisfitError("texts that are too long for a message")
        targets = [self._place(layout, number) for number, _, _ in written]
        elsewhere = []
        for target, (number, what, address) in zip(targets, written, strict=True):
            if ctypes.addressof(target) != address:
                # What was lent in another order than it is pickled in lies where another leaf is written
                what = copied(what) if self._has_lent(address) else what
                elsewhere.append((target, what, layout.rows[number].size * self._rows))
        for target, what, size in elsewhere:
            copy_to(target, what, size)
        return Run(layout, texts)

    def _has_lent(self, address: int) -> bool:
        return self._mapping is not None and 0 <= address - self._mapping.address < self._offsets[-1]

    def _place(self, layout: Layout, number: int) -> ctypes.Array[ctypes.c_char]:
        """The memory of this worker's rows of a leaf."""
        if self._mapping is None:
            self._offsets = layout.offsets(self._count)
            self._mapping = self._ask(self._offsets[-1])
        size = layout.rows[number].size
        return self._mapping.part(self._offsets[number] + self._first * size, size * self._rows)
