"""A stream's own `state_dict()` is called where the loader's state needs it, and a state stays exact."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.errors import StateMismatchError, StreamLostError

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create",
    "ignore:.* does not share its samples out among workers",
    "ignore:The loader guesses that",
)
ONE: dict[str, Any] = {"num_workers": 1}
TWO: dict[str, Any] = {"num_workers": 2, "prefetch_factor": 1}


class Kept(stoker.IterableDataset[int]):
    """Keeps its place, and counts the calls of `state_dict()`."""

    length = 60

    def __init__(self, ballast: int = 0) -> None:
        self.at, self.asked, self.ballast = 0, 0, list(range(ballast))

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            self.at += 1
            yield self.sample(self.at - 1)
        self.at = 0

    def sample(self, number: int) -> int:
        return number

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"at": self.at, "ballast": self.ballast}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Iterated(Kept):
    """Its own iterator."""

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if self.at == self.length:
            self.at = 0
            raise StopIteration
        self.at += 1
        return self.sample(self.at - 1)


class OtherSamples(Kept):
    """Gives each sample only once."""

    given = itertools.count(1000)

    def sample(self, number: int) -> int:
        return next(self.given)


class TellsItsState(Kept):
    """A sample tells how often the state of its stream was asked for."""

    def sample(self, number: int) -> Any:
        return number, self.asked


def loader(dataset: Any, **settings: Any) -> Any:
    return stoker.DataLoader(dataset, **{"collate_fn": list, "batch_size": 2, "seed": 1, **settings})


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("kind", [Kept, Iterated])
def test_stream_in_process_is_asked_with_the_loader(kind: type[Kept]) -> None:
    dataset = kind()
    some = loader(dataset)
    for _ in range(2):
        assert len(list(some)) == 30
    assert dataset.asked == 0
    batches = iter(some)
    for count in range(1, 4):
        next(batches)
        for _ in range(2):
            state = through_json(some.state_dict())
        assert dataset.asked == count
        rest = loader(kind())
        rest.load_state_dict(state)
        assert list(itertools.chain(*rest)) == list(range(2 * count, 60))


@pytest.mark.parametrize("kind", [Kept, Iterated])
def test_stream_that_was_left_has_its_place(kind: type[Kept]) -> None:
    some = loader(kind())
    for number, _ in enumerate(some):
        if number == 2:
            break
    state = through_json(some.state_dict())
    assert state["batches"] == 3 and "again" not in state["below"]
    rest = loader(kind())
    rest.load_state_dict(state)
    assert list(itertools.chain(*rest)) == list(range(6, 60))


@pytest.mark.parametrize("kind", [Kept, Iterated])
@pytest.mark.parametrize("asked_before", [False, True])
def test_stream_interrupted_within_a_batch_is_read_again(kind: type[Kept], asked_before: bool) -> None:
    class Interrupted(kind):  # type: ignore[misc, valid-type]
        interrupts = True

        def sample(self, number: int) -> int:
            if number == 11 and self.interrupts:
                raise KeyboardInterrupt
            return number

    dataset = Interrupted()
    some = loader(dataset)
    batches = iter(some)
    for _ in range(3):
        next(batches)
    if asked_before:
        some.state_dict()
    with pytest.raises(KeyboardInterrupt):
        list(batches)
    state = through_json(some.state_dict())
    assert state["batches"] == 5
    rest = loader(kind())
    rest.load_state_dict(state)
    again = iter(rest)
    next(again)
    assert list(itertools.chain(*again)) == list(range(12, 60))


def asked_in(batches: Any) -> int:
    return int(max(asked for batch in batches for _, asked in batch))


def test_cheap_state_goes_with_each_batch_a_costly_one_not() -> None:
    some = loader(TellsItsState(50_000), **ONE)
    assert asked_in(some) <= 5  # of 30 batches
    each = stoker.StatefulDataLoader(
        TellsItsState(50_000), collate_fn=list, batch_size=2, snapshot_every_n_steps=5, **ONE
    )
    assert 5 <= asked_in(each) <= 10


def test_costly_state_is_exact_after_every_batch() -> None:
    settings = TWO
    whole = list(loader(Kept(), **settings))
    first = loader(Kept(50_000), **settings)
    states = []
    for number, batch in enumerate(first):
        assert batch == whole[number]
        if number in (0, 3, 12, 29):
            states.append((number, first.state_dict()))
    assert any("again" in str(state["below"])[-400:] for _, state in states)
    for number, state in states:
        rest = loader(Kept(), **settings)
        rest.load_state_dict(state)
        assert list(rest) == whole[number + 1 :]


def test_state_behind_which_samples_are_others_is_refused() -> None:
    first = loader(OtherSamples(50_000), **ONE)
    batches = iter(first)
    for _ in range(9):
        next(batches)
    state = first.state_dict()
    rest = loader(OtherSamples(), **ONE)
    rest.load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"read again, are others.*snapshot_every_n_steps"):
        list(rest)
    others = loader(OtherSamples(), **TWO)
    with pytest.raises(StateMismatchError, match=r"samples behind its last state, because .* takes long"):
        others.load_state_dict(state)


class Mortal(Kept):
    """Its first worker dies at a sample."""

    def __init__(self, mark: Path, of_process: int) -> None:
        super().__init__(50_000)
        self.mark, self.of_process = mark, of_process

    def sample(self, number: int) -> int:
        if number == 31 and not self.mark.exists():
            self.mark.touch()
            os._exit(3)
        return number + self.of_process * os.getpid()


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_stream_of_a_dead_worker_reads_again_behind_its_state(tmp_path: Path) -> None:
    some = loader(Mortal(tmp_path / "once", 0), num_workers=1)
    assert list(itertools.chain(*some)) == list(range(60))
    others = loader(Mortal(tmp_path / "others", 100), num_workers=1)
    with pytest.raises(StreamLostError, match=r"read again, are others\): \d+ samples had been delivered"):
        list(others)
