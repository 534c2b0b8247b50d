"""Decides how many rows of a unit one worker gets, and joins the rows that several workers make. Pure: no clock,
process or I/O.

See `docs/design/11-parts.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

WORTH = 0.05
"""Seconds. Shortest unit that workers share. A worker waits after its part, while a worker on whole units already has
the next: batches of 8 samples of 2 ms came at 0.66 of the rate that four workers can give, and unshared ones at 0.86.
"""

SHORTEST = 0.02
"""Seconds of work in a part, at least: the wait after a part must be a small share of it."""

LONGEST = 0.1
"""Seconds of work in a part, at most: the rest of a unit goes to the first free worker. Each part costs its worker and
the zygote half a millisecond.
"""

AT_FIRST = 4
"""Rows of a part until the cost of a row is known. They are sent on if the unit turns out not to be shareable."""

LARGE = 16
"""Rows. Smallest unit that is shared before the cost of a row is known."""

PATIENCE = 3
"""Units that one worker may have to join before the policy checks whether most are."""

DEARER = 1.3
"""Ratio of the cost of a row in parts to that in whole units from which on parts cost more: each part makes again what
the rows of a unit have in common, such as a decompressed block.
"""

COMPARISONS = 3
"""Comparisons in a row with this result after which units whose indices ascend stay whole."""

WAITING = 0.1
"""Share of processor time in the time that units take. Below it their samples wait, and the time is compared."""

TRIALS = 2
"""Ascending units that are made whole for a comparison, as soon as workers share units."""

BETWEEN = 50
"""Ascending units for each additional worker, of which one is made whole: the others may wait for it."""


@dataclass
class _Spent:
    """What workers spent on rows."""

    rows: int = 0
    seconds: float = 0.0
    processor: float = 0.0

    def add(self, rows: int, seconds: float, processor: float) -> None:
        self.rows, self.seconds, self.processor = self.rows + rows, self.seconds + seconds, self.processor + processor


def is_trial(number: int, workers: int, dearer: int) -> bool:
    """Returns whether a unit whose indices ascend is made whole, to compare its cost with that of parts.

    Args:
        number: counts such units from 0, since workers share units.
        workers: number of workers that share a unit.
        dearer: see `SplitPolicy`. After a comparison to the disadvantage of parts, the next ones come soon.
    """
    return number < TRIALS or not number % (BETWEEN * max(1, workers - 1)) or (dearer > 0 and not number % 2)


class SplitPolicy:
    """Learns the cost of a row, and whether units can be shared at all.

    Args:
        workers: number of workers that share a unit; one shares nothing.
        seconds: cost of a row in an earlier epoch, or None.
        dearer: in an earlier epoch, likewise.

    Attributes:
        seconds: cost of a row; None while unknown.
        dearer: latest comparisons in a row in which parts cost more than whole units, up to `COMPARISONS`.
    """

    def __init__(self, workers: int, seconds: float | None = None, dearer: int = 0) -> None:
        self._workers = workers
        self.seconds = seconds
        self.dearer = dearer
        self._parts, self._wholes = _Spent(), _Spent()
        self._never = workers < 2
        self._shared = 0
        self._in_vain = 0

    def grow(self, workers: int) -> None:
        """Raises the number of workers. If there was only one at first, units stay whole."""
        self._workers = max(self._workers, workers)

    def learned(self, rows: int, seconds: float) -> None:
        """Records that a worker has made `rows` in `seconds`."""
        if rows:
            cost = seconds / rows
            self.seconds = cost if self.seconds is None else (self.seconds + cost) / 2

    def spent(self, is_part: bool, rows: int, seconds: float, processor: float) -> None:
        """Records time and processor time of rows that a worker has made, as a part or as a whole unit. A whole unit
        that would have been split is a trial: the costs until now are compared.
        """
        if self.dearer >= COMPARISONS or not (is_part or self.share(rows, rows) < rows):
            return
        parts, wholes = self._parts, self._wholes
        (parts if is_part else wholes).add(rows, seconds, processor)
        if is_part or not parts.rows:
            return
        if parts.processor + wholes.processor < WAITING * (parts.seconds + wholes.seconds):
            in_parts, in_wholes = parts.seconds, wholes.seconds
        else:
            in_parts, in_wholes = parts.processor, wholes.processor
        is_dearer = in_parts / parts.rows >= DEARER * in_wholes / wholes.rows
        self.dearer = self.dearer + 1 if is_dearer else 0

    def share(self, rows: int, left: int) -> int:
        """Returns the number of rows for the next worker, of a unit that has `rows` of which `left` remain."""
        if self._never or not rows:
            return left
        if self.seconds is None:
            return min(left, AT_FIRST) if rows >= LARGE else left
        if not self.is_worth_it(rows):
            return left
        most, least = LONGEST / self.seconds, math.ceil(SHORTEST / self.seconds)
        share = max(1, least, math.floor(min(most, math.ceil(rows / self._workers))))
        return left if left < share * 1.5 else share

    def is_worth_it(self, rows: int) -> bool:
        """Whether units with this number of rows take long enough, as far as is known."""
        return self.seconds is not None and self.seconds * rows >= WORTH

    def shares(self, rows: int) -> bool | None:
        """Whether units with this number of rows are made by several workers; None until known."""
        if not self._never and self.seconds is None:
            return None
        if self.share(rows, rows) >= rows:
            return False
        return True if self._shared else None

    @property
    def gave_up(self) -> bool:
        """Whether no unit will be shared any longer."""
        return self._never

    def shared(self) -> None:
        """Records a unit that several workers made."""
        self._shared += 1

    def in_vain(self, for_good: bool) -> None:
        """Records a shared unit that one worker has to join; `for_good`: the same holds for all others."""
        self._in_vain += 1
        self._never = self._never or for_good or self._in_vain > max(PATIENCE, self._shared)


# The parts of a unit that several workers make.


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

    def add_part(self, first: int, rows: int, layout: Layout, texts: dict[int, bytes], report: Report) -> None:
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
