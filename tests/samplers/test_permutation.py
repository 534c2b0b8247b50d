from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest

from stoker._core import native
from stoker.samplers import permutation as module
from stoker.samplers.permutation import TABLE_UP_TO, Permutation

LARGE = [TABLE_UP_TO + 1, 64 * 64 + 64 + 1, 9973, 65536, 100_003, 2**17 + 1]
HUGE = [2**31 - 1, 2**40 + 1, 10**15, 2**62 - 1, 2**62]


@pytest.fixture(autouse=True, params=["compiled", "NumPy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have to give the same."""
    if request.param == "NumPy":
        monkeypatch.setattr(native, "functions", None)
    elif native.functions is None:
        pytest.skip(f"not here: {native.why}")


@pytest.fixture
def network_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TABLE_UP_TO", 0)


def whole(n: int, key: int) -> np.ndarray:
    return Permutation(n, key).take(np.arange(n))


def is_bijection(n: int, key: int) -> bool:
    return bool(np.array_equal(np.sort(whole(n, key)), np.arange(n)))


@pytest.mark.parametrize("key", [0, 12345])
def test_every_small_size_is_a_bijection(key: int) -> None:
    assert all(is_bijection(n, key) for n in range(501))


@pytest.mark.parametrize("key", [0, 12345])
@pytest.mark.usefixtures("network_only")
def test_network_is_a_bijection_for_every_small_size(key: int) -> None:
    assert all(is_bijection(n, key) for n in range(501))


@pytest.mark.parametrize("n", LARGE)
def test_larger_sizes_are_bijections(n: int) -> None:
    assert is_bijection(n, -7)


@pytest.mark.parametrize("n", HUGE)
def test_huge_sizes_repeat_nothing_and_stay_inside(n: int) -> None:
    positions = np.unique(np.random.default_rng(n).integers(0, n, 20_000))
    numbers = Permutation(n, 3).take(positions)
    assert len(np.unique(numbers)) == len(positions)
    assert numbers.min() >= 0
    assert numbers.max() < n
    assert numbers.max() > 0.99 * n


# A change of one of these changes the order of epochs that models were trained with.
GOLDEN = {
    (5, 0): [1, 4, 0, 2, 1, 3],
    (5, 1): [0, 3, 1, 2, 0, 4],
    (1000, 42): [345, 228, 225, 731, 345, 51],
    (4096, 9223372036854775808): [1528, 1572, 1235, 702, 2998, 2101],
    (4097, 0): [2760, 3064, 1588, 2707, 4095, 509],
    (4097, 1): [1018, 2965, 447, 3980, 2508, 1751],
    (50000, 42): [32204, 49078, 8437, 45076, 49313, 29763],
    (1000003, -1): [210525, 967015, 328414, 760152, 870054, 318533],
    (10000000000, 0): [453137990, 9505387937, 4480590648, 2887362749, 1958225634, 3767062041],
    (1099511627777, 123456789): [945487260255, 816766429880, 189747403512, 114116226962, 744874693236, 194295064407],
    (4611686018427387903, 7): [
        1684593608925015378,
        1622121828238590576,
        4303243426951206793,
        309112106601425820,
        1687661625181871306,
        2776356803894446437,
    ],
    (4611686018427387904, 18446744073709551615): [
        399237492833738718,
        3524177330113324561,
        2378257591900147715,
        3113136563074125412,
        3862039352504442532,
        4485326888979124895,
    ],
}


@pytest.mark.parametrize(("n", "key"), GOLDEN)
def test_the_order_never_changes(n: int, key: int) -> None:
    expected = GOLDEN[n, key]
    positions = [position % n for position in (0, 1, 2, 3, 1000, -1)]
    assert module.FORMAT_VERSION == 1
    assert Permutation(n, key).take(np.array(positions)).tolist() == expected
    assert [Permutation(n, key)[position] for position in positions] == expected


@pytest.mark.parametrize("n", [1, 2, 100, TABLE_UP_TO, *LARGE, *HUGE])
def test_single_and_batched_lookups_agree(n: int) -> None:
    order = Permutation(n, 99)
    positions = np.random.default_rng(1).integers(0, n, 300)
    many = order.take(positions).tolist()
    assert [order[position] for position in positions] == many
    assert list(itertools.chain.from_iterable(order.take(part).tolist() for part in positions.reshape(-1, 3))) == many


def test_blocks_do_not_show() -> None:
    n = 3 * module._BLOCK + 5
    order = Permutation(n, 4)
    assert list(order) == order.take(np.arange(n)).tolist()
    assert order.take(np.arange(n)).dtype == np.int64


def test_keys_and_sizes_give_different_orders() -> None:
    orders = {tuple(whole(n, key)[:20]) for n in (1000, 1001, 5000, 5001) for key in range(50)}
    assert len(orders) == 200
    assert np.array_equal(whole(5000, -1), whole(5000, 2**64 - 1))


def test_permutation_is_small_and_survives_pickling() -> None:
    order = Permutation(2**62, 8)
    assert len(order) == 2**62
    assert len(pickle.dumps(order)) < 1000
    assert pickle.loads(pickle.dumps(order))[2**61] == order[2**61]


def test_numpy_integers_are_accepted() -> None:
    assert Permutation(np.int64(5000), np.uint64(7))[np.int32(3)] == Permutation(5000, 7)[3]


@pytest.mark.parametrize("n", [7, 5000])
@pytest.mark.parametrize("position", [-1, 7000])
def test_positions_outside_are_refused(n: int, position: int) -> None:
    order = Permutation(n, 0)
    message = f"position {position} is outside of a permutation of {n} numbers"
    with pytest.raises(IndexError, match=message):
        order[position]
    with pytest.raises(IndexError, match=message):
        order.take(np.array([0, position, 1]))


@pytest.mark.parametrize("n", [-1, 2**62 + 1])
def test_impossible_sizes_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match=r"0 to 2\*\*62"):
        Permutation(n, 0)


def test_index_that_is_no_integer_is_refused() -> None:
    with pytest.raises(TypeError):
        Permutation(3.0, 0)  # type: ignore[arg-type]


# Quality. Every statistic is a chi-square in standard deviations from its mean; a good order stays within 5 of them.

LIMIT = 5.0


def deviations(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


def spread(distances: np.ndarray, n: int) -> float:
    bins = 500
    return deviations(np.bincount(distances % n * bins // n, minlength=bins))


def worst(n: int) -> float:
    """Of the distances between images of neighbours, of positions that share a coordinate, and of two epochs."""
    width = math.isqrt(n - 1) + 1
    height = -(-n // width)
    found = []
    for key in range(3):
        order = whole(n, key)
        found += [spread(order[lag:] - order[:-lag], n) for lag in (1, 2, height, width, width * 2, height - 1)]
        found.append(spread(whole(n, key + 1) - order, n))
    return max(found)


@pytest.mark.parametrize("n", [5003, 65_536, 300_000])
def test_images_of_related_positions_are_unrelated(n: int) -> None:
    assert worst(n) < LIMIT


def test_two_rounds_would_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROUNDS", 2)
    assert worst(65_536) > 20 * LIMIT


def test_each_order_of_few_numbers_is_as_likely() -> None:
    orders = [tuple(whole(4, key)) for key in range(4800)]
    counts = np.array([orders.count(order) for order in itertools.permutations(range(4))])
    assert deviations(counts) < LIMIT


@pytest.mark.parametrize("n", [40, 1000])
def test_each_number_comes_as_often_at_each_position(n: int) -> None:
    keys = 40_000 // n
    counts = np.zeros((n, 8))
    for key in range(keys * 4):
        counts[np.arange(n), whole(n, key) * 8 // n] += 1
    assert deviations(counts) < LIMIT


@pytest.mark.usefixtures("network_only")
def test_each_number_is_equally_frequent_at_each_position() -> None:
    n = 100
    counts = np.zeros((n, n))
    for key in range(3000):
        counts[np.arange(n), whole(n, key)] += 1
    assert deviations(counts) < LIMIT


def test_a_batch_is_a_fair_sample() -> None:
    n, batch, parts = 262_144, 1024, 16
    counts = np.stack([np.bincount(block, minlength=parts) for block in (whole(n, 5) * parts // n).reshape(-1, batch)])
    # Drawn without replacement the counts vary a little less than in a multinomial.
    expected, shrink = batch / parts, 1 - batch / n
    freedom = len(counts) * (parts - 1)
    statistic = ((counts - expected) ** 2 / expected).sum() / shrink
    assert abs(statistic - freedom) / math.sqrt(2 * freedom) < LIMIT
