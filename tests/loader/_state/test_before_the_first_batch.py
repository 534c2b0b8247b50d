"""A state that is taken before an epoch's first batch continues as the loader itself does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.loader._random.generators import global_streams

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:.* does not share its samples out among workers"
)
N = 20


class Kept(stoker.IterableDataset[int]):
    """Its own iterator, as torchdata has it: `iter()` leaves it where it is."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == N:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class BegunAnew(Kept):
    """`iter()` makes its state."""

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[int]:
        self.at = 0
        return self


class CountsItsEpochs(stoker.IterableDataset[Any]):
    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        yield from ((self.epoch, number) for number in range(N))
        self.epoch += 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


class GoesBackByItself(CountsItsEpochs):
    """Behind its end it stands at its start."""

    at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < N:
            self.at += 1
            yield self.epoch, self.at - 1
        self.at = 0
        self.epoch += 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


WRAPPED: list[Callable[[Any], Any]] = [
    lambda stream: stream,
    lambda stream: stoker.MapDataset(stream, int),
    lambda stream: stoker.ShuffleDataset(stoker.MapDataset(stream, int), 3, seed=1),
]


def loader(dataset: Any, **settings: Any) -> Any:
    return stoker.DataLoader(dataset, **{"collate_fn": list, "batch_size": 4, **settings})


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def loaded(dataset: Any, state: Any, **settings: Any) -> Any:
    other = loader(dataset, **settings)
    other.load_state_dict(state)
    assert through_json(other.state_dict()) == state
    return other


@pytest.mark.parametrize("wrapped", WRAPPED, ids=["alone", "mapped", "shuffled"])
@pytest.mark.parametrize("has_begun", [True, False])
def test_stream_that_is_its_own_iterator(wrapped: Callable[[Any], Any], has_begun: bool) -> None:
    dataset = wrapped(Kept())
    first = loader(dataset)
    batches = iter(first) if has_begun else None
    state = through_json(first.state_dict())
    whole = list(first if batches is None else batches)
    assert sorted(chain.from_iterable(whole)) == list(range(N))
    assert list(loaded(dataset, state)) == whole
    assert list(loaded(wrapped(Kept()), state)) == whole
    rest = list(loaded(dataset, state, num_workers=2, worker_method="thread"))
    assert sorted(chain.from_iterable(rest)) == list(range(N))


def test_own_iterator_that_was_left_in_the_middle() -> None:
    dataset = Kept()
    first = loader(dataset)
    next(iter(first))
    batches = iter(first)
    state = through_json(first.state_dict())
    assert list(loaded(Kept(), state)) == list(batches) == [list(range(at, at + 4)) for at in range(4, N, 4)]


def test_own_iterator_that_iter_sends_back() -> None:
    first = loader(BegunAnew())
    assert first.state_dict()["batches"] == 0  # though it has no state yet
    whole = list(first)
    next(iter(first))
    batches = iter(first)
    state = through_json(first.state_dict())
    assert list(loaded(BegunAnew(), state)) == list(batches) == whole


@pytest.mark.parametrize("settings", [{}, {"num_workers": 1, "worker_method": "thread", "persistent_workers": True}])
@pytest.mark.parametrize("kind", [CountsItsEpochs, GoesBackByItself])
def test_later_epoch_continues_from_the_end_of_the_one_before(kind: type[Any], settings: dict[str, Any]) -> None:
    with loader(kind(), **settings) as first:
        list(first)
        between = through_json(first.state_dict())
        batches = iter(first)
        begun = through_json(first.state_dict())
        assert begun["below"] is not None
        whole = list(batches)
    assert whole[0][0] == (1, 0)
    for state in (between, begun):
        with loaded(kind(), state, **settings) as other:
            assert list(other) == whole


@pytest.mark.parametrize("asked", ["never begun", "iter()"])
def test_coming_epoch_is_known_before_it_begins(asked: str) -> None:
    def seed_everything(seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)
        if torch is not None:
            torch.manual_seed(seed)

    def states() -> Any:
        return {name: stream.state() for name, stream in global_streams().items()}

    seed_everything(1)
    undisturbed = list(loader(range(N), shuffle=True))
    seed_everything(1)
    first = loader(range(N), shuffle=True)
    before = states()
    batches = iter(first) if asked == "iter()" else None
    moved = states()
    state = through_json(first.state_dict())
    assert states() == moved
    assert asked == "iter()" or moved == before
    assert list(first if batches is None else batches) == undisturbed
    seed_everything(2)
    assert list(loaded(range(N), state, shuffle=True)) == undisturbed
