"""Workers on the nodes of a cluster of Ray on this machine. Runs where Ray is installed (`make test-frameworks`)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import stoker
from stoker.errors import CannotSendError, WorkerStartError
from stoker.events import Event, WorkerDied, WorkerRetired
from stoker.testing.backends import BackendSuite

pytest.importorskip("ray")
psutil: Any = pytest.importorskip("psutil")
pytestmark = [pytest.mark.timeout(500), pytest.mark.leaves_behind("the cluster of this module")]

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


def on(address: str, **options: Any) -> stoker.Ray:
    """Returns a worker of the cluster; machines that run tests are busy."""
    return stoker.Ray(1, address=address, start_timeout=150, **options)


def batches(
    workers: int, remote: stoker.Ray | None, gate: str = "", slow: float = 0.0, **arguments: Any
) -> Iterator[list[Any]]:
    arguments = {"seed": 5, "output": "numpy", "shuffle": True, **arguments}
    arguments |= {"timeout": 200} if workers or remote is not None else {}
    with stoker.DataLoader(Numbered(gate, slow), 6, num_workers=workers, remote=remote, **arguments) as loader:
        yield from map(plain, loader)


def plain(batch: Any) -> list[Any]:
    return [batch[0].sum(axis=1).tolist(), batch[1].tolist()]


def test_ray_workers_make_the_same_batches(cluster: Any) -> None:
    assert [*batches(0, on(cluster.address))] == [*batches(0, None)]


class Record(NamedTuple):
    number: int


@dataclass
class Boxed:
    records: list[Record]


class Records(stoker.Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return Boxed([Record(index)])


def as_list(samples: list[Any]) -> list[Any]:
    return samples


@pytest.mark.parametrize("pool", [pytest.param(None, marks=pytest.mark.long), "classes"])
def test_error_has_the_line_that_names_classes(cluster: Any, pool: str | None) -> None:
    def loaded(classes: list[str]) -> list[Any]:
        remote = stoker.Ray(1, address=cluster.address, pool=pool, classes=classes)
        arguments: Any = {"collate_fn": as_list, "timeout": 100, "remote": remote}
        with stoker.DataLoader(
            Records(), 2, persistent_workers=True, **arguments
        ) as loader:  # they end with the loader
            return [sample for batch in loader for sample in batch]

    with pytest.raises(CannotSendError) as told:
        loaded([])
    named = re.search(r"remote=stoker\.Ray\(\.\.\., classes=(.*)\)", str(told.value))
    assert named is not None and json.loads(named[1]) == [f"{__name__}:Boxed", f"{__name__}:Record"]
    assert loaded(json.loads(named[1])) == [Boxed([Record(index)]) for index in range(4)]


def test_two_ranks_share_the_workers_of_a_pool(cluster: Any) -> None:
    remote = on(cluster.address, pool="shared")  # there is one CPU for both
    one, other = (batches(0, remote, seed=seed) for seed in (5, 6))
    assert [*zip(one, other, strict=True)] == [*zip(batches(0, None), batches(0, None, seed=6), strict=True)]


@pytest.mark.long
def test_workers_end_with_a_trainer_that_is_killed(cluster: Any, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TRAINER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, str(program), cluster.address, ""]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as one:
        assert one.stdout is not None and one.stdout.readline() == "begun\n"
        left = [*_working_for_trainers(cluster), *psutil.Process(one.pid).children(recursive=True)]
        assert len(left) >= 4  # agent and worker, zygote and bridge
        one.kill()
    _await_end(left)


@pytest.mark.long
def test_pool_of_two_trainers_ends_after_the_last(cluster: Any, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TRAINER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, str(program), cluster.address, "trainers"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen(arguments, **pipes) as one, subprocess.Popen(arguments, **pipes) as other:
        assert one.stdout.readline() == other.stdout.readline() == "begun\n"
        left = _working_for_trainers(cluster)
        other.kill()
        printed, _ = one.communicate("\n", 200)
    assert json.loads(printed) == list(range(8))
    _await_end(left)


def _working_for_trainers(cluster: Any) -> list[Any]:
    """Returns the processes of actors of ours, and what they have started."""
    found = []
    for node in cluster.list_all_nodes():
        for process in psutil.Process(node.all_processes["raylet"][0].process.pid).children():
            if "".join(process.cmdline()).startswith(("ray::Agent", "ray::PoolAgent")):
                found += [process, *process.children(recursive=True)]
    assert found
    return found


def _await_end(left: list[Any]) -> None:
    _, alive = psutil.wait_procs(left, 30)
    assert not alive, "processes outlive their trainer"


TRAINER = """
import json, sys
import stoker

class Own:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index

if __name__ == "__main__":
    remote = stoker.Ray(1, address=sys.argv[1], start_timeout=150, pool=sys.argv[2] or None)
    iterator = iter(stoker.DataLoader(Own(), 1, output="numpy", timeout=200, remote=remote))
    made = next(iterator).tolist()
    print("begun", flush=True)
    sys.stdin.readline()
    print(json.dumps(made + [int(value) for batch in iterator for value in batch]), flush=True)
"""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:worker . (.* is lost|cannot be started again):stoker.StokerWarning")
def test_node_that_is_killed_and_another_that_joins(cluster: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    node = cluster.add_node(num_cpus=1, resources={"other": 1}, object_store_memory=80 << 20)
    remote = on(cluster.address, resources={"other": 1})
    arrived = []
    for batch in batches(0, remote, str(gate), max_restarts=0):
        arrived.append(batch)
        if len(arrived) == 1:
            _kill(node)
            cluster.add_node(num_cpus=1, resources={"other": 1}, object_store_memory=80 << 20)
            gate.touch()
    assert arrived == [*batches(0, None)]


def test_cluster_that_is_not_there() -> None:
    with pytest.raises(WorkerStartError, match=r"no head node answers at 127.0.0.1:9 .* refused\. Is that the head"):
        next(batches(0, stoker.Ray(1, address="127.0.0.1:9")))


def test_resources_that_are_not_there(cluster: Any) -> None:
    remote = stoker.Ray(1, address=cluster.address, resources={"none": 2}, start_timeout=5)
    with pytest.raises(WorkerStartError, match=r"none: 2 each, 0 free of 0; . node"):
        next(batches(0, remote))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:worker . .* is replaced between two batches:stoker.StokerWarning")
def test_drained_node_finishes_its_units(cluster: Any) -> None:
    from ray.core.generated import autoscaler_pb2

    node = cluster.add_node(num_cpus=1, resources={"drained": 1}, object_store_memory=80 << 20)
    told: list[Event] = []
    remote = on(cluster.address, resources={"drained": 1})
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
    remote = on(cluster.address)
    dataset = Numbered(slow=1.0)  # longer than messages take on a busy machine
    with stoker.DataLoader(
        dataset, 6, num_workers="auto", persistent_workers=True, remote=remote, output="numpy"
    ) as loader:
        while not any(loader.report().machines for _ in loader):
            pass
        (counts,) = loader.report().machines.values()
        assert counts["bytes"] >= 6 * 4096 * 4
        store = loader.report().object_store
        assert dataset.large.nbytes <= store["own"] <= store["used"] < store["room"]


def inherits(worker: int) -> None:
    assert os.environ["GIVEN"] == "to all"


@pytest.mark.long
def test_trainer_in_a_worker_of_ray(cluster: Any) -> None:
    import ray

    def train() -> list[Any]:
        return [*batches(1, stoker.Ray(1)), *batches(0, stoker.Ray(1), worker_init_fn=inherits)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(address=cluster.address, log_to_driver=False, runtime_env={"env_vars": {"GIVEN": "to all"}})
    try:
        assert ray.get(ray.remote(num_cpus=0)(train).remote(), timeout=300) == 2 * [*batches(0, None)]
    finally:
        ray.shutdown()


class Slow(Numbered):
    """A dataset whose first copy takes for ever to arrive."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        try:
            os.mkdir(f"{self.folder}/arrives")
        except FileExistsError:
            return
        while True:
            time.sleep(1)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:worker . cannot be started again yet:stoker.StokerWarning")
def test_node_that_is_lost_before_any_worker_began(cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1, resources={"early": 1}, object_store_memory=80 << 20)
    remote = on(cluster.address, resources={"early": 1})
    arrived: list[int] = []

    def load() -> None:
        with stoker.DataLoader(Slow(str(tmp_path)), 6, remote=remote, output="numpy", timeout=200) as loader:
            arrived.extend(len(rows) for rows, _ in loader)

    thread = threading.Thread(target=load)  # Ray starts nodes in the main thread
    thread.start()
    while not (tmp_path / "arrives").exists():
        time.sleep(0.01)
    _kill(node)
    cluster.add_node(num_cpus=1, resources={"early": 1}, object_store_memory=80 << 20)
    thread.join()
    assert sum(arrived) == SAMPLES


@pytest.mark.long
def test_loaders_in_workers_of_ray_train(cluster: Any, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def taken(loader: Any) -> list[Any]:
        with loader:
            return [*map(plain, loader)]

    def made(rank: int, **arguments: Any) -> list[Any]:
        sampler = stoker.DistributedSampler(Numbered(), 2, rank, shuffle=True, seed=1)
        return taken(stoker.DataLoader(Numbered(), 6, sampler=sampler, seed=5, output="numpy", **arguments))

    def under_torch(num_workers: int) -> list[Any]:
        import torch

        loader = torch.utils.data.DataLoader(range(SAMPLES), 6, num_workers=num_workers)  # type: ignore[arg-type]
        return [type(stoker.loader_of(loader)).__module__, [batch.tolist() for batch in loader]]

    def train_loop_per_worker(config: dict[str, str]) -> None:
        rank = ray.train.get_context().get_world_rank()
        results = [made(rank, num_workers=2, timeout=200)]
        results.append(made(rank, num_workers=1, remote=stoker.Ray(1, num_cpus=0.5), timeout=200))
        with stoker.install():
            results.append(under_torch(1))
        Path(config["folder"], f"{rank}.json").write_text(json.dumps(results))

    node = cluster.add_node(num_cpus=4, object_store_memory=80 << 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(address=cluster.address, log_to_driver=False)
        try:
            TorchTrainer(
                train_loop_per_worker,
                train_loop_config={"folder": str(tmp_path)},
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(storage_path=str(tmp_path / "run")),
            ).fit()
        finally:
            ray.shutdown()
            cluster.remove_node(node)
    for rank in range(2):
        local, remote, (module, installed) = json.loads((tmp_path / f"{rank}.json").read_text())
        assert local == remote == made(rank)
        assert module.startswith("stoker.")
        assert [index for batch in installed for index in batch] == [*range(SAMPLES)]


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
class TestRayWorkers(BackendSuite):
    """One worker of Ray, alone or beside one of this machine."""

    address = ""

    @pytest.fixture(autouse=True)
    def reached(self, cluster: Any) -> None:
        type(self).address = cluster.address

    def loader(self, dataset: Any, workers: int, **arguments: Any) -> Any:
        if workers:
            arguments |= {"num_workers": workers - 1, "remote": on(self.address), "timeout": 200}
        return super().loader(dataset, 0, **arguments)


@pytest.mark.long
def test_state_moves_between_local_workers_and_ray(cluster: Any) -> None:
    expected = [*batches(0, None)]
    remote = on(cluster.address)
    settings: Any = {"seed": 5, "shuffle": True, "output": "numpy", "timeout": 200}
    for first, second in ({"num_workers": 1}, {"remote": remote}), ({"remote": remote}, {"num_workers": 2}):
        with (
            stoker.DataLoader(Numbered(), 6, **settings, **first) as one,
            stoker.DataLoader(Numbered(), 6, **settings, **second) as other,
        ):
            iterator = iter(one)
            arrived = [plain(next(iterator)) for _ in range(4)]
            other.load_state_dict(one.state_dict())
            arrived += map(plain, other)
        assert arrived == expected


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:worker . (.* is lost|cannot be started again):stoker.StokerWarning")
@pytest.mark.parametrize("fault", ["raylet", "pause"])
def test_node_without_raylet_or_time(cluster: Any, tmp_path: Path, fault: str) -> None:
    gate = tmp_path / "gate"
    node = cluster.add_node(num_cpus=1, resources={fault: 1}, object_store_memory=80 << 20)
    remote = on(cluster.address, resources={fault: 1})
    arrived, processes = [], []
    for batch in batches(0, remote, str(gate), slow=0.05, max_restarts=0):
        arrived.append(batch)
        if len(arrived) == 1:
            processes = _processes(node)
            cluster.add_node(num_cpus=1, resources={fault: 1}, object_store_memory=80 << 20)
            for pid in processes[-1:] if fault == "raylet" else processes:
                os.kill(pid, signal.SIGKILL if fault == "raylet" else signal.SIGSTOP)
            gate.touch()
        if len(arrived) == 6 and fault == "pause":  # made on the other node
            _send(processes, signal.SIGCONT)
    assert arrived == [*batches(0, None)]
    _send(processes, signal.SIGKILL)


def _gcs(cluster: Any) -> Any:
    from ray._raylet import GcsClient

    return GcsClient(address=cluster.address)


def _kill(node: Any) -> None:
    """Kills a node with all its processes, as a machine that loses its power."""
    _send(_processes(node), signal.SIGKILL)


def _processes(node: Any) -> list[int]:
    """Returns the processes of a node, the raylet last."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return [process.pid for process in [*raylet.children(recursive=True), raylet]]


def _send(processes: list[int], number: int) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
