"""Hosts that cannot connect to the trainer's, and hosts that are lost early. Runs where Ray is installed."""

from __future__ import annotations

import os
import signal
import time
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
from stoker.errors import WorkerStartError

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


class Endless(stoker.Dataset[int]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        time.sleep(0.2)
        return index


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")  # the bridge is started again
def test_head_node_that_is_lost_leaves_a_state(cluster: Any) -> None:  # the last test: nothing works after it
    state: Any = None
    seen = -1
    remote = stoker.Ray(1, address=cluster.address)
    with (
        stoker.DataLoader(Endless(), 4, remote=remote, output="numpy", timeout=150) as loader,
        pytest.raises(WorkerStartError, match="If its head node is lost, load the last state"),
    ):
        for number, batch in enumerate(loader):
            state, seen = loader.state_dict(), int(batch[-1])
            if number == 1:
                for name in ("gcs_server", "raylet"):
                    os.kill(cluster.head_node.all_processes[name][0].process.pid, signal.SIGKILL)
    with stoker.DataLoader(Endless(), 4, output="numpy") as loader:
        loader.load_state_dict(state)
        assert next(iter(loader)).tolist() == [*range(seen + 1, seen + 5)]
