from __future__ import annotations

import copy
import math
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest

from stoker.errors import SamplerError
from stoker.samplers import WeightedRandomSampler, weighted
from stoker.samplers.weighted_order import DrawnOrder, Sums

WEIGHTS = [0.5, 0.0, 3.0, 1.0, 0.0, 2.5]


def numpys() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.mark.parametrize(("num_samples", "replacement"), [(1, True), (100, True), (4, False), (2, False)])
def test_draws_equal_torchs_for_the_same_generator(num_samples: int, replacement: bool) -> None:
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


@pytest.mark.parametrize("replacement", [True, False])
def test_draws_beyond_torchs_limit_use_torchs_generator(replacement: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_draws_without_replacement_never_repeat_or_give_zero() -> None:
    assert sorted(WeightedRandomSampler(WEIGHTS, 4, False, numpys())) == [0, 2, 3, 5]
    with pytest.raises(SamplerError, match="cannot draw 5 different indices: only 4 of 6 weights are above zero"):
        WeightedRandomSampler(WEIGHTS, 5, False)


@pytest.mark.parametrize("kind", ["ours", "torch's"])
def test_drawing_more_than_there_are_is_a_runtime_error(kind: str) -> None:
    torch = pytest.importorskip("torch")
    made = WeightedRandomSampler if kind == "ours" else torch.utils.data.WeightedRandomSampler
    with pytest.raises(RuntimeError):
        list(made([1.0, 1.0], 3, False))


@pytest.mark.usefixtures("torch_not_wanted")
def test_weights_are_an_array_without_torch() -> None:
    sampler = WeightedRandomSampler(WEIGHTS, 50)
    assert isinstance(sampler.weights, np.ndarray)
    np.random.seed(0)
    first = list(sampler)
    np.random.seed(0)
    assert list(sampler) == first
    assert len(sampler) == 50


@pytest.mark.usefixtures("torch_not_wanted")
def test_torch_generator_is_used_with_numpy_output() -> None:
    torch = pytest.importorskip("torch")
    sampler = WeightedRandomSampler(WEIGHTS, 20, generator=torch.Generator().manual_seed(1))
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    assert list(sampler) == torch.multinomial(weights, 20, True, generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("generator", [None, numpys()])
def test_weights_that_were_spoilt_later_are_found_when_drawn(replacement: bool, generator: Any) -> None:
    sampler = WeightedRandomSampler([1.0, 1.0], 2, replacement, generator)
    sampler.order(0)
    sampler.weights[:] = 0.0
    with pytest.raises(ValueError, match=r"sum up to 0\.0"):
        list(sampler)
    with pytest.raises(ValueError, match=r"sum up to 0\.0"):
        sampler.order(0)
    sampler.weights[1] = math.nan
    with pytest.raises(ValueError, match=r"weights\[1\] is nan"):
        sampler.order(0)


# Orders: what a loader asks for.

POSITIONS = np.arange(300)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of weights of each table of sums that is built."""
    sizes = []

    class Counted(Sums):
        def __init__(self, weights: Any) -> None:
            sizes.append(len(weights))
            super().__init__(weights)

    monkeypatch.setattr(weighted, "Sums", Counted)
    return sizes


def test_an_order_follows_from_weights_and_key_alone() -> None:
    sampler = WeightedRandomSampler(WEIGHTS, 300, generator=numpys())
    order = sampler.order(5)
    assert len(order) == 300
    assert order.take(POSITIONS).tolist() == DrawnOrder(Sums(np.array(WEIGHTS)), 300, 5).take(POSITIONS).tolist()
    assert sampler.order(5).take(POSITIONS).tolist() == order.take(POSITIONS).tolist()
    assert sampler.order(6).take(POSITIONS).tolist() != order.take(POSITIONS).tolist()


def test_order_follows_from_weights_and_key() -> None:
    sampler = WeightedRandomSampler(range(300), 299, False)
    order = sampler.order(5).take(POSITIONS[:299]).tolist()
    assert sorted(order) == list(range(1, 300))
    assert sampler.order(5).take(POSITIONS[:299]).tolist() == order != sampler.order(6).take(POSITIONS[:299]).tolist()


@pytest.mark.parametrize("replacement", [True, False])
def test_walking_without_torch_walks_an_order(replacement: bool) -> None:
    weights = np.random.default_rng(0).random(50_000)
    sampler = WeightedRandomSampler(weights, 40_000, replacement, numpys())
    key = int(numpys().integers(2**63 - 1))
    assert list(sampler) == sampler.order(key).take(np.arange(40_000)).tolist()


def test_sums_are_computed_again_when_the_weights_change(built: list[int]) -> None:
    sampler = WeightedRandomSampler([1.0, 1.0], 300)
    for key in range(5):
        sampler.order(key)
    assert built == [2]
    before = sampler.order(0)
    sampler.weights[0] = 0.0
    assert set(sampler.order(0).take(POSITIONS).tolist()) == {1}
    assert set(before.take(POSITIONS).tolist()) == {0, 1}
    assert built == [2, 2]
    sampler.weights = np.array([0.0, 0.0, 1.0])
    assert set(sampler.order(0).take(POSITIONS).tolist()) == {2}
    assert built == [2, 2, 3]


@pytest.mark.parametrize("replacement", [True, False])
def test_weights_in_pieces_of_memory(replacement: bool) -> None:
    weights = np.random.default_rng(0).random(600)
    in_pieces = WeightedRandomSampler(weights[::2], 300, replacement).order(1)
    in_one = WeightedRandomSampler(weights[::2].copy(), 300, replacement).order(1)
    assert in_pieces.take(POSITIONS).tolist() == in_one.take(POSITIONS).tolist()


def test_sums_do_not_travel(built: list[int]) -> None:
    sampler = WeightedRandomSampler(np.random.default_rng(0).random(10_000), 300, generator=numpys())
    size = len(pickle.dumps(sampler))
    expected = sampler.order(1).take(POSITIONS).tolist()
    assert len(pickle.dumps(sampler)) == size
    for other in (pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler)):
        assert other.order(1).take(POSITIONS).tolist() == expected
    assert built == [10_000] * 3


@pytest.mark.usefixtures("torch_not_wanted")
def test_weighted_sampler_takes_eight_bytes_for_each_weight() -> None:
    n = 500_000
    weights = np.random.default_rng(0).random(n)
    tracemalloc.start()
    try:
        sampler = WeightedRandomSampler(weights, n)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        sampler.order(0).take(POSITIONS)
        assert tracemalloc.get_traced_memory()[1] < 8 * n + 1_000_000
    finally:
        tracemalloc.stop()


def test_torchs_tensors_as_weights() -> None:
    torch = pytest.importorskip("torch")
    plain = WeightedRandomSampler(np.array(WEIGHTS), 300).order(1).take(POSITIONS).tolist()
    for tensor in (torch.tensor(WEIGHTS, requires_grad=True), torch.tensor(WEIGHTS, dtype=torch.bfloat16)):
        assert WeightedRandomSampler(tensor, 300).order(1).take(POSITIONS).tolist() == plain


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
