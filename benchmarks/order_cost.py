"""What does order cost while an epoch runs: the permutation, and the seeds that make each sample's randomness its own?

Processor time in microseconds a sample, in batches of 64, in one process without a loader around it. Order: shuffled
batches of indices from a million samples, by the plan of Stoker's loader, and by torch's `BatchSampler` over its
`RandomSampler`. Seeding: what is added to samples that do nothing but draw a number, once from each of the global
generators, once from all three, once from `sample_rng()`, and to samples that draw nothing; torch's loader
seeds once for each worker. Each is the median of several passes, which alternate with passes that are not seeded.

Randomness in a loader: batches of 64 samples that are cheap (a row of 256 numbers, doubled), made without workers and
in one, by two loaders in one program that take turns, some batches at a time: one seeds for each sample, as a loader
does unless told otherwise, one does not seed at all (`seeding="worker"`). The samples tell the processor time of who
makes them. Shown is the median of the pairs' ratios.

Generators that a dataset holds, without workers: batches of 50 samples of a few microseconds, of 200 or 20 concatenated
parts with a NumPy generator each, and of one dataset with 12 transforms that draw from one each, beside torch's loader,
which seeds none of them. Processor time of the second epoch.

The share: both together, beside the time for one of the photographs of `examples/train_images.py` (read, decoded,
cropped and mirrored), which draws from `rng`, and if it drew from all three.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import method
from method import Case, Figures, Goal

EXAMPLES = Path(__file__).parents[1] / "examples"
SAMPLES, BATCH = 1_000_000, 64
ORDER = "CPU-us for the order"
DRAWN_FROM = ("nothing", "Python's", "NumPy's", "torch's", "all three", "rng")
LOOKED_AT = 1000  # samples of a worker that are seeded in any case
TURN, TURNS = 10, 60  # batches of a loader, before it is the other's turn; pairs of turns
UNSEEDED, COST, MORE = "CPU-us for a sample, no seeding", "CPU-us more with seeding", "% more with seeding"
DRAWS = {"nothing drawn": "nothing", "drawn from rng": "rng", "drawn from Python's": "Python's"}
HELD = {"200 parts": 200, "20 parts": 20, "12 transforms": 0}
SECOND = "CPU-us for a sample"
PHOTOGRAPH, SHARE, WORST = "CPU-us for a photograph", "% for order and rng", "% for order and all three"


def cases(options: argparse.Namespace) -> list[Case]:
    batches, images = (30, 16) if options.quick else (400, 400)
    of_torch = {"rival": "torch", "batches": 0, "data": "", "images": 0}
    ours: dict[str, Any] = {"rival": "stoker", "batches": batches, "data": "", "images": 0}
    found = [
        Case("a sample that costs nothing", {"stoker": ours, "torch": of_torch}),
        *(
            Case(
                f"cheap samples, {where}, {name}",
                {"stoker": {**ours, "drawn": source, "workers": workers}},
                [Goal(MORE, at_most=2)] if source == "nothing" else [],
            )
            for where, workers in (("without workers", 0), ("in one worker", 1))
            for name, source in DRAWS.items()
            if not options.quick or source == "nothing"
        ),
        *(
            Case(
                f"{name} with a generator each",
                {rival: {"rival": rival, "parts": parts} for rival in ("stoker", "torch")},
                [Goal(SECOND, "torch", at_most=1.3)],
            )
            for name, parts in HELD.items()
        ),
    ]
    if not options.data.is_dir():
        print(f"no photographs in {options.data}: that case is left out", file=sys.stderr)
        return found
    photograph = {"stoker": {**ours, "data": str(options.data), "images": images}}
    return [*found, Case("beside a photograph", photograph, [Goal(SHARE, at_most=3), Goal(WORST, at_most=3)])]


def measure(
    rival: str,
    batches: int = 0,
    data: str = "",
    images: int = 0,
    drawn: str = "",
    workers: int = 0,
    parts: int | None = None,
) -> Figures:
    if parts is not None:
        return held_cost(rival, parts)
    if drawn:
        return randomness_cost(drawn, workers, 12 if batches < TURNS else TURNS)
    order = median_of(lambda: walk(torchs_batches() if rival == "torch" else our_batches()))
    if rival == "torch":
        return {ORDER: order}
    seeding = seeding_costs(batches)
    if not data:
        return {ORDER: order, **{f"CPU-us for a seed, {source} drawn": us for source, us in seeding.items()}}
    photograph = photograph_cost(Path(data), images)
    return {
        PHOTOGRAPH: photograph,
        SHARE: 100 * (order + seeding["rng"]) / photograph,
        WORST: 100 * (order + seeding["all three"]) / photograph,
    }


def median_of(pass_: Callable[[], float], times: int = 5) -> float:
    return statistics.median(pass_() for _ in range(times))


# Order


def our_batches() -> Iterator[list[int]]:
    from stoker.loader._epoch.plan import ComputedPlan
    from stoker.loader._epoch.ranks import RankSlice, World
    from stoker.samplers import RandomSampler

    order = RandomSampler(range(SAMPLES)).order(key=1)
    plan = ComputedPlan(order, RankSlice(SAMPLES, 0, World(0, 1), "exact"), BATCH, False)
    while (step := plan.next()) is not None:
        yield step.indices


def torchs_batches() -> Iterator[list[int]]:
    from torch.utils.data import BatchSampler, RandomSampler

    return iter(BatchSampler(RandomSampler(range(SAMPLES)), BATCH, False))


def walk(batches: Iterator[list[int]]) -> float:
    """The epoch's indices, without what is imported for the first of them."""
    began = time.process_time()
    count = sum(map(len, batches))
    return 1e6 * (time.process_time() - began) / count


# Seeding


def seeding_costs(batches: int) -> dict[str, float]:
    """Microseconds by what samples draw from."""
    import numpy as np
    import torch

    from stoker.loader._random.sample_rng import SampleRNG

    rng = SampleRNG(0)

    def all_three(index: int) -> None:
        random.random(), np.random.random(), torch.rand(())

    fetches: dict[str, Callable[[int], Any]] = {
        "nothing": lambda index: index,
        "Python's": lambda index: random.random(),
        "NumPy's": lambda index: np.random.random(),
        "torch's": lambda index: torch.rand(()),
        "all three": all_three,
        "rng": lambda index: rng.random_generator.random(),
    }
    return {source: seeding_cost(fetches[source], batches, rng) for source in DRAWN_FROM}


def seeding_cost(fetch: Callable[[int], Any], batches: int, rng: Any) -> float:
    from stoker.loader._random.sample_seeding import SampleSeeding

    seeds = SampleSeeding("auto", dataset=None, rng=rng)
    indices = list(range(BATCH))
    numbers = itertools.count()

    def seeded() -> None:
        start = BATCH * next(numbers)
        seeds.samples(1, range(start, start + BATCH), fetch, indices)

    def bare() -> None:
        for index in indices:
            fetch(index)

    def difference() -> float:
        times = []
        for call in (seeded, bare):
            began = time.process_time()
            for _ in range(batches):
                call()
            times.append(time.process_time() - began)
        return 1e6 * (times[0] - times[1]) / (batches * BATCH)

    for _ in range(1 + LOOKED_AT // BATCH):
        seeded()
    return median_of(difference)


# Randomness in a loader


class Cheap:
    """Samples that cost little; the last of each batch tells the processor time of its process."""

    def __init__(self, drawn: str) -> None:
        import numpy as np

        self.rows, self.drawn = np.ones((1024, 256), np.float32), drawn

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Any:
        from stoker import sample_rng

        row = self.rows[index % 1024] * 2
        if self.drawn == "rng":
            row[0] = sample_rng().random_generator.random()
        elif self.drawn == "Python's":
            row[0] = random.random()
        return row, time.process_time() if index % BATCH == BATCH - 1 else 0.0


def randomness_cost(drawn: str, workers: int, turns: int) -> Figures:
    from stoker import DataLoader

    loaders = [
        iter(DataLoader(Cheap(drawn), BATCH, num_workers=workers, seeding=seeding)) for seeding in ("auto", "worker")
    ]

    def turn(batches: Any) -> float:
        """Microseconds for a sample."""
        times = [float(next(batches)[1][-1]) for _ in range(TURN + 1)]
        return 1e6 * (times[-1] - times[0]) / (TURN * BATCH)

    for batches in loaders:
        for _ in range(1 + LOOKED_AT // (TURN * BATCH)):
            turn(batches)
    pairs = []
    for number in range(turns):
        first = number % 2
        measured = {first: turn(loaders[first]), 1 - first: turn(loaders[1 - first])}
        pairs.append((measured[0], measured[1]))
    for batches in loaders:
        batches.close()
    return {
        UNSEEDED: statistics.median(unseeded for _, unseeded in pairs),
        COST: statistics.median(seeded - unseeded for seeded, unseeded in pairs),
        MORE: 100 * (statistics.median(seeded / unseeded for seeded, unseeded in pairs) - 1),
    }


# Generators that a dataset holds


class Part:
    """100 samples that draw from generators of its own."""

    def __init__(self, number: int, generators: int = 1, length: int = 100) -> None:
        import numpy as np

        self.generators = [np.random.default_rng([number, each]) for each in range(generators)]
        self.row, self.length = np.zeros(8), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        row = self.row
        for generator in self.generators:
            row = row + generator.random()
        return row


def held_cost(rival: str, parts: int) -> Figures:
    from torch.utils.data import ConcatDataset
    from torch.utils.data import DataLoader as TorchLoader

    from stoker import DataLoader

    dataset: Any = ConcatDataset([Part(number) for number in range(parts)]) if parts else Part(0, 12, 10_000)
    loader: Any = (TorchLoader if rival == "torch" else DataLoader)(dataset, batch_size=50)
    times = []
    for _ in range(2):
        began = time.process_time()
        count = sum(map(len, loader))
        times.append(1e6 * (time.process_time() - began) / count)
    return {SECOND: times[1]}


# Photographs


def photograph_cost(data: Path, images: int) -> float:
    sys.path.insert(0, str(EXAMPLES))
    from train_images import Photos

    photos = Photos(data, "train")
    for index in range(8):
        photos[index % len(photos)]
    began = time.process_time()
    for index in range(images):
        photos[index % len(photos)]
    return 1e6 * (time.process_time() - began) / images


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/photos"), help="the photographs")
    method.main(arguments, cases, measure)
