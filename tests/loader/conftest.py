"""Shared by tests of order and state: datasets, uninterrupted runs, and runs with other workers."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.loader._random.generators import global_streams

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]


class Noisy(stoker.Dataset[Any]):
    """A sample is its index, and a number from each generator that augmentation may draw from."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.modern, self.python = np.random.default_rng(3), random.Random(4)
        self.torchs = None if torch is None else torch.Generator().manual_seed(5)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        drawn = [random.random(), float(np.random.rand()), self.modern.random(), self.python.random()]
        if torch is not None:
            drawn += [torch.rand(()).item(), torch.rand((), generator=self.torchs).item()]
        return int(index), drawn


class Rolled(stoker.Dataset[Any]):
    """Draws where every backend promises the same."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return int(index), stoker.sample_rng().random_generator.random()


class Undisturbed:
    """The epochs of a loader without interruption.

    Args:
        make: a loader, each time a new one.
        epochs: how many are compared.
    """

    def __init__(self, make: Callable[[], Any], epochs: int = 2) -> None:
        self.make = make
        self.seed_everything(1)
        whole = make()
        self.runs = [list(whole) for _ in range(epochs)]
        self.seeded = whole.seed is not None

    def goes_on(self, epoch: int, count: int | None) -> None:
        """Returns what follows after a state saved after some batches of an epoch (None: before its iter())."""
        self.seed_everything(1)
        first = self.make()
        for _ in range(epoch):
            list(first)
        if count is not None:
            list(itertools.islice(iter(first), count))
        state = self.through_json(first.state_dict())
        assert self.through_json(first.state_dict()) == state
        self.seed_everything(2)
        second = self.make()
        second.load_state_dict(state)
        assert self.through_json(second.state_dict()) == state
        if not (count or self.seeded):
            return  # the seed is drawn at the first batch, from where the user's generators stand then
        rest = iter(second)
        assert self.through_json(second.state_dict()) == state
        with self.globals_as_they_are():
            assert list(rest) == self.runs[epoch][count or 0 :], (epoch, count)
        for later in self.runs[epoch + 1 :] if self.seeded else []:
            assert list(second) == later, (epoch, count)

    def stops(self) -> Iterator[tuple[int, int | None]]:
        """Everywhere between two batches, and between two epochs."""
        for epoch, batches in enumerate(self.runs):
            yield from ((epoch, count) for count in (None, *range(len(batches) + 1)))

    @staticmethod
    def seed_everything(seed: int) -> None:
        """As if this were another process."""
        random.seed(seed)
        np.random.seed(seed)
        if torch is not None:
            torch.default_generator.manual_seed(seed)  # the other spends milliseconds on accelerators

    @staticmethod
    def through_json(state: Any) -> Any:
        return json.loads(json.dumps(state))

    @staticmethod
    @contextlib.contextmanager
    def globals_as_they_are() -> Iterator[None]:
        """What is drawn again for a sampler is not drawn from the user's generators."""
        before = [stream.state() for stream in global_streams().values()]
        yield
        assert [stream.state() for stream in global_streams().values()] == before


class OtherWorkers:
    """Loaders of the same batches, one without workers and one with these. `make` takes the settings that differ."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def go_on(self, make: Callable[..., Any]) -> None:
        """From the trainer itself to them, and back."""
        serial = make()
        runs = [list(serial) for _ in range(3)]
        for saved_by, loaded_by in (({}, self.settings), (self.settings, {})):
            first = make(**saved_by)
            assert list(first) == runs[0]
            iterator = iter(first)
            assert [next(iterator) for _ in range(3)] == runs[1][:3]
            second = make(**loaded_by)
            second.load_state_dict(Undisturbed.through_json(first.state_dict()))
            assert [list(second), list(second)] == [runs[1][3:], runs[2]]

    def count_what_was_received(self, make: Callable[..., Any]) -> None:
        """Not what was made ahead."""
        first = make(**self.settings)
        states = []
        for batch in first:
            states.append((Undisturbed.through_json(first.state_dict()), batch))
        for number, (state, _) in enumerate(states):
            assert state["batches"] == number + 1
        for number in (0, 7, -1):
            second = make()
            second.load_state_dict(states[number][0])
            assert list(second) == [batch for _, batch in states[number:][1:]]


@pytest.fixture(scope="session")
def noisy() -> type[Noisy]:
    return Noisy


@pytest.fixture(scope="session")
def rolled() -> type[Rolled]:
    return Rolled


@pytest.fixture(scope="session")
def undisturbed() -> type[Undisturbed]:
    return Undisturbed


@pytest.fixture(
    params=[
        {"num_workers": 2},
        {"num_workers": 1, "prefetch_factor": 5},
        {"num_workers": 3, "worker_method": "thread", "prefetch_factor": 1},
    ],
    ids=str,
)
def other_workers(request: pytest.FixtureRequest) -> OtherWorkers:
    return OtherWorkers(request.param)
