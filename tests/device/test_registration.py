"""Slots that a device reads in place: never punched while registered, and unregistered before they are unmapped."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from stoker import DataLoader, StokerWarning
from stoker._engine.transport import arena, registered
from stoker._engine.transport.owned import Hold
from stoker.device.copies import CopyCounts
from stoker.device.fields import FieldPlacement
from stoker.device.stage import DeviceStage
from stoker.loader.record import record_of
from tests._engine.transport.test_holds import ELEMENTS, Line
from tests.device.test_transfer import ROWS, WIDTH, Loop, Table, loader_of

torch = pytest.importorskip("torch")


class DeviceLine(Line):
    """Both ends of the transport, and a device behind them."""

    def __init__(self, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.device, self.number = device, 0
        self.stage = DeviceStage(FieldPlacement("cuda"), 1, pytest.fail, CopyCounts())
        assert self.board is not None
        self.arena.registered = self.board.registered
        punch = arena.reserve.punch

        def punched(descriptor: int, offset: int, size: int) -> None:
            for number, mapping in self.reader._mappings.items():
                if self.arena.slot(number).offset == offset and mapping.address in device.registered:
                    device.punched[mapping.address] = ctypes.string_at(mapping.address, mapping.size)
            punch(descriptor, offset, size)

        monkeypatch.setattr(arena.reserve, "punch", punched)

    def batch(self) -> bool:
        """Sends a batch to the device; returns whether it has arrived as it is."""
        number = self.number = self.number + 1
        self.stage.begin()
        sent = lambda: (self.send(torch.full((ELEMENTS,), float(number))), self.reader.latest)  # noqa: E731
        self.stage.copy_ahead(number, None, sent)
        arrived = self.stage.take(number, None, sent)
        self.device.finish()
        is_right = bool((arrived == number).all())
        self.stage.delivered(number)
        self.stage.begin()
        self.take_back()
        return is_right

    def take_back(self) -> None:
        for slot in self.free():
            self.arena.put_back(slot)


@pytest.fixture
def line(late: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceLine]:
    line = DeviceLine(late(), monkeypatch)
    yield line
    line.close()
    line.stage.close()


def test_arena_is_trimmed_between_two_batches(line: DeviceLine) -> None:
    for _ in range(4):
        assert line.batch()
        line.arena.trim(0)
    assert len(line.device.registered) == 1 and line.arena.reserved_bytes


def test_device_sees_old_bytes_in_a_punched_slot(line: DeviceLine) -> None:
    """The mistake that the board prevents."""
    line.arena.registered = set()
    right = []
    for _ in range(3):
        right.append(line.batch())
        line.arena.trim(0)
    assert not all(right)


def written_over(line: DeviceLine) -> bool:
    """Sends a batch, drops it at once, and sends another; returns whether the first has bytes of the second."""
    line.stage.begin()
    sent = lambda: (line.send(torch.full((ELEMENTS,), 1.0)), line.reader.latest)  # noqa: E731
    line.stage.copy_ahead(1, None, sent)
    arrived = line.stage.take(1, None, sent)
    line.stage.delivered(1)
    line.take_back()
    line.send(torch.full((ELEMENTS,), 2.0))
    line.device.finish()
    return bool((arrived == 2).all())


def test_slot_that_is_read_is_not_written(line: DeviceLine) -> None:
    assert not written_over(line)


def test_slot_without_a_hold_is_written_over(line: DeviceLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake that holds prevent."""
    monkeypatch.setattr(Hold, "until", lambda *_: None)
    assert written_over(line)


def test_owner_gets_slots_back_when_memory_is_short(line: DeviceLine) -> None:
    assert line.batch()
    line.arena._limit = line.arena.reserved_bytes
    with pytest.raises(arena.MemoryLimitError):
        line.arena.take(64 * ELEMENTS)
    slots = line.reader.unregister_idle()
    assert slots == [0] and not line.device.registered
    line.arena.registered.difference_update(slots)
    line.arena.trim(0)
    assert not line.arena.reserved_bytes
    line.arena._limit = None
    assert line.batch() and len(line.device.registered) == 1


def test_leased_slot_stays_registered(line: DeviceLine) -> None:
    line.stage.begin()
    sent = lambda: (line.send(torch.full((ELEMENTS,), 5.0)), line.reader.latest)  # noqa: E731
    line.stage.copy_ahead(1, None, sent)
    assert line.device.registered and line.reader.unregister_idle() == []
    line.stage.drop(1)


def test_closed_reader_leaves_its_registrations(line: DeviceLine) -> None:
    assert line.batch() and line.device.registered
    line.device.allowed = False
    line.reader.close()
    assert len(registered.left) == 1 and registered.total()
    line.device.allowed = True
    line.stage.begin()
    assert not line.device.registered and not registered.total()


def test_one_slot_is_registered_in_a_call(late: Any) -> None:
    device = late()
    iterator = iter(loader_of(16, num_workers=2, prefetch_to_device=3, prefetch_factor=3))
    before = 0
    for _ in iterator:
        assert len(device.registered) <= before + 1
        before = len(device.registered)
        device.finish()
    assert not device.registered  # with the end of the epoch, and of its workers


def test_refused_registration_is_said_once(late: Any) -> None:
    device = late()
    device.refuses = "cudaHostRegister: out of memory"
    loader = loader_of(num_workers=1, prefetch_factor=4)
    loop = Loop(device)
    with pytest.warns(StokerWarning, match=r"cannot be registered \(cudaHostRegister: out of memory\)") as warned:
        while not record_of(loader).copies.why_staged:
            loop.seen.clear()
            for batch in loader:
                loop.step(batch)
            loop.check(range(8))
    assert len(warned) == 1
    assert "went through pinned memory (cudaHostRegister: out of memory)" in loader.describe()
    assert loader.report().copies["registered"] == 0


class Wide(Table):
    """Samples with two large fields."""

    def __getitem__(self, index: int) -> Any:
        return {"a": torch.full((WIDTH,), float(index)), "b": torch.full((WIDTH,), -float(index))}


def test_slot_with_a_view_of_the_user_is_not_registered(late: Any) -> None:
    device = late()
    kept = []
    for batch in DataLoader(Wide(), ROWS, num_workers=2, device={"a": "cuda"}):
        device.finish()
        kept.append(batch)
        assert not device.registered
    assert [float(batch["b"][0, 0]) for batch in kept] == [-float(ROWS * number) for number in range(8)]


def test_registered_slot_of_a_batch_that_stays_in_part(late: Any) -> None:
    """Its registration ends before the user gets the part."""
    device = late()
    there = {"b": "cuda"}
    where = lambda path, tensor: "cuda" if path == "a" else there.get(path)  # noqa: E731
    loader = DataLoader(Wide(16), ROWS, num_workers=2, device=where)
    for number, batch in enumerate(loader):
        device.finish()
        assert float(batch["a"][0, 0]) == ROWS * number and float(batch["b"][0, 0]) == -ROWS * number
        if number > 4:
            there.clear()
        if number > 8:
            address = batch["b"].data_ptr()
            assert not any(begin <= address < begin + size for begin, size in device.registered.items())


def test_loader_that_moves_back_to_the_host(late: Any) -> None:
    """Its loop gets no view of a slot that is registered: torch would take it for pinned memory of its own."""
    device = late()
    loader = DataLoader(Wide(16), ROWS, num_workers=2, persistent_workers=True, device="cuda")
    for _ in loader:
        device.finish()
    assert device.registered
    for number, batch in enumerate(loader.to(None)):
        assert float(batch["a"][0, 0]) == ROWS * number
        address = batch["a"].data_ptr()
        assert not any(begin <= address < begin + size for begin, size in device.registered.items())
    loader.close()


@pytest.mark.parametrize("seed", range(2))
def test_zygote_that_is_killed(late: Any, seed: int) -> None:
    device = late(seed)
    loop = Loop(device)
    iterator = iter(loader_of(16, num_workers=2))
    with pytest.warns(StokerWarning, match="Another helper process is started"):
        for number, batch in enumerate(iterator):
            loop.step(batch)
            del batch
            if number == 5:
                os.kill(iterator._backend.pids[0], signal.SIGKILL)
    loop.check(range(16))


def test_gpu_that_shares_memory_pins_nothing(late: Any) -> None:
    device = late(1, pins=False)
    loop = Loop(device)
    for batch in loader_of(num_workers=2):
        loop.step(batch)
        del batch
    loop.check(range(8))
    assert not device.registered


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_slots_of_every_kind_of_workers_are_registered(late: Any, context: str) -> None:
    loop = Loop(late())
    loader = loader_of(16, num_workers=1, prefetch_factor=4, multiprocessing_context=context, persistent_workers=True)
    while not record_of(loader).copies.registered:
        loop.seen.clear()
        for batch in loader:
            loop.step(batch)
            del batch
        loop.check(range(16))
    assert "slots of workers were registered" in loader.describe()
    loader.close()


def test_workers_without_fork_register_nothing(late: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No board tells the owner of their memory which slots are registered."""
    monkeypatch.delattr(os, "fork")
    loop = Loop(late())
    loader = loader_of(num_workers=1, prefetch_factor=4)
    assert "through pinned memory, since without fork their own memory cannot be registered" in loader.describe()
    for batch in loader:
        loop.step(batch)
        del batch
    loop.check(range(8))
    counts = record_of(loader).copies
    assert counts.registered == 0 and counts.staged == counts.bytes
