"""How fast do shuffled rows of an array in memory reach the trainer?

A million rows of 128 float32, batches of 1,024, so 512 kB each, in a new random order each time. There is nothing to
compute: what is measured is how a loader fetches, collates and hands over.

"torch, best" is what torch's documentation recommends for such data: a batch sampler given as `sampler=`, with
`batch_size=None`, so that the dataset is indexed once for each batch; torchdata's nodes index it once, too. Grain takes
row after row, without threads that read, as it recommends for what lies in memory. "bare" is NumPy's `take` into a kept
buffer, with indices that lie ready: no loader can be faster in one thread, and what it leaves out (the order, the state
that can be resumed, memory of its own for each batch) has a price. "gather alone" is what Stoker's dataset and
collation take for their part, in this process.
"""

from __future__ import annotations

import argparse
from typing import Any

import counting
import method
import rivals
from method import Case, Figures, Goal

BATCH, WIDTH = 1024, 128


def cases(options: argparse.Namespace) -> list[Case]:
    rows, seconds = (100_000, 0.3) if options.quick else (1_000_000, 2.0)

    def rival(name: str, workers: int = 0) -> dict[str, Any]:
        return {"rival": name, "workers": workers, "rows": rows, "seconds": seconds}

    result = [
        Case(
            "rows, in the trainer's process",
            {
                "stoker": rival("stoker"),
                "torch": rival("torch"),
                "torch, best": rival("torch, best"),
                "nodes": rival("nodes"),
                "Grain": rival("Grain"),
                "gather alone": rival("gather alone"),
                "bare": rival("bare"),
            },
            [
                Goal("batches/s", against="torch", at_least=25),
                *(Goal("batches/s", against=best, at_least=3) for best in ("torch, best", "nodes", "Grain")),
                Goal("batches/s", against="bare", at_least=0.7),
            ],
        ),
        Case(
            "rows, 2 workers",
            {
                "stoker": rival("stoker", 2),
                "torch": rival("torch", 2),
                "torch, best": rival("torch, best", 2),
            },
        ),
    ]
    return rivals.left_out(result) if options.quick else result


def measure(rival: str, workers: int, rows: int, seconds: float) -> Figures:
    import torch

    data = torch.rand(rows, WIDTH)
    batches = {"bare": bare, "gather alone": gathered}

    def read(batch: Any) -> None:
        """One byte of every page."""
        torch.as_tensor(batch[0]).view(-1)[::1024].max()

    return counting.or_not_installed(
        lambda: batches[rival](data) if rival in batches else loaded(rival, workers, data),
        lambda made: counting.counted(made, seconds, read),
    )


def loaded(rival: str, workers: int, data: Any) -> Any:
    """Batches of a loader, epoch after epoch."""
    import torch.utils.data as torchs

    if rival == "nodes":
        yield from rivals.nodes(data, BATCH, workers, fetch=lambda indices: (data[indices],))
    if rival == "Grain":
        yield from ((batch,) for batch in rivals.grain(data.numpy(), BATCH, workers, in_memory=True))
    if rival == "stoker":
        import stoker

        loader: Any = stoker.DataLoader(stoker.TensorDataset(data), BATCH, shuffle=True, num_workers=workers)
    elif rival == "torch":
        loader = torchs.DataLoader(torchs.TensorDataset(data), BATCH, shuffle=True, num_workers=workers)
    else:
        dataset = torchs.TensorDataset(data)
        batches = torchs.BatchSampler(torchs.RandomSampler(dataset), BATCH, False)
        loader = torchs.DataLoader(dataset, sampler=batches, batch_size=None, num_workers=workers)
    while True:
        yield from loader


def gathered(data: Any) -> Any:
    """What Stoker's dataset and collation give, without the loader."""
    import stoker
    from stoker import collate
    from stoker.datasets.gather import gatherer

    dataset = stoker.TensorDataset(data)
    batches = collate.gathering(collate.default_collate, dataset, gatherer(dataset))  # type: ignore[arg-type]
    for indices in orders(len(data)):
        yield batches(indices.numpy())


def bare(data: Any) -> Any:
    import torch

    rows, kept = data.numpy(), torch.empty(BATCH, WIDTH)
    for indices in orders(len(data)):
        rows.take(indices.numpy(), axis=0, out=kept.numpy(), mode="clip")
        yield (kept,)


def orders(rows: int) -> Any:
    import torch

    batches = torch.randperm(rows)[: rows // BATCH * BATCH].view(-1, BATCH)
    while True:  # the same: they are to lie ready, and no row is still in a cache when it comes again
        yield from batches


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
