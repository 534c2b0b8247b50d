"""One program at random: a loader's copies to a device, what its loop does with the batches, and all that may go wrong.

A case is one seed: it decides whose turn it is, of the arena's owner, the workers, the transfer, the device and the
loop. The loop checks each batch that it reads: every byte is that of its number, or `WrongBytesError` is raised.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from stoker._engine.transport import arena, owned, reader, registered
from stoker._engine.transport.owned import Hold
from stoker.device import accelerator, stage, transformed
from stoker.device.buffers import DeviceBuffers
from stoker.device.copies import CopyCounts
from stoker.device.fields import FieldPlacement
from stoker.device.stage import DeviceStage
from tests._engine.transport.test_holds import Line
from tests.device.late_device import LateDevice, LateEvent, LateStream

ELEMENTS = 1 << 14  # 64 kB, the least that lies in a slot
TURNS = 40


class WrongBytesError(AssertionError):
    """A batch is not as it was sent, or a rule was broken."""


class Case:
    """A program, from its first batch to its end.

    Args:
        seed: decides everything.
        mistake: of the device; "" for none.
        is_wrong: whether a mistake was planted: then all memory stays mapped, since a wrong read of memory that is gone
            would end this process.
    """

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, mistake: str = "", is_wrong: bool = False) -> None:
        self.mapped: list[Any] | None = [] if is_wrong else None
        self.chance = chance = random.Random(seed)
        self.device = device = LateDevice(seed, mistake, pins=chance.random() < 0.9)
        monkeypatch.setattr(accelerator, "accelerator_of", lambda _: device)
        monkeypatch.setattr(accelerator, "numbered", lambda device: device)
        monkeypatch.setattr(arena.reserve, "punch", self._punch)
        self.streams = [device.default, device.stream("other")]
        self.in_part = chance.random() < 0.25  # a second field stays on the host
        self.transforms = None if self.in_part else chance.choice([None, None, "new", "in place"])
        self.sets = chance.choice([0, 0, 0, 1, 2, 3])
        self.placement = {"a": "cuda"} if self.in_part else "cuda"
        self.line = Line()
        self.open_stage()
        self.made: deque[tuple[int, Any, Any]] = deque()  # batches of the workers
        self.number = self.unit = self.due = 0
        self.copied: dict[int, tuple[int, Any]] = {}  # opened ahead, by unit: the number
        self.kept: list[tuple[int, Any, int]] = []  # batches of the loop, and the `next()` that gave each
        self.scratch: list[tuple[Any, LateStream]] = []  # memory of the program's own
        self.turn = 0  # calls of next()
        self.wrong = ""

    # The loader

    def open_stage(self) -> None:
        told: list[str] = []
        self.buffers = DeviceBuffers(self.sets, told.append) if self.sets else None
        ahead = self.chance.randrange(4)
        transform = self.transform if self.transforms else None
        self.stage = DeviceStage(FieldPlacement(self.placement), ahead, told.append, CopyCounts(), buffers=self.buffers)
        self.stage.transform = transform
        assert self.line.board is not None
        self.line.arena.registered = self.registered_of(self.line)

    def registered_of(self, line: Line) -> set[int]:
        assert line.board is not None
        return line.board.registered

    def make(self) -> None:
        """A worker makes a batch."""
        if len(self.made) >= 4:
            return
        self.number += 1
        line, value = self.line, torch.full((ELEMENTS,), float(self.number))
        batch = {"a": value, "b": -value} if self.in_part else {"a": value}
        slot = line.arena.take(ELEMENTS * 4 * len(batch))
        line.writer.begin(slot)
        written = line.writer.finish(batch)
        line.writer.let_go()
        self.made.append((self.number, slot, written))

    def opened(self, slot: Any, written: Any) -> tuple[Any, Any]:
        return self.line.reader.read(slot, written), self.line.reader.latest

    def next(self) -> None:
        """The loop asks for a batch, on one of its streams."""
        stream = self.chance.choice(self.streams) if self.chance.random() < 0.3 else self.streams[0]
        with self.working_on(stream):
            try:
                self.stage.begin()
                if self.unit == self.due and not self.made:
                    return
                self.open_due()
                self.device.full_for = int(self.chance.random() < 0.1)
                batch = self.stage.take(self.due, {}, pytest.fail)
            except torch.OutOfMemoryError:
                self.device.full_for = 0
                if not self.stage.keeps(self.due):
                    raise WrongBytesError("a batch is lost to a full device") from None
                return
            finally:
                self.device.full_for = 0
            while self.made and self.stage.has_room():
                self.open_ahead()
            self.stage.delivered(self.due)
            number = self.copied.pop(self.due)[0]
            self.due += 1
            self.turn += 1
            self.checks(number, batch)
            if self.chance.random() < 0.8:
                self.read(number, batch)
            if self.chance.random() < 0.4:
                self.kept.append((number, batch, self.turn))

    def open_due(self) -> None:
        if self.unit == self.due:
            number, slot, written = self.made.popleft()
            self.copied[self.due] = number, None
            opened = self.stage._open(self.due, {}, lambda: self.opened(slot, written))
            if opened.error is not None:
                raise opened.error
            self.unit += 1

    def open_ahead(self) -> None:
        number, slot, written = self.made.popleft()
        self.copied[self.unit] = number, None
        self.device.full_for = int(self.chance.random() < 0.03)
        self.stage.copy_ahead(self.unit, {}, lambda: self.opened(slot, written))
        self.device.full_for = 0
        self.unit += 1

    def transform(self, batch: Any, devices: Any) -> Any:
        """Adds 0.5: in the batch's memory, or in memory of its own; the device may be full meanwhile."""
        device, images = self.device, batch["a"]
        size, begin = images.nbytes, images.data_ptr()
        if self.transforms == "in place":
            device.compute(lambda: _write(begin, np.frombuffer(device.seen(begin, size), np.float32) + 0.5))
            return batch
        scratch, made = device.empty_like(images), device.empty_like(images)
        middle, to = scratch.data_ptr(), made.data_ptr()
        device.compute(lambda: _write(middle, np.frombuffer(device.seen(begin, size), np.float32) + 0.25))
        device.compute(lambda: _write(to, np.frombuffer(device.seen(middle, size), np.float32) + 0.25))
        return {"a": made}

    # The loop

    @contextlib.contextmanager
    def working_on(self, stream: LateStream) -> Iterator[None]:
        """Goes on in a stream, as a program does that uses several: each waits for what the others were given."""
        with self.device.using(stream):
            yield
        for other in self.streams:
            if other is not stream:
                other.work.append(event := LateEvent(self.device))
                stream.work.append(lambda event=event: setattr(event, "has_come", True))

    def read(self, number: int, batch: Any) -> None:
        """Queues work that reads a batch; as a kernel does, it knows the address alone."""
        images = batch["a"]
        address, wanted = images.data_ptr(), number + (0.5 if self.transforms else 0.0)

        def work() -> None:
            seen = np.frombuffer(self.device.seen(address, 4 * ELEMENTS), np.float32)
            if not (seen == wanted).all():
                self.wrong = f"batch {number} has {sorted(set(seen.tolist()))[:4]}"

        self.device.compute(work)

    def checks(self, number: int, batch: Any) -> None:
        """Checks what does not need the device."""
        if not self.in_part:
            return
        view = batch["b"]
        if not (view == -number).all():
            raise WrongBytesError(f"the host's part of batch {number} is another's")
        if any(begin <= view.data_ptr() < begin + size for begin, size in self.device.registered.items()):
            raise WrongBytesError("the loop has a view of registered memory, whose copies nobody notes")

    def read_again(self) -> None:
        for number, batch, turn in self.kept:
            if not self.sets or self.turn - turn < self.sets:
                with self.working_on(self.chance.choice(self.streams)):
                    self.read(number, batch)
                    self.checks(number, batch)

    def drop(self) -> None:
        if self.kept:
            del self.kept[self.chance.randrange(len(self.kept))]

    def compute_elsewhere(self) -> None:
        """The program has work of its own on a stream of torch's pool, which may be that of the copies."""
        with self.device.using(self.device.side):
            mine = self.device.empty_like(torch.empty(ELEMENTS))
            address = mine.data_ptr()
            self.device.compute(lambda: _write(address, np.full(ELEMENTS, -1e9, np.float32)))

    def compute_here(self) -> None:
        """The program has work of its own on a stream of its own: what it writes stays, until it reads it."""
        with self.working_on(self.chance.choice(self.streams)):
            mine = self.device.empty_like(torch.empty(ELEMENTS))
            address = mine.data_ptr()
            self.device.compute(lambda: _write(address, np.full(ELEMENTS, -5.0, np.float32)))
            self.scratch.append((mine, self.device.current()))

    def read_scratch(self) -> None:
        for mine, stream in self.scratch:
            with self.working_on(stream):
                self.device.compute(functools.partial(self.check_scratch, mine.data_ptr()))
        self.scratch.clear()

    def check_scratch(self, address: int) -> None:
        if not (np.frombuffer(self.device.seen(address, 4 * ELEMENTS), np.float32) == -5.0).all():
            self.wrong = "a copy has written into memory of the program"

    # The arena, and the ends

    def take_back(self) -> None:
        line = self.line
        for slot in [*line.reader.returned(), *(line.board.collect() if line.board is not None else ())]:
            line.arena.put_back(slot)

    def trim(self) -> None:
        self.take_back()
        self.line.arena.trim(self.chance.randrange(3))

    def shrink(self) -> None:
        """The arena's owner is short of memory: the loader ends registrations."""
        self.line.arena.registered.difference_update(self.line.reader.unregister_idle())
        self.trim()

    def die(self) -> None:
        """A worker dies, with a batch that nobody has opened: another makes it again."""
        if self.made:
            number, slot, _ = self.made.pop()
            self.line.arena.put_back(slot.number)
            assert number == self.number
            self.number -= 1

    def leave(self) -> None:
        """The loop breaks off, and another epoch begins: with or without an end of the first."""
        for unit in list(self.copied):
            self.stage.drop(unit)
        self.copied.clear()
        if self.chance.random() < 0.5:
            with self.device.using(self.streams[0]):
                self.stage.close()
        for _ in range(self.chance.randrange(3)):
            self.compute_here()  # in memory of the batches that it never got
        while self.made:
            self.line.reader.discard(self.made.popleft()[1])
        if self.sets:
            self.kept.clear()
        self.due = self.unit
        self.open_stage()

    def replace_zygote(self) -> None:
        """The helper process dies, with its arena. Batches that were opened stay."""
        self.made.clear()
        self.close_line()
        self.line = Line()
        self.line.arena.registered = self.registered_of(self.line)

    def close_line(self) -> None:
        if self.mapped is not None:
            self.mapped += self.line.reader._mappings.values()
        self.line.close()

    def run(self) -> None:
        """Runs the program to its end.

        Raises:
            WrongBytesError: a batch was wrong.
        """
        turns: list[tuple[Callable[[], object], int]] = [
            *((self.make, 10), (self.next, 14), (self.read_again, 3), (self.drop, 4), (self.take_back, 4)),
            *((self.trim, 2), (self.shrink, 1), (self.die, 1), (self.leave, 1), (self.replace_zygote, 1)),
            *((self.compute_elsewhere, 2), (lambda: self.device.run(self.chance.randrange(12)), 8)),
            *((self.compute_here, 3), (self.read_scratch, 2)),
        ]
        actions, weights = zip(*turns, strict=True)
        for action in self.chance.choices(actions, weights, k=TURNS):
            action()
            if self.wrong:
                raise WrongBytesError(self.wrong)
        self.end()
        if self.wrong:
            raise WrongBytesError(self.wrong)

    def end(self) -> None:
        self.leave()
        self.device.finish()
        self.stage.close()
        self.kept.clear()
        self.scratch.clear()
        self.close_line()
        owned.look()
        registered.end_left()
        if owned.pending() or registered.left or self.device.registered:
            raise WrongBytesError("something is left")

    def _punch(self, descriptor: int, offset: int, size: int) -> None:
        for number, mapping in self.line.reader._mappings.items():
            if self.line.arena.slot(number).offset == offset and mapping.address in self.device.registered:
                self.device.punched[mapping.address] = ctypes.string_at(mapping.address, mapping.size)
        _real_punch(descriptor, offset, size)


_real_punch = arena.reserve.punch


def _write(address: int, values: Any) -> None:
    ctypes.memmove(address, values.ctypes.data, values.nbytes)


# Mistakes: each takes away one rule of the transfer


def _targets_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = DeviceStage._keep

    def kept_less(self: DeviceStage, copy: Any, kept: list[Any]) -> None:
        (one,) = self._used.values()
        keep(self, copy, [each for each in kept if not (isinstance(each, torch.Tensor) and one.holds(each))])
        kept.clear()

    monkeypatch.setattr(DeviceStage, "_keep", kept_less)


def _event_comes_before_the_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    transform = DeviceStage._transform

    def with_the_old_event(self: DeviceStage, arrived: Any, copy: Any, kept: list[Any]) -> None:
        before = list(copy.events)
        transform(self, arrived, copy, kept)
        copy.events[:] = before

    monkeypatch.setattr(DeviceStage, "_transform", with_the_old_event)


def _streams_are_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LateStream, "__eq__", lambda self, other: True)
    monkeypatch.setattr(LateStream, "__hash__", lambda self: 1)


def _memory_of_the_side_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformed, "is_tensor", lambda _: False)
    monkeypatch.setattr(transformed, "holds_memory", lambda *_: False)


def _registered_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader.Lease, "views", property(lambda self: 1, lambda self, value: None), raising=False)


def _unregistered_while_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_them(self: reader.Reader) -> list[int]:
        numbers = list(self._home.registered)
        for number in numbers:
            self._home.registered.pop(number).end()
        return numbers

    monkeypatch.setattr(reader.Reader, "unregister_idle", all_of_them)


def _sets_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = DeviceBuffers.__init__
    monkeypatch.setattr(DeviceBuffers, "__init__", lambda self, number, tell: begin(self, max(1, number - 1), tell))


MISTAKES: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "a slot is written before it was read": lambda patch: patch.setattr(Hold, "until", lambda *_: None),
    "a batch that is dropped is written by its copy": _targets_are_not_held,
    "the event comes before the transform": _event_comes_before_the_transform,
    "a batch is taken for that of another stream": _streams_are_taken_for_one,
    "what a transform allocates stays memory of the copies' stream": _memory_of_the_side_stream,
    "registered slots are punched": lambda patch: patch.setattr(Case, "registered_of", lambda *_: set()),
    "the loop has views of registered slots": _registered_views,
    "a slot is unregistered while it is read": _unregistered_while_read,
    "a full device loses a batch": lambda patch: patch.setattr(stage, "_is_out_of_memory", lambda _: False),
    "fixed memory is used again too early": _sets_are_too_few,
}
"""What a mistake takes away, by the mistake."""

OF_DEVICE = {
    "copies wait for nothing": "no wait",
    "the program waits for no copy": "no wait of the program",
}
"""Mistakes that the device makes itself."""


def explore(
    seeds: range, monkeypatch: pytest.MonkeyPatch, mistake: str = "", until_found: bool = False
) -> list[tuple[int, str]]:
    """Runs cases; returns the seeds of the wrong ones, with what was wrong."""
    found = []
    for seed in seeds:
        with monkeypatch.context() as patch:
            if mistake in MISTAKES:
                MISTAKES[mistake](patch)
            case = Case(seed, patch, OF_DEVICE.get(mistake, ""), bool(mistake))
            try:
                case.run()
            except AssertionError as error:
                found.append((seed, f"{type(error).__name__}: {error}"))
                _clear(case)
        del case
        if found and until_found:
            break
    if found:
        gc.collect()  # what wrong cases have left is in cycles
    return found


def _clear(case: Case) -> None:
    """Forgets what a wrong case has left."""
    owned._waiting.clear()
    registered.left.clear()
    registered._sizes.clear()
    case.kept.clear()
    case.scratch.clear()
    if case.line.board is not None:
        case.line.reader._home.registered.clear()
        with contextlib.suppress(OSError):
            case.close_line()
    owned._waiting.clear()
    for stream in case.device.streams:
        stream.work.clear()
    vars(case).clear()
