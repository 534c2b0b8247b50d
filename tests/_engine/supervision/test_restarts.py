"""Deaths: how many are survived, when they are forgotten, and who is to blame."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker._engine.supervision.restarts import FIRST_PAUSE, KILLS, LONGEST_PAUSE, OWN_KILLS, PERIOD, Restarts, Verdict

CRASH = -signal.SIGSEGV
KILL = -signal.SIGKILL


def idle(restarts: Restarts, now: float) -> float | None:
    """Pause after the death of a worker that was idle."""
    return restarts.died(None, None, KILL, now).pause


def test_none_is_survived_where_none_is_to_be() -> None:
    assert Restarts(0).died(None, None, KILL, 0.0) == Verdict(None)
    restarts = Restarts(0)
    assert [restarts.died(7, 3, CRASH, 0.0) for _ in range(5)] == [Verdict(None)] * 5  # and no sample is blamed


def test_a_few_are_and_no_more() -> None:
    restarts = Restarts(3)
    assert [idle(restarts, second) for second in range(4)] == [0.0, FIRST_PAUSE, 2 * FIRST_PAUSE, None]
    assert len(restarts.times) == 4


def test_pauses_grow_up_to_a_limit() -> None:
    restarts = Restarts(10**6)
    pauses = [idle(restarts, 0.0) or 0.0 for _ in range(2000)]
    assert pauses == sorted(pauses) and pauses[-1] == LONGEST_PAUSE


def test_deaths_with_finished_units_between_need_no_pause() -> None:
    restarts = Restarts(100)
    for unit in range(100):
        assert idle(restarts, 0.0) == 0.0
        restarts.answered(unit)


def test_rare_deaths_are_no_matter() -> None:
    restarts = Restarts(1)
    assert all(idle(restarts, n * (PERIOD + 1)) is not None for n in range(100))


@pytest.mark.parametrize("code", [CRASH, -signal.SIGABRT, -signal.SIGBUS, 0, 3], ids=str)
def test_second_self_inflicted_death_blames_the_place(code: int) -> None:
    restarts = Restarts(10)
    assert [restarts.died(7, 4, code, 0.0).blamed for _ in range(OWN_KILLS)] == [False, True]


@pytest.mark.parametrize("code", [KILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGRTMAX, None], ids=str)
def test_kill_from_outside_is_forgiven_twice(code: int | None) -> None:
    restarts = Restarts(10)
    assert [restarts.died(7, 4, code, 0.0).blamed for _ in range(KILLS)] == [False, False, True]


def test_kills_and_crashes_at_one_place_add_up() -> None:
    restarts = Restarts(10)
    assert [restarts.died(7, 4, code, 0.0).blamed for code in (KILL, CRASH, KILL)] == [False, False, True]


def test_deaths_at_different_places_of_a_unit_are_separate() -> None:
    restarts = Restarts(10)
    places = [4, 5, 4, 5]
    assert [restarts.died(7, place, CRASH, 0.0).blamed for place in places] == [False, False, True, False]


def test_sample_is_blamed_again_after_its_replacement_dies() -> None:
    restarts = Restarts(10)
    assert [restarts.died(7, 4, CRASH, 0.0).blamed for _ in range(4)] == [False, True, False, True]


def test_place_without_a_sample_is_blamed_once_then_counts() -> None:
    """It cannot be left out: its error is raised, and if that kills as well, nothing helps."""
    restarts = Restarts(3)
    verdicts = [restarts.died(7, -4, CRASH, 0.0) for _ in range(6)]
    assert [verdict.blamed for verdict in verdicts] == [False, True, False, False, False, False]
    assert [verdict.pause is None for verdict in verdicts] == [False] * 5 + [True]


def test_death_without_a_place_blames_no_sample() -> None:
    restarts = Restarts(3)
    verdicts = [restarts.died(7, None, CRASH, 0.0) for _ in range(4)]
    assert [verdict.blamed for verdict in verdicts] == [False] * 4
    assert verdicts[3].pause is None


def test_the_deaths_of_one_that_is_blamed_do_not_count() -> None:
    restarts = Restarts(2)
    for unit in range(100):
        assert restarts.died(unit, 0, CRASH, 0.0) == Verdict(0.0)
        assert restarts.died(unit, 0, CRASH, 0.0) == Verdict(0.0, blamed=True)
        restarts.answered(unit)
    assert len(restarts.times) == 0


def test_too_many_deaths_end_the_run_before_a_sample_is_blamed() -> None:
    restarts = Restarts(1)
    assert [restarts.died(7, 0, KILL, 0.0).pause for _ in range(2)] == [0.0, None]


def test_a_unit_that_was_done_after_all_begins_anew() -> None:
    restarts = Restarts(10)
    restarts.died(7, 4, CRASH, 0.0)
    restarts.answered(7)
    assert [restarts.died(7, 4, CRASH, 1.0).blamed for _ in range(2)] == [False, True]


def test_a_death_that_was_on_trial_counts_from_when_it_was() -> None:
    restarts = Restarts(2)
    assert restarts.died(7, 0, CRASH, 0.0) == Verdict(0.0)
    assert len(restarts.times) == 0  # its second one would prove it guilty, and cost nothing
    assert idle(restarts, PERIOD - 1) is not None
    restarts.answered(7)
    assert len(restarts.times) == 2  # it was chance
    assert idle(restarts, PERIOD + 1) is not None
    assert len(restarts.times) == 2


def test_trial_longer_than_the_death_window_does_not_count() -> None:
    restarts = Restarts(1)
    assert restarts.died(7, 0, CRASH, 0.0) == Verdict(0.0)
    assert restarts.died(7, 0, KILL, PERIOD + 1).pause is not None  # its first one is forgotten
    assert len(restarts.times) == 1


def test_known_stalls_of_a_unit_cost_no_restart() -> None:
    restarts = Restarts(2)
    for unit in range(100):
        assert restarts.died(unit, None, KILL, 0.0).pause is not None
        restarts.forgive(unit)
    assert len(restarts.times) == 0


@given(most=st.integers(0, 6), gaps=st.lists(st.floats(0, PERIOD / 2), max_size=40))
def test_never_more_than_so_many_in_a_period(most: int, gaps: list[float]) -> None:
    restarts, now, survived = Restarts(most), 0.0, []
    for gap in gaps:
        now += gap
        if idle(restarts, now) is not None:
            survived.append(now)
        assert sum(1 for moment in survived if now - moment <= PERIOD) <= most


CODES = st.sampled_from([KILL, CRASH, 0, None])


@given(most=st.integers(1, 6), deaths=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), CODES), max_size=30))
def test_blame_follows_from_the_deaths_at_one_place(most: int, deaths: list[tuple[int, int, int | None]]) -> None:
    restarts = Restarts(most)
    here: dict[tuple[int, int], list[bool]] = {}
    for unit, place, code in deaths:
        own = here.setdefault((unit, place), [])
        own.append(code in (CRASH, 0))
        guilty = len(own) >= KILLS or sum(own) >= OWN_KILLS
        assert restarts.died(unit, place, code, 0.0).blamed == guilty
        if guilty:
            here = {at: kills for at, kills in here.items() if at[0] != unit}


def test_death_at_a_blamed_unit_is_forgiven() -> None:
    restarts = Restarts(1)
    for _ in range(3):
        assert restarts.died_among([7, 8, 9], 0.0) == Verdict(0.0)
        restarts.answered(7)
        assert not restarts.died(8, 3, CRASH, 0.0).blamed
        assert restarts.died(8, 3, CRASH, 0.0).blamed
        restarts.answered(8)
        restarts.answered(9)
        assert len(restarts.times) == 0


def test_death_without_a_guilty_unit_counts() -> None:
    restarts = Restarts(1)
    for count in (1, 2):
        assert restarts.died_among([7, 8], 0.0).pause == 0.0
        restarts.answered(8)
        assert len(restarts.times) == count - 1
        restarts.answered(7)
        assert len(restarts.times) == count
    assert restarts.died_among([9], 0.0).pause is None
    assert restarts.died_among([9], PERIOD + 1).pause is not None


def test_no_death_among_several_is_survived_where_none_is() -> None:
    assert Restarts(0).died_among([1, 2], 0.0).pause is None


def test_deaths_counted_elsewhere_count() -> None:
    restarts = Restarts(2, before=[10.0, 20.0])
    assert restarts.died(None, None, -9, 30.0).pause is None
    assert Restarts(2, before=[10.0, 20.0]).died(None, None, -9, 11.0 + PERIOD).pause == 0.0  # one is long ago


def test_restart_counts_are_taken_over_from_another_count() -> None:
    one = Restarts(3)
    one.died(1, None, -9, 1.0)
    other = Restarts(3, before=one.times)
    other.died(2, None, -9, 2.0)
    one.recounted(other.times)
    assert one.times == (1.0, 2.0)
    assert one.died(None, None, -9, 3.0).pause is not None
    assert one.died(None, None, -9, 4.0).pause is None
