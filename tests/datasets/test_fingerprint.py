"""What is the same twice, and what is not: a stream that gives others must not pass for the one that it was."""

from __future__ import annotations

import itertools
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest

from stoker._core.worker_info import current
from stoker.datasets.fingerprint import Fingerprint, same_again
from stoker.datasets.stream import Counted

torch = pytest.importorskip("torch")


class Point(NamedTuple):
    x: int
    y: int


class Page:
    def __init__(self, text: str) -> None:
        self.text = text
        self.whole = self  # leads back to itself


class Bare:
    __slots__ = ()


class Own(list):
    pass


def fingerprint(sample: Any) -> int:
    prints = Fingerprint()
    prints.take(sample, 1)
    assert prints.now == prints.first
    return prints.now


SAMPLES: list[Any] = [
    *(0, 1, -1, 0.5, True, None, "a", "ä", b"a", "\ud800"),
    *([], [1], [2], [1, 2], (), {"a": 1}, {"a": 2}, {"b": 1}, Point(1, 2), Point(1, 3), Own([7])),
    *(np.arange(9), np.arange(9) + 1, np.arange(9.0).reshape(3, 3), np.float32(2), np.zeros((0, 3))),
    *(np.arange(100_000), np.arange(100_000)[::-1], np.array([Bare(), 1], dtype=object)),
    *(torch.arange(9.0) + 2, torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.bfloat16)),
    *(Page("a"), Page("b"), Bare()),
    *([{"image": np.zeros((3, 8, 8)), "label": label} for label in range(3)]),
]


def test_each_is_another() -> None:
    prints = [fingerprint(sample) for sample in SAMPLES]
    alike = {(a, b) for a, b in itertools.combinations(range(len(SAMPLES)), 2) if prints[a] == prints[b]}
    assert {(type(SAMPLES[a]), type(SAMPLES[b])) for a, b in alike} <= {(list, tuple), (list, Point), (str, bytes)}


def test_a_copy_is_the_same() -> None:
    """No address is looked at, nor what differs from process to process."""
    for sample in SAMPLES:
        assert fingerprint(pickle.loads(pickle.dumps(sample))) == fingerprint(sample)


def test_fingerprint_of_a_large_sample_costs_bounded_time() -> None:
    """Not all of a large one is looked at."""

    class Counting(dict):
        reads = 0

        def items(self) -> Any:
            for pair in super().items():
                Counting.reads += 1
                yield pair

    wide = Counting.fromkeys(range(1000), 0)
    fingerprint([Counting(dict.fromkeys(range(1000), wide))] * 1000)
    assert Counting.reads <= 64 * 16


def of(samples: Any) -> Fingerprint:
    prints = Fingerprint()
    for number, sample in enumerate(samples, 1):
        prints.take(sample, number)
    return prints


def test_the_order_counts() -> None:
    numbers = list(range(50))
    assert of(numbers).state_dict() == of(range(50)).state_dict()
    assert of(numbers[::-1]).first != of(numbers).first
    numbers[30:32] = [31, 30]
    assert of(numbers).first == of(range(50)).first and of(numbers).now != of(range(50)).now


def test_fingerprint_covers_the_first_and_some_later_samples() -> None:
    long = list(range(10_000))
    lost = [number for number in long if number != 5000]
    assert of(long[1:]).now != of(long[:-1]).now
    assert of(lost).now != of(long[:-1]).now


def read_again(now: Any, then: Any) -> list[int]:
    """Behind which samples it is told that they are others."""
    first = Counted(iter(then), None)
    list(first)
    told: list[int] = []
    current.reading.on_other_samples = told.append
    try:
        Counted(iter(now), first.state_dict())
    finally:
        current.reading.on_other_samples = None
    return told


def test_changed_samples_are_reported_to_the_listener() -> None:
    assert read_again(range(9), range(9)) == []
    assert read_again(range(1, 10), range(9)) == [1, 9]
    assert read_again([0, 2, 1], [0, 1, 2]) == [3]


def test_fingerprints_need_no_listener() -> None:
    assert current.reading.on_other_samples is None
    same_again({"seen": 1, "first": 1}, {"seen": 3, "first": 2})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_samples_that_refuse_to_be_looked_at_are_left_out() -> None:
    class Lazy(dict):
        def items(self) -> Any:
            raise AssertionError("torch calls no method of it")

    class Raising:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError

    assert fingerprint(Lazy(a=1)) != fingerprint(Lazy(a=2))
    assert fingerprint(Raising()) == fingerprint(Raising())
    assert fingerprint(10**5000) == fingerprint(10**5000) != fingerprint(10**5000 + 1)
    assert fingerprint(Point) == fingerprint(Point)  # a class, whose __dict__ is no dict
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert isinstance(fingerprint((nested, 1)), int)
