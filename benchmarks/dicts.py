"""How fast do small samples reach the trainer that Python makes one by one?

A sample is a dict of 12 small fields of mixed type, as a tabular or recommender dataset gives them: Python's numbers, a
string, a NumPy number, two small arrays, a small tensor. 256 to a batch, shuffled. Making them takes most of the time,
and no loader makes it shorter; what is measured is what a loader adds. "by hand" is the loop without a loader: the same
samples in a list, then a line for each field that makes a tensor of it. torchdata's nodes collate as torch does, Grain
makes NumPy arrays. "make alone" makes the samples, and no batch.
"""

from __future__ import annotations

import argparse
from typing import Any

import counting
import method
import rivals
from method import Case, Figures, Goal

BATCH = 256


def cases(options: argparse.Namespace) -> list[Case]:
    seconds = 0.3 if options.quick else 2.0

    def rival(name: str, workers: int = 0) -> dict[str, Any]:
        return {"rival": name, "workers": workers, "seconds": seconds}

    result = [
        Case(
            "dicts",
            {
                "stoker": rival("stoker"),
                "torch": rival("torch"),
                "torch, 2 workers": rival("torch", 2),
                "nodes": rival("nodes"),
                "Grain": rival("Grain"),
                "by hand": rival("by hand"),
                "make alone": rival("make alone"),
            },
            [
                Goal("batches/s", against="torch", at_least=1.5),
                *(Goal("batches/s", against=other, at_least=1) for other in ("nodes", "Grain")),
                Goal("batches/s", against="by hand", at_least=0.7),
            ],
        ),
        Case(
            "dicts, 2 workers",
            {"stoker": rival("stoker", 2), "torch": rival("torch", 2)},
            [Goal("batches/s", against="torch", at_least=5)],
        ),
        Case("dicts, collation alone", {name: rival(f"{name} collates") for name in ("stoker", "general", "torch")}),
    ]
    return rivals.left_out([case for case in result if case.name != "dicts, 2 workers"]) if options.quick else result


class Dicts:
    """Samples that are made when they are asked for."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        import numpy as np
        import torch

        return {
            "id": index,
            "label": index % 10,
            "count": index + 1,
            "weight": index * 0.5,
            "latitude": index * 1.5,
            "longitude": index * 2.5,
            "flag": index % 2 == 0,
            "name": "a name",
            "score": np.float32(index),
            "vector": np.full(4, index, np.float32),
            "box": np.zeros((2, 2), np.float32),
            "tokens": torch.full((3,), index),
        }


def measure(rival: str, workers: int, seconds: float) -> Figures:
    return counting.or_not_installed(lambda: batches_of(rival, workers), lambda made: counting.counted(made, seconds))


def batches_of(rival: str, workers: int) -> Any:
    data = Dicts()
    if rival in ("stoker", "torch"):
        loader = method.data_loader(rival)(data, BATCH, shuffle=True, num_workers=workers)
        while True:
            yield from loader
    elif rival == "nodes":
        yield from rivals.nodes(data, BATCH, workers)
    elif rival == "Grain":
        yield from rivals.grain(data, BATCH, workers, in_memory=True)
    elif rival in ("by hand", "make alone"):
        for indices in orders(len(data)):
            samples = [data[index] for index in indices]
            yield by_hand(samples) if rival == "by hand" else samples
    else:
        collates = collation(rival.partition(" ")[0])
        samples = [data[index] for index in range(BATCH)]
        while True:
            yield collates(samples)


def by_hand(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """What one writes who knows the fields."""
    import numpy as np
    import torch

    numbers = {"id": "i8", "label": "i8", "count": "i8", "weight": "f8", "latitude": "f8", "longitude": "f8"}
    numbers |= {"flag": "?", "score": "f4"}
    batch: dict[str, Any] = {
        key: torch.from_numpy(np.array([sample[key] for sample in samples], dtype)) for key, dtype in numbers.items()
    }
    batch["name"] = [sample["name"] for sample in samples]
    for key in ("vector", "box"):
        batch[key] = torch.from_numpy(np.stack([sample[key] for sample in samples]))
    batch["tokens"] = torch.stack([sample["tokens"] for sample in samples])
    return batch


def collation(name: str) -> Any:
    import torch.utils.data

    from stoker import collate

    if name == "torch":
        return torch.utils.data.default_collate
    return collate.compiling(collate.default_collate) if name == "stoker" else collate.default_collate


def orders(samples: int) -> Any:
    import numpy as np

    batches = np.random.default_rng(0).permutation(samples).reshape(-1, BATCH).tolist()
    while True:
        yield from batches


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
