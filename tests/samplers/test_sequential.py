from __future__ import annotations

from stoker.samplers import SequentialSampler


def test_sequential_sampler_follows_a_growing_dataset() -> None:
    data = ["a", "b"]
    sampler = SequentialSampler(data)
    assert (list(sampler), len(sampler)) == ([0, 1], 2)
    data.append("c")
    assert (list(sampler), len(sampler)) == ([0, 1, 2], 3)
    assert sampler.data_source is data


def test_a_huge_dataset_costs_nothing() -> None:
    assert next(iter(SequentialSampler(range(10**15)))) == 0
