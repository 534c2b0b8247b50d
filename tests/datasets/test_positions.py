"""The positions of calls: kept as they come, read back from any of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.datasets.read_again import Positions
from stoker.errors import StateFormatError

STEPS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def noted(positions: list[int]) -> Positions:
    found = Positions()
    for position in positions:
        found.add(position)
    return found


@given(STEPS, st.data())
def test_each_is_found_again(steps: list[int], data: st.DataObject) -> None:
    """Also those that come behind it, and from any call on."""
    positions = [sum(steps[: at + 1]) for at in range(len(steps))]
    found = noted(positions)
    assert found.calls == len(positions)
    since = data.draw(st.integers(0, len(positions) - 1))
    found.forget(data.draw(st.integers(0, since)))
    later = Positions(json.loads(json.dumps(found.since(since))))
    later.add(positions[-1] + 7)
    expected = [*positions[since:], positions[-1] + 7]
    assert later.calls == len(expected)
    assert [later[call] for call in range(len(expected))] == expected
    for call in data.draw(st.permutations(range(len(expected)))):
        assert later[call] == expected[call]


def test_consecutive_positions_take_no_memory() -> None:
    """As below a shuffle buffer: many for the first sample, one for each that follows."""
    found = noted([0] * 1000 + list(range(1, 5000)))
    assert found.since(0) == {"before": 0, "steps": "1000*0,4999*1"}
    assert found.since(3000) == {"before": 2000, "steps": "2999*1"}


def test_forgotten_positions_take_no_memory() -> None:
    found = Positions()
    for call in range(5000):
        found.add(call * call)
        found.forget(call - 10)
    assert len(found.__dict__["_runs"]) <= 12 and len(found.__dict__["_text"]) < 100
    assert found.since(4998) == {"before": 4997**2, "steps": "9995,9997"}


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"before": 3},
        {"before": "3", "steps": "1"},
        {"before": 3, "steps": ""},
        {"before": 3, "steps": "1,"},
        {"before": 3, "steps": "1,x"},
        {"before": 3, "steps": [1]},
    ],
    ids=str,
)
def test_positions_refuse_states_of_another_kind(state: dict[str, Any]) -> None:
    with pytest.raises(StateFormatError):
        Positions(state)
