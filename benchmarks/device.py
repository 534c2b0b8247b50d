"""Do batches reach a GPU as fast as memory can be copied, and does the step notice?

Batches of 4, 38 and 256 MB of uint8, made by 8 workers from rows of zeros that hold their index, so that the copy is
what is measured. The loop takes each batch and, behind it, a step of matrix products (or none).

- `stoker, device=`: `DataLoader(device="cuda")`.
- `stoker, pin_memory` and `torch, pin_memory`: `batch.to("cuda", non_blocking=True)` in the loop.
- `torch, prefetcher`: NVIDIA's pattern, in which a class copies the next batch on a side stream while the last one
  computes, with `record_stream`.
- `bare copy`: from registered memory that is there, on a side stream: the limit.

`GB/s` is bytes of batches by time of the loop without a step. `ms a step` is the time of a step beside copies, and `no
copy` that of the step alone. `random orders` counts wrong bytes in loops that keep, drop and skip batches and change
their stream, while kernels hold the copies back. It needs a CUDA device; `--quick` takes some minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

import method
from method import Case, Figures, Goal

RATE, STEP, WRONG = "GB/s", "ms a step", "batches with wrong bytes"
ROWS, WORKERS = 64, 8
RIVALS = ("stoker, device=", "stoker, pin_memory", "torch, pin_memory", "torch, prefetcher")


def cases(options: argparse.Namespace) -> list[Case]:
    batches = 2_000 if options.quick else 100_000
    sizes = (4, 38, 256)
    return [
        *(
            Case(
                f"batches of {size} MB",
                {kind: {"what": "rate", "kind": kind, "size": size} for kind in (*RIVALS, "bare copy")},
                [Goal(RATE, "bare copy", at_least=0.94)],
            )
            for size in sizes
        ),
        *(
            Case(
                f"a step beside batches of {size} MB",
                {kind: {"what": "step", "kind": kind, "size": size} for kind in (*RIVALS, "no copy")},
                [Goal(STEP, "no copy", at_most=1.02)],
            )
            for size in sizes[:2]
        ),
        Case(
            f"random orders, {batches} batches",
            {RIVALS[0]: {"what": "orders", "kind": RIVALS[0], "size": 4, "batches": batches}},
            [Goal(WRONG, at_most=0)],
        ),
    ]


class Rows:
    """Samples of `size` / 64 MB, whose first eight bytes are their index."""

    def __init__(self, size: int, batches: int) -> None:
        self.width, self.length = (size << 20) // ROWS, batches * ROWS

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        import torch

        row = torch.zeros(self.width, dtype=torch.uint8)
        row[:8] = torch.tensor(list(index.to_bytes(8, "little")), dtype=torch.uint8)
        row[-1] = index % 251
        return row


def batches_of(kind: str, size: int, number: int) -> Iterator[Any]:
    """Yields batches on the device."""
    import torch

    import stoker

    rows = Rows(size, number)
    if kind == "stoker, device=":
        yield from stoker.DataLoader(rows, ROWS, num_workers=WORKERS, device="cuda")
        return
    module = stoker if kind.startswith("stoker") else torch.utils.data
    loader = module.DataLoader(rows, ROWS, num_workers=WORKERS, pin_memory=True)
    if kind != "torch, prefetcher":
        for batch in loader:
            yield batch.to("cuda", non_blocking=True)
        return
    side, iterator = torch.cuda.Stream(), iter(loader)

    def ahead() -> Any:
        batch = next(iterator, None)
        if batch is not None:
            with torch.cuda.stream(side):
                return batch.to("cuda", non_blocking=True)
        return None

    upcoming = ahead()
    while upcoming is not None:
        torch.cuda.current_stream().wait_stream(side)
        upcoming.record_stream(torch.cuda.current_stream())
        batch, upcoming = upcoming, None
        upcoming = ahead()
        yield batch


def bare(size: int) -> Iterator[Any]:
    """Yields one memory of the device, copied anew each time from registered memory."""
    import torch

    memory = torch.zeros(size << 20, dtype=torch.uint8)
    ctypes.memset(memory.data_ptr(), 1, memory.nbytes)
    if int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)):
        raise RuntimeError("cudaHostRegister failed")
    target, side = torch.empty(size << 20, dtype=torch.uint8, device="cuda"), torch.cuda.Stream()
    while True:
        with torch.cuda.stream(side):
            target.copy_(memory, non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        yield target


def measure(what: str, kind: str, size: int, batches: int = 0) -> Figures:
    import torch

    if what == "orders":
        return orders(kind, size, batches)
    number = max(24, min(200, 6_000 // size))
    source = bare(size) if kind == "bare copy" else nothing() if kind == "no copy" else batches_of(kind, size, number)
    if what == "rate":
        begun, taken = 0.0, 0
        for place, _ in enumerate(source):
            torch.cuda.synchronize() if place == 7 else None
            if place == 7:  # slots are registered and workers have begun by then
                begun = time.perf_counter()
            taken += place > 7
            if place == number - 1:
                break
        torch.cuda.synchronize()
        return {RATE: taken * (size << 20) / (time.perf_counter() - begun) / 1e9}
    weights = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    times = []
    for place, _ in enumerate(source):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(8):
            weights @ weights
        end.record()
        times.append((begin, end))
        if place == number - 1:
            break
    torch.cuda.synchronize()
    return {STEP: statistics.median(begin.elapsed_time(end) for begin, end in times[8:])}


def nothing() -> Iterator[None]:
    while True:
        yield None


def orders(kind: str, size: int, batches: int) -> Figures:
    """Returns the batches with wrong bytes in random loops."""
    import torch

    chance, wrong, seen = random.Random(0), 0, 0
    default, other = torch.cuda.current_stream(), torch.cuda.Stream()
    while seen < batches:
        found, kept = [], []
        iterator, end = iter(batches_of(kind, size, 500)), chance.randrange(100, 600)
        for number in range(end):
            stream = other if chance.random() < 0.3 else default
            stream.wait_stream(default if stream is other else other)
            with torch.cuda.stream(stream):
                batch = next(iterator, None)
                if batch is None:
                    break
                if chance.random() < 0.3:
                    torch.cuda._sleep(chance.randrange(4_000_000))
                first = batch[:, 0].long() + 256 * batch[:, 1].long() + 65536 * batch[:, 2].long()
                wanted = torch.arange(ROWS * number, ROWS * number + ROWS, device="cuda")
                found.append(((first != wanted) | (batch[:, -1].long() != wanted % 251)).any())
            (default if stream is other else other).wait_stream(stream)
            if chance.random() < 0.02:
                kept.append(batch)
            del batch
            seen += 1
        torch.cuda.synchronize()
        wrong += sum(map(bool, found))
        del iterator
    return {WRONG: wrong}


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=3), cases, measure)
