"""What a trainer tells of the first samples of its workers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from stoker.loader._job.stream_guesses import FIRST, FirstSamples, Guess, Guesses


def first_samples(worker: int, samples: Any) -> FirstSamples:
    made = FirstSamples(worker)
    made.guessed("Rows", "it reads get_worker_info().id")
    for sample in samples:
        made.take(sample)
    return made


def news(worker: int, samples: Any, end: bool = False) -> Guess:
    made = first_samples(worker, samples)
    if end:
        made.end()
    found = made.news()
    assert found is not None
    return found


@pytest.fixture
def texts() -> list[str]:
    return []


@pytest.fixture
def guesses(texts: list[str]) -> Guesses:
    return Guesses(2, texts.append, set())


def test_different_samples_are_reported_at_once(guesses: Guesses, texts: list[str]) -> None:
    guesses.take(news(0, [0]))
    assert texts == []
    guesses.take(news(1, [1]))
    assert len(texts) == 1
    assert texts[0].startswith("The loader guesses that Rows shares")
    guesses.take(news(0, range(3), end=True))
    guesses.take(news(1, range(3), end=True))
    guesses.flush()
    assert len(texts) == 1


def test_equal_samples_are_reported_once_there_are_enough(guesses: Guesses, texts: list[str]) -> None:
    for count in range(1, FIRST + 1):
        for worker in (0, 1):
            assert texts == []
            guesses.take(news(worker, range(count)))
    assert len(texts) == 1
    assert texts[0].startswith(f"Workers 0 and 1 gave the same first {FIRST} samples.")


@pytest.mark.parametrize(("count", "said"), [(1, "first sample."), (3, "first 3 samples.")])
def test_short_streams_are_compared_at_their_end(count: int, said: str, guesses: Guesses, texts: list[str]) -> None:
    for worker in (1, 0):
        guesses.take(news(worker, range(count)))
    assert texts == []
    for worker in (1, 0):
        guesses.take(news(worker, range(count), end=True))
    assert texts[0].startswith(f"Workers 0 and 1 gave the same {said}")


@pytest.mark.parametrize(
    ("one", "other"),
    [([], [0]), ([0], [0, 1]), ([], []), ([7] * 5, [7] * 5), ([0, 1, 2], [0, 1, 3]), ([object()], [object()])],
)
def test_guess_without_equal_samples_is_the_plain_one(one: Any, other: Any, guesses: Guesses, texts: list[str]) -> None:
    if one and type(one[0]) is object:
        one, other = [lambda: 0], [lambda: 0]  # cannot be pickled
    guesses.take(news(0, one, end=True))
    guesses.take(news(1, other, end=True))
    assert [text[:19] for text in texts] == ["The loader guesses "]


def test_guess_is_reported_at_the_end_of_the_stream(guesses: Guesses, texts: list[str]) -> None:
    guesses.take(news(0, range(2)))
    guesses.flush()
    assert [text[:19] for text in texts] == ["The loader guesses "]
    guesses.flush()
    assert len(texts) == 1


def test_equal_samples_so_far_are_reported_at_the_end(guesses: Guesses, texts: list[str]) -> None:
    guesses.take(news(0, range(3)))
    guesses.take(news(1, range(2)))
    guesses.flush()
    assert texts[0].startswith("Workers 0 and 1 gave the same first 2 samples.")


def test_two_of_three_workers_may_be_alike(texts: list[str]) -> None:
    guesses = Guesses(3, texts.append, set())
    guesses.take(news(2, range(FIRST)))
    guesses.take(news(0, range(1, 1 + FIRST)))
    guesses.take(news(1, range(FIRST)))
    assert texts[0].startswith("Workers 1 and 2 gave the same first")


def test_weaker_guess_is_not_reported_after_a_stronger_one(texts: list[str]) -> None:
    known: set[str] = set()
    guesses = Guesses(2, texts.append, known)
    for worker in (0, 1):
        guesses.take(news(worker, range(FIRST)))
    assert len(known) == 1
    assert known.pop().startswith("The loader guesses ")


def test_samples_of_all_kinds_are_compared() -> None:
    torch = pytest.importorskip("torch")

    def prints(number: int) -> Any:
        sample = {"a": np.arange(4) + number, "b": torch.ones(3) * number, "c": [number, str(number)]}
        return news(0, [sample]).prints

    assert prints(1) == prints(1) != prints(2)


def test_samples_of_unknown_classes_are_compared_by_content() -> None:
    assert news(0, [Fraction(1, 3)]).prints == news(0, [Fraction(1, 3)]).prints != news(0, [Fraction(1, 5)]).prints
    assert news(0, [[UUID(int=1)]]).prints == news(0, [[UUID(int=1)]]).prints != news(0, [[UUID(int=2)]]).prints


def test_worker_reports_each_guess_once() -> None:
    made = first_samples(0, range(3))
    assert made.news() is not None
    assert made.news() is None
    made.end()
    assert made.news() is not None
    made.end()
    made.take(5)
    assert made.news() is None
