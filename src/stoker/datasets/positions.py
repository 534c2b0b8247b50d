"""At which of the loader's samples a source was asked for each of its own: what it draws follows from that."""

from __future__ import annotations

from typing import Any

from stoker.datasets.stream import State, count
from stoker.errors import StateFormatError


class Positions:
    """The positions of calls that are counted from 0; most follow each other evenly, and take no memory.

    Args:
        state: what `since` gave.

    Attributes:
        calls: how many there are.

    Raises:
        StateFormatError: it did not.
    """

    def __init__(self, state: State | None = None) -> None:
        self.calls: int = 0 if state is None else count(state, "calls")
        runs: Any = [] if state is None else state.get("runs")
        if not _are_runs(runs) or bool(self.calls) != bool(runs):
            raise StateFormatError(f"the positions of calls were expected, not {str(state)[:200]}")
        self._runs: list[list[int]] = [[*run] for run in runs]
        self._looked_at = 0

    def add(self, position: int) -> None:
        """Of the next call."""
        call, runs = self.calls, self._runs
        self.calls = call + 1
        if runs:
            run = runs[-1]
            first, at, step = run
            if position == at + (call - first) * step:
                return
            if call == first + 1:  # the second of its run
                run[2] = position - at
                return
        runs.append([call, position, 0])

    def __getitem__(self, call: int) -> int:
        """The position of a call; fast if it is that behind the one that was asked for before."""
        at = self._looked_at
        if at >= len(self._runs) or self._runs[at][0] > call:
            at = 0
        while at + 1 < len(self._runs) and self._runs[at + 1][0] <= call:
            at += 1
        self._looked_at = at
        first, position, step = self._runs[at]
        return position + (call - first) * step

    def since(self, call: int) -> State:
        """Plain values for those from this call on, of which there must be one; it is 0 in them."""
        begin = [0, self[call], self._runs[self._looked_at][2]]
        others = [[first - call, *run] for first, *run in self._runs[self._looked_at + 1 :]]
        return {"calls": self.calls - call, "runs": [begin, *others]}

    def forget(self, call: int) -> None:
        """Nobody will ask for those before this call."""
        runs = self._runs
        while len(runs) > 1 and runs[1][0] <= call:
            del runs[0]


def _are_runs(runs: object) -> bool:
    if not isinstance(runs, list):
        return False
    return all(isinstance(run, list) and list(map(type, run)) == [int] * 3 for run in runs)
