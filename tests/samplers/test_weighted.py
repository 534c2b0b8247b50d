from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from stoker.samplers import WeightedRandomSampler, weighted

WEIGHTS = [0.5, 0.0, 3.0, 1.0, 0.0, 2.5]


def numpys() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.mark.parametrize(("num_samples", "replacement"), [(1, True), (100, True), (4, False), (2, False)])
def test_as_torch_for_the_same_generator_and_global_seed(num_samples: int, replacement: bool) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.utils.data.WeightedRandomSampler
    arguments = WEIGHTS, num_samples, replacement
    mine = WeightedRandomSampler(*arguments, generator=torch.Generator().manual_seed(5))
    other = theirs(*arguments, generator=torch.Generator().manual_seed(5))
    assert [list(mine) for _ in range(3)] == [list(other) for _ in range(3)]
    torch.manual_seed(1)
    expected = [list(theirs(*arguments)), torch.rand(1).item()]
    torch.manual_seed(1)
    assert [list(WeightedRandomSampler(*arguments)), torch.rand(1).item()] == expected


def test_weights_are_a_float64_tensor_that_may_be_replaced() -> None:
    torch = pytest.importorskip("torch")
    sampler = WeightedRandomSampler([1, 0], 5)
    assert sampler.weights.dtype == torch.float64
    assert list(sampler) == [0] * 5
    sampler.weights = torch.tensor([0.0, 1.0])
    assert list(sampler) == [1] * 5


def test_more_weights_than_torch_takes() -> None:
    torch = pytest.importorskip("torch")
    n = 2**24 + 3
    weights = np.zeros(n)
    weights[[5, n - 1]] = 1.0, 3.0
    drawn = list(WeightedRandomSampler(weights, 400, generator=torch.Generator().manual_seed(0)))
    assert set(drawn) == {5, n - 1}
    assert abs(drawn.count(5) - 100) < 5 * math.sqrt(400 * 0.25 * 0.75)


@pytest.mark.parametrize("replacement", [True, False])
def test_beyond_torchs_limit_the_draws_still_come_from_torchs_generator(
    replacement: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(weighted, "_TORCH_TAKES", 3)

    def run(seed: int) -> list[int]:
        return list(WeightedRandomSampler(range(1, 50), 20, replacement, torch.Generator().manual_seed(seed)))

    assert run(3) == run(3) != run(4)
    torch.manual_seed(3)
    assert list(WeightedRandomSampler(range(1, 50), 20, replacement)) == run(3)


def test_numpys_draws_have_the_right_shares() -> None:
    count = 40_000
    drawn = np.bincount(list(WeightedRandomSampler(WEIGHTS, count, generator=numpys())), minlength=6)
    expected = np.array(WEIGHTS) / 7 * count
    assert drawn[[1, 4]].tolist() == [0, 0]
    assert np.all(abs(drawn - expected) <= 5 * np.sqrt(expected))


def test_numpys_draws_without_replacement_have_the_right_shares() -> None:
    generator = numpys()
    pairs = [tuple(WeightedRandomSampler([1, 2, 3], 2, False, generator)) for _ in range(6000)]
    weights = {0: 1, 1: 2, 2: 3}
    for first, second in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]:
        share = weights[first] / 6 * weights[second] / (6 - weights[first])
        assert abs(pairs.count((first, second)) - share * 6000) < 5 * math.sqrt(6000 * share)


def test_without_replacement_zero_is_never_drawn_and_nothing_twice() -> None:
    assert sorted(WeightedRandomSampler(WEIGHTS, 4, False, numpys())) == [0, 2, 3, 5]
    with pytest.raises(RuntimeError, match="cannot draw 5 different indices: only 4 of 6 weights are above zero"):
        list(WeightedRandomSampler(WEIGHTS, 5, False, numpys()))


class Always:
    """Draws one number, over and over."""

    def __init__(self, number: float) -> None:
        self.number = number

    def uniform(self, size: int) -> Any:
        return np.full(size, self.number)


@pytest.mark.parametrize(
    ("weights", "number", "drawn"),
    [
        ([0.0, 1.0, 0.0, 1.0, 0.0], 0.0, 1),
        ([0.0, 1.0, 0.0, 1.0, 0.0], 0.5, 3),
        ([5e-324, 1e-323, 0.0, 0.0], math.nextafter(1, 0), 1),  # so small that the product is rounded to the total
    ],
)
def test_a_weight_of_zero_is_not_drawn_at_any_boundary(weights: list[float], number: float, drawn: int) -> None:
    assert weighted._with_replacement(np.array(weights), 2, Always(number)).tolist() == [drawn] * 2  # type: ignore[arg-type]


@pytest.mark.usefixtures("torch_not_wanted")
def test_without_torch_weights_are_an_array_and_numpys_global_seed_counts() -> None:
    sampler = WeightedRandomSampler(WEIGHTS, 50)
    assert isinstance(sampler.weights, np.ndarray)
    np.random.seed(0)
    first = list(sampler)
    np.random.seed(0)
    assert list(sampler) == first
    assert len(sampler) == 50


@pytest.mark.usefixtures("torch_not_wanted")
def test_a_generator_of_torch_is_obeyed_also_where_torch_is_not_wanted() -> None:
    torch = pytest.importorskip("torch")
    sampler = WeightedRandomSampler(WEIGHTS, 20, generator=torch.Generator().manual_seed(1))
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    assert list(sampler) == torch.multinomial(weights, 20, True, generator=torch.Generator().manual_seed(1)).tolist()


def test_weights_that_were_spoilt_later_are_found_when_drawn() -> None:
    sampler = WeightedRandomSampler([1.0, 1.0], 5, generator=numpys())
    sampler.weights = np.array([0.0, 0.0])
    with pytest.raises(ValueError, match=r"sum up to 0\.0"):
        list(sampler)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -0.5, 1], r"weights\[1\] is -0.5$"),
        ([1, 1, math.nan], r"weights\[2\] is nan"),
        ([math.inf, 1, -1], r"weights\[0\] is inf, and 1 more"),
        ([0, 0, 0], r"the 3 weights sum up to 0\.0"),
        ([], r"the 0 weights sum up to 0\.0"),
        ([1e308, 1e308], "sum up to inf"),
        ([[1.0, 2.0]], r"weights should be a 1d sequence but given weights have shape \(1, 2\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_bad_weights(weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WeightedRandomSampler(weights, 2)


@pytest.mark.parametrize("num_samples", [0, -1, 1.0, True])
def test_bad_num_samples(num_samples: Any) -> None:
    with pytest.raises(ValueError, match=f"should be a positive integer value, but got num_samples={num_samples}"):
        WeightedRandomSampler([1], num_samples)


def test_bad_replacement() -> None:
    with pytest.raises(ValueError, match="replacement should be a boolean value, but got replacement=None"):
        WeightedRandomSampler([1], 1, None)  # type: ignore[arg-type]
