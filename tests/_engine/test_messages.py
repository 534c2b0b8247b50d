"""Messages keep their kind and their fields on the wire."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from stoker._engine import messages
from stoker._engine.activity import ACTIVITY, PLACE, SEVERAL, Activity, Position, WorkerActivity, sample
from stoker._engine.backend import KnownFault


@pytest.mark.parametrize("kind", messages.KINDS.values(), ids=list(messages.KINDS))
def test_message_survives_the_wire(kind: Any) -> None:
    message = kind(*range(len(kind._fields)))
    arrived = messages.unpacked(pickle.loads(pickle.dumps(messages.packed(message), 5)))
    assert type(arrived) is kind and arrived == message


def test_nested_records_survive_the_wire() -> None:
    end = messages.WorkerExit(1, 2, -9, 7, sample(3))
    happened = messages.Happened(1.5, messages.Replaced(end))
    arrived = messages.unpacked(pickle.loads(pickle.dumps(messages.packed(happened), 5)))
    assert type(arrived.incident) is messages.Replaced and arrived.incident.end.position == sample(3)
    unit = messages.Unit(7, b"", [], [KnownFault(SEVERAL, "death", "")], None)
    arrived = messages.unpacked(pickle.loads(pickle.dumps(messages.packed(unit), 5)))
    assert arrived.known[0].position is not None and arrived.known[0].position.activity is Activity.SEVERAL


def test_table_names_every_message() -> None:
    ends = r"  (trainer|s\.|worker|upward|zygote|bridge|both|agent|a\.) "
    rows = [line for line in (messages.__doc__ or "").splitlines() if re.search(ends, line)]
    named = [name for row in rows for name in row.split("  ")[0].split(", ")]
    assert sorted(named) == sorted(messages.KINDS)


def test_position_without_a_sample_has_no_place() -> None:
    marks = WorkerActivity(1)
    assert marks.read(0) == Position(Activity.IDLE)
    marks.of(0)[PLACE], marks.of(0)[ACTIVITY] = 5, Activity.COLLATE
    assert marks.read(0) == Position(Activity.COLLATE)
    marks.of(0)[ACTIVITY] = Activity.SAMPLE
    assert marks.read(0) == sample(5)
    marks.forget(0)
    assert marks.read(0) == Position(Activity.IDLE)


def test_mark_of_a_position_is_its_place_or_below_zero() -> None:
    assert [sample(4).mark, Position(Activity.IDLE).mark, Position(Activity.COLLATE).mark] == [4, -1, -4]
    assert Position(Activity.SEVERAL, 3).mark < 0
