"""Workers on the nodes of a cluster of Ray on this machine. Runs where Ray is installed (`make test-frameworks`)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import WorkerStartError
from stoker.events import Event, WorkerDied, WorkerRetired

pytest.importorskip("ray")
pytestmark = [pytest.mark.timeout(300), pytest.mark.leaves_behind("the cluster of this module")]

SAMPLES = 60


class Numbered(stoker.Dataset[Any]):
    """Samples with random numbers; `large` is memory that travels beside the pickle. One sample waits for a file."""

    def __init__(self, gate: str = "", slow: float = 0.0) -> None:
        self.slow = slow
        self.large = np.arange(SAMPLES * 4096, dtype=np.float32).reshape(SAMPLES, 4096)
        self.gate = gate

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        while self.gate and index == SAMPLES // 2 and not os.path.exists(self.gate):
            pass
        time.sleep(self.slow)
        self.large[index] += 0  # memory of its own, which it may write
        return self.large[index], np.random.rand()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        small = {"object_store_memory": 80 << 20, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
        made.add_node(num_cpus=1, object_store_memory=80 << 20)
        made.wait_for_nodes()
    yield made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.shutdown()


def batches(
    workers: int, remote: stoker.Ray | None, gate: str = "", slow: float = 0.0, **arguments: Any
) -> Iterator[list[Any]]:
    arguments |= {"timeout": 100} if workers or remote is not None else {}
    with stoker.DataLoader(
        Numbered(gate, slow), 6, shuffle=True, seed=5, num_workers=workers, remote=remote, output="numpy", **arguments
    ) as loader:
        for rows, numbers in loader:
            yield [rows.sum(axis=1).tolist(), numbers.tolist()]


def test_ray_workers_make_the_same_batches(cluster: Any) -> None:
    assert [*batches(0, stoker.Ray(1, address=cluster.address))] == [*batches(0, None)]


@pytest.mark.filterwarnings("ignore:worker . (.* is lost|cannot be started again):stoker.StokerWarning")
def test_node_that_is_killed_and_another_that_joins(cluster: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    node = cluster.add_node(num_cpus=1, resources={"other": 1}, object_store_memory=80 << 20)
    remote = stoker.Ray(1, address=cluster.address, resources={"other": 1})
    arrived = []
    for batch in batches(0, remote, str(gate), max_restarts=0):
        arrived.append(batch)
        if len(arrived) == 1:
            _kill(node)
            cluster.add_node(num_cpus=1, resources={"other": 1}, object_store_memory=80 << 20)
            gate.touch()
    assert arrived == [*batches(0, None)]


def test_cluster_that_is_not_there() -> None:
    with pytest.raises(WorkerStartError, match=r"address='127.0.0.1:9' cannot be used"):
        next(batches(0, stoker.Ray(1, address="127.0.0.1:9")))


def test_resources_that_are_not_there(cluster: Any) -> None:
    remote = stoker.Ray(1, address=cluster.address, resources={"none": 2}, start_timeout=1)
    with pytest.raises(WorkerStartError, match=r"none: 2 each, 0 free of 0; . node"):
        next(batches(0, remote))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:worker . .* is replaced between two batches:stoker.StokerWarning")
def test_drained_node_finishes_its_units(cluster: Any) -> None:
    from ray.core.generated import autoscaler_pb2

    node = cluster.add_node(num_cpus=1, resources={"drained": 1}, object_store_memory=80 << 20)
    told: list[Event] = []
    remote = stoker.Ray(1, address=cluster.address, resources={"drained": 1})
    arrived = []
    for batch in batches(0, remote, max_restarts=0, on_event=told.append, slow=0.05):
        arrived.append(batch)
        if len(arrived) == 1:
            cluster.add_node(num_cpus=1, resources={"drained": 1}, object_store_memory=80 << 20)
            reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
            _gcs(cluster).drain_node(node.node_id, reason, "the spot price", int(1e3 * (time.time() + 60)))
    assert arrived == [*batches(0, None)]
    assert [event.kind for event in told if isinstance(event, (WorkerRetired, WorkerDied))] in ([], ["retired"])


@pytest.mark.long
def test_machine_joins_where_all_workers_are_busy(cluster: Any) -> None:
    remote = stoker.Ray(1, address=cluster.address)
    dataset = Numbered(slow=0.2)
    with stoker.DataLoader(
        dataset, 6, num_workers="auto", persistent_workers=True, remote=remote, output="numpy"
    ) as loader:
        while not any(loader.report().machines for _ in loader):
            pass
        (counts,) = loader.report().machines.values()
        assert counts["bytes"] >= 6 * 4096 * 4


@pytest.mark.long
def test_trainer_in_a_worker_of_ray(cluster: Any) -> None:
    import ray

    def train() -> list[Any]:
        return [*batches(1, stoker.Ray(1))]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(address=cluster.address, log_to_driver=False)
    try:
        assert ray.get(ray.remote(num_cpus=0)(train).remote(), timeout=200) == [*batches(0, None)]
    finally:
        ray.shutdown()


def _gcs(cluster: Any) -> Any:
    from ray._raylet import GcsClient

    return GcsClient(address=cluster.address)


def _kill(node: Any) -> None:
    """Kills a node with all its processes, as a machine that loses its power."""
    import psutil

    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    for process in [*raylet.children(recursive=True), raylet]:
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(process.pid, signal.SIGKILL)
