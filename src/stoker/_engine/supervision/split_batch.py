"""A unit that several workers make, each some of its rows: what has come, and whether it fits together. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

Layout = TypeVar("Layout")
Report = TypeVar("Report")
Answer = TypeVar("Answer")


class SplitBatch(Generic[Layout, Report, Answer]):
    """The life of one shared unit.

    Args:
        rows: how many it has.

    Attributes:
        writers: parts that workers have in hand. Until there is none, the unit's memory is in use.
        layout: how the rows lie in memory, as the first part says.
        reports: the reports on the parts that were made.
        spoiled: whether one worker has to join the parts to a unit, or it is not wanted any more.
        error: (row, answer) of the first part, in order of the rows, whose samples raised: it is the unit's answer.
    """

    def __init__(self, rows: int) -> None:
        self._missing = self.rows = rows
        self._texts: dict[int, dict[int, bytes]] = {}  # first row of a part → number of a leaf → its texts
        self.writers = 0
        self.layout: Layout | None = None
        self.reports: list[Report] = []
        self.spoiled = False
        self.error: tuple[int, Answer] | None = None

    def handed_out(self) -> None:
        """A worker has a part of it."""
        self.writers += 1

    def made(self, first: int, rows: int, layout: Layout, texts: dict[int, bytes], report: Report) -> None:
        """Records that a worker has written its rows. Parts with different layouts make no unit."""
        self.writers -= 1
        self._missing -= rows
        if texts:
            self._texts[first] = texts
        self.reports.append(report)
        if self.layout is None:
            self.layout = layout
        self.spoiled = self.spoiled or layout != self.layout

    def raised(self, first: int, answer: Answer) -> None:
        """Samples of the part that begins with this row raised: those of the whole unit would have."""
        self.writers -= 1
        if self.error is None or first < self.error[0]:
            self.error = first, answer

    def failed(self, report: Report | None = None) -> None:
        """A worker is gone, or could not make rows of its part, as its report says."""
        self.writers -= 1
        self.spoiled = True
        if report is not None:
            self.reports.append(report)

    @property
    def is_over(self) -> bool:
        """Whether no worker writes any longer, and either all rows are written or the others are not wanted."""
        return not self.writers and (not self._missing or self.spoiled or self.error is not None)

    @property
    def texts(self) -> dict[int, list[bytes]]:
        """The runs of each column of texts, in order of the rows."""
        parts = [self._texts[first] for first in sorted(self._texts)]
        return {number: [part[number] for part in parts] for number in (parts[0] if parts else ())}
