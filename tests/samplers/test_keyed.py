from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.samplers.keyed import KEPT, KeyedBatchSampler, flag, keys, numbered, permutations, positive


class Epoch:
    def __init__(self, key: int) -> None:
        self.key = key

    def __len__(self) -> int:
        return 2

    def batch(self, number: int) -> list[int]:
        return [self.key, number]

    def position(self, number: int) -> int:
        return 2 * number


class Told(KeyedBatchSampler):
    def __init__(self, shuffle: bool = True, generator: Any = None) -> None:
        self.shuffle = shuffle
        self.generator = generator

    def batches(self, key: int) -> Epoch:
        return Epoch(key)


def test_walking_uses_a_key_drawn_from_the_generator() -> None:
    sampler = Told(generator=np.random.default_rng(3))
    (first, zero), (again, one) = sampler
    assert (zero, one, first) == (0, 1, again)
    assert [next(iter(sampler))[0] for _ in range(2)] != [first, first]
    assert next(iter(Told(generator=np.random.default_rng(3))))[0] == first


def test_the_key_is_drawn_with_the_first_batch() -> None:
    generator = np.random.default_rng(3)
    walk = iter(Told(generator=generator))
    state = generator.bit_generator.state
    next(walk)
    assert generator.bit_generator.state != state


@pytest.mark.usefixtures("torch_not_wanted")
def test_without_torch_numpys_global_seed_counts() -> None:
    np.random.seed(0)
    first = list(Told())
    np.random.seed(0)
    assert list(Told()) == first != list(Told())


def test_torchs_generators_count() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    first = list(Told())
    torch.manual_seed(0)
    assert list(Told()) == first != list(Told())
    assert list(Told(generator=torch.Generator().manual_seed(0))) == first


def test_without_shuffle_nothing_is_drawn() -> None:
    generator = np.random.default_rng(3)
    state = generator.bit_generator.state
    assert list(Told(shuffle=False, generator=generator)) == [[0, 0], [0, 1]]
    assert generator.bit_generator.state == state


# A change of one of these changes the batches of epochs that models were trained with.
def test_keys_never_change() -> None:
    assert [keys(0)[i] for i in range(3)] == [1797169522448432797, 2934616747831316667, 2627435378413939377]
    assert keys(2**64 + 5)[1000] == keys(5)[1000]
    assert len({keys(key)[i] for key in range(50) for i in range(50)}) == 2500


def test_permutations_have_keys_of_their_own_and_few_are_kept() -> None:
    permutation = permutations(np.full(KEPT + 5, 30), 8)
    orders = {tuple(permutation(i)) for i in range(KEPT + 5)}
    assert len(orders) == KEPT + 5
    assert permutation(KEPT) is permutation(KEPT)
    assert tuple(permutation(0)) in orders
    assert permutation.cache_info().currsize == KEPT  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [0, -3, 2.0, True, "2", None])
def test_invalid_counts_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=f"size should be a positive integer value, but got size={value!r}"):
        positive("size", value)
    assert positive("size", np.int32(3)) == 3


def test_invalid_switches_are_refused() -> None:
    assert flag("on", True) is True
    with pytest.raises(ValueError, match="on should be a boolean value, but got on=1"):
        flag("on", 1)


@pytest.mark.parametrize("number", [-1, 3])
def test_batches_that_are_not_there_are_refused(number: int) -> None:
    with pytest.raises(IndexError, match=f"no batch {number}: the epoch has 3"):
        numbered(number, 3)
