from __future__ import annotations

import ctypes
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import DataLoader, errors
from stoker._engine import supervisor
from stoker._engine.fork import native_pools

PR_SET_NAME = 15
LIBRARIES = {"polars-0": "polars", "tokio-rt-worker": "obstore", "rdk:main": "confluent_kafka"}

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have one CPU


class Users(stoker.Dataset[int]):
    """A dataset that is not Stoker's."""

    def __init__(self, call: Any = int) -> None:
        self._call = call

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self._call()
        return index


@pytest.fixture(params=LIBRARIES)
def thread(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a thread that runs."""
    named, end = threading.Event(), threading.Event()

    def run() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, request.param.encode(), 0, 0, 0)
        named.set()
        end.wait()

    other = threading.Thread(target=run)
    other.start()
    assert named.wait(10)
    yield request.param
    end.set()
    other.join()


@pytest.fixture
def library(thread: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The library of that thread, which is loaded."""
    name = LIBRARIES[thread]
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    return name


def batches(loader: Any) -> list[int]:
    return [batch.item() for batch in loader]


def test_forked_workers_beside_a_pool_are_warned_of_once(thread: str, library: str) -> None:
    loader: Any = DataLoader(Users(), num_workers=2, output="numpy")
    with pytest.warns(errors.StokerWarning) as warned:
        assert batches(loader) == batches(loader) == [0, 1, 2, 3]
    (warning,) = warned
    text = str(warning.message)
    assert f"thread '{thread}'" in text and library in text and "multiprocessing_context='forkserver'" in text
    assert warning.filename == __file__
    assert "processes, forked" in loader.describe()


def test_fork_is_kept_where_the_user_asks_for_it(library: str) -> None:
    loader: Any = DataLoader(range(4), num_workers=1, multiprocessing_context="fork", output="numpy")
    with pytest.warns(errors.StokerWarning, match=library):
        assert batches(loader) == [0, 1, 2, 3]


def test_pool_of_no_loaded_library_is_none(thread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """hf_xet alone runs Tokio too."""
    for name in LIBRARIES.values():
        monkeypatch.delitem(sys.modules, name, raising=False)  # another test may have loaded it
    assert native_pools.find() is None
    assert batches(DataLoader(Users(), num_workers=1, output="numpy")) == [0, 1, 2, 3]


def test_loaded_library_without_its_threads_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIBRARIES.values():
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert native_pools.find() is None


@pytest.mark.parametrize("settings", [{}, {"num_workers": 1, "worker_method": "thread"}], ids=["serial", "threads"])
def test_nothing_is_said_where_nothing_is_forked(library: str, settings: Any) -> None:
    assert batches(DataLoader(Users(), output="numpy", **settings)) == [0, 1, 2, 3]


def test_workers_that_run_only_stokers_code_are_born_clean(thread: str, library: str) -> None:
    dataset = stoker.TensorDataset(np.arange(4))
    loader: Any = DataLoader(dataset, num_workers=1, output="numpy")
    assert [batch[0].item() for batch in loader] == [0, 1, 2, 3]
    described = loader.describe()
    assert "clean interpreters, each of which unpickles the dataset" in described
    assert f"(thread '{thread}'" in described


def test_message_of_hung_workers_names_the_native_pool(
    thread: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (native_pools, supervisor):
        monkeypatch.setattr(module, "LOCKED_AFTER", 0.1)
    lock = threading.Lock()
    cause = f"thread '{thread}' of this process .most likely of {library}. does not survive a fork"
    with (
        lock,
        pytest.warns(errors.StokerWarning) as warned,
        pytest.raises(errors.ForkDeadlockError, match=f"{cause}. Use multiprocessing_context='forkserver'"),
    ):
        list(DataLoader(Users(lock.acquire), num_workers=1, output="numpy"))
    born_again = str(warned[-1].message)
    assert "They are started again" in born_again and f"thread '{thread}'" in born_again
