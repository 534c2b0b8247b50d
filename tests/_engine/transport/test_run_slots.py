"""The batches of a run share a slot: each is a batch of its own, and the slot comes back when the last view is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from stoker._engine.transport import writer
from stoker._engine.transport.reader import SharedSlot
from stoker._engine.transport.writer import SlotWriter, Written
from stoker.collate import tensors
from stoker.errors import MemoryLimitError
from tests._engine.transport.test_leases import BIG, ELEMENTS, Line, array


class RunLine(Line):
    """A line that sends runs."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = SlotWriter(self.writer._files, self.exchange, self.hand_over)
        self.made: list[Written] = []
        self.handed_over: list[list[Written]] = []

    def exchange(self, size: int) -> Any:
        try:
            return super().exchange(max(size, self.writer.wish))
        except MemoryLimitError:
            return super().exchange(size)

    def hand_over(self) -> None:
        made, self.made = self.made, []
        self.handed_over.append(made)
        self.held = None  # the slot is the trainer's now

    def make(self, values: Sequence[float], lends: bool, sizes: Sequence[int] = (), hint: int = 0) -> None:
        """Makes a batch of each value, of so many elements, into slots of `hint` bytes at first."""
        self.held = self.arena.take(hint) if hint else None
        self.writer.begin(self.held, len(values))
        for place, value in enumerate(values):
            if place:
                self.writer.begin_next()
            elements = sizes[place] if sizes else ELEMENTS
            with tensors.lent_by(self.writer.lend if lends else None):
                out = tensors.empty((elements,), np.dtype(np.float32)) if lends else np.empty(elements, np.float32)
            out[:] = value
            written = self.writer.finish([out, value])
            self.made.append(written)
            del out
            self.writer.let_go()
        self.hand_over()

    def received(self) -> Iterator[tuple[Any, SharedSlot]]:
        """Yields the batches, and what they share."""
        for made in self.handed_over:
            number = next((written.slot for written in made if written.slot is not None), None)
            shared = SharedSlot(None if number is None else self.arena.slot(number), len(made))
            for written in made:
                yield self.reader.read(shared, written), shared


@pytest.fixture
def line() -> Iterator[RunLine]:
    line = RunLine()
    yield line
    line.close()


@pytest.mark.parametrize("lends", [True, False])
def test_batches_of_a_run_lie_in_one_slot(line: RunLine, lends: bool) -> None:
    line.make([1, 2, 3], lends)
    batches = [batch for batch, _ in line.received()]
    for value, (values, said) in enumerate(batches, 1):
        assert said == value and values.shape == (ELEMENTS,) and (values == value).all()
    assert len(line.handed_over) == 1 and line.slots == 1
    del values
    while batches:
        assert line.collect() == 0
        batches.pop()
    assert line.collect() == 1


def test_a_small_slot_is_exchanged_once_for_the_run(line: RunLine) -> None:
    line.make([1, 2, 3], True, hint=BIG)
    assert len(line.handed_over) == 1
    assert [float(batch[0][0]) for batch, _ in line.received()] == [1, 2, 3]


@pytest.mark.parametrize("lends", [True, False])
def test_batch_without_room_gets_another_slot(line: RunLine, lends: bool) -> None:
    sizes = [ELEMENTS, ELEMENTS, 9 * ELEMENTS, ELEMENTS]
    line.make([1, 2, 3, 4], lends, sizes)
    assert [len(made) for made in line.handed_over] == [2, 1, 1]
    batches = [batch for batch, _ in line.received()]
    for value, size, (values, said) in zip((1, 2, 3, 4), sizes, batches, strict=True):
        assert said == value and values.shape == (size,) and (values == value).all()


def test_second_leaf_without_room_moves_with_the_first(line: RunLine) -> None:
    """Its first leaf was written behind the finished batches."""
    line.held = line.arena.take(3 * BIG)
    line.writer.begin(line.held, 2)
    kept = []
    for place in range(2):
        if place:
            assert line.writer.begin_next()
        with tensors.lent_by(line.writer.lend):
            leaves = [tensors.empty((ELEMENTS,), np.dtype(np.float32))]
            leaves[0][:] = place
            if place:
                leaves.append(array(9))
                leaves.append(array(8))
        written = line.writer.finish(leaves)
        line.made.append(written)
        kept.append(leaves)
        del leaves
        kept.clear()
        line.writer.let_go()
    line.hand_over()
    assert [len(made) for made in line.handed_over] == [1, 1]
    first, second = [batch for batch, _ in line.received()]
    assert (first[0] == 0).all()
    assert [float(leaf.min()) for leaf in second] == [1, 9, 8] == [float(leaf.max()) for leaf in second]


def test_run_is_as_long_as_memory_allows(line: RunLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is memory for the first batch, and none for a slot of all."""
    take = line.arena.take

    def scarce(size: int, *more: Any) -> Any:
        if size > BIG:
            raise MemoryLimitError("no more")
        return take(size, *more)

    monkeypatch.setattr(line.arena, "take", scarce)
    line.writer.begin(None, 4)
    line.made.append(line.writer.finish(array(5)))
    assert not line.writer.begin_next()
    line.hand_over()
    ((batch, _),) = line.received()
    assert (batch == 5).all()


def test_discarded_batches_give_the_slot_back(line: RunLine) -> None:
    line.make([1, 2], True)
    (made,) = line.handed_over
    shared = SharedSlot(line.arena.slot(made[0].slot), 2)  # type: ignore[arg-type]
    line.reader.discard(shared)
    assert line.collect() == 0
    line.reader.discard(shared)
    assert line.collect() == 1


def test_slot_stays_for_the_batch_that_is_not_read(line: RunLine) -> None:
    line.make([1, 2], True)
    received = line.received()
    batch, shared = next(received)
    assert (batch[0] == 1).all()
    del batch
    assert line.collect() == 0
    batch, _ = next(received)
    assert (batch[0] == 2).all() and not shared.left
    del batch, received, shared
    assert line.collect() == 1


def test_runs_that_are_copied_give_the_slot_back(line: RunLine) -> None:
    line.reader._budget = 0
    line.make([1, 2], True)
    batches = [batch for batch, _ in line.received()]
    assert [float(batch[0][0]) for batch in batches] == [1, 2] and line.reader.copied_batches == 2
    assert line.collect() == 1


def test_small_batches_take_no_slot(line: RunLine) -> None:
    line.make([1, 2], False, [4, 4])
    assert [batch[0].tolist() for batch, _ in line.received()] == [[1] * 4, [2] * 4] and line.slots == 0


def test_kept_lent_memory_stays_with_its_keeper(line: RunLine) -> None:
    """The mapping is replaced between two batches of a run: the next one lies in the slot all the same."""
    line.writer.begin(None, 2)
    kept: list[Any] = []
    for value in (1, 2):
        if value > 1:
            assert line.writer.begin_next()
        with tensors.lent_by(line.writer.lend):
            out = tensors.empty((ELEMENTS,), np.dtype(np.float32))
        out[:] = value
        kept.append(out)
        line.made.append(line.writer.finish(out))
        line.writer.let_go()
    line.hand_over()
    batches = [batch for batch, _ in line.received()]
    for value, batch, own in zip((1, 2), batches, kept, strict=True):
        assert (batch == value).all() and (own == value).all()
        batch += 5
        assert (own == value).all()
    assert writer.LARGEST >= 4 * BIG
