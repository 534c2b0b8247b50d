"""An epoch is a function: a step is known without walking to it, and together they are the epoch."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import SamplerError
from stoker.loader._epoch.plan import BLOCK, ComputedPlan, Step, StreamedPlan, TurnPlan
from stoker.loader._epoch.ranks import RankSlice, World
from stoker.samplers import SequentialSampler
from stoker.samplers.permutation import Permutation


def computed(n: int, batch_size: int | None, drop_last: bool, key: int | None, bound_to: int | None) -> ComputedPlan:
    order = SequentialSampler(range(n)).order(0) if key is None else Permutation(n, key)
    return ComputedPlan(order, RankSlice(n, 0, World(0, 1), "exact"), batch_size, drop_last, bound_to=bound_to)


def walked(plan: ComputedPlan | StreamedPlan) -> list[Step]:
    steps = []
    while (step := plan.next()) is not None:
        steps.append(step)
    return steps


sizes = st.integers(0, 3 * BLOCK)
batches = st.integers(1, 2 * BLOCK)
keys = st.none() | st.integers(0, 2**63 - 1)


@given(n=sizes, batch_size=batches, drop_last=st.booleans(), key=keys)
def test_steps_are_the_epoch(n: int, batch_size: int, drop_last: bool, key: int | None) -> None:
    steps = walked(computed(n, batch_size, drop_last, key, None))
    flat = [index for step in steps for index in step.indices]
    assert len(flat) == (n - n % batch_size if drop_last else n)
    assert len(set(flat)) == len(flat) and all(0 <= index < n for index in flat)
    assert all(len(step.indices) == batch_size for step in steps[:-1])
    assert [step.position for step in steps] == list(range(0, len(flat), batch_size))
    if key is None:
        assert flat == list(range(len(flat)))


@given(n=sizes, batch_size=batches, key=keys, data=st.data())
def test_plan_step_does_not_depend_on_earlier_steps(
    n: int, batch_size: int, key: int | None, data: st.DataObject
) -> None:
    steps = walked(computed(n, batch_size, False, key, None))
    order = data.draw(st.permutations(range(len(steps) + 1))) if len(steps) < 20 else [len(steps), 3, 1, 2]
    fresh = computed(n, batch_size, False, key, None)
    for k in order:
        assert fresh.step(k) == (steps[k] if k < len(steps) else None)


@given(n=sizes, batch_size=batches, drop_last=st.booleans())
def test_arrays_of_indices_are_the_lists(n: int, batch_size: int, drop_last: bool) -> None:
    share = RankSlice(n, 0, World(0, 1), "exact")
    lists = walked(ComputedPlan(Permutation(n, 7), share, batch_size, drop_last))
    arrays = walked(ComputedPlan(Permutation(n, 7), share, batch_size, drop_last, arrays=True))
    assert [step._replace(indices=step.indices.tolist()) for step in arrays] == lists


def test_writing_into_indices_changes_no_other_step() -> None:
    plan = ComputedPlan(Permutation(100, 7), RankSlice(100, 0, World(0, 1), "exact"), 10, False, arrays=True)
    before = plan.step(0)
    assert before is not None
    before.indices[:] = -1
    again = plan.step(0)
    assert again is not None and -1 not in again.indices.tolist()


def test_plan_step_costs_the_same_for_any_dataset_size() -> None:
    """A step of ten billion samples costs as much as one of a thousand."""
    plan = computed(10**10, 64, False, 7, None)
    tracemalloc.start()
    step = plan.step(10**8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert step is not None and len(set(step.indices)) == 64
    assert peak < 4 << 20


def test_without_batches_steps_are_single_indices() -> None:
    assert [step.indices for step in walked(computed(3, None, False, None, None))] == [0, 1, 2]


def test_bound_steps_go_to_workers_in_turn() -> None:
    assert [step.worker for step in walked(computed(10, 2, False, None, 3))] == [0, 1, 2, 0, 1]
    assert [step.worker for step in walked(StreamedPlan(iter([[1], [2], [3]]), True, bound_to=2))] == [0, 1, 0]


def test_a_walked_sampler_counts_positions_over_uneven_batches() -> None:
    steps = walked(StreamedPlan(iter([[5, 6, 7], [], (1,), [2, 2]]), True))
    assert [(step.indices, step.position) for step in steps] == [([5, 6, 7], 0), ([], 3), ([1], 3), ([2, 2], 4)]


def test_a_short_batch_says_that_the_sampler_has_ended() -> None:
    plan = StreamedPlan(iter([[1, 2], [3]]), True, mark=lambda: "here", size=2)
    assert plan.next() is not None
    assert plan.behind(1) == (2, "here", (), False)
    assert plan.next() is not None
    assert plan.behind(1) == (2, "here", ([3],), True)
    assert plan.behind(2) == (3, "here", (), True)


def test_state_of_a_sampler_is_asked_for_once() -> None:
    asked = []
    plan = StreamedPlan(iter([[1, 2], [3], [4]]), True, mark=lambda: asked.append(1) or "here")
    plan.walk(3)
    assert plan.next() is not None and not asked
    assert plan.behind(0) == (0, "here", ([1, 2], [3], [4]), False)
    assert len(asked) == 1


def test_indices_of_no_plain_kind_have_a_state_each() -> None:
    states = itertools.count()
    odd = [slice(1), slice(2)]
    plan = StreamedPlan(iter([[1], odd, [2], odd]), True, mark=lambda: next(states))
    plan.walk(4)
    assert [plan.behind(count) for count in (0, 1)] == [
        (0, 2, ([1], odd, [2], odd), False),
        (1, 3, (odd, [2], odd), False),
    ]
    assert plan.behind(2) == (3, 0, (), False)


@pytest.mark.parametrize("item", [3, "ab", None])
def test_a_batch_that_is_none_is_refused(item: object) -> None:
    with pytest.raises(SamplerError, match="must be a list of indices"):
        StreamedPlan(iter([item]), True).next()


def test_streams_take_turns_until_theirs_ends() -> None:
    plan = TurnPlan(range(3))
    turns = []

    def take(count: int) -> None:
        for _ in range(count):
            step = plan.next()
            assert step is not None
            turns.append(step.worker)

    take(4)
    plan.answered(1, ended=True)
    take(3)
    plan.answered(2, ended=True)
    plan.answered(2, ended=True)
    take(2)
    assert turns == [0, 1, 2, 0, 2, 0, 2, 0, 0]
    plan.answered(0, ended=True)
    assert plan.next() is None


def test_slow_stream_is_passed_over_when_order_is_free() -> None:
    plan = TurnPlan(range(3), in_order=False)

    def take(count: int) -> list[int | None]:
        steps = [plan.next() for _ in range(count)]
        return [step.worker for step in steps if step is not None]

    assert take(6) == [0, 1, 2, 0, 1, 2]
    for worker in (0, 2, 0, 2):
        plan.answered(worker, ended=False)
    assert take(4) == [0, 2, 0, 2]
    plan.answered(2, ended=False)
    plan.answered(0, ended=True)
    assert take(3) == [2, 1, 2]


@given(n=sizes, batch_size=batches, drop_last=st.booleans(), key=keys, data=st.data())
def test_upcoming_indices_are_those_of_the_steps(
    n: int, batch_size: int, drop_last: bool, key: int | None, data: st.DataObject
) -> None:
    steps = walked(computed(n, batch_size, drop_last, key, None))
    plan, found = computed(n, batch_size, drop_last, key, None), []
    by_turns = data.draw(st.lists(st.booleans(), max_size=20))  # the iterator may take steps in between
    while (indices := plan.upcoming()) is not None:
        assert plan.upcoming() == indices  # it does not advance
        found.append(indices)
        if by_turns and by_turns.pop():
            step = plan.next()
            assert step is not None and step.indices == indices
        else:
            assert plan.advance() == len(found) - 1
    assert found == [step.indices for step in steps] and plan.next() is None
