"""When a run has had enough of bad samples."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import DataLoader
from stoker._engine.supervision import restarts, rules
from stoker.loader._accounting.accounting import FEW, ErrorBudget
from stoker.loader._options.argument_checks import DEFAULT_MAX_ERROR_RATE, DEFAULT_MAX_ERRORS, check_error_budget


def batches_until_it_ends(budget: ErrorBudget, batches: Sequence[tuple[int, int]]) -> int | None:
    return next((number for number, batch in enumerate(batches, 1) if budget.add(*batch)), None)


def test_error_budget_of_a_count_is_exceeded_by_one_more() -> None:
    budget = ErrorBudget(3, None)
    assert [budget.add(10, 1) for _ in range(3)] == [None] * 3
    assert budget.add(10, 0) is None
    assert budget.add(10, 1) == "4 of 50 samples of this epoch (8.00%) were bad, and max_errors=3 allows 3"
    assert budget.add(10, 0) is not None


def test_error_budget_ignores_expected_errors() -> None:
    budget = ErrorBudget(3, None)
    budget.add(10, 2)
    for _ in range(2):
        assert budget.foreseen(10, 1) is None
        assert budget.foreseen(10, 2) == "4 of 20 samples of this epoch (20.00%) were bad, and max_errors=3 allows 3"
    assert budget.add(10, 1) is None


def test_error_budget_of_zero_allows_no_error() -> None:
    for budget in (ErrorBudget(0, None), ErrorBudget(None, 0)):
        assert budget.add(10**9, 0) is None
        assert budget.add(1, 1) is not None


def test_error_budget_of_a_rate_is_exceeded_by_one_more() -> None:
    budget = ErrorBudget(None, 0.02)
    assert budget.add(10_000, 200) is None
    reason = budget.add(49, 1)
    assert reason == ("201 of 10,049 samples of this epoch (2.00%) were bad, and max_error_rate=0.02 allows 200")


def test_the_rate_forgives_bad_luck_at_the_start() -> None:
    assert ErrorBudget(None, 0.01).add(FEW, FEW) is None
    assert ErrorBudget(None, 0.01).add(FEW + 1, FEW + 1) is not None
    assert ErrorBudget(None, 0.01).add(1000, FEW + 1) is not None


def test_a_rate_is_a_decimal_number() -> None:
    """0.29 * 100 is a little less than 29 for a computer."""
    assert ErrorBudget(None, 0.29).add(100, 29) is None
    assert ErrorBudget(None, 0.29).add(100, 30) is not None


def test_a_new_epoch_has_a_new_budget() -> None:
    budget = ErrorBudget(2, 1)
    for _ in range(5):
        budget.rewind()
        assert budget.add(10, 2) is None
    assert budget.add(10, 1) is not None


def test_error_budget_accepts_any_number() -> None:
    assert ErrorBudget(None, None).add(10**6, 10**6) is None


@pytest.mark.parametrize("size", [1, 4, 32])
def test_a_dataset_that_always_fails_ends_soon(size: int) -> None:
    ended = batches_until_it_ends(ErrorBudget(), [(size, size)] * 100)
    assert ended is not None and (ended - 1) * size <= FEW


def test_a_large_dataset_with_a_few_bad_files_goes_on() -> None:
    assert batches_until_it_ends(ErrorBudget(), [(1000, 1)] + [(1000, 0)] * 999) is None
    assert batches_until_it_ends(ErrorBudget(), [(10_000, 1)] * 1000) == DEFAULT_MAX_ERRORS + 1


@given(
    st.none() | st.integers(0, 30),
    st.none() | st.floats(0, 1),
    st.lists(st.integers(0, 20).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size))), max_size=30),
)
def test_error_budget_agrees_with_its_definition(
    most: int | None, rate: float | None, batches: list[tuple[int, int]]
) -> None:
    budget, samples, errors = ErrorBudget(most, rate), 0, 0
    for batch in batches:
        samples, errors = samples + batch[0], errors + batch[1]
        too_many = most is not None and errors > most
        too_often = rate is not None and errors > (max(FEW, rate * samples + 1e-6) if rate else 0)
        reason = budget.add(*batch)
        assert (reason is not None) == (too_many or too_often)
        assert reason is None or f"{errors} of {samples} " in reason


@pytest.mark.parametrize("value", [0, 5, np.int64(5), None])
def test_max_errors_is_checked(value: Any) -> None:
    most, _ = check_error_budget(value, None)
    assert most == value and type(most) in (int, type(None))


@pytest.mark.parametrize("value", [0, 0.5, 1, np.float32(0.5), np.int64(1), None])
def test_max_error_rate_is_checked(value: Any) -> None:
    _, rate = check_error_budget(None, value)
    assert rate == value and type(rate) in (float, type(None))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((-1, None), ValueError, "max_errors should be a non-negative integer, but got max_errors=-1"),
        ((True, None), ValueError, "max_errors should be a non-negative integer"),
        ((1.5, None), TypeError, "max_errors should be an integer or .*, but got max_errors=1.5"),
        (("5", None), TypeError, "max_errors='5'"),
        ((None, -0.1), ValueError, "max_error_rate should be a number from 0 to 1, but got max_error_rate=-0.1"),
        ((None, 5), ValueError, "max_error_rate=5"),
        ((None, float("nan")), ValueError, "max_error_rate=nan"),
        ((None, "0.1"), TypeError, "max_error_rate should be a number from 0 to 1, or None, but got .*'0.1'"),
        ((None, True), TypeError, "max_error_rate=True"),
        ((None, 1j), TypeError, "max_error_rate=1j"),
    ],
)
def test_error_budget_refuses_wrong_arguments(arguments: Any, error: type[Exception], text: str) -> None:
    for function in (check_error_budget, ErrorBudget):
        with pytest.raises(error, match=text):
            function(*arguments)


def test_error_budget_has_its_documented_defaults() -> None:
    assert (DEFAULT_MAX_ERRORS, DEFAULT_MAX_ERROR_RATE) == (100, 0.01)
    of_loader = inspect.signature(DataLoader).parameters  # where they are numbers, which the reference shows
    shown = [of_loader[name].default for name in ("max_errors", "max_error_rate", "max_restarts", "stall_warning")]
    assert shown == [DEFAULT_MAX_ERRORS, DEFAULT_MAX_ERROR_RATE, restarts.DEFAULT, rules.STALL_WARNING]
