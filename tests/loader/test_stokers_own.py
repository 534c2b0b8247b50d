from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.loader import worker_start
from stoker.sources.listing import ListedFolder, Listing
from tests.ownership import moved, named_like


def users_function(sample: Any) -> Any:
    return sample


class UsersDataset(stoker.TensorDataset):
    pass


@functools.wraps(stoker.default_collate)
def decorated(samples: Any) -> Any:
    return stoker.default_collate(samples)


STREAM = stoker.ShuffleDataset(stoker.ChainDataset([]), buffer_size=10)
STOKERS = [
    *(None, range(10), "raise", {"a": [1, 2.0]}, np.arange(3), np.random.default_rng(0)),
    *(stoker.default_collate, stoker.PadCollator(), functools.partial(stoker.default_collate)),
    *(stoker.TensorDataset(np.arange(3)), stoker.Subset(stoker.TensorDataset(np.arange(3)), [1, 2]), STREAM),
    Listing([ListedFolder("a", (1, 2), 1, b"b")], False),
    stoker.StackDataset(a=np.arange(3), b=stoker.TensorDataset(np.arange(3))),
]
USERS = [
    *(users_function, lambda sample: sample, functools.partial(users_function), UsersDataset(np.arange(3))),
    *(stoker.Subset(UsersDataset(np.arange(3)), [1]), stoker.MapDataset(range(3), users_function)),
    *(print, threading.Lock(), UsersDataset, np.array([users_function])),
    *(decorated, named_like(stoker.TensorDataset), named_like(stoker.TensorDataset)(np.arange(3))),
    np.zeros(worker_start.MOST_BYTES + 1, np.uint8),
    list(range(worker_start.MOST_OBJECTS + 1)),
]


@pytest.mark.parametrize("part", STOKERS, ids=lambda part: type(part).__name__)
def test_stokers_classes_and_values_are_its_own(part: Any) -> None:
    assert worker_start.is_stokers([part])


@pytest.mark.parametrize("part", USERS, ids=lambda part: type(part).__name__)
def test_code_of_the_user_is_not_stokers(part: Any) -> None:
    assert not worker_start.is_stokers([part, None])


def test_search_for_user_code_ends_in_cycles() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert worker_start.is_stokers([cycle])


def test_tensors_are_plain_values() -> None:
    torch = pytest.importorskip("torch")
    assert worker_start.is_stokers([torch.zeros(3), stoker.TensorDataset(torch.zeros(3)), torch.Generator()])
    assert not worker_start.is_stokers([torch.nn.Linear(1, 1)])


def test_classes_of_stoker_are_its_own_in_any_file() -> None:
    collate, dataset = stoker.PadCollator(), stoker.TensorDataset(np.arange(3))
    with moved(stoker.PadCollator, stoker.TensorDataset):
        assert worker_start.is_stokers([collate, collate.__call__, dataset, stoker.TensorDataset])
        assert not worker_start.is_stokers([UsersDataset(np.arange(3))])
