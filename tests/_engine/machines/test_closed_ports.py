"""Hosts that cannot connect to the trainer's, and hosts that are lost early. Runs where Ray is installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import StokerWarning
from stoker._engine.machines.agent import AgentOrder
from stoker._engine.machines.placement import Placement

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.slow,
    pytest.mark.leaves_behind("the cluster of this module"),
]

SAMPLES = 24


class Large(stoker.Dataset[Any]):
    """Samples of a megabyte: a batch is more than one call returns."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if index == SAMPLES:
            raise ValueError("out of reach")
        return np.full(1 << 20, index, np.uint8), np.random.rand()


@dataclass(frozen=True)
class ClosedPorts(stoker.Ray):
    """A cluster whose hosts find the trainer's port closed."""

    def launcher(self, pickled: bytes, large: list[memoryview], modules: list[str], wake: Callable[[], None]) -> Any:
        return _Closed(self, pickled, large, modules, wake)


class _Closed(Placement):
    def place(self, order: AgentOrder) -> None:
        super().place(order if order.by_ray else order._replace(bridge=("127.0.0.1", 9)))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        made = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False},
        )
        made.wait_for_nodes()
    yield made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.shutdown()


def batches(remote: stoker.Ray | None, workers: int = 0) -> Iterator[Any]:
    arguments: Any = {"timeout": 100} if remote is not None else {}
    with stoker.DataLoader(
        Large(), 12, shuffle=True, seed=5, num_workers=workers, remote=remote, output="numpy", **arguments
    ) as loader:
        for _ in range(2):
            for rows, numbers in loader:
                yield [rows.sum(axis=1, dtype=int).tolist(), numbers.tolist()]


def test_closed_ports_are_told_once_and_batches_go_by_ray(cluster: Any) -> None:
    with pytest.warns(StokerWarning, match="batches travel as objects of Ray") as told:
        arrived = [*batches(ClosedPorts(2, address=cluster.address))]
    assert arrived == [*batches(None)]
    texts = [str(each.message) for each in told if issubclass(each.category, StokerWarning)]
    assert len(texts) == 1 and "cannot reach the trainer at 127.0.0.1:9" in texts[0] and "port=..." in texts[0]
