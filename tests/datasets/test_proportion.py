from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from stoker.datasets.mix import Proportions, exact

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

WEIGHTS = st.lists(
    st.one_of(
        st.integers(1, 1000),
        st.floats(1e-9, 1e9, allow_subnormal=False),
        st.sampled_from([0.1, 1 / 3, 1e-300, 1e300]),
    ),
    min_size=1,
    max_size=9,
)


def off(proportions: Proportions, weights: list[int], position: int) -> float:
    """How many samples the source that is farthest from its share is off."""
    before, total = proportions.before(position), sum(weights)
    return max(abs(count - position * weight / total) for count, weight in zip(before, weights, strict=True))


@hypothesis.given(weights=WEIGHTS)
@hypothesis.settings(max_examples=60)
def test_each_turn_of_each_source_comes_once_and_in_order(weights: list[float]) -> None:
    proportions = Proportions(exact(weights))
    counts = [0] * len(weights)
    for position in range(40):
        assert proportions.before(position) == counts
        source, turn = proportions.turn(position)
        assert turn == counts[source]
        assert proportions.position(source, turn) == position
        counts[source] += 1


@hypothesis.given(weights=WEIGHTS, position=st.integers(0, 2**80))
@hypothesis.settings(max_examples=60)
def test_any_position_is_known_at_once(weights: list[float], position: int) -> None:
    proportions = Proportions(exact(weights))
    source, turn = proportions.turn(position)
    assert proportions.position(source, turn) == position
    assert proportions.before(position)[source] == turn
    assert sum(proportions.before(position)) == position


@hypothesis.given(weights=WEIGHTS, position=st.integers(0, 2**80))
@hypothesis.settings(max_examples=60)
def test_shares_are_exact_however_far(weights: list[float], position: int) -> None:
    fractions = exact(weights)
    for count, weight in zip(Proportions(fractions).before(position), fractions, strict=True):
        assert abs(count - position * weight / sum(fractions)) < (1 if len(weights) <= 3 else 2)


def test_the_worst_is_as_far_off_as_said() -> None:
    """The module's figure is of more of these weightings."""
    draw = random.Random(0)
    worst = 0.0
    for _ in range(400):
        weights = [draw.choice([1, 2, 3, 50, 100, 101]) for _ in range(draw.randint(4, 40))]
        proportions = Proportions(exact(weights))
        worst = max([worst, *(off(proportions, weights, draw.randrange(2 * sum(weights))) for _ in range(10))])
    assert 0.8 < worst < 1.4


def test_large_source_keeps_its_share_beside_many_small_ones() -> None:
    weights = [360] + [2] * 20
    proportions = Proportions(exact(weights))
    assert max(off(proportions, weights, position) for position in range(400)) < 1


def test_the_sequence_is_pinned_for_ever() -> None:
    def sources(weights: list[float], start: int = 0) -> list[int]:
        proportions = Proportions(exact(weights))
        return [proportions.turn(position)[0] for position in range(start, start + 20)]

    assert sources([0.7, 0.2, 0.1]) == [0, 1, 0, 0, 2, 0, 0, 0, 1, 0, 0, 1, 0, 0, 2, 0, 0, 0, 1, 0]
    assert sources([1, 1]) == [0, 1] * 10
    assert sources([1, 1, 1]) == sources([0.25, 0.25, 0.25]) == [1, 0, 2] * 6 + [1, 0]
    assert sources([5, 1, 3, 2, 2], 10**12) == [2, 4, 3, 0, 0, 2, 1, 0, 3, 4, 2, 0, 0, 2, 4, 3, 0, 0, 2, 1]


def test_weights_are_taken_as_the_numbers_that_they_are() -> None:
    assert exact([1, 0.5, Fraction(1, 3), np.float32(0.25), np.int64(2)]) == [
        1,
        Fraction(1, 2),
        Fraction(1, 3),
        Fraction(1, 4),
        2,
    ]
    assert exact(np.array([0.1]).tolist()) == exact(np.array([0.1])) == [Fraction(0.1)]  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [0, -1, 0.0, -0.5, math.nan, math.inf, np.float32("nan")])
def test_invalid_weight_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match=r"weights\[1\] is .*: weights must be finite and above 0"):
        exact([1, weight])
    with pytest.raises(TypeError, match=r"weights\[0\] is 'a', which is not a number"):
        exact(["a"])
