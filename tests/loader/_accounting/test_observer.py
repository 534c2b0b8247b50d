"""The observer of a process stands around the steps of its loaders, and is asked nothing once it is removed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stoker
from stoker.events import Event
from stoker.loader._accounting import observer
from stoker.loader._accounting.observer import Observer, observe


class Notes(Observer):
    """Notes each call, with the numbers that it brings."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def iterate(self, loader: Any, begin: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        self.calls.append("iterate")
        return super().iterate(loader, begin)

    def plan(self, iterator: Any, plan: Any, ahead: Any) -> None:
        self.calls.append("plan")
        super().plan(iterator, plan, ahead)

    def next(self, iterator: Any, take: Callable[[Any], Any]) -> Any:
        self.calls.append("next")
        return super().next(iterator, take)

    def make(self, share: float, make: Callable[[], Any]) -> Any:
        batch = super().make(share, make)
        if type(batch) is list:
            batch.append(f"made in {os.getpid()}")
        else:
            self.calls.append(share)
        return batch

    def event(self, event: Event) -> None:
        self.calls.append(event.kind)
        super().event(event)


@pytest.fixture
def notes() -> Iterator[Notes]:
    notes = Notes()
    assert observe(notes) is None
    yield notes
    observe(None)


def test_steps_of_an_epoch_in_process(notes: Notes) -> None:
    loader = stoker.DataLoader([1, 2, 3], batch_size=2)
    assert [batch.tolist() for batch in loader] == [[1, 2], [3]]
    assert notes.calls == ["iterate", "next", "plan", 1.0, "next", 1.0, "next"]


def test_events_are_observed_once_they_are_counted(notes: Notes) -> None:
    class Faulty(list[int]):
        def __getitem__(self, index: Any) -> Any:
            raise OSError("no such disk")

    loader = stoker.DataLoader(Faulty([1]), on_error="skip", max_error_rate=1.0)
    with pytest.warns(stoker.errors.StokerWarning, match="no such disk"), contextlib.suppress(StopIteration):
        next(iter(loader))
    assert [call for call in notes.calls if type(call) is str][2:] == ["plan", *loader.report().events]


def test_forked_workers_have_the_observer_of_their_parent(notes: Notes) -> None:
    loader = stoker.DataLoader([1, 2], num_workers=1, collate_fn=list, multiprocessing_context="fork")
    (first, said), _ = loader
    assert first == 1 and said.startswith("made in ") and said != f"made in {os.getpid()}"


class Two(stoker.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(2))


def test_a_stream_has_no_plan(notes: Notes) -> None:
    assert [batch.tolist() for batch in stoker.DataLoader(Two())] == [[0], [1]]
    assert "plan" not in notes.calls and notes.calls.count("next") == 3


def test_removed_observer_is_asked_nothing(notes: Notes) -> None:
    assert observe(None) is notes and observer.current is None
    list(stoker.DataLoader([1, 2], on_error="skip"))
    assert notes.calls == []


def test_error_of_an_observer_reaches_the_loop() -> None:
    class Refuses(Observer):
        def next(self, iterator: Any, take: Callable[[Any], Any]) -> Any:
            raise RuntimeError("no batch today")

    observe(Refuses())
    try:
        iterator = iter(stoker.DataLoader([1, 2]))
        with pytest.raises(RuntimeError, match="no batch today"):
            next(iterator)
        observe(None)
        assert [batch.tolist() for batch in iterator] == [[1], [2]]
    finally:
        observe(None)
