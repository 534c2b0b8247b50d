"""A device in this process that makes each mistake in the order of its work visible.

Work is queued in streams, and done later: as `run` decides by a seed, never before it must be. Memory of the device is
reused at once, in the stream for which it was allocated, and poisoned when it is freed. Memory of the host that a copy
reads is read when the copy is done, not when it is queued. Registered memory shows the bytes of its pages as they were,
once these were punched.
"""

from __future__ import annotations

import contextlib
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from stoker.device.accelerator import CopyDevice

POISON = 0xDD


class LateEvent:
    """An event of a stream: it has come when the stream's work in front of it is done."""

    def __init__(self, device: LateDevice, is_timed: bool = False) -> None:
        self._device = device
        self.has_come = False
        self.at = 0.0

    def query(self) -> bool:
        self._device.called("query")
        self._device.run(2)
        return self.has_come

    def synchronize(self) -> None:
        self._device.called("synchronize")
        while not self.has_come:
            assert self._device.run(1), "an event that nothing brings"

    def elapsed_time(self, other: LateEvent) -> float:
        return other.at - self.at


class LateStream:
    """A queue of work."""

    def __init__(self, device: LateDevice, name: str) -> None:
        self._device = device
        self.name = name
        self.work: list[Callable[[], object] | LateEvent] = []

    def record_event(self, event: LateEvent | None = None) -> LateEvent:
        self._device.called("record_event")
        found = event or LateEvent(self._device)

        def come() -> None:
            found.has_come = True
            found.at = self._device.clock

        self.work.append(come)
        return found

    def wait_event(self, event: LateEvent) -> None:
        self._device.called("wait_event")
        left_out = "no wait" if self is self._device.side else "no wait of the program"
        if self._device.mistake != left_out:
            self.work.append(event)

    def step(self) -> bool:
        """Does the next piece of work; returns whether it could."""
        if not self.work:
            return False
        if isinstance(first := self.work[0], LateEvent):
            if not first.has_come:
                return False
            del self.work[0]
            return True
        del self.work[0]
        first()
        return True


class LateDevice(CopyDevice):
    """The accelerator of a test.

    Args:
        seed: of the interleaving of its streams.
        mistake: to plant: "no wait" (the side stream waits for nothing), or "no wait of the program".

    Attributes:
        punched: addresses of registered memory that was punched, with the bytes that a device still sees there.
    """

    def __init__(self, seed: int = 0, mistake: str = "", pins: bool = True, memory: int = 1 << 40) -> None:
        self.device = torch.device("cuda", 0)
        self.memory = memory
        self.pins = pins
        self.registers = pins
        self.mistake = mistake
        self.random = random.Random(seed)
        self.clock = 0.0
        self.side = LateStream(self, "side")
        self.default = LateStream(self, "default")
        self.streams = [self.side, self.default]
        self._current = self.default
        self.registered: dict[int, int] = {}
        self.punched: dict[int, bytes] = {}
        self.refuses = ""
        self.full_for = 0  # allocations that fail
        self.copied: list[int] = []
        self.captures = False
        self.allowed = True
        self.decoder: Any = None  # of JPEGs
        self._free: dict[tuple[str, int], list[np.ndarray[Any, Any]]] = {}
        self.allocated = 0
        self._read: list[tuple[int, int]] = []  # addresses and sizes that copies under way read
        self._blocks: dict[int, tuple[int, LateStream]] = {}  # size and stream of what is allocated, by its address
        self.generator = torch.Generator().manual_seed(7)

    # What the transfer calls

    def called(self, what: str) -> None:
        assert self.allowed, f"{what} outside next() and close()"
        assert not self.captures, f"{what} while a stream is captured"

    def current(self) -> LateStream:
        self.called("current")
        return self._current

    @contextlib.contextmanager
    def using(self, stream: Any) -> Iterator[None]:
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def timed_event(self) -> LateEvent:
        return LateEvent(self, is_timed=True)

    def is_capturing(self) -> bool:
        return self.captures

    def holds(self, tensor: torch.Tensor) -> bool:
        return self.stream_of(tensor) is not None

    def generators(self) -> list[Any]:
        return [self.generator]

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        self.called("empty_like")
        if self.full_for:
            self.full_for -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 is full.")
        size = max(1, tensor.nbytes)
        stream = self._current
        free = self._free.setdefault((stream.name, size), [])
        block = free.pop() if free else np.full(size, POISON, np.uint8)
        memory = block.view(_Owned)
        weakref.finalize(memory, self._freed, stream, free, block).atexit = False
        self.allocated += size
        self._blocks[block.ctypes.data] = size, stream
        flat = torch.from_numpy(memory)[: tensor.nbytes].view(tensor.dtype)
        return flat.as_strided(tensor.shape, torch.empty_like(tensor).stride())

    def _freed(self, stream: LateStream, free: list[Any], block: np.ndarray[Any, Any]) -> None:
        self.allocated -= len(block)
        del self._blocks[block.ctypes.data]
        free.append(block)
        if self.mistake != "no reuse":
            stream.work.append(lambda: block.fill(POISON))

    def copy(self, target: torch.Tensor, source: torch.Tensor, at_once: bool) -> None:
        self.called("copy")
        address, size = source.data_ptr(), source.nbytes
        # Raw memory, as of the device's engine: neither the source nor the target is kept alive by the queue.
        to, shape, dtype = target.data_ptr(), source.shape, source.dtype

        self._read.append((address, size))

        def done() -> None:
            self._read.remove((address, size))
            self.clock += size / 1e6
            _move(to, target_size, self.seen(address, size))
            self.copied.append(size)

        target_size = target.nbytes
        assert target_size == size and dtype == target.dtype and shape == target.shape
        if source.is_contiguous() != target.is_contiguous():
            self._read.remove((address, size))
            source = source.contiguous()
            address = source.data_ptr()
            self._read.append((address, size))
            done()
            return
        self._current.work.append(done)
        if not at_once:
            while self._current.work:
                self.run(1)

    def seen(self, address: int, size: int) -> bytes:
        """Returns the bytes that the device reads at an address of the host."""
        for begin, old in self.punched.items():
            if begin <= address < begin + len(old):
                return old[address - begin : address - begin + size]
        import ctypes

        return ctypes.string_at(address, size)

    def decoded(self, images: Any) -> torch.Tensor:
        """As TorchCodec does: waits for the work of the current stream, and leaves the last step to it."""
        self.called("decoded")
        while self._current.work:
            assert self.run(1)
        pixels = images.decoded_on(torch.device("cpu"), self.decoder)
        made = self.empty_like(pixels)
        data, to = pixels.numpy().tobytes(), made.data_ptr()
        self._current.work.append(lambda: _move(to, len(data), data))
        return made

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        self.called("pinned")
        copied = torch.empty_like(tensor).copy_(tensor)
        self._current.work.append(lambda: copied.sum())  # torch's allocator keeps it so long
        self._kept = [*getattr(self, "_kept", [])[-64:], copied]
        return copied

    def register(self, address: int, size: int) -> str | None:
        self.called("register")
        assert size and address not in self.registered
        if self.refuses:
            return self.refuses
        self.registered[address] = size
        return None

    def unregister(self, address: int) -> None:
        self.called("unregister")
        end = address + self.registered[address]
        assert not any(address <= begin < end for begin, _ in self._read), "unregistered while a copy reads it"
        _read(address, self.registered.pop(address))  # faults if it is mapped no more
        self.punched.pop(address, None)

    # What the test does

    def stream_of(self, tensor: torch.Tensor) -> LateStream | None:
        """Returns the stream for which the memory of a tensor was allocated; None if it is not the device's."""
        if type(tensor) is not torch.Tensor:
            tensor = tensor.as_subclass(torch.Tensor)
        address = tensor.untyped_storage().data_ptr()
        return self._blocks.get(address, (0, None))[1]

    def stream(self, name: str) -> LateStream:
        found = LateStream(self, name)
        self.streams.append(found)
        return found

    def compute(self, work: Callable[[], object]) -> None:
        """Queues work of the program in the current stream."""
        self._current.work.append(work)

    def run(self, steps: int) -> bool:
        """Does some pieces of work, in an order of the streams that the seed decides; returns whether there was one."""
        any_done = False
        for _ in range(steps):
            for stream in self.random.sample(self.streams, len(self.streams)):
                if stream.step():
                    any_done = True
                    self.clock += 1
                    break
        return any_done

    def finish(self) -> None:
        """Does all work."""
        while self.run(1):
            pass
        assert not any(stream.work for stream in self.streams), "streams that wait for each other"

    def finish_anyhow(self) -> None:
        """Does all work, and nothing waits."""
        for stream in self.streams:
            for work in stream.work:
                if isinstance(work, LateEvent):
                    work.has_come = True
        self.finish()


class _Owned(np.ndarray[Any, Any]):
    """Memory whose end is noticed."""


def _move(to: int, size: int, data: bytes) -> None:
    import ctypes

    ctypes.memmove(to, data, size)


def _read(address: int, size: int) -> int:
    import ctypes

    return ctypes.string_at(address, size)[-1]
