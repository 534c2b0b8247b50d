"""Samplers that have an item for each sample are checked, Stoker's and torch's, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stoker
from stoker.samplers.base import Sampler
from tests.ownership import moved, named_like

N = 5


def refused(sampler: Any) -> bool:
    """Returns whether a loader finds that the sampler, or batch sampler, was made for another dataset."""
    place = "batch_sampler" if isinstance(sampler, stoker.BucketBatchSampler) else "sampler"
    try:
        stoker.DataLoader(range(N), output="numpy", **{place: sampler})
    except stoker.errors.SamplerError:
        return True
    return False


def test_samplers_of_ours_are_checked_wherever_their_file_is() -> None:
    kind: Any = stoker.BucketBatchSampler
    for each in (kind, type("Own", (kind,), {"set_epoch": lambda sampler, epoch: None}), named_like(kind)):
        assert refused(each([1] * (N + 1), 5)) and not refused(each([1] * N, 5))
        with moved(kind):
            assert refused(each([1] * (N + 1), 5)) and not refused(each([1] * N, 5))
    assert refused(stoker.WeightedRandomSampler(np.ones(N + 1), 5))


def test_a_users_sampler_of_that_name_is_not_checked() -> None:
    members = {"__iter__": lambda sampler: iter(range(N)), "__len__": lambda sampler: N, "weights": [1] * (N + 1)}
    assert not refused(named_like(stoker.WeightedRandomSampler, Sampler, **members)())
    assert not refused(type("WeightedRandomSampler", (Sampler,), members)())


def test_torchs_samplers_are_checked() -> None:
    kind = pytest.importorskip("torch.utils.data").WeightedRandomSampler
    for each in (kind, type("Named", (kind,), {})):
        assert refused(each([1.0] * (N + 1), 5)) and not refused(each([1.0] * N, 5))
