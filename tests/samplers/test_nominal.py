"""Ours are torch's in name, and in nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stoker import samplers

torch_data = pytest.importorskip("torch.utils.data")
pytestmark = pytest.mark.skipif(
    not issubclass(samplers.Sampler, torch_data.Sampler), reason="torch is installed, and not wanted"
)


@pytest.mark.parametrize("name", [name for name in samplers.__all__ if hasattr(torch_data, name)])
def test_ours_is_a_subclass_that_shares_no_behaviour(name: str) -> None:
    ours, theirs = getattr(samplers, name), getattr(torch_data, name)
    assert issubclass(ours, theirs)
    behaviour = {key for key, value in vars(theirs).items() if callable(value) or isinstance(value, property)}
    for key in behaviour:
        home = next(base for base in ours.__mro__ if key in vars(base))
        assert home.__module__.startswith("stoker."), f"{name}.{key} comes from {home}"


def test_all_are_samplers_of_both_houses() -> None:
    batches = samplers.BatchSampler(samplers.SequentialSampler(range(3)), 2, False)
    assert isinstance(batches, samplers.Sampler)
    assert isinstance(batches, torch_data.Sampler)


@pytest.mark.parametrize("name", [name for name in samplers.__all__ if hasattr(torch_data, name)])
def test_ours_can_be_subscribed_where_torchs_can(name: str) -> None:
    ours, theirs = getattr(samplers, name), getattr(torch_data, name)
    assert len(ours.__parameters__) == len(theirs.__parameters__)


def test_users_may_subclass_and_subscribe() -> None:
    class Backwards(samplers.Sampler[int]):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.n = n

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.n)[::-1])

    assert list(Backwards(3)) == [2, 1, 0]
    with pytest.raises(NotImplementedError):
        iter(samplers.Sampler())


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        samplers.Nope  # noqa: B018
