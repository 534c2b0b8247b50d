"""The error budget: the run ends at the same batch on every backend, with the first cause on top."""

from __future__ import annotations

import select
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import ErrorBudgetError, SkipSample, WorkerDiedError
from tests.faults.runs import BACKENDS, N, Samples, crashes, fates, loader, raises, story

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::stoker.StokerWarning")]

EVERY_THIRD = dict.fromkeys(range(1, N, 3), raises(OSError))


def until_it_ends(made: Any) -> tuple[int, Exception]:
    """How many batches were delivered, and what ended it."""
    iterator, count = iter(made), 0
    with pytest.raises(ErrorBudgetError) as caught:
        for _ in iterator:
            count += 1
    assert not iterator.is_open
    return count, caught.value


@pytest.mark.parametrize("backend", [None, *BACKENDS])
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_error_budget_ends_at_the_same_batch_on_every_backend(backend: str | None, policy: str) -> None:
    """One or two of each batch of four are bad: the eighth batch has the 10th and the 11th."""
    settings = BACKENDS[backend] if backend else {}
    made = loader(Samples(EVERY_THIRD), on_error=policy, max_errors=10, **settings)
    count, error = until_it_ends(made)
    assert count == 7
    assert "11 of 32 samples of this epoch (34.38%) were bad, and max_errors=10 allows 10" in str(error)
    assert "The first was OSError: image file is truncated (1) (in batch 0, at sample 1, worker" in str(error)
    cause = str(error.__cause__)
    assert "Traceback" in cause and "runs.py" in cause and "image file is truncated (1)" in cause
    counts = fates(made)
    assert counts["delivered"] + counts["quarantined"] + counts["replaced"] == 28 and counts["raised"] == 4
    assert counts["not_requested"] == N - 32


def test_max_error_rate_ends_the_epoch() -> None:
    made = loader(Samples(EVERY_THIRD), on_error="skip", max_error_rate=0.01)
    count, error = until_it_ends(made)
    assert count == 7 and "max_error_rate=0.01 allows 10" in str(error)  # the first ten are free
    assert until_it_ends(loader(Samples({9: raises(OSError)}), on_error="skip", max_error_rate=0))[0] == 2


@pytest.mark.parametrize("backend", [None, "two workers"])
def test_each_epoch_has_its_own(backend: str | None) -> None:
    made = loader(Samples(EVERY_THIRD), on_error="skip", max_errors=16, **(BACKENDS[backend] if backend else {}))
    for _ in range(3):
        assert len(story(made)) == 12


def test_any_number_of_errors_may_be_allowed() -> None:
    made = loader(Samples(dict.fromkeys(range(4, N), raises(OSError))), on_error="skip", max_errors=None)
    assert len(story(made)) == 1


def test_wishes_are_no_errors() -> None:
    made = loader(Samples(dict.fromkeys(range(4, N), raises(SkipSample))), on_error="skip", max_errors=0)
    assert len(story(made)) == 1 and fates(made)["skipped"] == N - 4


def test_deaths_are_errors() -> None:
    made = loader(Samples(dict.fromkeys((5, 6, 9), crashes)), on_error="skip", max_errors=2, **BACKENDS["two workers"])
    count, error = until_it_ends(made)
    assert count == 2 and "The first was WorkerDiedError" in str(error)


class TestSamplesThatKill:
    """Each of them ends two workers before it is known, so a large batch of them is not waited for."""

    @pytest.mark.parametrize("backend", ["one worker", "two workers", "clean workers"])
    @pytest.mark.parametrize("policy", ["skip", "replace", "callable"])
    def test_end_the_run_when_they_are_too_many(self, policy: str, backend: str, tmp_path: Path) -> None:
        """The batches before theirs are delivered; the line of each that is known is written."""
        events: list[Any] = []
        dataset = Samples(dict.fromkeys(range(12, N), crashes))
        on_error: Any = (lambda record: "skip") if policy == "callable" else policy
        settings = {"on_event": events.append, "quarantine": tmp_path / "bad", **BACKENDS[backend]}
        made = loader(dataset, on_error=on_error, batch_size=12, max_errors=3, **settings)
        count, error = until_it_ends(made)
        assert count == 1
        assert "4 of 24 samples of this epoch (16.67%) were bad, and max_errors=3 allows 3" in str(error)
        assert "The first was WorkerDiedError" in str(error) and "(in batch 1, at sample 12, worker" in str(error)
        assert "crashes" in str(error.__cause__)  # the function in which it was
        blamed = [event for event in events if event.kind == "poison_sample" and "made batch 1," in event.message]
        assert len(blamed) == (5 if policy == "callable" else 4)  # it may have let the last one be raised
        assert (fates(made)["delivered"], fates(made)["raised"], fates(made)["not_requested"]) == (12, 12, 24)
        found = stoker.quarantine(tmp_path / "bad")
        assert found.indices == list(range(12, {"skip": 16, "replace": 13, "callable": 17}[policy]))
        assert {(record.kind, record.outcome, record.batch) for record in found} == {("death", "raised", 1)}

    def test_hanging_samples_are_counted_as_stalls(self, tmp_path: Path) -> None:
        dataset = Samples(dict.fromkeys(range(N), lambda index: select.select([], [], [])))
        settings = {"stall_warning": 0.2, "stall_action": "restart", "quarantine": tmp_path / "bad"}
        made = loader(dataset, on_error="skip", batch_size=24, max_errors=1, **settings, **BACKENDS["two workers"])
        count, error = until_it_ends(made)
        assert count == 0 and "The first was StalledError" in str(error)
        assert {record.kind for record in stoker.quarantine(tmp_path / "bad")} == {"stall"}

    def test_end_it_whatever_a_listener_does(self) -> None:
        def listener(event: Any) -> None:
            raise RuntimeError(event.kind)

        dataset = Samples(dict.fromkeys(range(N), crashes))
        settings = {"on_event": listener, "max_errors": 3, "batch_size": 24, **BACKENDS["one worker"]}
        iterator = iter(loader(dataset, on_error="skip", **settings))
        for kind in ["death", "poison_sample"] * 3 + ["death"]:
            with pytest.raises(RuntimeError, match=f"^{kind}$"):
                next(iterator)
        with pytest.raises(ErrorBudgetError) as caught:
            next(iterator)
        assert repr(caught.value.__context__) == "RuntimeError('poison_sample')" and not iterator.is_open

    @pytest.mark.parametrize("policy", ["skip", "replace"])
    def test_may_be_as_many_as_are_allowed(self, policy: str) -> None:
        """Those that are tried in their places count once, where they stand themselves."""
        dataset = Samples(dict.fromkeys(range(4), crashes))
        made = loader(dataset, on_error=policy, batch_size=12, max_errors=4, **BACKENDS["two workers"])
        story(made)
        assert fates(made)["quarantined" if policy == "skip" else "replaced"] == 4

    def test_cost_nothing_where_each_is_raised(self) -> None:
        dataset = Samples(dict.fromkeys(range(0, N, 4), crashes))
        made = loader(dataset, batch_size=8, max_errors=0, **BACKENDS["two workers"])
        assert story(made) == [WorkerDiedError] * 6


def test_raised_errors_cost_nothing() -> None:
    """The user has got each of them."""
    made = loader(Samples(EVERY_THIRD), max_errors=0)
    assert story(made) == [OSError] * 12


def test_errors_of_prefetched_batches_are_not_counted_early() -> None:
    made = loader(Samples(dict.fromkeys(range(8, 16), raises(OSError))), on_error="skip", max_errors=0, num_workers=2)
    iterator = iter(made)
    for _ in range(2):
        next(iterator)
    assert fates(made)["not_requested"] == N - 8
    with pytest.raises(ErrorBudgetError):
        next(iterator)


@pytest.mark.parametrize("backend", [None, "three threads", "two workers"])
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_a_dataset_that_always_fails_ends_soon(policy: str, backend: str | None) -> None:
    def away(index: Any) -> None:
        raise ConnectionError("the file server is away")

    dataset = Samples(dict.fromkeys(range(10_000), away), 10_000)
    settings = {"max_error_rate": 0.01, **(BACKENDS[backend] if backend else {})}
    begun = time.monotonic()
    with pytest.raises(ErrorBudgetError) as caught:
        for _ in loader(dataset, on_error=policy, shuffle=True, **settings):
            pytest.fail("a batch was delivered")
    assert time.monotonic() - begun < 5
    told = f"{caught.value} {caught.value.__cause__!r} {caught.value.__cause__}"
    assert "the file server is away" in told and "ConnectionError" in told


@pytest.mark.parametrize("backend", [None, "three threads", "two workers"])
def test_a_dataset_that_always_fails_says_so_in_each_batch(backend: str | None) -> None:
    made = loader(Samples(dict.fromkeys(range(N), raises(OSError))), **(BACKENDS[backend] if backend else {}))
    assert story(made) == [OSError] * 12 and fates(made)["raised"] == N


class Nones(stoker.Dataset[Any]):
    """Today's habit: a sample that could not be read is None, and the collate_fn leaves it out."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return None if index % 5 == 0 else np.full(3, index)


def without_nones(samples: list[Any]) -> Any:
    return stoker.default_collate([sample for sample in samples if sample is not None])


@pytest.mark.parametrize("backend", [None, "three threads", "two workers"])
class TestNone:
    def test_the_collator_says_what_to_do(self, backend: str | None) -> None:
        made = loader(Nones(), on_error="skip", **(BACKENDS[backend] if backend else {}))
        with pytest.raises(stoker.errors.LeafTypeError, match="None") as caught:
            list(made)
        assert "SkipSample" in str(caught.value)

    def test_filters_go_on_working(self, backend: str | None) -> None:
        made = loader(Nones(), collate_fn=without_nones, **(BACKENDS[backend] if backend else {}))
        batches = [batch[:, 0].tolist() for batch in made]
        assert batches == [[1, 2, 3], [4, 6, 7], [8, 9, 11]]
        assert fates(made)["delivered"] == 12
