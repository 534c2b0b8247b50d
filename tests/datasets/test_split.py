from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from stoker._core import nominal
from stoker.datasets import Subset, random_split

LENGTHS: list[list[Any]] = [[3, 7], [10], [1, 2, 3, 4], [0.5, 0.5], [0.3, 0.3, 0.4], [1 / 3, 1 / 3, 1 / 3], [1.0]]


def indices(subsets: list[Any]) -> list[list[int]]:
    return [list(subset.indices) for subset in subsets]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("n", [10, 100, 101, 103])
def test_split_equals_torchs_for_the_same_generator(lengths: list[Any], n: int) -> None:
    torch = pytest.importorskip("torch")
    if isinstance(lengths[0], int):
        lengths = [length * n // 10 for length in lengths]
        lengths[-1] += n - sum(lengths)
    theirs = torch.utils.data.random_split
    mine = random_split(range(n), lengths, torch.Generator().manual_seed(42))
    assert indices(mine) == indices(theirs(range(n), lengths, torch.Generator().manual_seed(42)))
    torch.manual_seed(1)
    expected = [indices(theirs(range(n), lengths)), torch.rand(1).item()]
    torch.manual_seed(1)
    assert [indices(random_split(range(n), lengths)), torch.rand(1).item()] == expected


def test_the_parts_are_subsets_and_disjoint() -> None:
    data = "abcdefghij"
    parts = random_split(data, [0.25, 0.25, 0.5], generator=np.random.default_rng(0))
    assert all(type(part) is Subset and part.dataset is data for part in parts)
    assert [len(part) for part in parts] == [3, 2, 5]
    assert sorted(part[i] for part in parts for i in range(len(part))) == list(data)


def test_numpys_generator_fixes_the_order() -> None:
    first, second = (indices(random_split(range(50), [20, 30], np.random.default_rng(3))) for _ in range(2))
    assert first == second
    assert first[0] != list(range(20))


def test_numpys_global_seed_fixes_the_split_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nominal, "torch_is_wanted", lambda: False)
    np.random.seed(0)
    first = indices(random_split(range(50), [20, 30]))
    np.random.seed(0)
    assert indices(random_split(range(50), [20, 30])) == first


def test_lengths_that_do_not_fit_are_refused() -> None:
    for lengths in ([3, 8], [0.5, 0.4], []):
        with pytest.raises(ValueError, match="Sum of input lengths does not equal the length of the input dataset!"):
            random_split(range(10), lengths)
    with pytest.raises(ValueError, match="Fraction at index 1 is not between 0 and 1"):
        random_split(range(10), [0.5, -0.5, 1.0])
    with pytest.raises(ValueError, match=r"Length of a split is negative: -1\."):
        random_split(range(10), [-1, 11])


def test_an_empty_part_warns_where_it_was_asked_for() -> None:
    with pytest.warns(UserWarning, match=r"Length of split at index 2 is 0\. This might result in") as caught:
        parts = random_split(range(2), [0.4, 0.4, 0.2], np.random.default_rng(0))
    assert [len(part) for part in parts] == [1, 1, 0]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        random_split(range(2), [2, 0], np.random.default_rng(0))  # a length of zero was meant


def test_numpy_integers_are_lengths() -> None:
    parts = random_split(range(5), list(np.array([2, 3])), np.random.default_rng(0))
    assert [len(part) for part in parts] == [2, 3]
