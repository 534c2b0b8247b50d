"""The zygote's loop, without processes: what it does about what it hears."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from stoker._engine.base import Said
from stoker._engine.process.lending import Lending
from stoker._engine.process.sharing import Sharing
from stoker._engine.process.zygote import Zygote
from stoker._supervision.cut import Cut
from stoker._supervision.dispatch import Dispatch
from stoker._transport import segments
from stoker._transport.arena import Arena

SIZE = 1 << 20


class Heard:
    """A channel that keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, *message: Any) -> None:
        self.messages.append(message)


def test_memory_kept_for_what_is_dropped_goes_to_who_waits() -> None:
    """There is memory for one batch. The unit before it lost its worker, and is not wanted any more."""
    zygote: Any = Zygote.__new__(Zygote)
    descriptor, cut, channel = segments.create(), Cut(2), Heard()
    zygote._dispatch = dispatch = Dispatch(2, cut)
    zygote._lending = lending = Lending(Arena(descriptor, SIZE), dispatch)
    zygote._sharing = Sharing(cut, dispatch, lending)
    zygote._children = {1: SimpleNamespace(channel=channel, asked=7)}
    zygote._trainer = Heard()
    zygote._starved_for, zygote._work, zygote._dropped_below = None, {}, 0
    zygote._admission = SimpleNamespace(starved=None)
    for number in range(2):
        dispatch.joined(number)
        dispatch.submitted(number, None)
    dispatch.hand_out()
    dispatch.requeued([run.unit for run in dispatch.died(0)])
    lending.asked(1, 1, SIZE)
    zygote._grant()
    assert not channel.messages
    zygote._drop(1)
    assert [message[:2] for message in channel.messages] == [("slot", 7)]
    os.close(descriptor)


@pytest.mark.parametrize(("watching", "is_set"), [(False, True), (True, False), (True, True)])
def test_a_unit_that_comes_while_nobody_is_watched_makes_it_look(watching: bool, is_set: bool) -> None:
    """The alarm may be set for what else is due: a unit must not wait for that until somebody sees that it stalls."""
    zygote: Any = Zygote.__new__(Zygote)
    zygote._trainer = SimpleNamespace(receive=lambda: [("unit", 0, None, b"", [], 0)], ended=False)
    zygote._lending = SimpleNamespace(put_back=lambda numbers: None, is_asked=False)
    zygote._dispatch, zygote._work = Dispatch(1), {}
    zygote._admission = SimpleNamespace(gate=lambda: None, refused=None, starved=None, looks_at=None)
    zygote._starved_for = None
    zygote._watching, zygote._alarm, zygote._is_due = watching, SimpleNamespace(is_set=is_set), False
    zygote._from_trainer()
    assert zygote._is_due == (not (watching and is_set))


@pytest.mark.parametrize(("is_short", "units", "rests"), [(True, 1, True), (False, 1, False), (True, 2, False)])
def test_where_memory_is_short_who_has_nothing_more_to_do_gives_back_what_it_keeps(
    is_short: bool, units: int, rests: bool
) -> None:
    zygote: Any = Zygote.__new__(Zygote)
    descriptor, cut, channel = segments.create(), Cut(1), Heard()
    zygote._dispatch = dispatch = Dispatch(1, cut, at_once=2)
    zygote._lending, zygote._cut = Lending(Arena(descriptor, SIZE), dispatch), cut
    zygote._children = {0: SimpleNamespace(channel=channel, unseen=0.0, retires=False)}
    zygote._trainer, zygote._work, zygote._streams = Heard(), {}, {}
    zygote._admission, zygote._headroom = SimpleNamespace(is_short=is_short), SimpleNamespace(growth=0)
    zygote._retirement = SimpleNamespace(counts=False)
    zygote._answered = zygote._dropped_below = 0
    zygote._troubled = zygote._shares = False
    dispatch.joined(0)
    for unit in range(units):
        dispatch.submitted(unit, None)
    dispatch.hand_out()
    zygote._take_answer(0, ("answer", 0, "empty", b"", 0.01, tuple(Said())))
    assert channel.messages == [("rest",)] * rests
    os.close(descriptor)
