from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.samplers import SubsetRandomSampler

INDICES = [3, 1, 4, 1, 5, 9, 2, 6]


def test_order_equals_torchs_for_the_same_generator() -> None:
    torch = pytest.importorskip("torch")
    ours = SubsetRandomSampler(INDICES, torch.Generator().manual_seed(5))
    theirs = torch.utils.data.SubsetRandomSampler(INDICES, torch.Generator().manual_seed(5))
    assert [list(ours) for _ in range(3)] == [list(theirs) for _ in range(3)]


def test_order_equals_torchs_for_the_same_global_seed() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(2)
    theirs = [list(torch.utils.data.SubsetRandomSampler(INDICES)), torch.rand(1).item()]
    torch.manual_seed(2)
    assert [list(SubsetRandomSampler(INDICES)), torch.rand(1).item()] == theirs


def test_numpys_generator_fixes_the_order() -> None:
    first, second = (list(SubsetRandomSampler(INDICES, np.random.default_rng(6))) for _ in range(2))
    assert first == second
    assert sorted(first) == sorted(INDICES)


@pytest.mark.usefixtures("torch_not_wanted")
def test_without_torch_numpys_global_seed_fixes_the_order() -> None:
    np.random.seed(0)
    first = list(SubsetRandomSampler(range(50)))
    np.random.seed(0)
    assert list(SubsetRandomSampler(range(50))) == first != list(range(50))


def test_length_attributes_and_nothing_to_yield() -> None:
    sampler = SubsetRandomSampler(INDICES)
    assert (len(sampler), sampler.indices, sampler.generator) == (8, INDICES, None)
    assert list(SubsetRandomSampler([])) == []


class OnlyAsked:
    """A sequence as torch needs one: a length and places. Iterating over it never ends."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> int:
        return 2 * place


@pytest.mark.parametrize(
    "given",
    [OnlyAsked(), [(0,), (1, 2), (3,)], {0: "a", 1: "b"}, [[1, 2], [3, 4]]],
    ids=["asked", "unequal", "mapping", "rows"],
)
def test_object_with_length_and_items_is_a_sequence(given: Any) -> None:
    order = SubsetRandomSampler(given).order(5)
    assert sorted(map(str, order.take(np.arange(len(given))))) == sorted(str(given[k]) for k in range(len(given)))


def test_a_range_may_be_of_any_length() -> None:
    first, step = 7, 3
    few, many = range(first, first + 1000 * step, step), range(first, first + 10**12, step)
    assert sorted(SubsetRandomSampler(few).order(5).take(np.arange(1000))) == list(few)
    taken = SubsetRandomSampler(many).order(5).take(np.arange(4))
    assert all(int(place) in many for place in taken) and len(set(taken.tolist())) == 4
