"""What does a slot of the arena cost and give as registered memory of a CUDA device, and when is it free again?

A slot is a memfd that is mapped and written, as the arena has them; it is registered with `cudaHostRegister`, or
pageable as it is. `torch's pinned memory` is what `pin_memory=True` copies a batch into.

- Copies: one batch to the device on a side stream, the median of 40; how long the call takes, and how fast the bytes
  arrive by the events around it.
- Registration: milliseconds to register and unregister a slot whose pages exist, on an idle device and while a kernel
  of 50 ms runs; for torch's memory, to allocate a block of the size for the first time.
- A dropped batch: `x = batch.to("cuda", non_blocking=True)`, after which the batch is gone, behind a kernel that holds
  the copy back, on the default stream and on a side stream by turns. A slot is written anew as soon as its guard
  allows; each arrived batch is compared on the device. Guards: none; events on the current stream; events on each
  stream of torch's pool that has work. Batches with wrong bytes, and the microseconds that the guard takes for a batch.
- A step beside copies: a loop of matrix products, with a copy one batch ahead on a side stream and without one.
- A punched slot: whether a device sees the bytes that were written after a hole was punched into a registered slot.

It needs a CUDA device.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import method
from method import Case, Figures, Goal

COPIES, RING, HELD = 40, 4, 8_000_000  # cycles of the device's clock: some 4 ms
RATE, CALL = "GB/s", "us, the call"
WRONG, GUARD = "batches with wrong bytes", "us, the guard"
PUNCH = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE
KINDS = ("registered slot", "pageable slot", "torch's pinned memory")
GUARDS = ("streams at work", "current stream", "none", "torch's pinned memory")


def cases(options: argparse.Namespace) -> list[Case]:
    batches = 1_000 if options.quick else 10_000
    return [
        *(
            Case(
                f"copy, {size} MB",
                {kind: {"what": "copy", "kind": kind, "size": size << 20} for kind in KINDS},
                [Goal(RATE, "torch's pinned memory", at_least=0.94)],
            )
            for size in (4, 38, 154, 256)
        ),
        *(
            Case(
                f"registration, {size} MB",
                {kind: {"what": "registration", "kind": kind, "size": size << 20} for kind in KINDS[::2]},
            )
            for size in (4, 38, 154)
        ),
        Case(
            f"{batches} dropped batches of 4 MB",
            {guard: {"what": "dropped", "kind": guard, "size": 4 << 20, "batches": batches} for guard in GUARDS},
            [Goal(WRONG, at_most=0)],
        ),
        Case(
            "a step of 3 ms, 38 MB a batch",
            {kind: {"what": "step", "kind": kind, "size": 38 << 20} for kind in (*KINDS, "no copy")},
            [Goal("ms a step", "no copy", at_most=1.02)],
        ),
        Case("a punched slot", {"registered slot": {"what": "punched", "kind": KINDS[0], "size": 4 << 20}}),
    ]


def measure(what: str, kind: str, size: int, batches: int = 0) -> Figures:
    import torch

    torch.cuda.init()
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    result = {
        "copy": lambda: copy(kind, size),
        "registration": lambda: registration(kind, size),
        "dropped": lambda: dropped(kind, size, batches),
        "step": lambda: step(kind, size),
        "punched": lambda: punched(size),
    }[what]()
    torch.cuda.synchronize()
    return result


class Slot:
    """A memfd of `size` bytes, mapped and written, and a tensor of bytes over it."""

    def __init__(self, size: int) -> None:
        import torch

        self.descriptor = os.memfd_create("slot")
        os.posix_fallocate(self.descriptor, 0, size)
        self.mapping = mmap.mmap(self.descriptor, size)
        self.tensor = torch.frombuffer(self.mapping, dtype=torch.uint8)
        self.tensor.fill_(1)

    def register(self) -> None:
        import torch

        code = torch.cuda.cudart().cudaHostRegister(self.tensor.data_ptr(), self.tensor.numel(), 0)
        if int(code) != 0:
            raise RuntimeError(f"cudaHostRegister: error {int(code)}")

    def unregister(self) -> None:
        import torch

        code = torch.cuda.cudart().cudaHostUnregister(self.tensor.data_ptr())
        if int(code) != 0:
            raise RuntimeError(f"cudaHostUnregister: error {int(code)}")


def source(kind: str, size: int) -> Any:
    """Returns a tensor of `size` bytes in memory of the kind."""
    import torch

    if kind == "torch's pinned memory":
        return torch.empty(size, dtype=torch.uint8, pin_memory=True).fill_(1)
    slot = Slot(size)
    if kind == "registered slot":
        slot.register()
        if not slot.tensor.is_pinned():
            raise RuntimeError("torch does not see that the slot is registered")
    return slot.tensor


def copy(kind: str, size: int) -> Figures:
    import torch

    batch, target, side = source(kind, size), torch.empty(size, dtype=torch.uint8, device="cuda"), torch.cuda.Stream()
    rates, calls = [], []
    for _ in range(COPIES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(side):
            begin.record()
            called = time.perf_counter()
            target.copy_(batch, non_blocking=True)
            calls.append(time.perf_counter() - called)
            end.record()
        end.synchronize()
        rates.append(size / begin.elapsed_time(end) / 1e6)
    return {RATE: statistics.median(rates), CALL: statistics.median(calls) * 1e6}


def registration(kind: str, size: int) -> Figures:
    import torch

    def milliseconds(action: Callable[[], object]) -> float:
        begun = time.perf_counter()
        action()
        return (time.perf_counter() - begun) * 1e3

    if kind == "torch's pinned memory":
        kept: list[Any] = []
        allocate = lambda: kept.append(torch.empty(size, dtype=torch.uint8, pin_memory=True))  # noqa: E731
        idle = statistics.median(milliseconds(allocate) for _ in range(5))
        torch.cuda._sleep(100_000_000)
        return {"ms": idle, "ms, beside a kernel": milliseconds(allocate)}
    slots = [Slot(size) for _ in range(6)]
    idle = statistics.median(milliseconds(slot.register) for slot in slots[:5])
    torch.cuda._sleep(100_000_000)
    busy = milliseconds(slots[5].register)
    still_busy = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    taken_back = statistics.median(milliseconds(slot.unregister) for slot in slots)
    return {
        "ms": idle,
        "ms, beside a kernel": busy if still_busy else f"waited for it ({busy:.1f})",
        "ms to unregister": taken_back,
    }


def dropped(guard: str, size: int, batches: int) -> Figures:
    import torch

    default, side = torch.cuda.current_stream(), torch.cuda.Stream()
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in range(2)]  # of either stream
    torch.cuda.synchronize()
    pool = [default, *(torch.cuda.Stream(priority=priority) for priority in (0, -1) for _ in range(32))]
    slots = [] if guard.startswith("torch") else [Slot(size) for _ in range(RING)]
    for slot in slots:
        slot.register()
    events: list[list[Any]] = [[] for _ in range(RING)]
    spent = 0.0
    for number in range(batches):
        place, value = number % RING, number % 251 + 1
        if slots:
            for event in events[place]:
                event.synchronize()
            batch = slots[place].tensor.fill_(value)
        else:
            batch = torch.empty(size, dtype=torch.uint8, pin_memory=True).fill_(value)
        with torch.cuda.stream(side if number % 2 else default):
            torch.cuda._sleep(HELD)
            arrived = batch.to("cuda", non_blocking=True)
            wrong[number % 2] += (arrived != value).any()
        del batch, arrived
        begun = time.perf_counter()  # what next() would do, on the current stream: the default one
        at_work = {
            "none": lambda: [],
            "current stream": lambda: [default],
            "streams at work": lambda: [stream for stream in pool if not stream.query()],
        }.get(guard, list)()
        events[place] = [stream.record_event() for stream in at_work]
        spent += time.perf_counter() - begun
    torch.cuda.synchronize()
    return {WRONG: int(wrong[0] + wrong[1]), GUARD: spent / batches * 1e6}


def step(kind: str, size: int) -> Figures:
    import torch

    side, weights = torch.cuda.Stream(), torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    batch = None if kind == "no copy" else source(kind, size)
    target = torch.empty(size, dtype=torch.uint8, device="cuda")
    times = []
    for number in range(100):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        if batch is not None:
            with torch.cuda.stream(side):
                target.copy_(batch, non_blocking=True)
        for _ in range(2):
            weights @ weights
        torch.cuda.current_stream().wait_stream(side)
        end.record()
        end.synchronize()
        if number >= 20:
            times.append(begin.elapsed_time(end))
    return {"ms a step": statistics.median(times)}


def punched(size: int) -> Figures:
    import torch

    slot, libc = Slot(size), ctypes.CDLL(None, use_errno=True)
    slot.register()
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    if libc.fallocate(slot.descriptor, PUNCH, 0, size):
        raise OSError(ctypes.get_errno(), "fallocate")
    slot.tensor.fill_(2)
    seen = slot.tensor.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return {"value written after the hole": 2, "value that the device sees": int(seen.max().cpu())}


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=3), cases, measure)
