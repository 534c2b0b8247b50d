"""When a worker's stream says its state, if that is a state of the user's, which may take long.

It says it after each unit while that costs little, else after every n-th. The answers between tell how many samples
were read since, and their fingerprint: a resumed stream reads these again and compares. Without workers the stream is
asked when the loader's own state is asked for.
"""

from __future__ import annotations

import io
import math
import pickle
from collections import deque
from typing import Any

from stoker.datasets._stream.fingerprint import Fingerprint

FREE = 2e-4
"""Seconds. A state that takes less goes with each unit, whose way to the trainer costs as much."""

LATEST = 3
"""States of which the cheapest counts. The first one of a process takes longer than the others."""

SHARE = 0.02
"""Share of a unit's time that states may take."""

MOST = 10_000
"""Units from one state to the next, at most."""


class Snapshots:
    """The states of one stream.

    Args:
        every: units from one state to the next if states cost much; None for as many as that `SHARE` is kept.
        when_asked: whether no unit brings a state.

    Attributes:
        are_few: whether not every unit brings a state.
    """

    def __init__(self, every: int | None, when_asked: bool) -> None:
        self._every = every
        self._when_asked = when_asked
        self.are_few = False
        self._left = 0  # units without a state that follow
        self._costs: deque[float] = deque(maxlen=LATEST)
        self.restart()

    def restart(self, again: int = 0, marks: Fingerprint | None = None) -> None:
        """Counts from a state on.

        Args:
            again: samples that were read behind that state already.
            marks: their fingerprint.
        """
        self._read = again
        self._print = Fingerprint() if marks is None else marks

    def begin(self) -> None:
        """From now on not every unit brings a state."""
        self.are_few = True
        self.restart(self._read, self._print)

    def took(self, sample: Any) -> None:
        """Counts a sample."""
        self._read += 1
        if self._left or self._when_asked:
            self._print.take(sample, self._read)

    def failed(self) -> None:
        """Counts a sample that raised."""
        self._read += 1

    def is_due(self, ended: bool) -> bool:
        """Returns whether this unit brings a state."""
        if not self.are_few:
            return True
        if self._when_asked:
            return False
        if ended or not self._left:
            return True
        self._left -= 1
        return False

    def said(self, cost: float, seconds: float, may_wait: bool) -> None:
        """Records a state.

        Args:
            cost: seconds that it took.
            seconds: that its unit took.
            may_wait: whether a state with samples to read again does as well.
        """
        self.restart()
        units = 1
        self._costs.append(cost)
        cost = min(self._costs) if len(self._costs) == LATEST else 0.0
        if may_wait and cost > FREE and cost > SHARE * seconds:
            units = self._every or min(MOST, math.ceil(cost / (SHARE * max(seconds, 1e-6))))
        self._left = units - 1

    def since(self) -> bytes:
        """Returns what was read since the last state."""
        return pickle.dumps({"read": self._read, "print": self._print.now}, 5)


def state_of(said: bytes) -> dict[str, Any]:
    """Returns the state of a stream from a worker's bytes: with what was read since as `again`, if there is any."""
    file = io.BytesIO(said)
    state: dict[str, Any] = pickle.load(file)
    since = file.read()
    return {**state, "again": pickle.loads(since)} if since else state
