"""How many deaths are survived: counted, forgotten with time, and none for a unit that kills."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker._supervision.restarts import LONGEST_PAUSE, PERIOD, Restarts


def test_none_is_survived_where_none_is_to_be() -> None:
    assert Restarts(0).died(None, 0.0) is None


def test_a_few_are_and_no_more() -> None:
    restarts = Restarts(3)
    pauses = [restarts.died(None, second) for second in range(4)]
    assert pauses == [0.0, 0.05, 0.1, None]
    assert restarts.count == 4


def test_pauses_grow_up_to_a_limit() -> None:
    restarts = Restarts(50)
    assert max(restarts.died(None, 0.0) or 0.0 for _ in range(50)) == LONGEST_PAUSE


def test_rare_deaths_are_no_matter() -> None:
    restarts = Restarts(1)
    assert all(restarts.died(None, n * (PERIOD + 1)) == 0.0 for n in range(100))


def test_a_unit_kills_twice_and_then_it_is_no_chance() -> None:
    restarts = Restarts(10)
    assert restarts.died(7, 0.0) == 0.0
    assert restarts.died(8, 1.0) is not None
    assert restarts.died(7, 2.0) is not None
    assert restarts.died(7, 3.0) is None


def test_a_unit_that_was_done_after_all_begins_anew() -> None:
    restarts = Restarts(10)
    restarts.died(7, 0.0)
    restarts.died(7, 1.0)
    restarts.answered(7)
    assert restarts.died(7, 2.0) is not None


@given(
    most=st.integers(0, 6),
    gaps=st.lists(st.floats(0, PERIOD / 2), max_size=40),
)
def test_never_more_than_so_many_in_a_period(most: int, gaps: list[float]) -> None:
    restarts, now, survived = Restarts(most), 0.0, []
    for gap in gaps:
        now += gap
        if restarts.died(None, now) is not None:
            survived.append(now)
        assert sum(1 for moment in survived if now - moment <= PERIOD) <= most
