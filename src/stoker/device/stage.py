"""The transfer of batches to a device: each is copied once, on a stream of its own, while the last one computes.

A copy has three orders to keep. Memory of the device is allocated for the consumer's stream, so the copy waits for an
event there: what that memory held before may still be read. The consumer's stream waits for the copy's event. And the
memory that the copy reads, a slot or pinned memory, stays until that event has come (`Hold`). So does the batch itself:
one that is dropped at once frees memory that is still written.

CUDA is called within `next()` and `close()` alone, on the thread that calls them, and never while a stream is captured.

The file is long because copies, images that are decoded there and transforms of batches share one order of streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stoker import errors
from stoker._core.machine.memory import available
from stoker._engine.transport import owned, registered
from stoker._engine.transport.owned import Hold
from stoker._engine.transport.reader import Lease
from stoker.device import accelerator as accelerators
from stoker.device import fields, pinning, transformed
from stoker.device.accelerator import CopyDevice, DeviceEvent, DeviceStream
from stoker.device.buffers import DeviceBuffers
from stoker.device.copies import CopyCounts, decodes_itself, is_dense, is_tensor, moved_by_itself, moves_itself
from stoker.device.fields import FieldPlacement

AHEAD_SHARE = 8
"""Batches ahead take at most this part (an eighth) of the device's memory."""

REGISTERED_SHARE = 2
"""Registered slots take at most this part (a half) of the memory that is left: the system cannot move them."""

Transform = Callable[..., Any]
"""Returns a batch that is changed on the device, from the batch, `devices` (the random generators of its devices), and
what was said of it by name."""

Known = Mapping[str, Any]
"""What the transform gets to know of a batch, by name."""

Opened = Callable[[], tuple[Any, Lease | None]]
"""Opens a batch: returns it, and the lease of the slot that it lies in."""


@dataclass
class _Move:
    """A tensor of the host, and its place on a device."""

    source: Any
    target: Any
    accelerator: CopyDevice
    name: int  # of the tensor in the batch
    is_there: bool = False  # whether the source is on the device: decoded there

    @property
    def is_even(self) -> bool:
        """Whether its memory is copied as it lies."""
        return bool(self.source.stride() == self.target.stride())


@dataclass
class _Copy:
    """A batch on its way to the device.

    Attributes:
        batch: on the device.
        moved: its tensors there, and the device of each.
        events: of each device: the stream for which the batch was allocated, and the event behind the copy.
        size: in bytes.
        times: of each device: events in front of the copy, behind it, and where the consumer's stream waited for it.
    """

    batch: Any = None
    moved: list[tuple[Any, CopyDevice]] = field(default_factory=list)
    events: list[tuple[CopyDevice, DeviceStream, DeviceEvent]] = field(default_factory=list)
    size: int = 0
    times: list[list[Any]] = field(default_factory=list)


@dataclass
class _Arrived:
    """A batch that was opened and is not delivered."""

    known: Known
    host: Any = None
    lease: Lease | None = None
    error: Exception | None = None
    copy: _Copy | None = None


@dataclass
class DeviceStage:
    """The transfer of one epoch's batches. Used by one thread at a time.

    Args:
        placement: says which tensor goes where.
        ahead: batches that are copied before they are asked for.
        tell: warns once.
        counts: receives what is copied.
        pins: whether tensors that stay on the host are pinned (`pin_memory=True`).
        buffers: of fixed addresses, or None.
        transform: changes the batch on the device, in the stream of the copy and before its event.
    """

    placement: FieldPlacement
    ahead: int
    tell: Callable[[str], None]
    counts: CopyCounts
    pins: bool = False
    buffers: DeviceBuffers | None = None
    transform: Transform | None = None
    _arrived: dict[int, _Arrived] = field(default_factory=dict)
    _used: dict[Any, CopyDevice] = field(default_factory=dict)  # by device as it is named
    _under_way: deque[tuple[list[DeviceEvent], list[list[Any]], int]] = field(default_factory=deque)
    _may_register: bool = False  # at most one slot in a call
    _is_checked: bool = False  # whether the first batch has all named fields
    _latest: int = 0  # bytes of the latest batch

    def begin(self) -> None:
        """Begins a `next()`: takes back what copies have read.

        Raises:
            DeviceError: a device is not there, or a stream is captured.
        """
        for device in self.placement.fixed:
            self._accelerator(device)
        if any(one.is_capturing() for one in self._used.values()):
            raise errors.DeviceError(
                "next() was called while a CUDA graph is captured: a batch cannot be copied meanwhile. Take the batch "
                "before the capture, and pass device_buffers= so that later batches lie where this one does."
            )
        if owned.pending():
            owned.look()
        self._read_times()
        registered.end_left()
        self._may_register = True

    def has_room(self) -> bool:
        """Returns whether another batch may be copied ahead."""
        ahead = sum(self._latest if arrived.copy is None else arrived.copy.size for arrived in self._arrived.values())
        memory = min((one.memory for one in self._used.values()), default=0)
        return len(self._arrived) <= self.ahead and ahead <= memory // AHEAD_SHARE

    def has(self, unit: int) -> bool:
        """Returns whether a unit's batch was opened and is not delivered."""
        return unit in self._arrived

    def keeps(self, unit: int) -> bool:
        """Returns whether a batch that was not delivered is to be delivered later."""
        return unit in self._arrived and self._arrived[unit].error is None

    def copy_ahead(self, unit: int, known: Known, opened: Opened) -> None:
        """Begins to copy a batch that was not asked for yet. An error of it is raised when it is."""
        arrived = self._open(unit, known, opened)
        try:
            if arrived.error is None:
                self._start(arrived, is_ahead=True)
        except Exception as error:
            if _is_out_of_memory(error):
                self.ahead = 0
                self.tell(
                    f"the device's memory does not hold a batch ahead: {_in_short(error)} From here on each is copied "
                    "when it is asked for, so the copy does not overlap the step. For batches ahead use smaller ones."
                )
            # else take() meets it again, where it can be raised

    def take(self, unit: int, known: Known, opened: Opened) -> Any:
        """Returns a batch on the device; the same one again until `delivered` is called.

        Raises:
            Exception: of the device, and of the user's code. Where `keeps` is true, the next call tries again.
        """
        import torch

        arrived = self._arrived.get(unit) or self._open(unit, known, opened)
        if arrived.error is not None:
            raise arrived.error
        if arrived.copy is not None and any(one.current() != stream for one, stream, _ in arrived.copy.events):
            arrived.copy = None  # it lies in memory of another stream than the one that is current now
        try:
            copy = arrived.copy or self._start(arrived, is_ahead=False)
            for (one, _, event), times in zip(copy.events, copy.times, strict=True):
                stream = one.current()
                if len(times) == 2 and (asked := one.timed_event()) is not None:
                    times.append(stream.record_event(asked))
                stream.wait_event(event)
            if self.buffers is None or not copy.moved:
                return copy.batch
            with torch.inference_mode(False), torch.no_grad():
                return self.buffers.placed(copy.batch, copy.moved)
        except Exception as error:
            if _is_out_of_memory(error):
                error.add_note(
                    "The batch is not lost: free memory of the device, and the next next() copies it. The batch before "
                    f"had {self._latest / 2**20:,.1f} MiB; {len(self._arrived) - 1} are on the device ahead of it."
                )
            elif not isinstance(error, errors.DeviceError):
                arrived.error = error
            raise

    def delivered(self, unit: int) -> None:
        """Hands a batch over to the user."""
        self._arrived.pop(unit, None)

    drop = delivered

    def close(self) -> None:
        """Waits for the copies, after the workers have ended, and gives back all that they read."""
        self._arrived.clear()
        if any(one.is_capturing() for one in self._used.values()):
            return  # another loader's next() goes on with it
        for events, _, _ in self._under_way:
            for event in events:
                event.synchronize()
        self._read_times()
        owned.look()
        registered.end_left()

    def _open(self, unit: int, known: Known, opened: Opened) -> _Arrived:
        arrived = _Arrived(known)
        try:
            arrived.host, arrived.lease = opened()
        except Exception as error:
            arrived.error = error
        self._arrived[unit] = arrived
        return arrived

    def _accelerator(self, device: Any) -> CopyDevice:
        if device not in self._used:
            self._used[device] = accelerators.accelerator_of(accelerators.numbered(device))
        return self._used[device]

    def _start(self, arrived: _Arrived, is_ahead: bool) -> _Copy:
        """Queues the copies of a batch, and returns at once."""
        import torch

        copy = _Copy()
        kept: list[Any] = []  # until the copies are done
        with torch.inference_mode(False), torch.no_grad():
            try:
                copy.batch, moves, others = self._allocated(arrived.host, kept)
                in_place = self._in_place(arrived.lease, moves, is_ahead)
                for one in dict.fromkeys([*(move.accelerator for move in moves), *others]):
                    self._queue(one, [move for move in moves if move.accelerator is one], in_place, kept, copy)
                self._transform(arrived, copy, kept)
            finally:
                self._keep(copy, kept)
        arrived.copy = copy
        self._latest = copy.size
        self.counts.batches += not self.placement.is_of_host
        self.counts.bytes += copy.size
        return copy

    def _allocated(self, host: Any, kept: list[Any]) -> tuple[Any, list[_Move], list[CopyDevice]]:
        """Returns the batch on the device, allocated for the consumer's streams, what is to be copied, and the devices
        of what was moved by itself.
        """
        moves: list[_Move] = []
        devices: list[CopyDevice] = []  # of what moves itself
        paths: set[str] = set()

        def placed(path: str, value: Any) -> Any:
            paths.add(path)
            is_of_torch, decodes = is_tensor(value), decodes_itself(value)
            if not (is_of_torch or decodes or moves_itself(value)):
                # A transform may write to it, and gets the batch again if the device was full
                is_array = self.transform is not None and isinstance(value, np.ndarray)
                return value.copy() if is_array else fields.INSIDE
            device = self.placement.of(path, value)
            if decodes:
                return value if device is None else self._decoded(value, self._accelerator(device), moves)
            if device is None:
                if self.pins:
                    return pinning.pin(value)
                return fields.INSIDE if not is_of_torch else value if self.transform is None else value.clone()
            one = self._accelerator(device)
            if not (is_of_torch and value.is_cpu and is_dense(value)):
                devices.append(one)
                return moved_by_itself(value, one, kept)
            target = one.empty_like(value.detach())
            moves.append(_Move(value.detach(), target, one, id(value)))
            return target.requires_grad_() if value.requires_grad else target

        batch = fields.mapped(host, placed, dataclasses_too=True)
        if not self._is_checked:
            self.placement.check(paths)
            self._is_checked = True
        if self.placement.is_of_host:
            batch = pinning.pin(host) if self.pins else host
        return batch, moves, devices

    def _decoded(self, value: Any, one: CopyDevice, moves: list[_Move]) -> Any:
        """Decodes images, and returns memory of the consumer's stream for them.

        The stream of copies waits for no work of the consumer here: the decoder returns when it is done, and the
        program queues no step meanwhile.
        """
        with one.using(one.side):
            made = one.decoded(value)
        target = one.empty_like(made)
        moves.append(_Move(made, target, one, id(made), is_there=True))
        self.counts.decoded += len(value)
        self.counts.decoded_by_cpu += len(value.by_cpu)
        self.counts.bytes += value.data.nbytes - made.nbytes  # what crosses the bus
        return target

    def _in_place(self, lease: Lease | None, moves: Sequence[_Move], is_ahead: bool) -> set[int]:
        """Returns the tensors that are read where they lie: in a slot. Registers it, if that delays nobody.

        The user never has a view of a registered slot, since torch does not know who still reads it: if a part of the
        batch stays on the host, the slot is not registered.
        """
        mapping = None if lease is None else lease.mapping
        if lease is None or mapping is None:
            return set()
        begin, end = mapping.address, mapping.address + mapping.size
        inside = [move for move in moves if begin <= move.source.data_ptr() < end]
        goes_whole = len({move.name for move in inside}) == lease.views and all(move.is_even for move in inside)
        if not goes_whole:
            if lease.is_registered:
                lease.unregister()
            return set()
        names = {move.name for move in inside}
        if lease.is_registered or not any(move.accelerator.pins for move in inside):
            return names
        one = next((move.accelerator for move in inside if move.accelerator.registers), None)
        if one is not None and is_ahead and lease.can_register and self._register(lease, one):
            return names
        return set()

    def _register(self, lease: Lease, one: CopyDevice) -> bool:
        """Registers a slot, at most one in a call; returns whether it is registered."""
        mapping = lease.mapping
        if mapping is None or not self._may_register or self.counts.why_staged:
            return False
        self._may_register = False
        if registered.total() + mapping.size > available().bytes // REGISTERED_SHARE:
            return False
        if (why := one.register(mapping.address, mapping.size)) is not None:
            self.counts.why_staged = why
            self.tell(
                f"batches go through pinned memory to {one.device}, copied once more on the host: their own memory "
                f"cannot be registered ({why}). Is the limit on locked memory low (`ulimit -l`)?"
            )
            return False
        lease.note_registered(one.unregister)
        self.counts.registered += 1
        return True

    def _queue(self, one: CopyDevice, moves: Sequence[_Move], in_place: set[int], kept: list[Any], copy: _Copy) -> None:
        """Queues the copies to one device."""
        consumer, side = one.current(), one.side
        side.wait_event(consumer.record_event())  # the memory of the device may still be read by earlier work
        with one.using(side):
            begun = None if any(move.is_there for move in moves) else one.timed_event()  # else no time of the bus
            if begun is not None:
                side.record_event(begun)
            try:
                for move in moves:
                    source, lies_still = move.source, move.name in in_place
                    if one.pins and not (lies_still or move.is_there):
                        source = one.pinned(source)  # torch keeps it until it is read
                        self.counts.staged += source.nbytes
                    kept += [source] if lies_still or move.is_there else []
                    kept.append(move.target)
                    one.copy(move.target, source, one.pins or lies_still or move.is_there)
                    copy.moved.append((move.target, one))
                    copy.size += source.nbytes
            finally:
                event = side.record_event(one.timed_event())
                copy.events.append((one, consumer, event))
                copy.times.append([] if begun is None else [begun, event])

    def _transform(self, arrived: _Arrived, copy: _Copy, kept: list[Any]) -> None:
        """Calls the transform of the whole batch: on the stream of its copy, if that is one.

        Raises:
            Exception: of the transform. It is not called again for this batch, unless the device is full.
        """
        if self.transform is None:
            return
        devices = [one for one, _, _ in copy.events]
        transform, generators = self.transform, [each for one in devices for each in one.generators()]

        def call(batch: Any) -> Any:
            try:
                with transformed.plain_modes(devices):
                    return transform(batch, **arrived.known, devices=generators)
            except Exception as error:
                if not _is_out_of_memory(error):
                    arrived.error = error
                where = ", ".join(str(one.device) for one in devices) or "the host"
                error.add_note(
                    f"The batch was on {where}: with device= the transform runs there, in this process. To run it in "
                    "the workers, on the CPU, call it in collate_fn=."
                )
                raise

        if len(devices) != 1:
            for _, consumer, event in copy.events:
                consumer.wait_event(event)
            copy.batch = call(copy.batch)
            copy.moved = list(transformed.tensors_on(copy.batch, devices))
            return
        one, consumer, _ = copy.events[0]
        with one.using(one.side):
            try:
                moved = [tensor for tensor, _ in copy.moved]
                copy.batch, found = transformed.on_side_stream(copy.batch, call, one, consumer, moved, kept)
                copy.moved = [(tensor, one) for tensor in found]
            finally:
                copy.events[0] = one, consumer, one.side.record_event(one.timed_event())

    def _keep(self, copy: _Copy, kept: list[Any]) -> None:
        """Keeps what copies read and write until they are done, whoever drops it meanwhile."""
        if not copy.events:
            return
        events = [event for _, _, event in copy.events]
        devices = [one for one, _, _ in copy.events]

        def is_over() -> bool:
            return not any(one.is_capturing() for one in devices) and all(event.query() for event in events)

        Hold(kept).until(is_over)
        self._under_way.append((events, copy.times, copy.size))

    def _read_times(self) -> None:
        """Counts the seconds of the copies that are done."""
        while self._under_way:
            events, times, size = self._under_way[0]
            if not all(event.query() for event in events):
                return
            self._under_way.popleft()
            for begun, done, *asked in filter(None, times):
                self.counts.timed += size // len(events)
                self.counts.seconds += begun.elapsed_time(done) / 1e3
                if asked and asked[0].query():  # else the consumer has not come to the place where it waits for it
                    self.counts.stalled += max(0.0, asked[0].elapsed_time(done) / 1e3)


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "out of memory" in str(error)  # of mps, and of pinned memory
    )


def _in_short(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(" See documentation")[0].rstrip(".") + "."
