"""Units that several workers make: the rows of each worker, and the outcome of the unit.

Rows that do not fit together are joined by one worker: it gets the samples that the others have made, and makes those
that no worker has begun. No sample is made twice, unless a worker has died, its samples cannot be pickled, or memory
does not hold them on their way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from stoker._engine.backend import UnitReport
from stoker._engine.messages import Delivered, Kind, MadePart, Part, PlainLayout
from stoker._engine.supervision.dispatch import Assignment, Dispatch
from stoker._engine.supervision.slot_allocator import SlotAllocator
from stoker._engine.supervision.split_policy import SplitBatch, SplitPolicy
from stoker._engine.transport.rows import Layout


class SplitUnits:
    """Keeps the state of shared units until they are whole, and the parts of those that one worker has to join.

    Args:
        split_policy: learns whether sharing is worth it.
    """

    def __init__(self, split_policy: SplitPolicy, dispatch: Dispatch, slots: SlotAllocator) -> None:
        self._split_policy = split_policy
        self._dispatch = dispatch
        self._slots = slots
        self._shares: dict[int, SplitBatch[Layout, UnitReport, tuple[object, UnitReport]]] = {}
        self._made: dict[int, list[MadePart]] = {}  # of shared units, and of those to be joined
        self._reports: dict[int, list[UnitReport]] = {}  # on the parts of units to be joined
        self._layout: Layout | None = None  # of the last unit that was shared

    def handed_out(self, run: Assignment) -> Part:
        """Records that a worker gets these rows; returns them as a message part."""
        share = self._shares.get(run.unit)
        if share is None:
            share = self._shares[run.unit] = SplitBatch(self._dispatch.rows(run.unit))
        share.handed_out()
        share.layout = known = share.layout or self._layout
        return run.first, run.last, share.rows, known and (known.rows, known.pickle)

    def agrees(self, unit: int, layout: PlainLayout | None) -> bool:
        """Whether rows of this layout may be written into the unit's slot. Rows of another would lie over them."""
        share = self._shares[unit]
        if share.layout is None and layout is not None:
            share.layout = Layout(*layout)
        return layout is None or share.layout == Layout(*layout)

    def answered(self, run: Assignment, kind: Kind, value: object, report: UnitReport) -> None:
        """A worker has written its rows, or one of its samples raised the error in `value`, or they are no rows, or
        there was no memory for it (`messages.Kind`).
        """
        share = self._shares[run.unit]
        fitted, for_good = not share.spoiled, False
        if kind == "rows":
            layout, texts, form = cast("tuple[PlainLayout, dict[int, bytes], bytes | None]", value)
            self._keep(run, share.rows, layout, texts, form)
            share.add_part(run.first, run.last - run.first, Layout(*layout), texts, report)
        elif kind == "error":
            share.raised(run.first, (value, report))
            self._dispatch.withdrawn(run.unit)
        else:
            for_good, samples = cast("tuple[bool, bytes | None]", value)
            self._keep(run, share.rows, None, {}, samples)
            share.failed(report)
        if share.spoiled and fitted:  # because of its contents: not because its worker died, or the unit was dropped
            self._split_policy.in_vain(kind == "misfit" and for_good)
            if kind != "short":  # that says nothing of the rows, and who knows how they lie asks before it has them
                self._layout = None
            self._dispatch.withdrawn(run.unit)

    def _keep(
        self, run: Assignment, rows: int, layout: PlainLayout | None, texts: dict[int, bytes], data: bytes | None
    ) -> None:
        if data is not None:
            part = (run.first, run.last, rows, layout, texts, data)
            self._made.setdefault(run.unit, []).append(part)

    def to_join(self, unit: int) -> Sequence[MadePart]:
        """Returns the parts of a unit that one worker has to join; none of a unit that was not shared."""
        return self._made.get(unit, ()) if unit in self._reports else ()

    def joined(self, unit: int, report: UnitReport) -> UnitReport:
        """Returns the report on a unit with those on its parts, if it was joined of some; forgets them."""
        self._made.pop(unit, None)
        reports = self._reports.pop(unit, None)
        return report if reports is None else _joined([*reports, report], report.samples)

    def is_joined(self, unit: int) -> bool:
        """Whether one worker makes this unit of parts."""
        return unit in self._reports

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
        if unit in self._shares or unit in self._reports:
            self._forget(unit)

    def is_over(self, unit: int) -> bool:
        """Whether no worker writes any longer a unit that is whole, or will not be."""
        return self._shares[unit].is_over

    def result(self, unit: int) -> tuple[Delivered, object, UnitReport] | None:
        """Returns the answer of a unit that is over, or None if one worker has to join its parts."""
        share = self._shares[unit]
        number = self._slots.shared(unit)
        if share.error is not None:
            self._forget(unit)
            _, (value, report) = share.error
            return "error", value, _joined([*share.reports, report], share.rows)
        if share.spoiled or number is None or share.layout is None:
            self._reports[unit] = share.reports
            parts = self._made.setdefault(unit, [])
            if all(part[3] is None for part in parts):  # none lies in the slot
                self._slots.unshare(unit)
            del self._shares[unit]
            return None
        del self._shares[unit]
        self._made.pop(unit, None)
        self._split_policy.shared()
        self._layout = share.layout
        written = share.layout.written(number, share.rows, share.texts)
        return "batch", written.packed(), _joined(share.reports, share.rows)

    def _forget(self, unit: int) -> None:
        for known in (self._shares, self._made, self._reports):
            known.pop(unit, None)
        self._slots.unshare(unit)


def _joined(reports: Sequence[UnitReport], rows: int) -> UnitReport:
    """Returns the report on a unit from those on its parts."""
    notes = [note for report in reports for note in report.notes]
    timings = tuple(timing for report in reports for timing in report.timings)
    drawn = tuple(name for report in reports for name in report.drawn)
    faults = sorted((fault for report in reports for fault in report.faults), key=lambda fault: fault.place or 0)
    return UnitReport(notes, None, faults, rows, timings=timings, drawn=drawn)
