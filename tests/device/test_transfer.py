"""`device=`: batches arrive on the device, complete and in order, however late the device works."""

from __future__ import annotations

import gc
import random
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader, IterableDataset
from stoker.device.copies import CopyCounts
from stoker.device.fields import FieldPlacement
from stoker.device.stage import DeviceStage
from stoker.errors import DeviceError

torch = pytest.importorskip("torch")
ROWS, WIDTH = 8, 4096  # a batch of 128 kB, which lies in a slot
KINDS: list[dict[str, Any]] = [{}, {"num_workers": 2, "worker_method": "thread"}, {"num_workers": 2}]


class Table:
    """Rows that hold their index."""

    def __init__(self, batches: int = 8) -> None:
        self.rows = batches * ROWS

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Any:
        return torch.full((WIDTH,), float(index)), index


class Loop:
    """A program's loop, whose work on a batch is done late."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.seen: list[tuple[list[float], list[int]]] = []

    def step(self, batch: Any) -> None:
        images, labels = batch
        address, size = images.data_ptr(), images.nbytes

        def work() -> None:  # as a kernel does, it knows addresses alone
            memory = np.frombuffer(self.device.seen(address, size), np.float32).reshape(images_shape)
            assert (memory == memory[:, :1]).all(), "rows of two batches"
            self.seen.append((memory[:, 0].tolist(), kept))

        images_shape, kept = tuple(images.shape), []
        self.device.compute(lambda: kept.extend(np.frombuffer(self.device.seen(*labels_at), np.int64).tolist()))
        labels_at = labels.data_ptr(), labels.nbytes
        self.device.compute(work)

    def check(self, batches: Any) -> None:
        self.device.finish()
        wanted = [list(range(ROWS * number, ROWS * number + ROWS)) for number in batches]
        assert [images for images, _ in self.seen] == wanted
        assert [labels for _, labels in self.seen] == wanted


def loader_of(batches: int = 8, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(Table(batches), ROWS, **{"device": "cuda", **arguments})


@pytest.mark.parametrize("kind", KINDS, ids=["in process", "threads", "processes"])
@pytest.mark.parametrize("seed", range(3))
def test_batches_arrive(late: Any, kind: dict[str, Any], seed: int) -> None:
    loop = Loop(late(seed))
    for batch in loader_of(**kind):
        loop.step(batch)
        del batch  # its memory is free for the next work of the program's stream
    loop.check(range(8))


def test_planted_mistake_is_found(late: Any) -> None:
    """A copy that does not wait overwrites what the program still reads."""
    wrong = 0
    for seed in range(8):
        loop = Loop(late(seed, "no wait"))
        try:
            for batch in loader_of(num_workers=2):
                loop.step(batch)
                del batch
            loop.check(range(8))
        except AssertionError:
            wrong += 1
        loop.device.finish_anyhow()
    assert wrong


@pytest.mark.parametrize("seed", range(8))
def test_loops_at_random(late: Any, seed: int) -> None:
    """A loop that keeps some batches, skips others, changes its stream, and breaks off anywhere, three epochs long."""
    chance = random.Random(seed)
    device = late(seed)
    other = device.stream("other")
    loader = loader_of(12, persistent_workers=bool(seed % 2), prefetch_to_device=seed % 3, **KINDS[2 - seed % 3 % 2])
    for _ in range(3):
        loop, kept, wanted, end = Loop(device), [], [], chance.randrange(1, 14)
        iterator = iter(loader)
        for number in range(end):
            stream = other if chance.random() < 0.3 else device.default
            if stream is not device.current():  # as a program does that goes on elsewhere
                stream.wait_event(device.current().record_event())
            with device.using(stream):
                batch = next(iterator, None)
                if batch is None:
                    break
                if chance.random() < 0.8:
                    loop.step(batch)
                    wanted.append(number)
            (device.default if stream is other else other).wait_event(stream.record_event())
            if chance.random() < 0.2:
                kept.append((number, batch))
            del batch
        loop.check(wanted)
        for number, (images, _) in kept:
            assert images[0, 0] == ROWS * number
        del iterator
    loader.close()


def test_next_batch_is_copied_before_it_is_asked_for(late: Any) -> None:
    device = late()
    iterator = iter(loader_of(num_workers=1, prefetch_factor=4))
    next(iterator)
    until = time.monotonic() + 60
    while iterator._backend.ready < 2:  # the one that is due, and the one that is copied ahead of its next()
        assert time.monotonic() < until
        time.sleep(0.001)
    next(iterator)
    device.finish()
    assert len(device.copied) >= 6  # two tensors of each batch
    iterator.close()


@pytest.mark.parametrize("kind", KINDS, ids=["in process", "threads", "processes"])
def test_state_counts_what_was_delivered(late: Any, kind: dict[str, Any]) -> None:
    late()
    loader = loader_of(seed=1, shuffle=True, prefetch_to_device=3, **kind)
    wanted = [labels.tolist() for _, labels in DataLoader(Table(), ROWS, seed=1, shuffle=True)]
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    assert loader.report().epoch.delivered == 3 * ROWS
    iterator.close()
    again = loader_of(seed=1, shuffle=True, device=None, **kind)
    again.load_state_dict(state)
    assert [labels.tolist() for _, labels in again] == wanted[3:]


def test_devices_are_called_by_next_and_close_alone(late: Any) -> None:
    device = late()
    device.allowed = False
    loader = loader_of(num_workers=2, persistent_workers=True)
    for _ in range(2):
        iterator = iter(loader)
        for _ in range(3):
            device.allowed = True
            next(iterator)
            device.allowed = False
        len(loader), loader.state_dict(), loader.report(), loader.describe()
    del iterator
    gc.collect()
    device.allowed = True
    loader.close()


def test_dropped_iterator_calls_no_device(late: Any) -> None:
    device = late()
    iterator = iter(loader_of(num_workers=2))
    for _ in range(3):
        next(iterator)
    device.allowed = False
    del iterator
    gc.collect()
    device.allowed = True
    device.finish()
    next(iter(loader_of()))  # ends what was left
    assert not device.registered


def test_capture_is_respected(late: Any) -> None:
    device = late()
    iterator = iter(loader_of(num_workers=1))
    next(iterator)
    device.captures = True
    with pytest.raises(DeviceError, match="while a CUDA graph is captured"):
        next(iterator)
    device.captures = False
    labels = next(iterator)[1]
    device.finish()
    assert labels.tolist() == list(range(ROWS, 2 * ROWS))
    iterator.close()


def test_no_memory_ahead_means_fewer_ahead(late: Any) -> None:
    device, told = late(), []
    stage = DeviceStage(FieldPlacement("cuda"), 2, told.append, CopyCounts())
    stage.begin()
    device.full_for = 1
    stage.copy_ahead(0, None, lambda: (torch.ones(5), None))
    (text,) = told
    assert "does not hold a batch ahead: CUDA out of memory. Tried to allocate 2.00 MiB" in text
    assert not stage.has_room()
    batch = stage.take(0, None, pytest.fail)
    device.finish()
    assert batch.tolist() == [1] * 5
    stage.close()


@pytest.mark.parametrize("text", ["MPS backend out of memory (MPS allocated: 18.0 GiB)", "CUDA error: out of memory"])
def test_full_memory_by_other_errors(late: Any, text: str) -> None:
    """Those of `mps` and of pinned memory have no class of their own; the batch is not lost to them either."""
    device = late()
    stage = DeviceStage(FieldPlacement("cuda"), 0, pytest.fail, CopyCounts())
    stage.begin()
    for fails in (True, False):
        device.pinned = lambda tensor, fails=fails: _raised(RuntimeError(text)) if fails else tensor
        if fails:
            with pytest.raises(RuntimeError, match="out of memory"):
                stage.take(0, {}, lambda: (torch.ones(5), None))
            assert stage.keeps(0)
    batch = stage.take(0, {}, pytest.fail)
    device.finish()
    assert batch.tolist() == [1] * 5
    stage.close()


def _raised(error: Exception) -> Any:
    raise error


def test_batch_survives_a_full_device(late: Any) -> None:
    device = late()
    iterator = iter(loader_of())
    next(iterator)
    device.full_for = 1
    with pytest.raises(torch.OutOfMemoryError) as caught:
        next(iterator)
    assert "The batch is not lost" in "".join(caught.value.__notes__)
    loop = Loop(device)
    for batch in iterator:
        loop.step(batch)
    loop.check(range(1, 8))


class Fragile:
    """A batch of a user's class, which moves itself, or not."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def to(self, device: Any) -> Fragile:
        if self.value == 2 * ROWS:
            raise LookupError("it does not move")
        return Fragile((str(device), self.value))


@pytest.mark.parametrize("kind", KINDS, ids=["in process", "threads", "processes"])
def test_error_of_a_batch_comes_in_its_place(late: Any, kind: dict[str, Any]) -> None:
    late()
    loader = DataLoader(Table(4), ROWS, device="cuda", collate_fn=_fragile, **kind)
    iterator, got = iter(loader), []
    while len(got) < 4:
        try:
            got.append(next(iterator).value)
        except LookupError:
            got.append("error")
    assert got == [("cuda:0", 0), ("cuda:0", ROWS), "error", ("cuda:0", 3 * ROWS)]
    iterator.close()


def _fragile(samples: list[Any]) -> Fragile:
    return Fragile(samples[0][1])


def test_user_error_of_a_sample_comes_in_its_place(late: Any) -> None:
    device = late()
    iterator, got = iter(DataLoader(_Bad(), 1, device="cuda", num_workers=2)), []
    while len(got) < 6:
        try:
            number = next(iterator)
            device.finish()
            got.append(int(number))
        except ZeroDivisionError:
            got.append(-1)
    assert got == [0, 1, 2, -1, 4, 5]
    iterator.close()


class _Bad(Table):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor(12 // (3 - index) * 0 + index)


class _Stream(IterableDataset):
    shards_itself = False

    def __iter__(self) -> Iterator[Any]:
        return (torch.full((WIDTH,), float(number)) for number in range(12))


def test_streams_arrive(late: Any) -> None:
    device = late()
    got = sorted(
        float(batch[0, 0]) for batch in _finished(device, DataLoader(_Stream(), 2, device="cuda", num_workers=2))
    )
    assert len(got) == 6


def _finished(device: Any, loader: Any) -> Iterator[Any]:
    for batch in loader:
        device.finish()
        yield batch


def test_modes_of_torch(late: Any) -> None:
    device = late()
    loader = loader_of(num_workers=1)
    iterator = iter(loader)
    with torch.inference_mode():
        first = next(iterator)
    second = next(iterator)
    device.finish()
    assert not first[0].is_inference() and not second[0].is_inference()
    step = torch.compile(lambda images: images.sum() * 2, backend="eager")
    assert step(second[0]) == 2 * second[0].sum()
    iterator.close()
    assert len(loader) == 8


def test_two_loaders_share_a_device(late: Any) -> None:
    device = late(3)
    one, two = Loop(device), Loop(device)
    for first, second in zip(loader_of(num_workers=1), loader_of(num_workers=1), strict=True):
        one.step(first)
        two.step(second)
        del first, second
    one.check(range(8))
    two.check(range(8))


def test_exception_in_the_loop_leaves_nothing(late: Any) -> None:
    device = late()
    with pytest.raises(KeyError), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in loader_of(num_workers=2):
            raise KeyError
    gc.collect()
    device.finish()


def test_words_on_the_copies(late: Any) -> None:
    loader = loader_of(num_workers=2)
    assert "device      cuda: batches are copied on a stream of their own, 1 ahead" in loader.describe()
    assert loader.report().copies == {}
    device = late()
    for _ in loader:
        device.finish()
    assert "1.0 MiB of 8 batches were copied to the device" in str(loader.report())
    assert "GB/s" in str(loader.report()) and loader.report().as_dict()["copies"]["batches"] == 8


def test_preview_uses_no_device(late: Any, tmp_path: Any) -> None:
    pytest.importorskip("PIL")
    device = late()
    device.allowed = False
    images = [np.zeros((3, 8, 8), np.uint8)] * 4
    assert DataLoader(images, 4, device="cuda").preview(None).size
    device.allowed = True


def test_pickled_loader_counts_for_itself(late: Any) -> None:
    import pickle

    device = late()
    loader = loader_of(device_buffers=1)
    list(loader)
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.report().copies == {} and copy.device == "cuda"
    assert len(list(copy)) == 8
    device.finish()
