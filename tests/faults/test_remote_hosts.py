"""Workers on other machines: hosts that end, pause, or have no room; samples that fail there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import WorkerStartError
from stoker.events import Event, RestartDelayed, WorkerDied, WorkerStalled
from tests._engine.machines.local_cluster import LocalCluster, hosts, stopped

pytestmark = pytest.mark.slow

SAMPLES = 40


class Numbered(stoker.Dataset[Any]):
    """Samples with random numbers; some end their worker, or wait for a file."""

    def __init__(self, kills: int = -1, waits: int = -1, gate: str = "") -> None:
        self.kills, self.waits, self.gate = kills, waits, gate

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if index == self.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        while index == self.waits and not os.path.exists(self.gate):
            time.sleep(0.01)
        return np.full(3000, index, np.int32), np.random.rand()


def loader(dataset: Any, workers: int = 0, remote: stoker.Ray | None = None, **arguments: Any) -> Any:
    arguments = {"seed": 3, "output": "numpy", "shuffle": True, **arguments}
    if workers or remote is not None:
        arguments["timeout"] = 90
    return stoker.DataLoader(dataset, 4, num_workers=workers, remote=remote, **arguments)


def plain(batch: Any) -> list[Any]:
    return [batch[0].sum(axis=1).tolist(), batch[1].tolist()]


def model(dataset: Any = None) -> list[Any]:
    with loader(dataset or Numbered()) as serial:
        return [plain(batch) for batch in serial]


def bridge_of(iterator: Any) -> int:
    pid: int = iterator._backend._life._bridge
    return pid


def first_host(iterator: Any) -> int:
    while not (found := hosts(bridge_of(iterator))):
        time.sleep(0.05)
    return found[0]


def epoch(iterator: Any, then: Callable[[int], object] = lambda number: None) -> list[Any]:
    batches = []
    for number, batch in enumerate(iterator):
        batches.append(plain(batch))
        then(number)
    return batches


def test_report_counts_the_batches_of_each_machine() -> None:
    with loader(Numbered(), 0, LocalCluster(2)) as remote:
        assert epoch(remote) == model()
        report = remote.report()
        (name,) = report.machines  # both hosts are this machine
        assert name.endswith("(127.0.0.1)")
        assert report.machines[name]["batches"] == SAMPLES // 4
        assert report.machines[name]["bytes"] >= SAMPLES * 12000
        assert f"{name}: 10 batches, " in str(report)
        assert report.as_dict()["machines"] == report.machines
        store = report.as_dict()["object_store"]
        assert store == {"own": store["own"], "used": 1 << 20, "room": 1 << 30} and store["own"] > 0
        assert " put by this loader; 1.0 MiB of 1.0 GiB used on all machines" in str(report)


def test_profile_counts_workers_on_other_machines() -> None:
    with loader(Numbered(), 0, LocalCluster(1)) as remote:
        profile = remote.profile(step=lambda batch: None)
    assert profile.num_workers == 1 and "in the workers" in str(profile) and "training process" not in str(profile)


class Slow(Numbered):
    """Samples that keep all workers busy."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return super().__getitem__(index % SAMPLES)

    def __len__(self) -> int:
        return 100 * SAMPLES


@pytest.mark.long
def test_busy_workers_are_joined_by_another_machine() -> None:
    with loader(Slow(), "auto", LocalCluster(2)) as remote:  # type: ignore[arg-type]
        assert "up to 2, as they are needed, on other machines" in str(remote.describe())
        batches = []
        for batch in remote:
            batches.append(plain(batch))
            if len(batches) % 25 == 0 and remote.report().machines:  # a report for each batch makes a slow trainer
                break
        with loader(Slow()) as serial:
            assert [plain(batch) for batch, _ in zip(serial, batches, strict=False)] == batches


LOST = pytest.mark.filterwarnings("ignore:worker . .* is lost:stoker.StokerWarning")


@LOST
@pytest.mark.parametrize("workers", [0, 1])
def test_host_that_is_killed_costs_no_batch_and_no_restart(workers: int) -> None:
    told: list[Event] = []
    with loader(Numbered(), workers, LocalCluster(2), max_restarts=0, on_event=told.append) as remote:
        iterator = iter(remote)

        def then(number: int) -> None:
            if number == 2:
                os.killpg(first_host(iterator), signal.SIGKILL)

        assert epoch(iterator, then) == model()
        counts = remote.report().as_dict()["epoch"]
    assert counts["delivered"] == SAMPLES
    assert all("max_restarts only" in event.message for event in told if isinstance(event, WorkerDied))


@LOST
def test_late_answer_of_a_paused_host_is_dropped(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    dataset = Numbered(waits=int(model()[4][0][0]) // 3000, gate=str(gate))
    expected = model()
    with loader(dataset, 0, LocalCluster(1, silent=3.0)) as remote:
        iterator = iter(remote)
        batches = [plain(next(iterator))]
        host = first_host(iterator)
        with stopped(host):
            gate.touch()
            while host in hosts(bridge_of(iterator)):  # a process of this machine is killed, as no host would be
                time.sleep(0.05)
        batches += epoch(iterator)
    assert batches == expected


def test_bridge_that_is_killed_costs_no_batch(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    expected = model()
    dataset = Numbered(waits=int(expected[9][0][0]) // 3000, gate=str(gate))
    with (
        loader(dataset, 0, LocalCluster(1)) as remote,
        pytest.warns(stoker.StokerWarning, match=r"code 1\. Its bridge to the workers on other machines has ended"),
    ):
        iterator = iter(remote)
        batches = [plain(next(iterator))]
        os.kill(bridge_of(iterator), signal.SIGKILL)
        gate.touch()
        batches += epoch(iterator)
    assert batches == expected


@pytest.mark.long
def test_sample_that_kills_its_worker_is_found_and_left_out() -> None:
    told: list[Event] = []
    with (
        pytest.warns(stoker.StokerWarning),
        loader(
            Numbered(kills=7), 0, LocalCluster(1), on_error="skip", on_event=told.append, max_error_rate=None
        ) as remote,
    ):
        batches = epoch(remote)
    seen = sorted(int(value) // 3000 for batch in batches for value in batch[0])
    assert seen == [index for index in range(SAMPLES) if index != 7]
    assert any("on host" in event.message for event in told)


def test_state_moves_between_local_and_remote_workers() -> None:
    expected = model()
    for first, second in (((1, None), (0, LocalCluster(1))), ((0, LocalCluster(1)), (2, None))):
        with loader(Numbered(), *first) as one, loader(Numbered(), *second) as other:
            iterator = iter(one)
            batches = [plain(next(iterator)) for _ in range(3)]
            other.load_state_dict(one.state_dict())
            assert batches + epoch(other) == expected


def test_run_without_any_worker_ends_with_what_is_missing() -> None:
    with (
        loader(Numbered(), 0, LocalCluster(2, start_timeout=0.5, places=0)) as remote,
        pytest.raises(WorkerStartError, match=r"none of the 2 remote workers.* after 0\.5 s \(start_timeout\): 0 p"),
    ):
        next(iter(remote))


def test_local_workers_go_on_where_there_is_no_room(tmp_path: Path) -> None:
    gate, told = tmp_path / "gate", list[Event]()

    def listen(event: Event) -> None:
        told.append(event)
        gate.touch()

    cluster = LocalCluster(1, start_timeout=0.0, places=0)
    with (
        pytest.warns(stoker.StokerWarning, match="no room"),
        loader(Numbered(waits=5, gate=str(gate)), 1, cluster, on_event=listen) as remote,
    ):
        assert epoch(remote) == model()
    assert any(isinstance(event, RestartDelayed) for event in told)


class OnlyHere:
    """Unpickles only in the trainer."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/data/only/here")


def test_dataset_that_does_not_unpickle_names_host_and_path() -> None:
    with loader(OnlyHere(), 0, LocalCluster(1)) as remote, pytest.raises(WorkerStartError) as caught:
        next(iter(remote))
    assert "on host" in str(caught.value) and "/data/only/here" in str(caught.value)


class Files(stoker.Dataset[Any]):
    """Samples in files that exist where the trainer is alone."""

    def __init__(self, trainer: int) -> None:
        self.trainer = trainer

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if os.getpid() != self.trainer:
            raise FileNotFoundError(2, "No such file or directory", f"/data/{index}.jpg")
        return index


def test_first_missing_file_names_host_and_explains() -> None:
    with loader(Files(os.getpid()), 0, LocalCluster(1)) as remote, pytest.raises(FileNotFoundError) as caught:
        next(iter(remote))
    text = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    assert "on host" in text and ".jpg" in text and "another host" in text


def test_stall_shows_the_stack_of_the_remote_worker(tmp_path: Path) -> None:
    gate, told = tmp_path / "gate", list[Event]()

    def listen(event: Event) -> None:
        told.append(event)
        gate.touch()

    with (
        pytest.warns(stoker.StokerWarning),
        loader(Numbered(waits=5, gate=str(gate)), 0, LocalCluster(1), stall_warning=0.5, on_event=listen) as remote,
    ):
        assert epoch(remote) == model()
    (stall,) = [event for event in told if isinstance(event, WorkerStalled)]
    assert "__getitem__" in stall.message and stall.index == 5


def test_report_has_the_stacks_of_both_machines(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with loader(Numbered(waits=SAMPLES - 1, gate=str(gate)), 1, LocalCluster(1), shuffle=False) as remote:
        iterator = iter(remote)
        for _ in range(SAMPLES // 4 - 1):
            next(iterator)
        while "__getitem__" not in (text := remote.report(stacks=True).stacks) or "Worker 1 (pid" not in text:
            pass  # the last batch is under way, and the other worker has started
        assert "Worker 0 (pid" in text and " on host " in text.partition("Worker 1 (pid")[2]
        gate.touch()
        next(iterator)


PROGRAM = """
import os, sys
import stoker
from tests._engine.machines.local_cluster import LocalCluster, hosts
if __name__ == "__main__":
    loader = stoker.DataLoader(list(range(9)), num_workers=0, output="numpy", remote=LocalCluster(1))
    iterator = iter(loader)
    next(iterator)
    bridge = iterator._backend._life._bridge
    print(bridge, *hosts(bridge), flush=True)
    os.kill(os.getpid(), 9)
"""


def test_pool_ends_with_a_trainer_that_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        timeout=100,
    )
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    until = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < until, "the pool outlives its trainer"
        time.sleep(0.05)
