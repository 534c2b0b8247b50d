"""Answers in the trainer, from the messages of the supervisor."""

from __future__ import annotations

import pickle
from typing import cast

from stoker._engine.backend import Answer, Cost, UnitReport
from stoker._engine.machines.known_classes import KnownClasses
from stoker._engine.messages import Delivery, Made
from stoker._engine.transport.arena import Slot
from stoker._engine.transport.reader import SharedSlot
from stoker._engine.transport.writer import Packed


def answers_of(message: Delivery, report: UnitReport, known: KnownClasses | None = None) -> list[Answer]:
    """Returns the answers in a message: one, or those of a run. The last one has their cost. The value of a batch is
    (slot, batch as written), and that of an error the `Failure`. `known`: classes of a remote worker.
    """
    unit, kind, value, place, worker, _, seconds = message
    if kind == "dropped":
        return []
    slot = None if place is None else Slot(*place)
    if kind != "run":
        answer = Answer(unit, kind, (slot, value) if kind == "batch" else value, worker, report)
        answers = [answer]
    else:
        made = cast("list[Made]", value)
        shared = SharedSlot(slot, sum(kind == "batch" for kind, _, _ in made))
        answers = [
            Answer(number, kind, (shared, value) if kind == "batch" else value, worker, UnitReport(*fields))
            for number, (kind, value, fields) in enumerate(made, unit)
        ]
    for answer in answers:
        if answer.kind == "error":
            data = cast("bytes", answer.value)
            answer.value = pickle.loads(data) if known is None else known.failure(data)
        if known is not None:
            known.check(answer.report)
    if seconds and answers[-1].kind == "batch":
        batches = [cast("tuple[object, Packed]", answer.value)[1] for answer in answers if answer.kind == "batch"]
        in_messages = sum(len(data) for _, _, _, data, _ in batches if isinstance(data, bytes))
        answers[-1].cost = Cost(len(answers), seconds, in_messages + max(used for _, used, *_ in batches))
    return answers
