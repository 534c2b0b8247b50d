"""`skip` leaves out exactly the named batches, and a state taken at any batch goes on without them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from stoker import BucketBatchSampler, DataLoader, RandomSampler, from_iterable
from stoker.errors import SamplerError, StateMismatchError

SAMPLES = list(range(40))
SKIPPED = {0, 1, 4, 5, 6, 9}


class StatefulSampler:
    """A sampler with a state of its own, which the loader has to walk."""

    def __init__(self) -> None:
        self.place = 0

    def __len__(self) -> int:
        return len(SAMPLES)

    def __iter__(self) -> Any:
        while self.place < len(SAMPLES):
            self.place += 1
            yield (self.place * 7) % len(SAMPLES)
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


KINDS: dict[str, Any] = {
    "computed": lambda: {"shuffle": True, "seed": 3},
    "drawn": lambda: {"shuffle": True, "generator": np.random.default_rng(5)},
    "walked": lambda: {"sampler": RandomSampler(SAMPLES, generator=np.random.default_rng(5))},
    "stateful": lambda: {"sampler": StatefulSampler()},
    "pieces": lambda: {"shuffle": True, "seed": 3, "batches_per_epoch": 10},
    "buckets": lambda: {"batch_sampler": BucketBatchSampler([1 + n for n in SAMPLES], 4), "batch_size": 1, "seed": 1},
}


def make(kind: str, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(SAMPLES, **{"batch_size": 4, "output": "numpy", **KINDS[kind](), **arguments})


def delivered(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_named_batches_are_left_out_of_one_epoch(kind: str, workers: int) -> None:
    plain, loader = make(kind, num_workers=workers), make(kind, num_workers=workers)
    whole, following = delivered(plain), delivered(plain)
    loader.skip(range(2))
    loader.skip([4, 5, 6, 9])
    assert delivered(loader) == [batch for k, batch in enumerate(whole) if k not in SKIPPED]
    assert delivered(loader) == following


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_state_at_each_batch_goes_on_without_them(kind: str, workers: int) -> None:
    expected = [batch for k, batch in enumerate(delivered(make(kind))) if k not in SKIPPED]
    first = make(kind, num_workers=workers)
    first.skip(SKIPPED)
    states, batches = [first.state_dict()], []
    iterator = iter(first)
    states.append(first.state_dict())
    for batch in iterator:
        batches.append(batch.tolist())
        states.append(first.state_dict())
    assert batches == expected
    for count, state in enumerate(states):
        resumed = make(kind, num_workers=workers)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        if count <= 1:
            assert delivered(resumed) == expected
        elif count - 1 < len(expected):
            assert delivered(resumed) == expected[count - 1 :]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_skipping_after_a_state_was_loaded(kind: str, workers: int) -> None:
    first = make(kind, num_workers=workers)
    iterator = iter(first)
    whole = [next(iterator).tolist() for _ in range(3)]
    state = first.state_dict()
    whole += delivered(iterator)
    resumed = make(kind, num_workers=workers)
    resumed.load_state_dict(state)
    resumed.skip(range(1, 7))  # what has passed has passed
    again = make(kind, num_workers=workers)
    again.load_state_dict(resumed.state_dict())
    assert delivered(resumed) == delivered(again) == whole[7:]


def test_report_counts_what_is_left() -> None:
    loader = make("computed")
    loader.skip(range(3))
    assert len(delivered(loader)) == 7
    report = loader.report().epoch
    assert (report.delivered, report.planned, report.batches) == (28, 28, 7)


def test_another_epoch_is_left_whole() -> None:
    loader = make("computed")
    loader.skip(range(3))
    loader.set_epoch(5)
    assert len(delivered(loader)) == 10
    loader.set_epoch(0)
    assert len(delivered(loader)) == 10


def test_all_batches_may_be_left_out() -> None:
    loader = make("computed", num_workers=1)
    loader.skip(range(100))
    assert delivered(loader) == []
    assert len(delivered(loader)) == 10


def test_state_does_not_fit_another_batch_size() -> None:
    loader = make("computed", distributed="exact", num_replicas=2, rank=0)
    loader.skip([4])
    next(iter(loader))
    one = make("computed", distributed="exact", num_replicas=1, rank=0, batch_size=8)
    with pytest.raises(StateMismatchError, match=r"left out by skip\(\)"):
        one.load_state_dict(loader.state_dict())


def test_streams_and_endless_lists_are_refused() -> None:
    stream = DataLoader(from_iterable(lambda: iter(SAMPLES)), batch_size=4)
    with pytest.raises(SamplerError, match="those of a stream have none"):
        stream.skip([1])
    with pytest.raises(ValueError, match="at most 10,000 batches"):
        make("computed").skip(range(10_001))
    with pytest.raises(ValueError, match="non-negative"):
        make("computed").skip([-1])
