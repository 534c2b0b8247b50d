"""A batch belongs to the user: its slot comes back when the last view is gone, and never while one is out."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from multiprocessing import resource_sharer
from typing import Any

import numpy as np
import pytest

from stoker._engine.transport import arena, reader, segments
from stoker._engine.transport.arena import Arena, Board
from stoker._engine.transport.leaves import SMALL
from stoker._engine.transport.reader import ForkHold, Reader, forking
from stoker._engine.transport.segments import ArenaFiles
from stoker._engine.transport.writer import SlotWriter
from stoker.collate import tensors
from stoker.errors import MemoryLimitError

BIG = 1 << 18
ELEMENTS = BIG // 4


class Line:
    """A worker's and a trainer's end of the transport, and the zygote's arena between them, in one process."""

    def __init__(self, budget: int = 1 << 30) -> None:
        self.descriptor = segments.create()
        self.board = Board(self.descriptor)
        self.arena = Arena(ArenaFiles([self.descriptor]), begin=arena.SIZE)
        self.reader = Reader(ArenaFiles([self.descriptor]), budget, Board(self.descriptor))
        self.writer = SlotWriter(ArenaFiles([self.descriptor]), self.exchange)
        self.hint = 0
        self.held: Any = None  # the slot that the writer has, also while it waits for another

    def exchange(self, size: int) -> Any:
        if self.held is not None:
            self.arena.put_back(self.held.number)
        self.held = self.arena.take(size)
        return self.held

    def begin(self, size: int) -> None:
        """The next batch is written into a slot of this size."""
        self.held = self.arena.take(size) if size else None
        self.writer.begin(self.held)

    def send(self, make: Callable[[], Any]) -> Any:
        """What the trainer gets of a batch that a worker makes."""
        self.take_back()
        self.begin(self.hint)
        with tensors.lent_by(self.writer.lend):
            written = self.writer.finish(make())
        self.writer.let_go()
        if written.slot is None and self.writer.slot is not None:
            self.arena.put_back(self.writer.slot.number)
        self.hint = written.used
        return self.reader.read(None if written.slot is None else self.arena.slot(written.slot), written)

    def collect(self) -> int:
        """Takes back the slots that are free again; returns how many they were."""
        gc.collect()
        return self.take_back()

    def take_back(self) -> int:
        numbers = [*self.reader.returned(), *self.board.collect()]
        for number in numbers:
            self.arena.put_back(number)
        return len(numbers)

    def close(self) -> None:
        self.reader.close()
        self.writer.let_go()
        os.close(self.descriptor)
        self.writer._mappings.clear()
        self.writer.begin(None)
        del self.board

    @property
    def slots(self) -> int:
        return len(self.arena._slots)


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


def array(value: float = 1.0) -> np.ndarray[Any, Any]:
    return np.full(ELEMENTS, value, np.float32)


def test_an_array_arrives_and_its_slot_comes_back(line: Line) -> None:
    batch = line.send(array)
    assert batch.sum() == ELEMENTS and batch.flags.writeable
    assert line.collect() == 0
    del batch
    assert line.collect() == 1


def test_slots_are_reused(line: Line) -> None:
    for value in range(20):
        batch = line.send(lambda value=value: {"x": array(value)})
        assert (batch["x"] == value).all()
        del batch
    assert line.slots == 1


def test_a_collator_writes_into_the_slot_itself(line: Line) -> None:
    places = []

    def collate() -> Any:
        out = tensors.empty((ELEMENTS,), np.dtype(np.float32))
        places.append(out.ctypes.data)
        out[:] = 3
        return [out, "label"]

    line.send(collate)
    first = line.writer._mappings[0]
    batch = line.send(collate)
    assert first.address <= places[-1] < first.address + first.size
    assert (batch[0] == 3).all() and batch[1] == "label"


def test_lent_memory_that_is_kept_belongs_to_its_keeper(line: Line) -> None:
    kept: list[Any] = []

    def collate(value: float, keep: bool) -> Any:
        out = tensors.empty((ELEMENTS,), np.dtype(np.float32))
        out[:] = value
        if keep:
            kept.append(out)
        return out

    for value in range(3):
        assert (line.send(lambda value=value: collate(value, keep=False)) == value).all()
    assert line.writer._lends and line.slots == 1
    batch = line.send(lambda: collate(7, keep=True))
    assert not line.writer._lends  # it would be so each time
    batch += 1
    assert (kept[0] == 7).all()
    del batch
    for value in range(20, 30):
        assert (line.send(lambda value=value: collate(value, keep=True)) == value).all()
    assert [float(out[0]) for out in kept] == [7, *range(20, 30)] and (kept[0] == 7).all()
    kept.clear()
    line.writer.begin(None)
    assert not line.writer._detached


def test_a_batch_that_is_kept_is_never_overwritten(line: Line) -> None:
    kept = [line.send(lambda value=value: array(value)) for value in range(30)]
    for value, batch in enumerate(kept):
        assert (batch == value).all()
    del batch
    kept.clear()
    assert line.collect() == 30


def test_small_leaves_do_not_keep_a_slot(line: Line) -> None:
    labels = [line.send(lambda: (array(), np.arange(64)))[1] for _ in range(10)]
    assert [int(label.sum()) for label in labels] == [2016] * 10
    assert line.slots <= 2


def test_a_batch_without_large_leaves_takes_no_slot(line: Line) -> None:
    assert line.send(lambda: {"label": np.arange(5), "name": "a"})["name"] == "a"
    assert line.slots == 0


def test_batch_without_layout_travels_pickled_in_the_slot(line: Line) -> None:
    words = [f"word {number}" for number in range(20_000)]
    assert line.send(lambda: words) == words
    assert line.slots == 1 and line.collect() == 1


def test_a_writer_that_is_refused_holds_no_slot() -> None:
    line = Line()
    line.send(array)
    line.begin(BIG)

    def refuse(size: int) -> Any:
        raise MemoryLimitError("full")

    line.writer._ask = refuse
    with pytest.raises(MemoryLimitError):
        line.writer.finish([array(), array()])
    assert line.writer.slot is None
    line.close()


def test_writer_that_cannot_map_a_new_slot_lends_no_old_memory(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.begin(BIG)

    def full(slot: Any) -> Any:
        raise OSError("too many mappings")

    with monkeypatch.context() as patch:
        patch.setattr(line.writer, "map", full)
        with pytest.raises(OSError, match="too many mappings"):
            line.writer.lend(4 * BIG)
    assert line.writer.slot is None and line.writer.lend(100) is None
    given = line.held
    assert line.writer.lend(BIG) is not None
    assert line.writer.slot == line.held != given  # it asked once more


def test_batch_in_an_exchanged_slot_stays_unchanged(line: Line) -> None:
    """Another unit may write there as soon as it is given away."""
    line.hint = BIG
    kept: list[Any] = []

    def make() -> Any:
        out = tensors.empty((ELEMENTS,), np.dtype(np.float32))
        out[:] = 3
        kept.append(out)
        return [out, array(5)]

    exchange = line.writer._ask

    def overwritten(size: int) -> Any:
        before = line.writer._mappings.get(0) or next(iter(line.writer._mappings.values()), None)
        slot = exchange(size)
        other = segments.Mapping(line.descriptor, 0, BIG)
        np.frombuffer(other.part(0, BIG), np.float32)[:] = 9
        assert before is None or before.address != kept[0].ctypes.data
        return slot

    line.writer._ask = overwritten
    first, second = line.send(make)
    assert (first == 3).all() and (second == 5).all() and (kept[0] == 3).all()


def test_written_rows_move_to_a_larger_slot(line: Line) -> None:
    line.hint = BIG

    def make() -> Any:
        out = tensors.empty((ELEMENTS,), np.dtype(np.float32))
        out[:] = 3
        return [out, array(5), array(6)]

    first, *others = line.send(make)
    assert (first == 3).all() and [float(other.mean()) for other in others] == [5, 6]


def test_beyond_the_budget_batches_are_copied_out() -> None:
    line = Line(budget=3 * BIG)
    kept = [line.send(lambda value=value: array(value)) for value in range(12)]
    assert [float(batch[-1]) for batch in kept] == list(range(12))
    assert line.slots < 6 and line.reader.copied_batches > 5
    line.close()


def test_batch_without_memory_for_a_copy_stays_in_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it copied where there would be too little for what others take meanwhile."""
    left = 3 * BIG

    def check(size: int, spoken_for: int = 0) -> None:
        if size + spoken_for > left:
            raise MemoryLimitError("full")

    line = Line(budget=0)
    monkeypatch.setattr(reader, "check", check)
    kept = [line.send(lambda value=value: array(value)) for value in range(4)]
    assert [batch[0] for batch in kept] == [0, 1, 2, 3]
    assert line.slots == 4 and not line.reader.copied_batches
    kept.clear()
    assert line.collect() == 4
    line.close()


def test_array_that_a_batch_holds_twice_stays_shared(line: Line) -> None:
    def make() -> Any:
        once = tensors.empty((ELEMENTS,), np.dtype(np.float32))
        return once, once

    line.send(make)
    one, other = line.send(make)
    one[:] = 5
    assert (other == 5).all()


def test_batches_outlive_the_loader() -> None:
    line = Line()
    batch = line.send(array)
    line.close()
    gc.collect()
    batch += 1
    assert batch.sum() == 2 * ELEMENTS


def test_the_mapping_goes_with_the_last_batch() -> None:
    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:stoker" in row for row in maps)

    gc.collect()
    before = mapped()
    line = Line()
    batch = line.send(array)
    line.close()
    gc.collect()
    assert mapped() > before
    del batch
    gc.collect()
    assert mapped() == before


def test_views_may_end_in_any_thread(line: Line) -> None:
    batches = [line.send(array) for _ in range(8)]
    threads = [threading.Thread(target=batches.pop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert line.collect() == 8


def test_a_leaf_keeps_the_slot_and_has_a_place_of_its_own(line: Line) -> None:
    batch = line.send(lambda: {"x": array(1), "y": array(2), "z": array(3)})
    kept = batch["y"]
    del batch
    assert line.collect() == 0
    kept += 1
    assert (kept == 3).all() and kept.nbytes == BIG
    del kept
    assert line.collect() == 1


def test_dtypes_and_shapes_of_numpy(line: Line) -> None:
    structured = np.zeros(BIG // 12, dtype=[("a", "<f4"), ("b", "<i8")])
    structured["b"] = 7
    big_endian = np.arange(ELEMENTS, dtype=">i4").reshape(4, -1)
    fortran = np.asfortranarray(np.arange(ELEMENTS, dtype=np.float32).reshape(16, -1))
    for sent in (structured, big_endian, fortran):
        got = line.send(lambda sent=sent: sent)
        assert got.dtype == sent.dtype and (got == sent).all()
    marked = np.zeros(BIG, np.dtype(np.int8, metadata={"vals": {"cat": 0}}))  # as h5py marks enumerations
    assert line.send(lambda: marked).dtype.metadata == {"vals": {"cat": 0}}


torch = pytest.importorskip("torch", reason="what follows is about tensors")


def tensor(value: float = 1.0) -> Any:
    return torch.full((ELEMENTS,), value)


KEEPING: dict[str, Callable[[Any], Any]] = {
    "slice of a slice": lambda t: t[10:][::2].view(-1),
    "numpy()": lambda t: t.numpy()[3:],
    "reshape of numpy()": lambda t: t.numpy().reshape(64, -1).T,
    "untyped_storage()": lambda t: t.untyped_storage(),
    "DLPack to NumPy": lambda t: np.from_dlpack(t),
    "DLPack to torch": lambda t: torch.from_dlpack(t.numpy()),
    "from_numpy of numpy()": lambda t: torch.from_numpy(t.numpy()),
    "memoryview": lambda t: memoryview(t.numpy()),
    "detach": lambda t: t.detach(),
    "Parameter": lambda t: torch.nn.Parameter(t),
    "set_": lambda t: torch.empty(0).set_(t.untyped_storage(), 0, (10,)),
}


@pytest.mark.parametrize("use", KEEPING.values(), ids=KEEPING)
def test_view_of_a_batch_keeps_its_slot(line: Line, use: Callable[[Any], Any]) -> None:
    batch = line.send(tensor)
    kept = use(batch)
    del batch
    assert line.collect() == 0
    del kept
    assert line.collect() == 1


@pytest.mark.parametrize("use", [copy.deepcopy, lambda t: t.clone(), lambda t: t.data_ptr()])
def test_copy_of_a_batch_does_not_keep_its_slot(line: Line, use: Callable[[Any], Any]) -> None:
    batch = line.send(tensor)
    kept = use(batch)
    del batch
    assert line.collect() == 1
    del kept


def test_autograd_keeps_what_it_saved(line: Line) -> None:
    weight = torch.randn(ELEMENTS, requires_grad=True)
    loss = (line.send(tensor) * weight).sum()
    assert line.collect() == 0
    loss.backward()
    del loss
    assert line.collect() == 1
    assert (weight.grad == 1).all()


def test_changes_in_place_are_the_users(line: Line) -> None:
    batch = line.send(tensor)
    batch.mul_(4).add_(1)
    other = line.send(tensor)
    assert (batch == 5).all() and (other == 1).all()


def test_saving_a_small_leaf_writes_no_more_than_torch_does(line: Line) -> None:
    def size(thing: Any) -> int:
        sink = io.BytesIO()
        torch.save(thing, sink)
        return sink.tell()

    images, labels = line.send(lambda: (tensor(), torch.arange(64)))
    assert size(labels) <= size(torch.arange(64)) and size(images[:16]) <= size(tensor()[:16])


def test_a_storage_that_was_moved_away_keeps_the_slot(line: Line) -> None:
    batch = line.send(tensor)
    view = batch.numpy()
    batch.share_memory_()
    assert line.collect() == 0
    line.send(lambda: tensor(9.0))
    assert (view == 1).all()
    del batch, view
    line.collect()
    assert line.collect() == 0 and line.arena.reserved_bytes == 2 * BIG
    line.send(lambda: tensor(9.0))
    assert line.slots == 2


def test_batches_shared_in_sequence_need_no_more_slots(line: Line) -> None:
    for value in range(10):
        batch = line.send(lambda value=value: tensor(value))
        batch.share_memory_()
        assert (batch == value).all()
        del batch
    assert line.slots <= 2


def test_view_of_a_moved_leaf_outlives_the_other_leaves(line: Line) -> None:
    one, other = line.send(lambda: [tensor(1), tensor(2)])
    view = one.numpy()
    one.share_memory_()
    del one
    assert line.collect() == 0
    del other
    assert line.collect() == 0
    assert (view == 1).all()
    del view
    assert line.collect() == 1


def test_a_view_outlives_a_move_and_the_loader() -> None:
    line = Line()
    batch = line.send(tensor)
    view = batch.numpy()
    batch.share_memory_()
    line.close()
    del batch
    gc.collect()
    assert (view == 1).all()
    del view
    other = Line()
    other.collect()  # any loader's reader sees to what is left
    other.close()


class Storage:
    """Returns a weak reference to moved memory after its end."""

    freed: list[Any] = []  # noqa: RUF012
    asked = threading.Event()
    answers = threading.Event()

    def _weak_ref(self) -> Any:
        return 0

    @classmethod
    def _expired(cls, weak: Any) -> bool:
        if threading.current_thread() is not threading.main_thread():
            cls.asked.set()
            assert cls.answers.wait(10)
            return True
        return cls.asked.is_set()

    @classmethod
    def _free_weak_ref(cls, weak: Any) -> None:
        cls.freed.append(weak)


def test_two_readers_in_two_threads_forget_a_storage_once(line: Line) -> None:
    """To forget it twice would free memory of torch's twice."""
    batch = line.send(array)
    (lease,) = [lease for lease in reader._open if lease._home is line.reader._home]
    lease.watch_storage(Storage())
    del batch
    gc.collect()  # the exporter is gone, and the storage not yet
    thread = threading.Thread(target=line.reader.returned)
    thread.start()
    assert Storage.asked.wait(10)
    other = Line()
    other.collect()
    Storage.answers.set()
    thread.join()
    assert len(Storage.freed) == 1
    other.close()


def test_a_queue_after_a_numpy_view_keeps_the_slot(line: Line) -> None:
    batch = line.send(tensor)
    view = batch.numpy()
    queue = multiprocessing.SimpleQueue()
    queue.put(batch)
    del batch
    assert (queue.get() == 1).all()
    for _ in range(3):
        line.send(lambda: tensor(9.0))
    assert (view == 1).all()
    queue.close()
    resource_sharer.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_child_of_the_users_keeps_seeing_its_batch(line: Line) -> None:
    batch = line.send(tensor)
    seen = batch.numpy()  # torch's threads do not survive a fork
    read, write = os.pipe()
    go, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(go, 1)
        os.write(write, b"1" if bool((seen == 1).all()) else b"0")
        os._exit(0)
    del batch, seen
    for _ in range(4):
        line.send(lambda: tensor(9.0))
    os.write(done, b".")
    assert os.read(read, 1) == b"1"
    os.waitpid(pid, 0)
    for descriptor in (read, write, go, done):
        os.close(descriptor)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_fork_of_ours_holds_the_slot_only_as_long_as_it_lives(line: Line) -> None:
    batch = line.send(tensor)
    hold = ForkHold()
    with forking(hold):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
    os.waitpid(pid, 0)
    del batch
    assert line.collect() == 0
    hold.release()
    assert line.collect() == 1


def test_layouts_of_tensors_are_kept(line: Line) -> None:
    images = torch.arange(2 * 3 * 128 * 128).float().reshape(2, 3, 128, 128)
    for sent in (
        images.to(memory_format=torch.channels_last),
        images.transpose(0, 3),
        images[..., ::2],
        images.to(torch.bfloat16),
        images.to(torch.complex64).conj(),
        images.bool(),
        torch.zeros(1).expand(ELEMENTS),
    ):
        got = line.send(lambda sent=sent: sent)
        assert torch.equal(got, sent) and got.dtype == sent.dtype
        if sent.is_contiguous(memory_format=torch.channels_last):
            assert got.stride() == sent.stride()


def test_expanded_tensor_takes_only_its_own_memory(line: Line) -> None:
    rows = torch.arange(3 * 50).float().reshape(3, 1, 50)
    for sent in (
        rows.expand(3, ELEMENTS // 100, 50),
        rows[:, :, 10:20].expand(3, ELEMENTS, 10),
        torch.arange(ELEMENTS).as_strided((ELEMENTS // 8 - 1, 16), (8, 1)),  # windows that overlap
        torch.full((1, ELEMENTS), True).expand(1000, ELEMENTS),
    ):
        got = line.send(lambda sent=sent: sent)
        assert torch.equal(got, sent) and got.dtype == sent.dtype and got.stride() == sent.stride()
        assert got.untyped_storage().nbytes() <= sent.untyped_storage().nbytes()
    with pytest.raises(RuntimeError, match="single memory location"):  # as torch says of any that was expanded
        got += got


def test_the_memory_of_a_tensor_lies_in_the_slot_and_keeps_it(line: Line) -> None:
    storage = line.send(lambda: torch.arange(100_000).untyped_storage())
    assert type(storage) is torch.UntypedStorage
    line.send(lambda: torch.zeros(100_000, dtype=torch.int64))  # in another slot
    assert torch.equal(torch.arange(0).set_(storage), torch.arange(100_000))


def test_sparse_and_nested_tensors_travel_by_value(line: Line) -> None:
    sparse = torch.eye(300).to_sparse()
    assert torch.equal(line.send(lambda: sparse).to_dense(), torch.eye(300))


def test_a_leaf_just_below_the_bound_is_copied(line: Line) -> None:
    batch = line.send(lambda: torch.zeros(SMALL - 1, dtype=torch.uint8))
    assert line.collect() == 1 and batch.numel() == SMALL - 1


class Dropped:
    """Is rebuilt from an array that it does not keep."""

    def __init__(self, values: Any) -> None:
        self.total = int(values.sum())

    def __reduce__(self) -> Any:
        return Dropped, (array(),)


class Refuses:
    """Cannot be rebuilt."""

    def __init__(self, values: Any) -> None:
        if values is not None:
            raise ZeroDivisionError

    def __reduce__(self) -> Any:
        return Refuses, (array(),)


def test_a_class_that_drops_its_array_returns_the_slot_once() -> None:
    line = Line()
    assert line.send(lambda: Dropped(array())).total == ELEMENTS
    assert line.collect() == 1
    assert line.collect() == 0
    assert line.reader.leased_bytes == 0
    line.close()


def test_a_class_that_cannot_be_rebuilt_loses_no_slot() -> None:
    line = Line()
    with pytest.raises(ZeroDivisionError):
        line.send(lambda: Refuses(None))
    assert line.collect() == 1
    assert line.reader.leased_bytes == 0
    line.close()


def test_the_end_gives_back_all_but_what_is_leased() -> None:
    line = Line()
    kept, other = line.send(array), line.send(array)
    del other
    line.reader.close()
    assert os.fstat(line.descriptor).st_blocks * 512 == line.arena.slot(0).capacity
    assert kept.sum() == ELEMENTS
    line.close()


# The board


def test_dropped_batch_posts_its_slot(line: Line) -> None:
    batch = line.send(array)
    assert line.board.collect() == []
    del batch
    assert line.board.collect() == [0]
    assert line.reader.returned() == [] and line.reader.leased_bytes == 0
    line.arena.put_back(0)


def test_posted_slot_may_be_read_before_it_is_collected(line: Line) -> None:
    batch = line.send(array)
    del batch
    line.arena.put_back(*line.board.collect())
    line.begin(line.hint)
    written = line.writer.finish(array(2.0))  # what the trainer has of it is settled when it reads
    assert line.reader.read(line.arena.slot(written.slot), written).sum() == 2 * ELEMENTS
    assert line.collect() == 1
    assert line.reader.leased_bytes == 0


def test_slot_beyond_the_board_is_returned_by_message(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "SIZE", 1)
    first, second = line.send(array), line.send(array)
    del first, second
    line.reader.discard(line.arena.slot(1))
    assert line.board.collect() == [0]
    assert line.reader.returned() == [1, 1]  # as it was discarded as well


def test_whether_any_came_back_is_said_once(line: Line) -> None:
    batch = line.send(array)
    assert not line.reader.has_returned()
    del batch
    assert line.reader.has_returned() and not line.reader.has_returned()
    line.reader.discard(line.arena.slot(0))
    assert line.reader.has_returned()
    assert line.board.collect() == [0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_that_lets_go_of_a_batch_posts_nothing(line: Line) -> None:
    batch = line.send(array)
    pid = os.fork()
    if not pid:
        del batch
        line.reader.discard(line.arena.slot(0))
        os._exit(0)
    os.waitpid(pid, 0)
    assert line.board.collect() == []
    del batch
    assert line.board.collect() == [] and line.collect() == 0  # the child may have kept it


def test_slot_visible_to_a_zygote_is_reported_when_it_has_ended(line: Line) -> None:
    batch, hold = line.send(array), ForkHold()
    with forking(hold):
        pid = os.fork()
        if not pid:
            os._exit(0)
    os.waitpid(pid, 0)
    del batch
    assert line.board.collect() == [] and line.reader.returned() == []
    hold.release()
    assert line.reader.returned() == [0]


def the_lease_of(line: Line) -> reader.Lease:
    (lease,) = [lease for lease in reader._open if lease._home is line.reader._home]
    return lease


@pytest.mark.parametrize("mark", ["retired", "holds"])
def test_posted_slot_stays_free_after_a_later_fork(line: Line, mark: str) -> None:
    batch = line.send(array)
    lease = the_lease_of(line)
    del batch
    setattr(lease, mark, True)  # by a fork that found the lease open, in another thread
    assert line.collect() == 1
    assert line.send(array).sum() == ELEMENTS
    assert line.slots == 1


def test_ending_lease_is_posted_only_once(line: Line) -> None:
    batch = line.send(array)
    lease = the_lease_of(line)
    lease.holds = 1
    lease.hold_released()
    assert line.reader.returned() == []  # it is not over
    del batch
    assert line.collect() == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("ours", [True, False])
def test_lease_that_ends_during_a_fork_waits_for_the_child(line: Line, ours: bool) -> None:
    before, hold = line.send(array), ForkHold()
    with forking(hold) if ours else contextlib.nullcontext():
        reader._before_fork()
        meanwhile = line.send(array)
        del before, meanwhile  # by other threads
        assert line.board.collect() == [] and line.reader.returned() == []
        reader._after_fork_in_parent()
    later = line.send(array)
    hold.release()
    del later
    assert line.collect() == (2 if ours else 1)


def test_at_the_end_nothing_is_posted_any_more(line: Line) -> None:
    kept = line.send(array)
    line.reader.close()
    del kept
    assert line.board.collect() == []
