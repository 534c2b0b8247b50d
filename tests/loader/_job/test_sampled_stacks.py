"""Stacks of a worker: those of the user's functions, from below the engine on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from stoker import DataLoader, Dataset
from stoker._engine.timings import StackCount
from stoker.loader._job import timed_steps
from stoker.loader._job.timed_steps import StackSampler


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
    with unit(over) as counted:  # once this is seen, the other thread was looked at too
        seen(sampler, lambda one: counted in one.stack)
        found = sampler.read()
    thread.join()
    assert not any("waits" in one.stack for one in found if counted not in one.stack)


@contextlib.contextmanager
def unit(over: threading.Event, depth: int = 0) -> Iterator[str]:
    """Runs a function below one that is made the engine's, `depth` calls deep, until the end of the block."""
    names: dict[str, Callable[[Callable[[], object]], object]] = {}
    exec(compile("def run(function):\n    function()", timed_steps.__file__, "exec"), names)

    def sample(deeper: int = depth) -> None:
        if deeper:
            sample(deeper - 1)
        else:
            over.wait()

    thread = threading.Thread(target=names["run"], args=(sample,))
    thread.start()
    yield "unit.sample (test_sampled_stacks.py:"
    over.set()
    thread.join()


def test_a_stack_begins_below_the_engine(sampler: StackSampler) -> None:
    with unit(threading.Event()) as begin:
        found = seen(sampler, lambda one: begin in one.stack)
    assert found.stack.startswith(begin) and found.times >= 1


def test_a_deep_stack_keeps_its_outer_functions(sampler: StackSampler) -> None:
    with unit(threading.Event(), 2 * timed_steps.DEEPEST) as begin:
        found = seen(sampler, lambda one: begin in one.stack)
    assert found.stack.count(";") == timed_steps.DEEPEST - 1
    assert all(one.startswith(begin) for one in found.stack.split(";")), "the innermost function is wait()"


def test_each_look_is_counted_once(sampler: StackSampler) -> None:
    with unit(threading.Event()) as begin:
        seen(sampler, lambda one: begin in one.stack)
        sampler.end()
    sampler.read()
    assert sampler.read() == ()


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
