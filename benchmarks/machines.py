"""What are workers on other machines worth, beside as many more on this one, and what do machines that go cost?

Nodes of Ray on this machine: network and clocks are left out, and all workers share its CPUs, so processor time for a
batch says more than the rate. Ray starts its processes at nice 15; here at 0, as local ones run. Photographs of
1000 x 800, decoded by Pillow and made smaller to 600 kB, in batches of 9.6 MB; where samples wait, each waits 15 ms for
its bytes first, so that four workers do not fill two CPUs. Ray Data maps the same function, and gives batches by
`iter_torch_batches`; tf.data service decodes by TensorFlow, in an interpreter of its own (`--tensorflow`).

Where nodes go, samples of 12 kB wait for 15 ms each. Samples are counted where they are made, and by the loop. One of
two nodes is killed with all its processes each 20 s, and another joins; or it gets notice of 30 s, and is killed then.

Local workers alone: 2 workers and samples that cost nothing, where Ray can be imported, and where it cannot.
Needs `ray`, and for Ray Data `pandas` and `pyarrow`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import method
import numpy as np
from method import Case, Figures, Goal

import stoker

RATE, FIRST, COST = "batches/s", "seconds to the first batch", "CPU ms for a batch"
SMALL, LOADED = "CPU us for a small batch", "modules of Ray that are loaded"
SECONDS, AGAIN = "seconds", "samples made again"
LOST, DOUBLED, SUM = "samples lost", "samples doubled", "checksum"
BATCH = 16
RAY_DATA, TENSORFLOW = "Ray Data, 4 CPUs", "tf.data service, 4 workers"
EVERY, NOTICE = 20.0, 30.0
WAIT = 0.015


def cases(options: argparse.Namespace) -> list[Case]:
    seconds = 5.0 if options.quick else 15.0
    work = 500 if options.quick else 7000  # samples: two workers make some 125 a second

    def row(name: str, local: int, remote: int, wait: float = 0.0) -> dict[str, Any]:
        return {"rival": name, "local": local, "remote": remote, "seconds": seconds, "wait": wait}

    def killed(how: str) -> dict[str, Any]:
        return {"rival": how, "how": how, "work": work, "every": 2.0 if options.quick else EVERY}

    others = {name: row(name, 0, 4) for name in (RAY_DATA,) if _has_ray_data()}
    if options.tensorflow:
        others[TENSORFLOW] = {**row(TENSORFLOW, 0, 4), "python": options.tensorflow}
    rows = (("2 local, 2 remote", 2, 2), ("4 local", 4, 0), ("2 local", 2, 0))
    exact = [Goal(LOST, at_most=0), Goal(DOUBLED, at_most=0), Goal(SUM, "2 nodes", 1, 1)]
    return [
        Case(
            "local workers alone",
            {name: {"rival": name, "epochs": 3 if options.quick else 11} for name in ("Ray installed", "no Ray")},
            [Goal(FIRST, "no Ray", at_most=1.1), Goal(SMALL, "no Ray", at_most=1.1), Goal(LOADED, at_most=0)],
        ),
        Case(
            "two workers more, samples that wait",
            {name: row(name, local, remote, WAIT) for name, local, remote in rows},
            [Goal(RATE, "4 local", at_least=0.85)],
        ),
        Case(
            "two workers more, CPUs that are full",
            {name: row(name, local, remote) for name, local, remote in rows[:2]},
            [Goal(RATE, "4 local", at_least=0.85), Goal(COST, "4 local", at_most=1.15)],
        ),
        Case(
            "all workers remote",
            {"4 remote": row("4 remote", 0, 4), **others},
            [Goal(FIRST, at_most=5.0), *(Goal(RATE, name, at_least=1) for name in others)],
        ),
        Case(
            "nodes that are killed",
            {"one of two killed": killed("one of two killed"), "2 nodes": killed("2 nodes")},
            [Goal(SECONDS, "2 nodes", at_most=1.2), *exact],
        ),
        Case(
            "nodes with notice",
            {"one of two drained": killed("one of two drained"), "2 nodes": killed("2 nodes")},
            [Goal(AGAIN, at_most=0), *exact],
        ),
    ]


def _has_ray_data() -> bool:
    return all(find_spec(name) for name in ("pandas", "pyarrow", "torch"))


def photograph() -> bytes:
    """Returns a JPEG of 1000 x 800 with some detail everywhere."""
    from PIL import Image

    across, down = np.meshgrid(np.arange(1000), np.arange(800))
    noise = np.random.default_rng(0).normal(0, 12, (800, 1000, 3))
    smooth = np.stack([across / 4, down / 3, (across + down) / 7], axis=-1) % 200
    file = io.BytesIO()
    Image.fromarray((smooth + noise + 25).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def decoded(data: bytes) -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB").resize((500, 400), Image.Resampling.BILINEAR))


class Photographs(stoker.Dataset[Any]):
    """One photograph, again and again, and the worker that has decoded it."""

    def __init__(self, wait: float) -> None:
        self._data, self._wait = photograph(), wait

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        time.sleep(self._wait)
        info = stoker.get_worker_info()
        return decoded(self._data), 0 if info is None else info.id


class Noted(stoker.Dataset[Any]):
    """Samples that wait, with a number drawn at random. Each one that is made is noted in a file."""

    def __init__(self, samples: int, notes: Path) -> None:
        self._samples, self._notes = samples, notes

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        time.sleep(WAIT)
        with self._notes.open("a") as file:
            file.write("x")
        return index, np.random.rand(), np.zeros(3000, np.float32)


class Nodes:
    """A cluster whose head has no CPUs, and nodes that come and go."""

    def __init__(self, workers: list[int], store: int = 80 << 20) -> None:
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's name
        from ray._private import utils
        from ray.cluster_utils import Cluster

        utils.set_sigterm_handler = lambda handler: None  # only the main thread may, and nodes join in another
        warnings.simplefilter("ignore")
        self._store = store
        head = {"num_cpus": 0, "object_store_memory": store, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self.nodes: list[Any] = []
        for count in workers:
            self.join(count)
        self._cluster.wait_for_nodes()

    def join(self, workers: int) -> None:
        self.nodes.append(self._cluster.add_node(num_cpus=workers, object_store_memory=self._store, wait=False))

    def kill(self, node: Any) -> None:
        """Kills a node with all its processes, as a machine that loses its power."""
        import psutil

        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        for process in [*raylet.children(recursive=True), raylet]:
            with contextlib.suppress(psutil.NoSuchProcess):
                os.kill(process.pid, signal.SIGKILL)

    def drain(self, node: Any, seconds: float) -> None:
        """Gives a node notice, as a cloud does that takes a machine back."""
        from ray._raylet import GcsClient
        from ray.core.generated import autoscaler_pb2

        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        deadline = int(1e3 * (time.time() + seconds))
        GcsClient(address=self.address).drain_node(node.node_id, reason, "the spot price", deadline)

    def close(self) -> None:
        sys.modules["ray"].shutdown()  # where this process is its driver, as for Ray Data
        self._cluster.shutdown()


def measure(rival: str, **asked: Any) -> Figures:
    if "how" in asked:
        return measure_nodes(**asked)
    if "epochs" in asked:
        return measure_local(rival == "Ray installed", **asked)
    return measure_rate(rival, **asked)


def measure_rate(rival: str, local: int, remote: int, seconds: float, wait: float) -> Figures:
    if rival == TENSORFLOW:
        import tf_data

        with tf_data.service(photograph(), BATCH, remote) as batches:
            return rate(batches, 0, seconds)
    if not remote:
        with stoker.DataLoader(Photographs(wait), BATCH, output="numpy", num_workers=local) as loader:
            return rate(lambda: iter(loader), local, seconds)
    nodes = Nodes([remote // 2] * 2, 1 << 30 if rival == RAY_DATA else 80 << 20)
    try:
        if rival == RAY_DATA:
            return rate(lambda: ray_data(nodes.address), 0, seconds)
        where = stoker.Ray(remote, address=nodes.address)
        with stoker.DataLoader(Photographs(wait), BATCH, output="numpy", num_workers=local, remote=where) as loader:
            return rate(lambda: iter(loader), local + remote, seconds)
    finally:
        nodes.close()


def measure_local(is_installed: bool, epochs: int) -> Figures:
    """Measures epochs of local workers, new for each."""
    if not is_installed:
        sys.modules["ray"] = None  # type: ignore[assignment] - cannot be imported
    elif not find_spec("ray"):
        raise SystemExit("Ray is not installed")
    firsts, costs = [], []
    for _ in range(epochs):
        with stoker.DataLoader(range(1 << 16), BATCH, output="numpy", num_workers=2) as loader:
            used, began = method.cpu_seconds(), time.perf_counter()
            for number, _ in enumerate(loader):
                if not number:
                    firsts.append(time.perf_counter() - began)
            costs.append(1e6 * (method.cpu_seconds() - used) / len(loader))
    loaded = sum(name.partition(".")[0] == "ray" for name, module in sys.modules.items() if module is not None)
    return {FIRST: statistics.median(firsts), SMALL: statistics.median(costs), LOADED: loaded}


def rate(batches: Callable[[], Iterator[Any]], workers: int, seconds: float) -> Figures:
    """Measures the first batch, and the rate from the time on at which all workers have delivered."""
    began = time.perf_counter()
    iterator = batches()
    next(iterator)
    first = time.perf_counter() - began
    seen, until = set[int](), time.perf_counter() + 100
    while len(seen) < workers and time.perf_counter() < until:
        seen.update(next(iterator)[1].tolist())
    for _ in range(8):  # what was made ahead meanwhile
        next(iterator)
    count, used, began = 0, method.cpu_seconds(), time.perf_counter()
    while time.perf_counter() < began + seconds:
        next(iterator)
        count += 1
    spent, used = time.perf_counter() - began, method.cpu_seconds() - used
    return {RATE: count / spent, COST: 1e3 * used / count, FIRST: first}


def ray_data(address: str) -> Iterator[Any]:
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    data = photograph()

    def sample(row: dict[str, Any]) -> dict[str, Any]:
        return {"pixels": decoded(data), "worker": 0}

    rows = ray.data.range(BATCH * 1000, override_num_blocks=500).map(sample)
    return iter(rows.iter_torch_batches(batch_size=BATCH, prefetch_batches=2))


def measure_nodes(how: str, work: int, every: float) -> Figures:
    there, done = Nodes([1, 1]), threading.Event()
    told: list[Any] = []

    def trouble() -> None:
        for number in itertools.count():
            if done.wait(every):
                return
            there.join(1)
            if how.endswith("drained"):
                there.drain(there.nodes[number], min(NOTICE, 2 * every))
                done.wait(min(NOTICE, 2 * every))
            there.kill(there.nodes[number])

    troubled = how.startswith("one of two")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as beside:
        notes = Path(folder, "notes")
        where = stoker.Ray(2, address=there.address)
        arguments: dict[str, Any] = {"shuffle": True, "seed": 1, "output": "numpy", "on_event": told.append}
        with stoker.DataLoader(Noted(work, notes), BATCH, num_workers=0, remote=where, **arguments) as loader:
            iterator, seen, draws = iter(loader), [], 0
            for number, batch in enumerate(iterator):
                if not number:  # the start counts elsewhere
                    began = time.perf_counter()
                    troubles = beside.submit(trouble) if troubled else None
                seen += batch[0].tolist()
                draws = zlib.crc32(batch[1].tobytes(), draws)
            spent = time.perf_counter() - began
        done.set()
        if troubles is not None:
            troubles.result()
        made = notes.stat().st_size
    there.close()
    for event in told:
        print(event.message.splitlines()[0], file=sys.stderr)
    return {
        SECONDS: spent,
        AGAIN: made - work,
        LOST: work - len({*seen}),
        DOUBLED: len(seen) - len({*seen}),
        SUM: float(draws),
    }


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=1)
    arguments.add_argument("--tensorflow", help="an interpreter that has TensorFlow, for tf.data service")
    method.main(arguments, cases, measure)
