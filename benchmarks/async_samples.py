"""How fast are samples that wait, if they are awaited, beside threads and a bare event loop?

A sample waits for 2 ms and is a number then, so what a loader gives is the number of samples in flight, less what each
costs. An epoch of 50,000 samples in batches of 64, in a random order; the start of the workers is part of the time, the
import of the libraries is not. Stoker has 2 workers of 16 samples in flight (`async def __getitem__`), and beside it 2
workers of 16 threads (`time.sleep`); torch has 2 and 32 workers, with the same blocking samples.

"bare" is what is possible: 2 forked processes, each of which awaits 16 samples at a time of its half of the indices in
a loop of its own, makes no batch, and sends nothing. CPU-ms are those of all processes.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
import warnings
from typing import Any

import method
from method import Case, Figures, Goal

WORKERS, FLYING, BATCH, WAIT = 2, 16, 64, 0.002
SAMPLES = 50_000
RATE, CPU = "samples/s", "CPU-ms per sample"


def cases(options: argparse.Namespace) -> list[Case]:
    samples = SAMPLES // 20 if options.quick else SAMPLES
    places = WORKERS * FLYING
    rivals = {
        f"stoker, {WORKERS} x {FLYING} awaited": {"rival": "stoker", "workers": WORKERS, "flying": FLYING},
        f"stoker, {WORKERS} x {FLYING} threads": {"rival": "threads", "workers": WORKERS, "flying": FLYING},
        "bare": {"rival": "bare", "workers": WORKERS, "flying": FLYING},
        f"torch, {WORKERS}": {"rival": "torch", "workers": WORKERS, "flying": 1},
        f"torch, {places}": {"rival": "torch", "workers": places, "flying": 1},
    }
    goals = [Goal(RATE, "bare", at_least=0.9)]
    return [Case("samples that wait 2 ms", {name: {**how, "samples": samples} for name, how in rivals.items()}, goals)]


class Awaited:
    """Samples that are awaited."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    async def __getitem__(self, index: int) -> int:
        await asyncio.sleep(WAIT)
        return index


class Blocking(Awaited):
    """The same samples, which block their thread."""

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        time.sleep(WAIT)
        return index


def measure(rival: str, workers: int, flying: int, samples: int) -> Figures:
    import torch  # noqa: F401 - for all rivals

    import stoker  # noqa: F401

    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than CPUs: that is what they are
    if rival == "torch":  # the rate is that of a part: its two workers would need a minute
        samples = samples * workers // (WORKERS * FLYING)
    used, began = method.cpu_seconds(), time.perf_counter()
    RIVALS[rival](samples, workers, flying)
    passed = time.perf_counter() - began
    return {RATE: samples / passed, CPU: 1e3 * (method.cpu_seconds() - used) / samples}


def awaited(samples: int, workers: int, flying: int) -> None:
    import stoker

    count_all(
        stoker.DataLoader(Awaited(samples), BATCH, shuffle=True, num_workers=workers, concurrency=flying), samples
    )


def threads(samples: int, workers: int, flying: int) -> None:
    import stoker

    how: dict[str, Any] = {"num_workers": workers, "threads_per_worker": flying}
    count_all(stoker.DataLoader(Blocking(samples), BATCH, shuffle=True, **how), samples)


def torchs(samples: int, workers: int, flying: int) -> None:
    import torch.utils.data

    dataset: Any = Blocking(samples)
    count_all(torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, num_workers=workers), samples)


def count_all(loader: Any, samples: int) -> None:
    if (count := sum(len(batch) for batch in loader)) != samples:
        raise AssertionError(f"{count} samples of {samples}")


def bare(samples: int, workers: int, flying: int) -> None:
    context = multiprocessing.get_context("fork")
    running = [context.Process(target=bare_loop, args=(samples, number, workers, flying)) for number in range(workers)]
    for process in running:
        process.start()
    for process in running:
        process.join()


def bare_loop(samples: int, number: int, workers: int, flying: int) -> None:
    dataset, indices = Awaited(samples), iter(range(number, samples, workers))

    async def lane() -> None:
        for index in indices:
            await dataset[index]

    async def all_of() -> None:
        await asyncio.gather(*(lane() for _ in range(flying)))

    asyncio.run(all_of())


RIVALS = {"stoker": awaited, "threads": threads, "torch": torchs, "bare": bare}


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
