"""Answers in the trainer, from the messages of the supervisor."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, cast

from stoker._engine.backend import Answer, Cost, UnitReport
from stoker._engine.messages import Delivery
from stoker._engine.transport.arena import Slot
from stoker._engine.transport.writer import Packed, Written

if TYPE_CHECKING:
    from stoker._engine.machines.known_classes import KnownClasses


def answer_of(message: Delivery, report: UnitReport, known: KnownClasses | None = None) -> Answer | None:
    """Returns the answer in a message; None if its unit was dropped. The value of a batch is (slot, batch as written),
    and that of an error the `Failure`. `known`: classes of a remote worker.
    """
    unit, kind, value, place, worker, _, seconds = message
    if kind == "dropped":
        return None
    if kind == "batch":
        value = None if place is None else Slot(*place), value
    elif kind == "error":
        data = cast("bytes", value)
        value = pickle.loads(data) if known is None else known.failure(data)
    answer = Answer(unit, kind, value, worker, report)
    if seconds and kind == "batch":
        answer.cost = Cost(1, seconds, Written.size_of(cast("tuple[object, Packed]", value)[1]))
    return answer
