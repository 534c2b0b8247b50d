"""Runs of rows that are written apart are the rows of the batch that is made at once, or are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import collate
from stoker._engine.transport import segments
from stoker._engine.transport.arena import Arena
from stoker._engine.transport.leaves import SMALL
from stoker._engine.transport.reader import Reader
from stoker._engine.transport.rows import HEAVY, Layout, MisfitError, RowWriter, WrittenRows
from stoker._engine.transport.segments import ArenaFiles
from stoker._engine.transport.writer import SlotWriter
from stoker.collate import tensors


class Hall:
    """An arena, its reader, and any number of workers that write one batch."""

    def __init__(self) -> None:
        self.descriptor = segments.create()
        self.arena = Arena(ArenaFiles([self.descriptor]))
        self.reader = Reader(ArenaFiles([self.descriptor]), 1 << 30)
        self.mappings = SlotWriter(ArenaFiles([self.descriptor]), self.arena.take)
        self.slot: Any = None
        self.copied = 0

    def ask(self, size: int, layout: Any = None) -> Any:
        if self.slot is None:
            self.slot = self.arena.take(size)
        assert size <= self.slot.capacity
        return self.mappings.map(self.slot)

    def write(self, samples: Sequence[Any], first: int, last: int, layout: Layout | None) -> WrittenRows:
        writer = RowWriter(first, last, len(samples), layout, self.ask)
        collated = collate.compiling(collate.numpy_collate)
        assert isinstance(collated, collate.Compiled)
        with tensors.lent_by(writer.lend):
            batch = collated.rows(samples[first:last])
        if batch is None:
            raise MisfitError("no rows")
        return writer.finish(batch)

    def made(self, samples: Sequence[Any], cuts: Sequence[int], known: Layout | None = None) -> Any:
        """The batch of parts that begin at these rows; the first worker knows no layout unless it is given."""
        runs: list[WrittenRows] = []
        for first, last in zip([0, *cuts], [*cuts, len(samples)], strict=True):
            runs.append(self.write(samples, first, last, known))
            known = known if len(runs) % 2 else runs[0].layout
        layout = runs[0].layout
        if any(run.layout != layout for run in runs):
            raise MisfitError("parts that are laid out differently")
        texts = {number: [run.texts[number] for run in runs] for number in runs[0].texts}
        written = layout.written(self.slot.number, len(samples), texts)
        assert written.used <= self.slot.capacity
        slot, self.slot = self.slot, None
        return self.reader.read(slot, written)

    def close(self) -> None:
        self.reader.close()
        os.close(self.descriptor)
        self.mappings._mappings.clear()


@pytest.fixture
def hall() -> Iterator[Hall]:
    hall = Hall()
    yield hall
    hall.close()


def test_memory_is_lent_in_any_order(hall: Hall) -> None:
    samples = [(number, np.full(SMALL, number)) for number in range(4)]
    layout = hall.write(samples, 0, 2, None).layout
    writer = RowWriter(2, 4, 4, layout, hall.ask)
    assert writer.lend(2 * 8 * SMALL) is not None
    assert writer.lend(2 * 8) is not None
    assert writer.lend(2 * 8) is None


def test_heavy_batch_rows_are_not_held_twice_if_rows_are_known(hall: Hall) -> None:
    layout = hall.write([np.full(SMALL, number) for number in range(4)], 0, 2, None).layout
    writer = RowWriter(2, 4, 4, layout, hall.ask)
    assert writer.lend(HEAVY // 2 - 2) is None
    with pytest.raises(MisfitError, match="do not have"):
        writer.lend(HEAVY // 2)


def test_unknown_rows_are_not_held_when_memory_is_short(hall: Hall) -> None:
    """All who make some of the rows may hold theirs, and the batch has to have its place beside them."""
    asked: list[int] = []
    writer = RowWriter(2, 4, 8, None, hall.ask, asked.append)
    assert writer.lend(HEAVY // 4 - 2) is None and not asked
    assert writer.lend(HEAVY // 4) is None and asked == [2 * HEAVY]


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Record:
    image: Any
    label: Any


@dataclass
class Derived:
    """Its fields are first, third, second; pickled it is in the order in which they are set."""

    first: Any
    third: Any = field(init=False)
    second: Any = 0.0

    def __post_init__(self) -> None:
        self.third = -self.first


def same(one: Any, other: Any) -> bool:
    """Whether two batches are of the same structure, types and bytes."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Record):
        return same(vars(one), vars(other))
    return bool(one == other)


numbers = st.one_of(
    st.booleans(), st.integers(-100, 100), st.floats(allow_nan=False, width=32), st.integers(0, 9).map(np.int32)
)
arrays = st.tuples(st.sampled_from(["f4", "u1", "i8"]), st.sampled_from([(1,), (3,), (2, 2)]), st.integers(0, 200)).map(
    lambda kind: np.full(kind[1], kind[2], kind[0])
)
texts = st.text(max_size=3)
leaves = st.one_of(numbers, numbers, arrays, arrays, texts)
alike = st.sampled_from(
    [
        lambda draw: draw(st.integers(-5, 5)),
        lambda draw: {"x": np.full((2, 3), draw(st.integers(0, 99)), np.float32), "y": draw(st.integers(0, 9))},
        lambda draw: {"x": draw(st.integers(0, 9)), "s": draw(texts), "t": (draw(texts), draw(texts).encode())},
        lambda draw: Pair(np.arange(4) * draw(st.integers(0, 9)), draw(st.floats(0, 1))),
        lambda draw: [Record(np.full(5, draw(st.integers(0, 9)), np.int16), draw(st.booleans())), (np.ones(2),)],
    ]
)


@st.composite
def batches(draw: st.DrawFn) -> list[Any]:
    """Samples that are mostly alike; at times one of them has another leaf somewhere."""
    count = draw(st.integers(1, 8))
    make = draw(alike)
    samples = [make(draw) for _ in range(count)]
    if draw(st.integers(0, 2)) == 0:
        samples[draw(st.integers(0, count - 1))] = draw(leaves)
    return samples


@settings(max_examples=150, deadline=None)
@given(samples=batches(), data=st.data())
def test_parts_make_the_batch_or_are_no_parts(samples: list[Any], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(samples) - 1)), max_size=3)) - {len(samples)})
    hall = Hall()
    try:
        made = hall.made(samples, cuts)
    except Exception:
        return  # then the whole batch is made by one worker, and is right, or says what is wrong
    finally:
        hall.close()
    assert same(made, collate.numpy_collate(samples))


@pytest.mark.parametrize(
    "make", [lambda i: i, lambda i: {"x": np.full((3, 4), i, np.float32), "y": i, "s": f"{i}.jpg", "t": ("a" * i, i)}]
)
def test_samples_that_are_alike_are_shared(hall: Hall, make: Any) -> None:
    samples = [make(i) for i in range(10)]
    assert same(hall.made(samples, [3, 4]), collate.numpy_collate(samples))


def test_a_known_layout_is_written_where_it_lies(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [{"x": np.full(SMALL, i, np.uint8), "y": i} for i in range(4)]
    layout = hall.write(samples, 0, 2, None).layout
    monkeypatch.setattr("stoker._engine.transport.rows.copy_to", lambda *_: pytest.fail("it was copied"))
    assert hall.write(samples, 2, 4, layout).layout == layout
    written = layout.written(hall.slot.number, 4, {})
    assert same(hall.reader.read(hall.slot, written), collate.numpy_collate(samples))


def test_memory_may_be_lent_in_another_order_than_pickling(hall: Hall) -> None:
    samples = [Derived(np.full(3, i), np.full(3, 10 * i)) for i in range(6)]
    made, wanted = hall.made(samples, [2, 4]), collate.numpy_collate(samples)
    assert same(vars(made), vars(wanted))


def test_labels_that_are_kept_keep_no_images(hall: Hall) -> None:
    samples = [{"x": np.full(SMALL, i, np.uint8), "y": i} for i in range(4)]
    batch = hall.made(samples, [2])
    assert hall.reader.returned() == []
    labels = batch["y"]
    del batch
    assert len(hall.reader.returned()) == 1
    assert labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "samples",
    [["a", "a"], [{"x": 1, "s": "a" * 20_000}] * 2, [np.zeros(0)] * 2, [(1, None)] * 2, [np.array("a", object)] * 2],
    ids=["texts alone", "long texts", "nothing", "None", "objects"],
)
def test_batch_without_rows_is_a_misfit(hall: Hall, samples: list[Any]) -> None:
    with pytest.raises((MisfitError, TypeError)):
        hall.made(samples, [1])


def test_rows_of_an_unknown_layout_are_a_misfit(hall: Hall) -> None:
    layout = hall.write([np.zeros(4), np.ones(4)], 0, 1, None).layout
    for other in (np.zeros(5), np.zeros(4, np.float32), 1.0, (np.zeros(4),)):
        with pytest.raises(MisfitError, match="other leaves"):
            hall.write([other, other], 1, 2, layout)


def test_parts_of_tensors_make_one_batch(hall: Hall) -> None:
    torch = pytest.importorskip("torch")
    samples = [(torch.full((3,), i), i) for i in range(6)]
    writer = [RowWriter(first, first + 3, 6, None, hall.ask) for first in (0, 3)]
    runs = [
        part.finish(collate.deferred_collate(samples[at : at + 3])) for part, at in zip(writer, (0, 3), strict=True)
    ]
    assert runs[0] == runs[1]
    x, y = hall.reader.read(hall.slot, runs[0].layout.written(hall.slot.number, 6, {}))
    assert torch.equal(x, torch.stack([sample[0] for sample in samples])) and torch.equal(y, torch.arange(6))
