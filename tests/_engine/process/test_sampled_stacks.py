"""Stacks of a worker: those of the user's functions, from below the engine on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from stoker import DataLoader, Dataset
from stoker._engine.process import sampled_stacks
from stoker._engine.process.sampled_stacks import StackSampler
from stoker._engine.timings import StackCount


@pytest.fixture
def sampler() -> Iterator[StackSampler]:
    made = StackSampler()
    made.begin()
    yield made
    made.end()


def seen(sampler: StackSampler, wanted: Callable[[StackCount], bool]) -> StackCount:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if found := [one for one in sampler.read() if wanted(one)]:
            return found[0]
    raise AssertionError("not seen")


def test_threads_that_are_no_work_are_not_counted(sampler: StackSampler) -> None:
    begun, over = threading.Event(), threading.Event()

    def waits() -> None:
        begun.set()
        over.wait()

    thread = threading.Thread(target=waits)
    thread.start()
    begun.wait()
    sampler._folded(None)
    assert sampler.read() == ()
    over.set()
    thread.join()


def test_a_stack_begins_below_the_engine(sampler: StackSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this test's functions, `run` is made the engine's."""
    code = compile("def run(function):\n    function()", sampled_stacks.__file__, "exec")
    names: dict[str, Callable[[Callable[[], object]], object]] = {}
    exec(code, names)
    over = threading.Event()

    def waits() -> None:
        over.wait()

    thread = threading.Thread(target=names["run"], args=(waits,))
    thread.start()
    found = seen(sampler, lambda one: "waits" in one.stack)
    over.set()
    thread.join()
    first, *_ = found.stack.split(";")
    assert first.startswith("test_a_stack_begins_below_the_engine.waits (test_sampled_stacks.py:")
    assert found.times >= 1


class Slow(Dataset[np.ndarray]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> np.ndarray:
        time.sleep(0.03)
        return np.array([index])


@pytest.mark.parametrize("threads", [1, 2])
def test_workers_of_a_profile_are_sampled(threads: int) -> None:
    loader = DataLoader(Slow(), 4, num_workers=2, threads_per_worker=threads, output="numpy")
    stacks = loader.profile(step=lambda batch: None, stacks=True).stacks
    assert stacks and all(one.stack.startswith("Slow.__getitem__ (test_sampled_stacks.py:") for one in stacks[:1])
    assert loader.profile(step=lambda batch: None).stacks == ()
    assert len(list(loader)) == 6
