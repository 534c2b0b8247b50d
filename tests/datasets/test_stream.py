from __future__ import annotations

import contextlib
import functools
import json
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stoker.datasets.base import IterableDataset
from stoker.datasets.chain import ChainDataset
from stoker.datasets.iterable import from_iterable
from stoker.datasets.map import FilterDataset, MapDataset
from stoker.datasets.stream import State, Stream, StreamIterator, count, part, parts, resume
from stoker.testing.streams import IteratorKeepsState, KeepsState, Numbers, Plain, StreamSuite
from tests.ownership import moved, named_like


class OwnIter(Numbers):
    """A stream whose subclass has an `__iter__` of its own."""

    def __iter__(self) -> Any:
        yield from self.numbers


class AroundOurs(FilterDataset[int]):
    """One whose own `__iter__` goes through ours."""

    def __iter__(self) -> Any:
        for number in super().__iter__():
            yield 10 * number


class HandsOn(Numbers):
    """One whose own `__iter__` gives ours."""

    opened = 0

    def __iter__(self) -> StreamIterator[int]:
        self.opened += 1
        return super().__iter__()


def wrapped(dataset: Any) -> Any:
    """An `__iter__` that says it is Stoker's: a decorator of the user's copied the name of ours."""
    for number in FilterDataset.__iter__(dataset):
        yield 10 * number


def after(dataset: Any, steps: int, state: State | None = None) -> State:
    """Returns the state after a number of samples."""
    samples = resume(dataset, state)
    for _ in range(steps):
        next(samples)
    return samples.state_dict()


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (lambda: range(5), {"index": 2}),
        (lambda: "abcde", {"index": 2}),
        (lambda: Numbers(5), {"given": 2}),
        (lambda: Plain(5), {"seen": 2}),
        (lambda: OwnIter(5), {"seen": 2}),
        (lambda: AroundOurs(Numbers(6), bool), {"seen": 2}),
        (lambda: HandsOn(5), {"given": 2}),
        (lambda: KeepsState(5), {"own": {"at": 2}}),
        (lambda: IteratorKeepsState(5), {"iterator": {"at": 2}}),
    ],
    ids=[
        "range",
        "string",
        "stream",
        "plain",
        "own_iter",
        "around_ours",
        "hands_on",
        "keeps_state",
        "iterator_keeps_state",
    ],
)
def test_anything_is_resumed_in_its_own_way(make: Any, state: State) -> None:
    samples = list(resume(make(), None))
    assert len(samples) == 5
    assert state.items() <= after(make(), 2).items() and len(json.dumps(after(make(), 2))) < 70
    assert list(resume(make(), state)) == samples[2:]
    assert list(resume(make(), {})) == samples
    assert after(make(), 1, state) == after(make(), 3)
    assert list(resume(make(), after(make(), 5))) == []


@pytest.mark.parametrize(
    "dataset", [range(3), Numbers(3), Plain(3), KeepsState(3), IteratorKeepsState(3)], ids=lambda d: type(d).__name__
)
def test_a_strangers_state_is_refused(dataset: Any) -> None:
    with pytest.raises(ValueError, match=r"was expected, found one of 'other'|expected a count"):
        resume(dataset, {"other": 1})


def test_dataset_that_ends_before_its_state_is_an_error() -> None:
    for dataset, state in ((range(3), {"index": 4}), (Plain(3), {"seen": 4})):
        with pytest.raises(ValueError, match="stands behind sample 4, but the dataset ends after 3"):
            resume(dataset, state)


def test_a_generators_stale_position_is_no_state() -> None:
    """Of a dataset whose `__iter__` is a generator, which says nothing before its first sample."""
    dataset = KeepsState(5)
    assert len(list(dataset)) == 5
    assert dataset.state_dict() == {"at": 5}
    assert after(dataset, 0) == {}
    assert list(resume(dataset, after(dataset, 0))) == [0, 1, 2, 3, 4]


def test_a_state_that_was_loaded_and_not_used_is_gone() -> None:
    dataset = KeepsState(5)
    resume(dataset, {"own": {"at": 3}})
    assert list(resume(dataset, None)) == [0, 1, 2, 3, 4]


class ItsOwnIterator(Plain):
    """`iter()` gives the dataset itself, at its start."""

    def __iter__(self) -> Iterator[int]:
        self.at = 0
        self.step = 1
        return self

    def __next__(self) -> int:
        if self.at >= self.n:
            raise StopIteration
        self.at += self.step
        return self.at - 1

    def state_dict(self) -> State:
        return {"at": self.at, "step": self.step}

    def load_state_dict(self, state: State) -> None:
        assert self.step  # which is there once an iteration has begun
        self.at = state["at"]


class TakesUpItsState(ItsOwnIterator):
    """It is loaded before an iteration begins."""

    step = 1
    loaded = 0

    def __iter__(self) -> Iterator[int]:
        self.at, self.loaded = self.loaded, 0
        return self

    def load_state_dict(self, state: State) -> None:
        self.loaded = state["at"]


@pytest.mark.parametrize("kind", [ItsOwnIterator, TakesUpItsState])
def test_a_dataset_that_is_its_own_iterator_goes_on(kind: Any) -> None:
    dataset = kind(5)
    assert list(resume(dataset, after(kind(5), 3))) == [3, 4]
    assert list(resume(dataset, None)) == [0, 1, 2, 3, 4]


def test_a_dataset_and_its_iterator_may_both_keep_a_state() -> None:
    class Scaled(IteratorKeepsState):
        scale = 1

        def state_dict(self) -> State:
            return {"scale": self.scale}

        def load_state_dict(self, state: State) -> None:
            self.scale = state["scale"]

    first, second = Scaled(5), Scaled(5)
    first.scale = 10
    state = after(first, 3)
    assert list(resume(second, state)) == [3, 4]
    assert second.scale == 10
    with pytest.raises(ValueError, match="was expected"):
        next(resume(second, {**state, "iterator": 3}))


def test_a_state_with_tensors_is_loaded() -> None:
    torch = pytest.importorskip("torch")

    class WithTensors(ItsOwnIterator):
        def state_dict(self) -> State:
            return {**super().state_dict(), "table": torch.zeros(2)}

    assert list(resume(WithTensors(5), after(WithTensors(5), 3))) == [3, 4]


@pytest.mark.parametrize("kept", [np.arange(3), (1, [2, 3])], ids=["an array", "what JSON makes a list of"])
def test_state_that_iter_has_used_is_not_loaded_again(kept: Any) -> None:
    """It would be taken up by the next iteration, which would begin there."""

    class More(TakesUpItsState):
        def state_dict(self) -> State:
            return {**super().state_dict(), "kept": kept}

    state = after(More(5), 3)
    if isinstance(kept, tuple):
        state = json.loads(json.dumps(state))
    dataset = More(5)
    assert list(resume(dataset, state)) == [3, 4]
    assert list(resume(dataset, None)) == [0, 1, 2, 3, 4]


def test_a_state_that_iter_has_reset_is_loaded_again() -> None:
    """Element by element, an empty array is equal to one with a single element."""

    class Queue(ItsOwnIterator):
        """Where it stands is the last number of an array."""

        def __iter__(self) -> Iterator[int]:
            self.queue = np.array([], int)
            return self

        def __next__(self) -> int:
            at = int(self.queue[-1]) if len(self.queue) else 0
            if at >= self.n:
                raise StopIteration
            self.queue = np.array([at + 1])
            return at

        def state_dict(self) -> State:
            return {"queue": self.queue}

        def load_state_dict(self, state: State) -> None:
            self.queue = state["queue"]

    assert list(resume(Queue(3), after(Queue(3), 1))) == [1, 2]


def test_states_of_others_are_copied() -> None:
    class Live(IterableDataset[int]):
        def __init__(self) -> None:
            self.state = {"seen": [0]}

        def __iter__(self) -> Iterator[int]:
            for number in range(3):
                self.state["seen"][0] += 1
                yield number

        def state_dict(self) -> State:
            return self.state

        def load_state_dict(self, state: State) -> None:
            self.state = state

    samples = resume(Live(), None)
    next(samples)
    state = samples.state_dict()
    next(samples)
    assert state == {"own": {"seen": [1]}}


def test_a_sample_by_index_that_fails_is_passed_over() -> None:
    class Torn(list[int]):
        def __getitem__(self, index: Any) -> Any:
            if index == 1:
                raise OSError
            return super().__getitem__(index)

    samples = resume(Torn(range(4)), None)
    assert next(samples) == 0
    with pytest.raises(OSError):
        next(samples)
    assert list(samples) == [2, 3]


def test_stopiteration_of_an_indexed_sample_is_not_the_end() -> None:
    samples = resume(MapDataset(range(3), lambda number: next(iter([0][number % 2 :]))), None)
    assert next(samples) == 0
    with pytest.raises(RuntimeError, match="sample 1 of a MapDataset raised StopIteration"):
        next(samples)
    assert list(samples) == [0]


def test_a_stream_is_opened_once() -> None:
    dataset = HandsOn(5)
    assert (list(resume(dataset, None)), dataset.opened) == ([0, 1, 2, 3, 4], 1)


class Stumbling(IterableDataset[int]):
    """Its second sample cannot be read."""

    def __iter__(self) -> Iterator[int]:
        return map(operator.floordiv, [3, 4, 5, 6], [1, 0, 1, 1])


def test_a_sample_that_failed_counts() -> None:
    samples = resume(Stumbling(), None)
    assert next(samples) == 3
    with pytest.raises(ZeroDivisionError):
        next(samples)
    assert list(resume(Stumbling(), samples.state_dict())) == list(samples) == [5, 6]
    with pytest.raises(ValueError, match="stands behind sample 5, but the dataset ends after 4"):
        resume(Stumbling(), {"seen": 5})


@pytest.mark.parametrize("value", [-1, "1", 1.0, True, None])
def test_counts_are_counts(value: Any) -> None:
    with pytest.raises(ValueError, match="a state with a count 'n' was expected"):
        count({"n": value}, "n")


def test_parts_of_states() -> None:
    assert (part(None, "a"), part({"a": {}}, "a")) == (None, {})
    assert (parts(None, "a", 2), parts({"a": [None, {}]}, "a", 2)) == ([None, None], [None, {}])
    with pytest.raises(ValueError, match="a state 'a' was expected, found one of 'a'"):
        part({"a": 1}, "a")
    with pytest.raises(ValueError, match="a list of states 'a' was expected"):
        parts({"a": [1]}, "a", 1)
    with pytest.raises(ValueError, match="of 1 datasets, but there are 2"):
        parts({"a": [None]}, "a", 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ChainDataset([OwnIter(4), Plain(3)]),
        lambda: ChainDataset([AroundOurs(Numbers(5), bool), HandsOn(3)]),
    ],
    ids=["own_iter", "around_ours"],
)
class TestStreamsWithAnIterOfTheirOwn(StreamSuite):
    pass


def test_next_iteration_goes_on_where_opening_failed() -> None:
    fails = [False]

    def samples() -> Iterator[int]:
        if fails[0]:
            raise ConnectionError("away")
        return iter(range(6))

    first = from_iterable(samples)
    iterator = iter(first)
    for _ in range(4):
        next(iterator)
    state = first.state_dict()
    second = from_iterable(samples)
    second.load_state_dict(state)
    fails[0] = True
    with pytest.raises(ConnectionError):
        list(second)
    fails[0] = False
    assert second.state_dict() == state
    assert list(second) == [4, 5]


def test_a_state_can_be_loaded_twice() -> None:
    class Counts(IterableDataset[int]):
        """Counts in what it was given."""

        def __init__(self) -> None:
            self.state = {"at": 0}

        def __iter__(self) -> Iterator[int]:
            while self.state["at"] < 5:
                self.state["at"] += 1
                yield self.state["at"]

        def state_dict(self) -> State:
            return self.state

        def load_state_dict(self, state: State) -> None:
            self.state = state

    state: State = {"own": {"at": 2}}
    assert [list(resume(Counts(), state)) for _ in range(2)] == [[3, 4, 5]] * 2
    assert state == {"own": {"at": 2}}


def even(number: int) -> bool:
    return number % 2 == 0


def test_a_stream_of_ours_is_opened_once_at_its_state() -> None:
    opened: list[int] = []

    def numbers() -> Iterator[int]:
        opened.append(1)
        return iter(range(10))

    class Named(FilterDataset[int]):
        """Overrides nothing."""

    for kind in (FilterDataset, Named):
        dataset = kind(from_iterable(numbers), even)
        state = after(dataset, 2)
        for moving in (contextlib.nullcontext(), moved(Stream, FilterDataset)):
            opened.clear()
            with moving:
                assert next(resume(dataset, state)) == 4
            assert opened == [1]


@pytest.mark.parametrize(
    "kind",
    [
        type("Named", (FilterDataset,), {"__iter__": functools.wraps(FilterDataset.__iter__)(wrapped)}),
        named_like(FilterDataset, __iter__=lambda dataset: wrapped(dataset)),
    ],
    ids=["decorated", "spelled"],
)
def test_an_iter_of_the_users_is_not_taken_for_ours(kind: Any) -> None:
    dataset = kind(Numbers(10), even)
    state = after(dataset, 2)
    assert state["seen"] == 2
    assert list(resume(kind(Numbers(10), even), state)) == [40, 60, 80]
