"""How long does a run under Accelerate, transformers' Trainer or Lightning's wait that goes on at a late step?

The samples cost nothing. Measured is the time from a made and prepared loader to its first batch after N steps; that
this batch is the one that would have followed is checked. The loader of transformers' Trainer is Accelerate's.

Stoker's loader is prepared by `stoker.integrations.accelerate.prepare` and loads its state from a checkpoint of
`save_state`. Beside it stands what Accelerate documents for a torch loader: `skip_first_batches`, with the seedable
sampler. It walks the indices of a dataset with indices, and reads a stream from its start. "Stoker, Accelerate's order"
has no `seed=`: it loads its state, and walks the same sampler.

The last case is an unchanged script with Lightning's Trainer and torch's `DataLoader`, continued from a checkpoint of
Lightning's, behind `stoker.install()` and without it: seconds from `Trainer.fit` to the first batch, its own start
included, and how many samples of the rest of the epoch had been trained on already. As many are then lost.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

import method
import rivals as others
from method import Case, Figures, Goal

BATCH = 8
method.LONGEST = 400.0
RESUME, CPU, READS = "s to the first batch", "CPU-seconds of it", "samples read for it"
REPEATED = "samples repeated, of 8,000"


def cases(options: argparse.Namespace) -> list[Case]:
    rivals = {"stoker": "stoker", "stoker, Accelerate's order": "stoker, walked", "skipping": "torch, skipping"}

    def case(kind: str, steps: int, names: list[str], at_most: float | None = None) -> Case:
        steps = steps // 100 if options.quick else steps
        arguments = {name: {"rival": rivals[name], "kind": kind, "steps": steps} for name in names}
        goals = [Goal(RESUME, "skipping", at_most=at_most, headline=False)] if at_most else []
        return Case(f"resumed after {steps:,} steps, {kind}", arguments, goals)

    return [
        case("indices", 1_000_000, ["stoker", "skipping"], at_most=0.1),
        case("indices", 100_000, ["stoker, Accelerate's order", "skipping"]),
        case("stream", 100_000, ["stoker", "skipping"], at_most=0.1),
        lightning(4_000 // (40 if options.quick else 1)),
    ]


def lightning(steps: int) -> Case:
    names = {"install()": "installed", "torch": "torch"}
    arguments = {name: {"rival": rival, "kind": "Lightning", "steps": steps} for name, rival in names.items()}
    goals = [Goal(REPEATED, at_most=0, headline=False)]
    return Case(f"resumed after {steps:,} steps, Lightning's checkpoint", arguments, goals)


def measure(rival: str, kind: str, steps: int) -> Figures:
    warnings.filterwarnings("ignore")
    if kind == "Lightning":
        return by_lightning(rival == "installed", steps)
    try:
        from accelerate.utils import set_seed
    except ImportError:
        return dict.fromkeys((RESUME, CPU, READS), others.NOT_INSTALLED)
    ours = rival.startswith("stoker")
    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        expected = checkpoint(rival, kind, steps, folder) if ours else None
        accelerator, loader, dataset = made(rival, kind, steps)
        began, used = time.perf_counter(), time.process_time()
        if ours:
            accelerator.load_state(folder)
        else:
            import accelerate

            loader = accelerate.skip_first_batches(loader, steps)
        batches = iter(loader)
        first = next(batches).tolist()
        figures = {RESUME: time.perf_counter() - began, CPU: time.process_time() - used, READS: dataset.reads}
    if kind == "stream":
        expected = list(range(steps * BATCH, (steps + 1) * BATCH))
    assert first == expected or expected is None
    return figures


def by_lightning(installed: bool, steps: int) -> Figures:
    import resume_trainer

    try:
        run = resume_trainer.resumed(installed, steps)
    except ImportError:
        return dict.fromkeys((RESUME, CPU, READS, REPEATED), others.NOT_INSTALLED)
    return {RESUME: run.seconds, CPU: run.cpu, READS: run.reads, REPEATED: run.repeated}


def checkpoint(rival: str, kind: str, steps: int, folder: str) -> list[int]:
    """Writes a checkpoint after a number of steps; returns the batch that follows."""
    accelerator, loader, _ = made(rival, kind, steps)
    if rival == "stoker" and kind == "indices":  # goes there at once, and trains on the last step before
        from stoker.integrations.accelerate import skip_first_batches

        loader, steps = skip_first_batches(loader, steps - 1), 1
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    accelerator.save_state(folder)
    following: list[int] = next(batches).tolist()
    return following


def made(rival: str, kind: str, steps: int) -> tuple[Any, Any, Any]:
    """Returns an accelerator, a prepared loader, and its dataset."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    dataset = (Numbers if kind == "indices" else Stream)((steps + 1_000) * BATCH)
    order = {"shuffle": True} if kind == "indices" else {}
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    if rival.startswith("torch"):
        loader = method.data_loader("torch")(dataset, BATCH, **order)
        return accelerator, accelerator.prepare(loader), dataset
    from stoker.integrations.accelerate import prepare

    seed = 0 if rival == "stoker" else None
    return accelerator, prepare(accelerator, method.data_loader("stoker")(dataset, BATCH, seed=seed, **order)), dataset


class Numbers:
    """A sample is its index. Counts its reads."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.reads = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        return index


def stream_base() -> Any:
    import torch.utils.data

    return torch.utils.data.IterableDataset


class Stream(stream_base()):
    """Numbers in their order, with a state. Counts its reads."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = self.reads = 0

    def __iter__(self) -> Iterator[int]:
        begin, self.at = self.at, 0
        for number in range(begin, self.length):
            self.at = number + 1
            self.reads += 1
            yield number
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=3), cases, measure)
