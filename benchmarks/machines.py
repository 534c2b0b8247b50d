"""What are workers on other machines worth, beside as many more on this one?

Nodes of Ray on this machine, so network and clocks are left out, and all rivals share its CPUs. Samples of 600 kB that
cost some milliseconds of a CPU, batches of 9.6 MB; two local workers and two on nodes, beside four local ones. The
first batch of a loader whose workers are all remote, with a cluster that runs. Needs `ray`.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any

import method
from method import Case, Figures, Goal

import stoker

RATE, FIRST = "batches/s", "seconds to the first batch"
BATCH = 16


def cases(options: argparse.Namespace) -> list[Case]:
    seconds = 5.0 if options.quick else 20.0
    return [
        Case(
            "two workers more",
            {
                name: {"rival": name, "local": local, "remote": remote, "seconds": seconds}
                for name, local, remote in (("2 local, 2 remote", 2, 2), ("4 local", 4, 0))
            },
            [Goal(RATE, "4 local", at_least=0.85)],
        ),
        Case(
            "all workers remote",
            {"2 remote": {"rival": "2 remote", "local": 0, "remote": 2, "seconds": 0.0}},
            [Goal(FIRST, at_most=5.0)],
        ),
    ]


class Costly(stoker.Dataset[Any]):
    """Samples that cost a CPU, as decoded photographs do."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        import numpy as np

        pixels = np.full((200, 1000, 3), index % 251, np.uint8)
        for _ in range(8):
            pixels = np.roll(pixels, 1, axis=1)[:, ::-1].copy()
        info = stoker.get_worker_info()
        return pixels, 0 if info is None else info.id


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[str]:
    """Gives the address of a cluster with a node for the workers."""
    from ray.cluster_utils import Cluster

    warnings.simplefilter("ignore")
    small = {"object_store_memory": 80 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    try:
        made.add_node(num_cpus=workers, object_store_memory=80 << 20)
        made.wait_for_nodes()
        yield made.address
    finally:
        made.shutdown()


def measure(rival: str, local: int, remote: int, seconds: float) -> Figures:
    if not remote:
        return rate(seconds, local, num_workers=local)
    with cluster(remote) as address:
        where = stoker.Ray(remote, address=address)
        return rate(seconds, local + remote, num_workers=local, remote=where)


def rate(seconds: float, all_workers: int, **workers: Any) -> Figures:
    began = time.perf_counter()
    with stoker.DataLoader(Costly(), BATCH, output="numpy", **workers) as loader:
        iterator = iter(loader)
        next(iterator)
        figures: Figures = {FIRST: time.perf_counter() - began}
        if not seconds:
            return figures
        seen, until = set[int](), time.perf_counter() + 100
        while len(seen) < all_workers and time.perf_counter() < until:  # remote workers begin meanwhile
            seen.update(next(iterator)[1].tolist())
        count, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            next(iterator)
            count += 1
        return {**figures, RATE: count / (time.perf_counter() - began)}


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=3), cases, measure)
