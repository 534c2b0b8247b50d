"""Every backend does as the serial one does: `stoker.testing.backends`, run on all of them."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Iterator
from typing import ClassVar

import pytest

from stoker.errors import StokerWarning
from stoker.testing.backends import SAMPLES, Augmented, BackendSuite, Nested

FORK = "fork" in multiprocessing.get_all_start_methods()


@pytest.fixture(autouse=True)
def as_many_workers_as_we_like() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=StokerWarning)
        yield


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


@pytest.mark.long
@pytest.mark.parametrize("workers", [2])
class TestCleanProcesses(BackendSuite):
    settings: ClassVar = {"multiprocessing_context": "spawn"}


def test_clean_processes_in_short() -> None:
    suite = TestCleanProcesses()
    suite.same(Nested(), 2, shuffle=True)
    suite.same(Augmented("global"), 2, shuffle=True)
