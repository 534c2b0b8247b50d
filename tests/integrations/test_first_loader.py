"""The action at the first loader, with stand-ins for torch's classes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.integrations.first_loader import at_first_loader


def classes() -> Any:
    class DataLoader:
        def __init__(self, dataset: object) -> None:
            self.dataset = dataset

    class MultiProcessingIter:
        def __init__(self, loader: object) -> None:
            self.loader = loader

    return SimpleNamespace(DataLoader=DataLoader, _MultiProcessingDataLoaderIter=MultiProcessingIter)


def torchs_loader(torchs: Any) -> None:
    assert torchs.DataLoader([1]).dataset == [1]


def torchdatas_class(torchs: Any) -> None:
    type("StatefulDataLoader", (torchs.DataLoader,), {"__module__": "torchdata.stateful_dataloader"})


def iterator_made_by_hand(torchs: Any) -> None:
    assert torchs._MultiProcessingDataLoaderIter("given").loader == "given"


WAYS = [torchs_loader, torchdatas_class, iterator_made_by_hand]


@pytest.mark.parametrize("first", WAYS)
def test_action_runs_once_before_the_first_loader(first: Callable[[Any], None]) -> None:
    torchs, called = classes(), []
    init = torchs.DataLoader.__init__
    at_first_loader(torchs, lambda: called.append(torchs.DataLoader.__init__))
    type("Subclass", (torchs.DataLoader,), {"__module__": "train"})
    assert not called
    first(torchs)
    assert called == [init], "the class is as before when the action runs"
    for way in WAYS:
        way(torchs)
    assert len(called) == 1


def test_action_runs_once_if_the_constructor_was_wrapped_since() -> None:
    torchs, called = classes(), []
    at_first_loader(torchs, lambda: called.append(1))
    ours = torchs.DataLoader.__init__
    torchs.DataLoader.__init__ = lambda self, dataset: ours(self, dataset)
    for _ in range(2):
        torchs_loader(torchs)
    assert called == [1]


def test_first_loader_is_made_by_what_the_action_wraps() -> None:
    torchs, seen = classes(), []
    init = torchs.DataLoader.__init__

    @functools.wraps(init)
    def noted(self: Any, dataset: object) -> None:
        init(self, dataset)
        seen.append(dataset)

    at_first_loader(torchs, lambda: setattr(torchs.DataLoader, "__init__", noted))
    torchs_loader(torchs)
    assert seen == [[1]]
