"""Every backend does as the serial one does: `stoker.testing.backends`, run on all of them."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any, ClassVar

import pytest

from stoker._engine.supervision import split_policy
from stoker.loader._epoch import runs
from stoker.testing.backends import SAMPLES, BackendSuite, ShardedStream
from tests._engine.machines.local_cluster import LocalCluster

FORK = "fork" in multiprocessing.get_all_start_methods()


pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have one CPU


@pytest.mark.parametrize("workers", [0])
class TestSerial(BackendSuite):
    """The model agrees with itself, so the suite compares what repeats."""

    def test_streams_lose_and_double_nothing(self, workers: int) -> None:
        assert [sample for batch in self.epoch(range(SAMPLES), 0) for sample in batch] == list(range(SAMPLES))


@pytest.mark.parametrize("workers", [1, 3])
class TestThreads(BackendSuite):
    settings: ClassVar = {"worker_method": "thread"}
    global_generators = False


@pytest.mark.skipif(not FORK, reason="this platform does not fork")
@pytest.mark.parametrize("workers", [1, 2, 5])
class TestForkedProcesses(BackendSuite):
    settings: ClassVar = {"multiprocessing_context": "fork"}


class InRuns(BackendSuite):
    """A worker makes batches one after the other wherever it may, whatever they cost."""

    @pytest.fixture(autouse=True)
    def in_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runs, "FORCED", 3)


@pytest.mark.parametrize("workers", [2])
class TestRunsOfThreads(InRuns):
    settings: ClassVar = {"worker_method": "thread"}
    global_generators = False


@pytest.mark.skipif(not FORK, reason="this platform does not fork")
@pytest.mark.parametrize("workers", [2])
class TestRunsOfProcesses(InRuns):
    settings: ClassVar = {"multiprocessing_context": "fork"}


class SharedBatches(BackendSuite):
    """Every batch is made by several workers, whatever it costs."""

    @pytest.fixture(autouse=True)
    def one_row_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"WORTH": 0.0, "SHORTEST": 0.0, "LONGEST": 1e-9, "LARGE": 2, "AT_FIRST": 1}.items():
            monkeypatch.setattr(split_policy, name, value)


@pytest.mark.skipif(not FORK, reason="this platform does not fork")
@pytest.mark.parametrize("workers", [2, 5])
class TestSharedBatches(SharedBatches):
    settings: ClassVar = {"multiprocessing_context": "fork"}


@pytest.mark.skipif(not FORK, reason="this platform does not fork")
@pytest.mark.parametrize("workers", [1, 3])
class TestThreadsInProcesses(BackendSuite):
    settings: ClassVar = {"multiprocessing_context": "fork", "threads_per_worker": 4}
    global_generators = False

    def test_streams_lose_and_double_nothing(self, workers: int) -> None:
        with pytest.raises(ValueError, match="threads_per_worker=4 needs a dataset with indices"):
            self.epoch(ShardedStream(), workers)


@pytest.mark.parametrize("workers", [2])
class TestCleanProcesses(BackendSuite):
    settings: ClassVar = {"multiprocessing_context": "spawn"}


@pytest.mark.parametrize("workers", [2])
class TestRunsOfCleanProcesses(InRuns):
    settings: ClassVar = {"multiprocessing_context": "forkserver"}


@pytest.mark.parametrize("workers", [2])
class TestRunsOfSpawnedProcesses(InRuns):
    @pytest.fixture(autouse=True)
    def no_fork(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "fork", raising=False)


@pytest.mark.parametrize("workers", [2])
class TestSpawnedProcesses(BackendSuite):
    """What platforms without fork have; tried on all."""

    @pytest.fixture(autouse=True)
    def no_fork(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "fork", raising=False)


@pytest.mark.parametrize("workers", [2])
class TestSpawnedSharedBatches(SharedBatches):
    @pytest.fixture(autouse=True)
    def no_fork(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "fork", raising=False)


@pytest.mark.slow
@pytest.mark.skipif(not FORK, reason="this platform does not fork")
@pytest.mark.parametrize("workers", [1, 2])
class TestRemoteWorkers(BackendSuite):
    """One worker behind the bridge, alone or beside one of this machine."""

    def loader(self, dataset: Any, workers: int, **arguments: Any) -> Any:
        if workers:
            arguments |= {"num_workers": workers - 1, "remote": LocalCluster(1)}
        return super().loader(dataset, 0, **arguments)
