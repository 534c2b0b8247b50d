from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.samplers import RandomSampler

ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"num_samples": 3},
    {"num_samples": 10},
    {"num_samples": 25},
    {"num_samples": 30},
    {"replacement": True},
    {"replacement": True, "num_samples": 1},
    {"replacement": True, "num_samples": 64},
    {"replacement": True, "num_samples": 71},
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
class TestAsTorch:
    def test_for_the_same_generator_over_epochs(self, arguments: dict[str, Any]) -> None:
        torch = pytest.importorskip("torch")
        mine, theirs = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
        ours = RandomSampler(range(10), generator=mine, **arguments)
        other = torch.utils.data.RandomSampler(range(10), generator=theirs, **arguments)
        for _ in range(3):
            assert list(ours) == list(other)
            assert torch.equal(mine.get_state(), theirs.get_state())
        assert len(ours) == len(other)

    def test_for_the_same_global_seed(self, arguments: dict[str, Any]) -> None:
        torch = pytest.importorskip("torch")

        def run(make: Callable[..., Any]) -> list[Any]:
            torch.manual_seed(3)
            sampler = make(range(10), **arguments)
            return [list(sampler), list(sampler), torch.rand(1).item()]

        assert run(RandomSampler) == run(torch.utils.data.RandomSampler)

    def test_step_by_step_with_a_shared_generator(self, arguments: dict[str, Any]) -> None:
        torch = pytest.importorskip("torch")

        def run(make: Callable[..., Any]) -> list[int]:
            shared = torch.Generator().manual_seed(9)
            both = [iter(make(range(10), generator=shared, **arguments)) for _ in range(2)]
            return [index for pair in zip(*both, strict=True) for index in pair]

        assert run(RandomSampler) == run(torch.utils.data.RandomSampler)


def test_a_large_order_is_torchs_across_blocks() -> None:
    torch = pytest.importorskip("torch")
    ours = RandomSampler(range(150_000), generator=torch.Generator().manual_seed(1))
    assert list(ours) == torch.randperm(150_000, generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_numpys_generator_fixes_the_order(arguments: dict[str, Any]) -> None:
    def run() -> list[list[int]]:
        sampler = RandomSampler(range(10), generator=np.random.default_rng(4), **arguments)
        return [list(sampler), list(sampler)]

    first, second = run()
    assert [first, second] == run()
    assert len(first) == arguments.get("num_samples", 10)
    if not arguments.get("replacement"):
        assert all(sorted(first[start : start + 10]) == list(range(10)) for start in range(0, len(first) - 9, 10))
    if len(first) > 1:
        assert first != second


@pytest.mark.usefixtures("torch_not_wanted")
def test_without_torch_numpys_global_seed_fixes_the_order() -> None:
    sampler = RandomSampler(range(1000))
    np.random.seed(0)
    first, second = list(sampler), list(sampler)
    np.random.seed(0)
    assert (list(sampler), list(sampler)) == (first, second)
    assert first != second
    assert sorted(first) == list(range(1000))


@pytest.mark.usefixtures("torch_not_wanted")
def test_without_torch_a_huge_dataset_costs_nothing() -> None:
    assert 0 <= next(iter(RandomSampler(range(10**15)))) < 10**15


def test_the_length_follows_a_dataset_that_grows() -> None:
    data = [0]
    sampler = RandomSampler(data)
    data += [1, 2]
    assert sampler.num_samples == len(sampler) == 3
    assert sorted(sampler) == [0, 1, 2]


def test_random_sampler_has_torchs_attributes() -> None:
    generator = np.random.default_rng(0)
    sampler = RandomSampler(range(4), True, 7, generator)
    assert (sampler.data_source, sampler.replacement) == (range(4), True)
    assert (sampler.num_samples, sampler.generator) == (7, generator)


@pytest.mark.parametrize(
    ("data", "arguments", "error", "message"),
    [
        (range(3), {"replacement": 1}, TypeError, "replacement should be a boolean value, but got replacement=1"),
        (range(3), {"num_samples": 0}, ValueError, "num_samples should be a positive integer value, but got num_samp"),
        (range(3), {"num_samples": -2}, ValueError, "but got num_samples=-2"),
        (range(3), {"num_samples": 2.0}, ValueError, "but got num_samples=2.0"),
        (range(0), {}, ValueError, "but got num_samples=0"),
    ],
)
def test_bad_arguments(data: range, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RandomSampler(data, **arguments)


@pytest.mark.parametrize("generator", [7, "seed", np.random.RandomState(0)])
def test_invalid_generator_is_a_type_error(generator: Any) -> None:
    with pytest.raises(TypeError):
        list(RandomSampler(range(3), generator=generator))
