"""Units that several workers make: the rows of each worker, and the outcome of the unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from stoker._engine.backend import UnitReport
from stoker._engine.messages import Delivered, Kind, Part, PlainLayout
from stoker._supervision.dispatch import Assignment, Dispatch
from stoker._supervision.slot_allocator import SlotAllocator
from stoker._supervision.split_batch import SplitBatch
from stoker._supervision.split_policy import SplitPolicy
from stoker._transport.rows import Layout
from stoker.events import FaultRecord


class SplitUnits:
    """Keeps the state of shared units until they are whole or have to be made again.

    Args:
        cut: learns whether sharing is worth it.
        dispatch: hands out units.
        lending: has the memory.
    """

    def __init__(self, cut: SplitPolicy, dispatch: Dispatch, lending: SlotAllocator) -> None:
        self._cut = cut
        self._dispatch = dispatch
        self._lending = lending
        self._shares: dict[int, SplitBatch[Layout, UnitReport, tuple[object, UnitReport]]] = {}
        self._layout: Layout | None = None  # of the last unit that was shared

    def handed_out(self, run: Assignment) -> Part:
        """Records that a worker gets these rows; returns them as a message part."""
        share = self._shares.get(run.unit)
        if share is None:
            share = self._shares[run.unit] = SplitBatch(self._dispatch.rows(run.unit))
        share.handed_out()
        return run.first, run.last, share.rows, self._layout and (self._layout.rows, self._layout.pickle)

    def answered(self, run: Assignment, kind: Kind, value: object, said: UnitReport) -> None:
        """A worker has written its rows, and `value` is their layout and texts; or one of its samples raised the error
        in `value`; or they are no rows, as those of no batch are if `value` is true; or there was no memory for it."""
        share = self._shares[run.unit]
        fitted = not share.spoiled
        if kind == "rows":
            layout, texts = cast("tuple[PlainLayout, dict[int, bytes]]", value)
            share.made(run.first, run.last - run.first, Layout(*layout), texts, said)
        elif kind == "error":
            share.raised(run.first, (value, said))
            self._dispatch.withdrawn(run.unit)
        else:
            share.failed()
        if share.spoiled and fitted:  # because of its contents: not because its worker died, or the unit was dropped
            self._cut.in_vain(kind == "misfit" and bool(value))
            if kind != "short":  # that says nothing of the rows, and who knows how they lie asks before it has them
                self._layout = None
            self._dispatch.withdrawn(run.unit)

    def lost(self, run: Assignment) -> None:
        """Records that the worker that had these rows is gone."""
        self._shares[run.unit].failed()
        self._dispatch.withdrawn(run.unit)

    def dropped(self, before: int) -> list[int]:
        """Drops the units below `before`: frees and returns those that no worker writes any longer."""
        for unit, share in self._shares.items():
            share.spoiled = share.spoiled or unit < before
        gone = [unit for unit in self._shares if unit < before and self.is_over(unit)]
        for unit in gone:
            self._forget(unit)
        return gone

    def refused(self, unit: int) -> None:
        """Withdraws a unit whose rest no worker can make, and of which no worker writes any rows."""
        if unit in self._shares:
            self._forget(unit)

    def is_over(self, unit: int) -> bool:
        """Whether no worker writes any longer a unit that is whole, or will not be."""
        return self._shares[unit].is_over

    def result(self, unit: int) -> tuple[Delivered, object, UnitReport] | None:
        """Returns the answer of a unit that is over, or None if it has to be made again."""
        share = self._shares[unit]
        number = self._lending.shared(unit)
        if share.error is not None:
            self._forget(unit)
            _, (value, said) = share.error
            return "error", value, _joined([*share.reports, said], share.rows, said.faults)
        if share.spoiled or number is None or share.layout is None:
            self._forget(unit)
            return None
        del self._shares[unit]
        self._cut.shared()
        self._layout = share.layout
        written = share.layout.written(number, share.rows, share.texts)
        return "batch", written.packed(), _joined(share.reports, share.rows)

    def _forget(self, unit: int) -> None:
        del self._shares[unit]
        self._lending.unshare(unit)


def _joined(reports: Sequence[UnitReport], rows: int, faults: Sequence[FaultRecord] = ()) -> UnitReport:
    """Returns the report on a unit from those on its parts."""
    notes = [note for report in reports for note in report.notes]
    timings = tuple(timing for report in reports for timing in report.timings)
    drawn = tuple(name for report in reports for name in report.drawn)
    return UnitReport(notes, None, list(faults), rows, timings=timings, drawn=drawn)
