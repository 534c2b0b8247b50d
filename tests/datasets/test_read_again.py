"""Streams that read their source again when they are resumed, where some samples of it fail: each is told once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker._core.worker_info import current
from stoker.datasets.read_again import ReadAgain
from stoker.datasets.stream import resume
from stoker.errors import StateFormatError

LENGTH = 30


class Source(stoker.IterableDataset[int]):
    """Some of its numbers raise; those behind them come."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad

    def __iter__(self) -> Iterator[int]:
        return Reader(self.bad)


class Reader:
    def __init__(self, bad: set[int]) -> None:
        self.bad, self.number = bad, -1

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.number += 1
        if self.number >= LENGTH:
            raise StopIteration
        if self.number in self.bad:
            raise OSError(self.number)
        return self.number


def document(number: int) -> Any:
    return "no document" if number == 14 else [number] * (1 + number % 3)


def packed(source: Any, _: Path) -> Any:
    rows = stoker.PackDataset(stoker.MapDataset(source, document), 4, window=6)
    return stoker.MapDataset(rows, lambda row: tuple(row["tokens"].tolist()))


KINDS = {
    "shuffled": lambda source, _: stoker.ShuffleDataset(source, 6, seed=1),
    "windows": lambda source, _: stoker.MapDataset(stoker.WindowDataset(source, 4, 2), tuple),
    "windows apart": lambda source, _: stoker.MapDataset(stoker.WindowDataset(source, 2, 5), tuple),
    "packed": packed,
    "cached": lambda source, folder: stoker.CacheDataset(source, folder=folder, key="k"),
    "views": lambda source, _: stoker.ViewsDataset(source, 3, lambda sample, view: (sample, view)),
}


def events(samples: Iterator[Any], most: int = 10_000) -> list[Any]:
    """Samples, and the errors between them."""
    seen: list[Any] = []
    while len(seen) < most:
        try:
            seen.append(next(samples))
        except StopIteration:
            break
        except (OSError, ValueError, TypeError) as error:
            seen.append(repr(error))
    return seen


@pytest.mark.parametrize("bad", [[9], [0], [9, 10, 11], [5, 20, 29], [0, 7, 14, 21, 28]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_failing_sample_is_reported_once_on_rereading(kind: str, bad: list[int], tmp_path: Path) -> None:
    """Resumed from every step, and once more from there."""

    def new(name: object) -> Any:
        return KINDS[kind](Source(set(bad)), tmp_path / str(name))

    whole = events(iter(new("whole")))
    assert sum(isinstance(event, str) for event in whole) >= len(bad)
    for step in range(len(whole) + 1):
        first = iter(new(step))
        before = events(first, step)
        second = resume(new(step), first.state_dict())
        between = events(second, 3)
        third = resume(new(step), second.state_dict())
        assert before + between + events(third) == whole


def test_an_error_that_does_not_come_again_hides_no_other() -> None:
    first = ReadAgain(resume(Source({3}), None), None)
    assert len(events(first, 5)) == 5 and first.state_since(0)["failed"] == [3]
    again = ReadAgain(resume(Source({4}), None), first.state_since(0))
    assert events(again, 5) == [0, 1, 2, 3, "OSError(4)"]


def test_a_state_that_is_none_is_refused() -> None:
    with pytest.raises(StateFormatError, match="'failed'"):
        ReadAgain(resume(Source(set()), None), {"failed": ["3"]})


def test_samples_reread_from_the_start_are_compared() -> None:
    """The source's own state knows nothing there."""
    first = ReadAgain(resume(Source(set()), None), None)
    events(first, 4)
    state = first.state_since(0)
    assert state["again"]["seen"] == 4 and "again" not in first.state_since(2)
    for fails, told in ((set(), []), ({0}, [1, 4]), ({3}, [4])):
        others: list[int] = []
        current.reading.on_other_samples = others.append
        try:
            events(ReadAgain(resume(Source(fails), None), state), 5)
        finally:
            current.reading.on_other_samples = None
        assert others == told


def test_begun_outside_of_a_loader() -> None:
    """What was read there has no positions; in a loader it goes on all the same."""
    samples = ReadAgain(resume(Source(set()), None), None)
    assert events(samples, 3) == [0, 1, 2]
    current.reading.position, current.reading.draws = lambda: 7, lambda: True
    try:
        assert samples.is_fresh and events(samples, 3) == [3, 4, 5]
        assert "at" not in samples.state_since(1)
    finally:
        current.reading.position = current.reading.draws = None


def test_a_state_that_is_asked_for_at_once_says_the_same() -> None:
    """Before anything was read again."""
    first = ReadAgain(resume(Source({1, 3}), None), None)
    current.reading.position, current.reading.draws = lambda: 5, lambda: True
    try:
        events(first, 5)
        state = first.state_since(0)
        assert state["failed"] == [1, 3] and state["at"] == {"before": 5, "steps": "5*0"}
        again = ReadAgain(resume(Source({1, 3}), None), state)
        assert again.state_since(0) == state
        assert events(again, 3) == [0, 2, 4]
        assert again.state_since(0) == state
    finally:
        current.reading.position = current.reading.draws = None
