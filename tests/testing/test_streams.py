"""The suite passes what is right, and each of its tests fails where its promise is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from stoker.datasets.chain import ChainDataset
from stoker.datasets.stream import State, Stream, StreamIterator, count
from stoker.testing.streams import LIMIT, SOURCES, Numbers, StreamSuite, assert_resumes, comparable, samples_of


@pytest.mark.parametrize("make", [lambda: Numbers(7, num_shards=3), lambda: Numbers(2, LIMIT + 9)], ids=["7", "long"])
class TestNumbers(StreamSuite):
    pass


@pytest.mark.parametrize("make", [lambda kind=kind: ChainDataset([kind(7)]) for kind in SOURCES.values()], ids=SOURCES)
class TestSources(StreamSuite):
    pass


class Bad(Numbers):
    """One thing is wrong with it, which `fault` names."""

    def __init__(self, fault: str) -> None:
        super().__init__(9, num_shards=2)
        self.fault = fault

    def _begin(self, state: State | None) -> StreamIterator[int]:
        if self.fault == "ends for ever" and state is not None and state.get("given") == 9:
            self.numbers = range(0)
        if self.fault == "takes any state" and state is not None and "given" not in state:
            state = None
        return _Bad(self, count(state, "given"))

    def shard(self, num_shards: int, index: int) -> Numbers:
        return super().shard(num_shards, 0 if self.fault == "doubles a shard" else index)

    def set_epoch(self, epoch: int) -> None:
        if self.fault == "epochs add up":
            self.epoch += epoch
        else:
            self.epoch = epoch

    def __getstate__(self) -> dict[str, Any]:
        return (
            {**super().__getstate__(), "_loaded": None}
            if self.fault == "forgets in pickles"
            else super().__getstate__()
        )


class _Bad(StreamIterator[int]):
    def __init__(self, dataset: Bad, given: int) -> None:
        self._numbers = [number + 100 * dataset.epoch for number in dataset.numbers]
        self._fault = dataset.fault
        self._given = given
        self._state = {"given": given}

    def __next__(self) -> int:
        if self._given >= len(self._numbers):
            raise StopIteration
        self._given += 1
        self._state["given"] = self._given
        return self._numbers[self._given - 1]

    def state_dict(self) -> State:
        faults: dict[str, Any] = {
            "one ahead": {"given": self._given + 1},
            "one behind": {"given": max(0, self._given - 1)},
            "wrong late": {"given": self._given - (self._given == 8)},
            "shared": self._state,
            "grows": {"given": self._given, "seen": ["a sample" * 20] * self._given},
            "no json": {"given": self._given, "numbers": (1, 2)},
            "taking it moves": {"given": self._given},
        }
        if self._fault == "taking it moves":
            self._given += 1
        return faults.get(self._fault, {"given": self._given})  # type: ignore[no-any-return]


def failing(make: Callable[[], Any]) -> set[str]:
    failed = set()
    for name in dir(StreamSuite):
        if name.startswith("test_"):
            try:
                getattr(StreamSuite(), name)(make)
            except AssertionError:
                failed.add(name.removeprefix("test_"))
    return failed


def test_nothing_fails_without_a_fault() -> None:
    assert failing(lambda: Bad("none")) == set()


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ("one ahead", "resumes_at_every_step"),
        ("one behind", "resumes_at_every_step"),
        ("wrong late", "resumes_at_every_step"),
        ("ends for ever", "resumes_at_every_step"),
        ("shared", "states_are_snapshots"),
        ("grows", "states_are_small_and_taking_them_changes_nothing"),
        ("no json", "resumes_at_every_step"),
        ("taking it moves", "states_are_small_and_taking_them_changes_nothing"),
        ("takes any state", "a_strangers_state_is_refused"),
        ("doubles a shard", "shards_are_resumable_and_complete"),
        ("epochs add up", "resumes_in_a_later_epoch"),
        ("forgets in pickles", "pickles"),
    ],
)
def test_a_fault_is_found(fault: str, test: str) -> None:
    assert test in failing(lambda: Bad(fault))


def test_a_stream_that_walks_once_is_found() -> None:
    class Once(Stream[int]):
        def __init__(self) -> None:
            self.numbers = iter(Numbers(5))

        def _begin(self, state: State | None) -> StreamIterator[int]:
            return self.numbers

    with pytest.raises(AssertionError):
        StreamSuite().test_iterations_are_equal(Once)


def test_endless_streams_are_looked_at_up_to_the_limit() -> None:
    assert len(assert_resumes(lambda: Numbers(10**9))) == LIMIT


def test_comparable_sees_every_bit() -> None:
    array = np.array([1.0, np.nan])
    assert comparable([array, {"a": float("nan")}]) == comparable([array.copy(), {"a": float("nan")}])
    assert comparable(array) != comparable(array.astype(np.float32))
    assert comparable(0.0) != comparable(-0.0)
    assert comparable((1,)) != comparable([1])
    assert len({comparable(value) for value in (True, 1, 1.0, 1 + 0j, np.int64(1), np.float32(1))}) == 6
    assert comparable([None, "a", b"a"]) == comparable([None, "a", b"a"])


def test_comparable_sees_what_arrays_of_objects_hold() -> None:
    def made(last: Any) -> Any:
        array = np.empty(2, object)
        array[:] = ["".join(["a", "b"]), last]
        return array

    assert comparable(made([1, 10**30])) == comparable(made([1, 10**30]))
    assert comparable(made([1, 10**30])) != comparable(made([1, 10**30 + 1]))
    assert comparable(made(1)) != comparable(made(True))


def test_comparable_takes_any_tensor() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.bfloat16, torch.float8_e5m2, torch.float32, torch.complex64, torch.bool):
        one, other = torch.zeros(3).to(dtype), torch.ones(3).to(dtype)
        assert comparable(one) == comparable(one.clone())
        assert comparable(one) != comparable(other)
    grown = torch.zeros(3, requires_grad=True)
    assert comparable(grown) == comparable(grown.detach())
    assert comparable(grown) != comparable(grown.reshape(1, 3))
    assert comparable(torch.zeros(2, dtype=torch.int32)) != comparable(torch.zeros(1, dtype=torch.int64))


def test_samples_are_read_no_further_than_asked() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        raise AssertionError

    assert samples_of(numbers(), 1) == [1]
