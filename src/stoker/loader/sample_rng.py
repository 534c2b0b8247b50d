"""`get_worker_info().rng`: generators of one worker, seeded for each sample, that cost nothing until they are used."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from stoker.loader.generators import Stream, loaded_torch, mix, step, stream_of


class SampleRNG:
    """The `stoker._worker_info.RNG` of one worker. Not thread safe: each worker thread has its own.

    A generator is made when it is first asked for, with the numbers of the sample that is being made. From then on
    `SampleSeeding` seeds it before each sample, so the user may keep it.

    Args:
        seed: seed of the worker, for what is drawn before the first sample.

    Attributes:
        key: hash of the epoch's seed.
        find_position: says which sample of the epoch is being made; asked when a generator is made.
        streams: the generators that have been asked for.
    """

    def __init__(self, seed: int) -> None:
        self.key = mix(seed)
        self.find_position: Callable[[], int] = int
        self.streams: list[Stream] = []
        self._made: dict[int, Any] = {}

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

    def _generator(self, number: int, make: Callable[[], Any]) -> Any:
        if number not in self._made:
            self._made[number] = make()
            stream = stream_of(self._made[number], mix(2, number))
            assert stream is not None
            stream.seed(step(self.key, self.find_position()))
            self.streams.append(stream)
        return self._made[number]
