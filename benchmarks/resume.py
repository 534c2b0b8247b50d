"""How long does a run wait that goes on at 90 % of an epoch?

The epoch has a million samples that cost nothing, in batches of 100, shuffled. A loader delivers 9,000 batches and says
its state; what is measured is the time from `load_state_dict(state)` to the first batch, of a new loader that was made
as the first one was (the median of five of them, each on the same state). That this batch is the one that would have
followed is checked.

Torchdata's StatefulDataLoader is measured as it is mostly used: with a plain sampler (torch's `RandomSampler` with a
generator), which it walks again, and with `shuffle=True`, where its own sampler keeps a state and walks all the same.
And as its documentation advises: with a sampler of the user's that keeps a state, here one that draws the permutation
again and cuts off what is behind, and with a snapshot as often as the state is saved. What is left then is to draw.

Stoker walks as well where it is given a plain sampler: that stands beside it. With two workers, starting them is part
of the wait; what a loader takes to its first batch without a state is shown for that.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import method
from method import Case, Figures, Goal

SAMPLES, BATCH, BEHIND = 1_000_000, 100, 0.9
TIMES = 5
RESUME, FRESH = "ms to the first batch, resumed", "ms to the first batch, at the start"


def cases(options: argparse.Namespace) -> list[Case]:
    samples = SAMPLES // 10 if options.quick else SAMPLES

    def case(name: str, rivals: dict[str, str], workers: int, goals: list[Goal] | None = None) -> Case:
        common = {"workers": workers, "samples": samples}
        return Case(name, {shown: {"rival": rival, **common} for shown, rival in rivals.items()}, goals or [])

    beside = {
        "stoker": "stoker",
        **{rival: f"torchdata, {rival}" for rival in ("plain sampler", "shuffle=True", "best")},
    }
    goals = [Goal(RESUME, rival, at_most=0.01) for rival in ("plain sampler", "shuffle=True")]
    walked = {"stoker": "stoker, plain sampler", "torchdata": "torchdata, plain sampler"}
    return [
        case("resumed without workers, beside torchdata's loader", beside, 0, goals),
        case("resumed with two workers, beside torchdata's loader", beside, 2),
        case("resumed with a plain sampler, which both walk", walked, 0),
    ]


def measure(rival: str, workers: int, samples: int) -> Figures:
    dataset = Numbers(samples)
    try:
        make = RIVALS[rival](dataset, workers)
    except ImportError:
        return dict.fromkeys((RESUME, FRESH), "not installed")
    warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata's, with torch 2.13
    loader = make()
    batches = iter(loader)
    for _ in range(int(BEHIND * samples / BATCH)):
        next(batches)
    state = loader.state_dict()
    following = next(batches).tolist()
    del batches

    def seconds(state: Any) -> float:
        loader = make()
        began = time.perf_counter()
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        first = next(batches).tolist()
        passed = time.perf_counter() - began
        assert (first == following) == (state is not None)
        return passed

    return {
        RESUME: 1e3 * statistics.median(seconds(state) for _ in range(TIMES)),
        FRESH: 1e3 * statistics.median(seconds(None) for _ in range(TIMES)),
    }


class Numbers:
    """A sample is its index."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


# The rivals: each gives a function that makes a new loader


def stoker(dataset: Numbers, workers: int) -> Callable[[], Any]:
    DataLoader = method.data_loader("stoker")
    return lambda: DataLoader(dataset, BATCH, shuffle=True, seed=0, num_workers=workers)


def stoker_plain(dataset: Numbers, workers: int) -> Callable[[], Any]:
    DataLoader = method.data_loader("stoker")
    return lambda: DataLoader(dataset, BATCH, sampler=plain_sampler(dataset), num_workers=workers)


def torchdata_plain(dataset: Numbers, workers: int) -> Callable[[], Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return lambda: StatefulDataLoader(dataset, BATCH, sampler=plain_sampler(dataset), num_workers=workers)


def torchdata_shuffle(dataset: Numbers, workers: int) -> Callable[[], Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return lambda: StatefulDataLoader(dataset, BATCH, shuffle=True, num_workers=workers)


def torchdata_best(dataset: Numbers, workers: int) -> Callable[[], Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    often = int(BEHIND * len(dataset) / BATCH)
    return lambda: StatefulDataLoader(
        dataset, BATCH, sampler=KeepsState(len(dataset)), num_workers=workers, snapshot_every_n_steps=often
    )


RIVALS = {
    "stoker": stoker,
    "torchdata, plain sampler": torchdata_plain,
    "torchdata, shuffle=True": torchdata_shuffle,
    "torchdata, best": torchdata_best,
    "stoker, plain sampler": stoker_plain,
}


def plain_sampler(dataset: Numbers) -> Any:
    import torch

    return torch.utils.data.RandomSampler(dataset, generator=torch.Generator().manual_seed(0))


class KeepsState:
    """A sampler as torchdata's documentation advises: its state is its seed, and how many indices it has given."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.seed = 0
        self.given = 0
        self.resumed = False

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        import torch

        self.given, self.resumed = self.given if self.resumed else 0, False
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.seed))
        while self.given < self.length:
            for index in order[self.given : self.given + 4096].tolist():
                self.given += 1
                yield index

    def state_dict(self) -> dict[str, int]:
        return {"seed": self.seed, "given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seed, self.given, self.resumed = state["seed"], state["given"], True


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
