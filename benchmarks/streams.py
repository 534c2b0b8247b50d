"""What does a stream of cheap samples cost, sample by sample?

An `IterableDataset` without end, which shares itself out by `get_worker_info()`, 64 samples to a batch: integers, where
nothing is measured but the loader; dicts of an array, an integer and a text, as a reader of records gives them; and
arrays with noise from NumPy's global generator. A map-style dataset could be asked again for a sample that has drawn
from a generator which was not seeded for it; a stream cannot, so to seed is dearer here, and `seeding="worker"`, which
seeds as torch does, stands beside it. Torchdata's StatefulDataLoader and nodes can resume a stream, as Stoker can.
Streams of Hugging Face, plain and shuffled, are taken in process, where their examples are made by the training loop.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import counting
import method
import rivals
from method import Case, Figures, Goal

BATCH = 64
WORKER, STATEFUL = "stoker, seeding='worker'", "StatefulDataLoader"
KINDS = {"integers": "integers", "records": "dicts of an array, an integer and a text", "noisy": "arrays with noise"}
HUGGING_FACE = {"plain": "a stream of Hugging Face", "shuffled": "a shuffled stream of Hugging Face"}


def cases(options: argparse.Namespace) -> list[Case]:
    seconds = 0.3 if options.quick else 2.0
    found = []
    for kind, name in KINDS.items():
        for workers in (0, 2):
            others = ("stoker", WORKER, "torch", STATEFUL, *(() if workers else ("nodes",)))
            how = {"kind": kind, "workers": workers, "seconds": seconds}
            goals = [
                Goal(counting.CPU, against="torch", at_most=1),
                *(Goal(counting.CPU, against=other, at_most=1) for other in others[3:]),
            ]
            case = f"{name}, {workers} workers" if workers else f"{name}, in process"
            found.append(Case(case, {rival: {"rival": rival, **how} for rival in others}, goals))
    for kind, name in HUGGING_FACE.items():
        how = {"kind": kind, "workers": 0, "seconds": seconds}
        goals = [Goal(counting.CPU, against="torch", at_most=1.3)]
        found.append(Case(f"{name}, in process", {one: {"rival": one, **how} for one in ("stoker", "torch")}, goals))
    return rivals.left_out(found, STATEFUL) if options.quick else found


def measure(rival: str, kind: str, workers: int, seconds: float) -> Figures:
    return counting.or_not_installed(
        lambda: batches_of(rival, kind, workers), lambda made: counting.counted(made, seconds, warm_up=200)
    )


def batches_of(rival: str, kind: str, workers: int) -> Iterator[Any]:
    stream = stream_of(kind)
    if rival == "nodes":
        from torch.utils.data import default_collate
        from torchdata.nodes import Batcher, IterableWrapper, Loader, Mapper

        yield from Loader(Mapper(Batcher(IterableWrapper(stream), BATCH), default_collate))
    elif rival == STATEFUL:
        from torchdata.stateful_dataloader import StatefulDataLoader

        yield from StatefulDataLoader(stream, BATCH, num_workers=workers)
    else:
        how = {"seeding": "worker"} if rival == WORKER else {}
        yield from method.data_loader(rival.partition(",")[0])(stream, BATCH, num_workers=workers, **how)


def stream_of(kind: str) -> Any:
    import itertools

    import numpy as np
    from torch.utils.data import IterableDataset, get_worker_info

    if kind in HUGGING_FACE:
        import datasets

        columns = {"id": range(1_000_000), "x": np.arange(1e6)}
        stream = datasets.Dataset.from_dict(columns).to_iterable_dataset(num_shards=8)
        return stream.shuffle(seed=1, buffer_size=1000) if kind == "shuffled" else stream

    def record(number: int) -> dict[str, Any]:
        return {"values": np.full(16, number, np.float32), "label": number % 10, "name": "a name"}

    def noisy(number: int) -> Any:
        return np.full(16, number) + np.random.standard_normal(16)

    make = {"integers": int, "records": record, "noisy": noisy}[kind]

    class Samples(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
            return map(make, itertools.count(first, step))

    return Samples()


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=5), cases, measure)
