from __future__ import annotations

import random
import sys

import numpy as np
import pytest

from stoker.loader.sample_rng import SampleRNG


def test_it_has_the_fields_of_torchs() -> None:
    rng = SampleRNG(3)
    assert type(rng.random_generator) is random.Random
    assert type(rng.numpy_generator) is np.random.Generator
    assert rng.random_generator is rng.random_generator
    torch = pytest.importorskip("torch")
    assert type(rng.torch_generator) is torch.Generator


def test_without_torch_there_is_no_generator_of_its(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    assert SampleRNG(3).torch_generator is None


def test_before_any_sample_the_workers_seed_counts() -> None:
    assert SampleRNG(3).random_generator.random() == SampleRNG(3).random_generator.random()
    assert SampleRNG(3).random_generator.random() != SampleRNG(4).random_generator.random()


def test_nothing_is_made_before_it_is_asked_for() -> None:
    rng = SampleRNG(3)
    assert rng.streams == []
    rng.numpy_generator.random()
    assert len(rng.streams) == 1
