"""`sample_rng()`: generators that are seeded for each sample, and cost nothing until they are used."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker._core.worker_info import RNG, current
from stoker.loader._random.generators import RandomState, loaded_torch, mix, step, stream_of


def sample_rng() -> RNG:
    """Returns generators for the random numbers of the sample that is being fetched.

    Stoker's loaders seed them for each sample, from the epoch's seed and the sample's position. Processes, threads and
    `num_workers=0` therefore give the same numbers. In a worker, the result is `get_worker_info().rng`; within a sample
    that runs another loader with `num_workers=0`, the result belongs to that loader's sample. Calling this function
    does not count as asking for the worker's number.

    Outside a loader's fetch (in a notebook, in a worker of torch's loader, in a thread that a dataset starts in the
    training process), each call returns new generators. Their seeds are drawn at the call, each from the global
    generator of its kind.

    The generators are `random_generator` (a `random.Random`), `numpy_generator` (a `numpy.random.Generator`) and
    `torch_generator` (a `torch.Generator` for the CPU; None while torch is not imported).
    """
    if current.rng is not None:
        return current.rng
    of_task = RNG_OF_TASK.get()  # in a thread to which a sample that is awaited has passed its context
    return of_task if of_task is not None else _drawn_from_global()


@dataclass(frozen=True)
class _DrawnRNG:
    random_generator: random.Random
    numpy_generator: np.random.Generator
    torch_generator: Any


def _drawn_from_global() -> RNG:
    torch, own = loaded_torch(), None
    if torch is not None:
        own = torch.Generator()
        stream = stream_of(own, 0)
        assert stream is not None
        stream.seed(int(torch.empty((), dtype=torch.int64, device="cpu").random_()))  # all 64 bits: see `generators`
    numpys = np.random.default_rng(np.random.randint(2**63, dtype=np.int64))
    return _DrawnRNG(random.Random(random.getrandbits(64)), numpys, own)


def _nothing() -> None:
    pass


class SampleRNG:
    """The `stoker._core.worker_info.RNG` of one worker. Not thread safe: each worker thread has its own.

    A generator is made at its first use, with the numbers of the current sample. `SampleSeeding` then seeds it before
    each sample, so the user may keep it.

    Args:
        seed: the worker's seed, for numbers drawn before the first sample.

    Attributes:
        key: hash of the epoch's seed.
        find_position: returns the position of the current sample; called when a generator is made.
        streams: the generators made up to now.
        beside: other generators that were seeded for the current sample.
        on_torch: called within a sample that has just imported torch.
    """

    def __init__(self, seed: int) -> None:
        self.key = mix(seed)
        self.find_position: Callable[[], int] = int
        self.streams: list[RandomState] = []
        self.beside: list[RandomState] = []
        self.on_torch: Callable[[], None] = lambda: None
        self._made: dict[int, Any] = {}

    @classmethod
    def of_sample(cls, key: int, position: int) -> SampleRNG:
        """Returns the generators of one sample alone."""
        rng = cls.__new__(cls)  # one is made for each sample, whether it draws or not
        rng.key, rng.find_position, rng.on_torch = key, lambda: position, _nothing
        rng.streams, rng.beside, rng._made = [], [], {}
        return rng

    @property
    def random_generator(self) -> random.Random:
        """A `random.Random`."""
        generator: random.Random = self._generator(0, random.Random)
        return generator

    @property
    def torch_generator(self) -> Any:
        """A CPU `torch.Generator`, or None while torch is not imported."""
        torch = loaded_torch()
        return None if torch is None else self._generator(1, torch.Generator)

    @property
    def numpy_generator(self) -> np.random.Generator:
        """A `numpy.random.Generator`."""
        generator: np.random.Generator = self._generator(2, lambda: np.random.default_rng(0))
        return generator

    def again(self) -> None:
        """Seeds all generators of the current sample again, as if it had drawn nothing."""
        sample_key = step(self.key, self.find_position())
        for stream in (*self.beside, *self.streams):
            stream.seed(sample_key)

    def _generator(self, number: int, make: Callable[[], Any]) -> Any:
        if number not in self._made:
            self._made[number] = make()
            stream = stream_of(self._made[number], mix(2, number))
            assert stream is not None
            stream.seed(step(self.key, self.find_position()))
            self.streams.append(stream)
        return self._made[number]


RNG_OF_TASK: ContextVar[SampleRNG | None] = ContextVar("stoker_rng_of_task", default=None)
"""The generators of a sample that is awaited, in its task and those that it starts; None elsewhere."""


class TasksRNG:
    """The `stoker._core.worker_info.RNG` of a worker that awaits several samples at a time: that of the sample whose
    task uses it, and elsewhere that of the worker.
    """

    def __init__(self, workers: SampleRNG) -> None:
        self._workers = workers

    @property
    def random_generator(self) -> random.Random:
        """A `random.Random`."""
        return self._own.random_generator

    @property
    def torch_generator(self) -> Any:
        """A CPU `torch.Generator`, or None while torch is not imported."""
        return self._own.torch_generator

    @property
    def numpy_generator(self) -> np.random.Generator:
        """A `numpy.random.Generator`."""
        return self._own.numpy_generator

    def again(self) -> None:
        """Seeds all generators of the current sample again, as if it had drawn nothing."""
        self._own.again()

    @property
    def _own(self) -> SampleRNG:
        return RNG_OF_TASK.get() or self._workers
