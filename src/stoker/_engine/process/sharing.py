"""Units that several workers make, as the zygote sees them: who has which rows, and what becomes of the unit."""

from __future__ import annotations

from typing import Any, Literal

from stoker._engine.base import Said
from stoker._engine.process.lending import Lending
from stoker._supervision.cut import Cut
from stoker._supervision.dispatch import Dispatch, Run
from stoker._supervision.share import Share
from stoker._transport.rows import Layout

Part = tuple[int, int, int, Any]
"""What a worker is told of its rows: the first, that behind the last, how many the unit has, and how they lie."""


class Sharing:
    """Keeps what is shared together, until it is whole or has to be made again.

    Args:
        cut: learns whether sharing is worth it.
        dispatch: hands out.
        lending: has the memory.
    """

    def __init__(self, cut: Cut, dispatch: Dispatch, lending: Lending) -> None:
        self._cut = cut
        self._dispatch = dispatch
        self._lending = lending
        self._shares: dict[int, Share] = {}
        self._layout: Layout | None = None  # of the last unit that was shared

    def handed_out(self, run: Run) -> Part:
        """A worker gets these rows."""
        share = self._shares.get(run.unit)
        if share is None:
            share = self._shares[run.unit] = Share(self._dispatch.rows(run.unit))
        share.handed_out()
        return run.first, run.last, share.rows, self._layout and tuple(self._layout)

    def answered(self, run: Run, kind: Literal["rows", "error", "misfit", "short"], value: Any, said: Said) -> None:
        """A worker has written its rows, and `value` is their layout and texts; or one of its samples raised the error
        in `value`; or they are no rows, as those of no batch are if `value` is true; or there was no memory for it."""
        share = self._shares[run.unit]
        fitted = not share.spoiled
        if kind == "rows":
            layout, texts = value
            share.made(run.first, run.last - run.first, Layout(*layout), texts, said.notes)
        elif kind == "error":
            share.raised(run.first, (value, said))
            self._dispatch.withdrawn(run.unit)
        else:
            share.failed()
        if share.spoiled and fitted:  # by what it is: not because its worker died, or nobody wants it any more
            self._cut.in_vain(kind == "misfit" and value)
            if kind != "short":  # that says nothing of the rows, and who knows how they lie asks before it has them
                self._layout = None
            self._dispatch.withdrawn(run.unit)

    def lost(self, run: Run) -> None:
        """The worker that had these rows is gone."""
        self._shares[run.unit].failed()
        self._dispatch.withdrawn(run.unit)

    def dropped(self, before: int) -> list[int]:
        """Units below are not wanted: of those that nobody writes any more the memory is free. Returns these."""
        for unit, share in self._shares.items():
            share.spoiled = share.spoiled or unit < before
        gone = [unit for unit in self._shares if unit < before and self.is_over(unit)]
        for unit in gone:
            self._forget(unit)
        return gone

    def refused(self, unit: int) -> None:
        """Nobody can make the rest of the unit, and nobody writes any of it."""
        if unit in self._shares:
            self._forget(unit)

    def is_over(self, unit: int) -> bool:
        """Whether nobody writes any more of a unit that is whole, or will not be."""
        return self._shares[unit].is_over

    def result(self, unit: int) -> tuple[str, Any, Said] | None:
        """Of a unit that is over: what its answer is, or None where it has to be made again."""
        share = self._shares[unit]
        number = self._lending.shared(unit)
        if share.error is not None:
            self._forget(unit)
            _, (value, said) = share.error
            return "error", value, said._replace(notes=[*share.notes, *said.notes], samples=share.rows)
        if share.spoiled or number is None:
            self._forget(unit)
            return None
        del self._shares[unit]
        self._cut.shared()
        self._layout = share.layout
        written = share.layout.written(number, share.rows, share.texts)
        return "batch", written.packed(), Said(share.notes, None, [], share.rows)

    def _forget(self, unit: int) -> None:
        del self._shares[unit]
        self._lending.unshare(unit)
