"""Test suite for resumable streams: iteration continues, bit for bit, from a state taken at any step.

A test module subclasses the suite; each `make` returns a new dataset of the same samples:

    @pytest.mark.parametrize("make", [lambda: MapDataset(Numbers(5), str), lambda: MapDataset(Numbers(0, 9), abs)])
    class TestMaps(StreamSuite):
        pass

A state is loaded only into a new dataset from `make`, after a round trip through JSON, as in a job that was killed. The
suite needs only pytest's collection, neither torch nor a clock. `SOURCES` are streams of every kind that a combinator
may receive; `assert_resumes` is the core of the suite, for tests with cases of their own.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import cloudpickle
import numpy as np

from stoker._core.protocol import offered, offers
from stoker.collate.tensors import is_tensor
from stoker.datasets.base import IterableDataset
from stoker.datasets.chain import ChainDataset
from stoker.datasets.stream import Stream, StreamIterator
from stoker.errors import StateError, StateFormatError
from stoker.extend import State
from stoker.testing.gather import copied

Make = Callable[[], Any]

LIMIT = 32
"""Samples of a stream that the suite reads, because it may be endless. Shorter streams are read beyond their end."""


class Numbers(Stream[int]):
    """The integers from `start` to `stop - 1`, in shards: a source for the streams under test.

    Args:
        start: the first integer; as the only argument, the end.
        stop: one more than the last integer.
        num_shards: the number of shards into which the stream can be cut.
    """

    def __init__(self, start: int, stop: int | None = None, num_shards: int = 1) -> None:
        self.numbers = range(start) if stop is None else range(start, stop)
        self.num_shards = num_shards
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.numbers)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def shard(self, num_shards: int, index: int) -> Numbers:
        part = copy.copy(self)
        part.numbers = self.numbers[index::num_shards]
        part.num_shards = 1
        return part

    def _begin(self, state: State | None) -> StreamIterator[int]:
        if state is not None and not isinstance(state.get("given"), int):
            raise StateFormatError(f"expected a count 'given' in {state!r}")
        return _Numbers(self.numbers, 0 if state is None else state["given"])


class _Numbers(StreamIterator[int]):
    def __init__(self, numbers: range, given: int) -> None:
        self._numbers = numbers
        self._given = given

    def __next__(self) -> int:
        if self._given == len(self._numbers):
            raise StopIteration
        self._given += 1
        return self._numbers[self._given - 1]

    def state_dict(self) -> State:
        return {"given": self._given}


class Plain(IterableDataset[int]):
    """A stream without a state."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        yield from range(self.n)


class KeepsState(Plain):
    """A stream that keeps its own state on the dataset, as in torchdata, for the current iteration."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.at = 0
        self.loaded = 0

    def __iter__(self) -> Iterator[int]:
        self.at, self.loaded = self.loaded, 0
        for number in range(self.at, self.n):
            self.at = number + 1
            yield number

    def state_dict(self) -> State:
        return {"at": self.at}

    def load_state_dict(self, state: State) -> None:
        self.loaded = state["at"]


class IteratorKeepsState(Plain):
    """A stream whose iterators keep their own state."""

    def __iter__(self) -> Iterator[int]:
        return _OwnIterator(self.n)


class _OwnIterator(Iterator[int]):
    def __init__(self, n: int) -> None:
        self._n = n
        self._at = 0

    def __next__(self) -> int:
        if self._at == self._n:
            raise StopIteration
        self._at += 1
        return self._at - 1

    def state_dict(self) -> State:
        return {"at": self._at}

    def load_state_dict(self, state: State) -> None:
        self._at = state["at"]


SOURCES: dict[str, Callable[[int], Any]] = {
    "stream": Numbers,
    "plain": Plain,
    "keeps_state": KeepsState,
    "iterator_keeps_state": IteratorKeepsState,
}
"""Streams of the numbers 0 to n - 1, of every kind."""


def assert_resumes(make: Make, *, epoch: int = 0) -> list[Any]:
    """Asserts that the stream continues from a state taken at each step, from the start to beyond the end.

    Args:
        make: returns a new instance of the same stream.
        epoch: is set first, if the stream offers `set_epoch`.

    Returns:
        The samples, up to `LIMIT`, in a form that compares by `==` (see `comparable`).
    """
    expected = samples_of(_fresh(make, epoch))
    for step in range(len(expected) + 1):
        dataset = _fresh(make, epoch)
        iterator = iter(dataset)
        given = [comparable(next(iterator)) for _ in range(step)]
        assert given == expected[:step], f"the first {step} samples differ in the second pass"
        _assert_goes_on(make, epoch, dataset.state_dict(), expected, step)
        if step == len(expected) < LIMIT:
            assert next(iterator, _END) is _END
            _assert_goes_on(make, epoch, dataset.state_dict(), expected, step)
    return expected


def _assert_goes_on(make: Make, epoch: int, state: State, expected: list[Any], step: int) -> None:
    dataset = _fresh(make, epoch)
    dataset.load_state_dict(through_json(state))
    rest = samples_of(dataset, len(expected) - step if len(expected) == LIMIT else LIMIT)
    assert rest == expected[step:], f"loaded at step {step} of {len(expected)}, state {state}"
    assert samples_of(dataset) == expected, (
        f"the iteration after the one resumed at step {step} does not begin at the start"
    )


class StreamSuite:
    """Tests of one stream, of which `make` returns a new instance; it has at least two samples."""

    state_bytes: ClassVar[int] = 1000
    """Bytes of a state as JSON, at most, at any step."""
    shards_keep_samples: ClassVar[bool] = True
    """Whether the samples of all shards together are those of the whole. False for streams that combine neighbouring
    samples.
    """

    def test_iterations_are_equal(self, make: Make) -> None:
        dataset = make()
        first = samples_of(dataset)
        assert len(first) > 1, "the suite needs at least two samples"
        assert samples_of(dataset) == first
        assert samples_of(make()) == first
        next(iter(dataset))
        assert samples_of(dataset) == first, "an abandoned iteration affects the next one"

    def test_resumes_at_every_step(self, make: Make) -> None:
        assert_resumes(make)

    def test_resumes_in_a_later_epoch(self, make: Make) -> None:
        if offers(make(), "set_epoch"):
            later = assert_resumes(make, epoch=3)
            dataset = make()
            dataset.set_epoch(1)
            samples_of(dataset)
            dataset.set_epoch(3)
            assert samples_of(dataset) == later, "an epoch depends on earlier epochs"

    def test_an_epoch_may_be_set_after_the_state(self, make: Make) -> None:
        if offers(make(), "set_epoch"):
            expected = samples_of(_fresh(make, 2))
            dataset = _fresh(make, 2)
            next(iter(dataset))
            other = make()
            other.load_state_dict(through_json(dataset.state_dict()))
            other.set_epoch(2)
            assert samples_of(other, len(expected) - 1) == expected[1:]

    def test_resumes_again_and_again(self, make: Make) -> None:
        expected = samples_of(make())
        state: State = {}
        for step, sample in enumerate(expected):
            dataset = make()
            dataset.load_state_dict(through_json(state))
            assert through_json(dataset.state_dict()) == through_json(state), "a loaded state is not kept until iter()"
            iterator = iter(dataset)
            begun, dataset = dataset.state_dict(), make()
            dataset.load_state_dict(through_json(begun))
            iterator = iter(dataset)
            assert comparable(next(iterator, _END)) == sample, f"resumed at each step up to {step}"
            state = dataset.state_dict()

    def test_states_are_snapshots(self, make: Make) -> None:
        dataset = make()
        iterator = iter(dataset)
        states, written = [dataset.state_dict()], [json.dumps(dataset.state_dict())]
        for _ in itertools.islice(iterator, LIMIT):
            states.append(dataset.state_dict())
            written.append(json.dumps(dataset.state_dict()))
        assert [json.dumps(state) for state in states] == written, "further iteration has changed a state taken earlier"

    def test_states_are_small_and_taking_them_changes_nothing(self, make: Make) -> None:
        dataset = make()
        given = []
        for sample in itertools.islice(iter(dataset), LIMIT):
            given.append(comparable(sample))
            written = json.dumps(through_json(dataset.state_dict()))
            assert len(written) <= self.state_bytes, f"{len(written)} bytes at step {len(given)}: {written[:200]}…"
        assert given == samples_of(make())

    def test_an_empty_state_is_the_start(self, make: Make) -> None:
        dataset = make()
        expected = samples_of(make())
        dataset.load_state_dict({})
        assert samples_of(dataset) == expected
        other = make()
        other.load_state_dict(through_json(make().state_dict()))
        assert samples_of(other) == expected

    def test_a_strangers_state_is_refused(self, make: Make) -> None:
        dataset = make()
        try:
            dataset.load_state_dict({"a stranger's": 1})
            next(iter(dataset))
        except StateError:
            return
        raise AssertionError("a state of another dataset was accepted")

    def test_copies_are_independent(self, make: Make) -> None:
        dataset = make()
        expected = samples_of(make())
        iterator = iter(dataset)
        first = comparable(next(iterator))
        twin = copy.copy(dataset)
        assert samples_of(twin) == expected
        rest = [comparable(sample) for sample in itertools.islice(iterator, len(expected) - 1)]
        assert [first, *rest] == expected

    def test_pickles(self, make: Make) -> None:
        dataset = make()
        expected = samples_of(make())
        next(iter(dataset))
        twin = pickle.loads(cloudpickle.dumps(dataset))
        assert type(twin) is type(dataset)
        assert samples_of(twin) == expected, "a copy made during an iteration does not begin at the start"
        twin.load_state_dict(through_json(dataset.state_dict()))
        twin = pickle.loads(cloudpickle.dumps(twin))
        assert samples_of(twin, len(expected) - 1) == expected[1:], "pickling loses a loaded state"

    def test_resumes_below_another(self, make: Make) -> None:
        part = samples_of(make())[: LIMIT // 3]
        if len(part) < LIMIT // 3:
            assert assert_resumes(lambda: ChainDataset([make(), make()])) == [*part, *part]

    def test_shards_are_resumable_and_complete(self, make: Make) -> None:
        whole = make()
        shards = offered(whole, "num_shards") or 1
        for number in range(2, shards + 1):
            parts = [assert_resumes(functools.partial(_shard, make, number, index)) for index in range(number)]
            if self.shards_keep_samples:
                together = sorted(map(repr, itertools.chain.from_iterable(parts)))
                assert together == sorted(map(repr, samples_of(make()))), f"cut into {number} shards"


def samples_of(dataset: Any, limit: int = LIMIT) -> list[Any]:
    """Returns the samples of one iteration, at most `limit`, as `comparable` returns them."""
    return [comparable(sample) for sample in itertools.islice(iter(dataset), limit)]


def through_json(state: State) -> State:
    """Returns a state after a round trip through JSON; asserts that it is unchanged."""
    back: State = json.loads(json.dumps(state, allow_nan=False))
    assert back == state, f"JSON changes the state {state} to {back}"
    return back


def comparable(sample: Any) -> Any:
    """Returns a sample in a form in which `==` compares every bit: containers by kind, arrays and tensors by their
    bytes.
    """
    if isinstance(sample, dict):
        return {key: comparable(value) for key, value in sample.items()}
    if isinstance(sample, (list, tuple)):
        return type(sample).__name__, [comparable(value) for value in sample]
    if hasattr(sample, "__array__"):
        array = copied(sample) if is_tensor(sample) else np.asarray(sample)
        values = comparable(array.tolist()) if array.dtype.hasobject else array.tobytes()
        return type(sample).__name__, str(getattr(sample, "dtype", array.dtype)), np.shape(sample), values
    if isinstance(sample, float):
        return sample.hex()
    return (
        sample if isinstance(sample, (int, str)) and not isinstance(sample, bool) else (type(sample).__name__, sample)
    )


def _fresh(make: Make, epoch: int) -> Any:
    dataset = make()
    if offers(dataset, "set_epoch"):
        dataset.set_epoch(epoch)
    return dataset


def _shard(make: Make, number: int, index: int) -> Any:
    return make().shard(num_shards=number, index=index)


_END = object()
