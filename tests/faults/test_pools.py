"""Pools: loaders that share workers on other machines, and what each notices of the others."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import WorkerStartError
from stoker.events import Event
from tests._engine.machines.local_cluster import children
from tests._engine.machines.local_pool import LocalPool, agents, await_end

pytestmark = pytest.mark.slow

SAMPLES = 40
ROOT = Path(__file__).parents[2]


class Pooled(stoker.Dataset[Any]):
    """Samples with random numbers. They name their worker, and one may end it, or wait for a file."""

    def __init__(self, kills: int = -1, waits: int = -1, gate: str = "", log: str = "", seconds: float = 0.0) -> None:
        self.kills, self.waits, self.gate, self.log, self.seconds = kills, waits, gate, log, seconds
        self.large = np.arange(1 << 16, dtype=np.float32)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if index == self.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        while index == self.waits and not os.path.exists(self.gate):
            time.sleep(0.01)
        info, began = stoker.get_worker_info(), time.monotonic()
        if self.log:
            time.sleep(self.seconds)
            with open(self.log, "a") as file:
                file.write(f"{os.getpid()} {began} {time.monotonic()}\n")
        worker = (-1, 0) if info is None else (info.id, info.num_workers)
        self.large[index] += 0  # memory of its own, which it may write
        return np.full(3000, index, np.int32), np.random.rand(), worker


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    made = tmp_path / "pool"
    made.mkdir()
    yield str(made)
    await_end(str(made))


def loader(dataset: Any, seed: int, folder: str = "", workers: int = 0, remote: int = 1, **arguments: Any) -> Any:
    arguments = {"shuffle": True, "seed": seed, "output": "numpy", "num_workers": workers, **arguments}
    if folder:
        cluster = {"pool": "p"} | {name: arguments.pop(name) for name in ("start_timeout", "pool") if name in arguments}
        arguments |= {"remote": LocalPool(remote, folder=folder, **cluster), "timeout": 90, "persistent_workers": True}
    return stoker.DataLoader(dataset, 4, **arguments)


def workers_of(folder: str) -> list[int]:
    """Returns the pids of the workers in the pool."""
    return [worker for agent in agents(folder) for process in children(agent) for worker in children(process)]


def plain(batch: Any) -> list[Any]:
    return [batch[0].sum(axis=1).tolist(), batch[1].tolist()]


def model(seed: int) -> list[Any]:
    return [plain(batch) for batch in loader(Pooled(), seed)]


def by_turns(*loaders: Any) -> list[list[Any]]:
    """Returns the batches of loaders that are iterated at the same time."""
    return [[*batches] for batches in zip(*zip(*loaders, strict=True), strict=True)]


def test_ranks_share_processes_and_have_their_own_numbers(folder: str) -> None:
    with loader(Pooled(), 1, folder, 0, 2) as one, loader(Pooled(), 2, folder, 1, 2) as other:
        for _ in range(2):
            first, second = by_turns(one, other)
            assert len(agents(folder)) == 2
    assert [len(first), len(second)] == [10, 10]
    with loader(Pooled(), 1) as one, loader(Pooled(), 2) as other:
        for _ in range(2):
            expected = by_turns(one, other)
    assert [list(map(plain, first)), list(map(plain, second))] == [list(map(plain, each)) for each in expected]
    for batches, numbers in ((first, {(0, 2), (1, 2)}), (second, {(0, 3), (1, 3), (2, 3)})):
        seen = {worker for batch in batches for worker in zip(*(each.tolist() for each in batch[2]), strict=True)}
        assert seen <= numbers and seen & {(0, 2), (1, 2), (1, 3), (2, 3)}


def test_one_worker_of_a_process_works_at_a_time(folder: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    dataset = Pooled(log=str(log), seconds=0.005)
    with loader(dataset, 1, folder) as one, loader(dataset, 2, folder) as other:
        by_turns(one, other)
    lines = [line.split() for line in log.read_text().splitlines()]
    spans = sorted((float(began), float(ended)) for _, began, ended in lines)
    assert len({pid for pid, _, _ in lines}) == 2 and len(lines) == 2 * SAMPLES
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(spans))


def test_report_and_description_name_pool_and_share(folder: str) -> None:
    with loader(Pooled(), 1, folder) as one, loader(Pooled(), 2, folder) as other:
        assert "shared with the ranks that name pool='p'" in str(one.describe()) and not one.report().pool
        by_turns(one, other)
        until = time.monotonic() + 30
        while (pool := one.report().pool)["ranks"] != 2 or not 0 < pool["own_seconds"] < pool["all_seconds"]:
            assert time.monotonic() < until, pool
            time.sleep(0.05)
        assert pool["name"] == "p" and "'p', shared by 2 rank(s); this one has had " in str(one.report())
        assert one.report().as_dict()["pool"]["ranks"] == 2
        assert not loader(Pooled(), 1).report().as_dict()["pool"]


def test_end_of_a_rank_leaves_the_others(folder: str) -> None:
    with loader(Pooled(), 1, folder) as one:
        iterator = iter(one)
        batches = [plain(next(iterator))]
        with loader(Pooled(), 2, folder) as other:
            assert [plain(batch) for batch in other] == model(2)
        batches += [plain(batch) for batch in iterator]
    assert batches == model(1)


@pytest.mark.long
def test_ranks_that_leave_while_they_start(folder: str) -> None:
    with loader(Pooled(), 1, folder) as one:
        iterator = iter(one)
        batches = [plain(next(iterator))]
        for count in range(3):
            with loader(Pooled(), 2, folder) as other:
                iter(other)
                while len(workers_of(folder)) < 1 + min(count, 1):
                    time.sleep(0.01)
        batches += [plain(batch) for batch in iterator]
    assert batches == model(1)


def test_another_dataset_is_an_error_that_names_both(folder: str) -> None:
    with loader(Pooled(), 1, folder) as one:
        next(iter(one))
        with (
            loader([1.0, 2.0], 2, folder, start_timeout=0.5) as other,
            pytest.raises(WorkerStartError) as caught,
        ):
            next(iter(other))
        with loader([1.0, 2.0], 2, folder, pool="q") as other:
            next(iter(other))
    assert "test_pools.Pooled (" in str(caught.value) and "builtins.list (" in str(caught.value)


def test_another_dataset_follows_when_the_ranks_have_ended(folder: str) -> None:
    with loader(Pooled(), 1, folder) as one:
        next(iter(one))
    with loader(list(range(8)), 2, folder) as other:  # its agent is the same, or has ended, or does just now
        assert sorted(np.concatenate([*other]).tolist()) == [*range(8)]


def test_deadly_sample_costs_the_other_rank_nothing(folder: str) -> None:
    told: list[Event] = []
    dataset, rest = Pooled(kills=7), [index for index in range(SAMPLES) if index != 7]
    policy = {"on_error": "skip", "max_error_rate": None, "shuffle": False}
    one = loader(dataset, 1, folder, **policy)
    other = loader(dataset, 1, folder, **policy, sampler=rest, on_event=told.append)
    with pytest.warns(stoker.StokerWarning), one, other:
        first, second = by_turns(one, other)
    for batches in (first, second):
        seen = sorted(int(value) for batch in batches for value in batch[0][:, 0])
        assert seen == rest
    assert not told


@pytest.mark.filterwarnings("ignore:DataLoader worker .* is killed by signal:stoker.StokerWarning")
def test_process_of_a_pool_that_is_killed_is_replaced(folder: str) -> None:
    with loader(Pooled(), 1, folder) as one, loader(Pooled(), 2, folder) as other:
        iterators = iter(one), iter(other)
        made = [[plain(next(iterator))] for iterator in iterators]
        (process,) = children(agents(folder)[0])
        os.kill(process, signal.SIGKILL)
        for batches, rest in zip(made, by_turns(*iterators), strict=True):
            batches += map(plain, rest)
    assert made == [model(1), model(2)]


def test_dataset_that_is_unpickled_once(folder: str) -> None:
    class Once(Pooled):
        unpickle_once = True

    with loader(Once(), 1, folder) as one, loader(Once(), 2, folder) as other:
        assert [[plain(batch) for batch in batches] for batches in by_turns(one, other)] == [model(1), model(2)]


PROGRAM = """
import json, os, sys
import numpy as np
import stoker
from tests._engine.machines.local_pool import LocalPool

class Own:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index + np.random.rand()

if __name__ == "__main__":
    folder, seed, then = sys.argv[1:]
    loader = stoker.DataLoader(
        Own(), seed=int(seed), output="numpy", timeout=90, remote=LocalPool(1, pool="p", folder=folder)
    )
    iterator = iter(loader)
    made = [next(iterator).tolist()]
    if then == "waits":
        print("begun", flush=True)
        sys.stdin.readline()
    if then == "dies":
        os.kill(os.getpid(), 9)
    print(json.dumps(made + [batch.tolist() for batch in iterator]), flush=True)
"""


def _program(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.Popen(
        [sys.executable, path, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def test_pool_outlives_a_killed_rank_and_ends_with_the_last(folder: str, tmp_path: Path) -> None:
    with _program(tmp_path, folder, "1", "waits") as one:
        assert one.stdout is not None and one.stdout.readline() == "begun\n"
        (agent,) = agents(folder)
        with _program(tmp_path, folder, "2", "dies") as other:
            other.wait(60)
        assert other.returncode == -signal.SIGKILL and agents(folder) == [agent]
        until = time.monotonic() + 30
        while len(workers_of(folder)) > 1:
            assert time.monotonic() < until, "the share of the killed rank is not freed"
            time.sleep(0.05)
        printed, _ = one.communicate("\n", 60)
    with _program(tmp_path, folder, "1", "ends") as alone:
        assert json.loads(alone.communicate(timeout=60)[0]) == json.loads(printed)
