"""At which of the loader's samples a source was asked for each of its own: what it draws follows from that.

A state has those of all samples that are held, thousands, and is taken at each batch. So they are noted as the text
that the state will have: by how much each is further than the one before, and how often in a row.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from operator import itemgetter

from stoker.datasets.stream import State
from stoker.errors import StateFormatError

_STEPS = re.compile(r"(?:(?:\d+\*)?-?\d+,)*(?:\d+\*)?-?\d+")


class Positions:
    """The positions of calls that are counted from 0.

    Args:
        state: what `since` gave.

    Attributes:
        calls: how many there are.

    Raises:
        StateFormatError: it did not.
    """

    def __init__(self, state: State | None = None) -> None:
        self.calls = 0
        self._latest = 0
        self._runs: list[tuple[int, int, int, int]] = []  # first call, position before it, step, where its text begins
        self._text = bytearray()  # of all runs but the last
        self._cut = 0  # so much text was there before
        if state is not None:
            self._load(state)

    def _load(self, state: State) -> None:
        before, steps = state.get("before"), state.get("steps")
        if type(before) is not int or not isinstance(steps, str) or not _STEPS.fullmatch(steps):
            raise StateFormatError(f"the positions of calls were expected, not {str(state)[:200]}")
        self._latest = before
        for run in steps.split(","):
            times, _, step = run.rpartition("*")
            self._begin(int(step))
            self.calls += int(times or 1)
            self._latest += int(step) * int(times or 1)

    def add(self, position: int) -> None:
        """Of the next call."""
        step = position - self._latest if self.calls else 0
        if not self._runs or step != self._runs[-1][2]:
            self._latest = self._latest if self.calls else position
            self._begin(step)
        self._latest = position
        self.calls += 1

    def _begin(self, step: int) -> None:
        """Another run."""
        if self._runs:
            first, _, last, _ = self._runs[-1]
            self._text += b"%s," % _run(self.calls - first, last).encode()
        self._runs.append((self.calls, self._latest, step, self._cut + len(self._text)))

    def __getitem__(self, call: int) -> int:
        """The position of a call."""
        first, before, step, _ = self._runs[self._run_of(call)]
        return before + (call - first + 1) * step

    def _run_of(self, call: int) -> int:
        return bisect_right(self._runs, call, key=itemgetter(0)) - 1

    def since(self, call: int) -> State:
        """Plain values for those from this call on, of which there must be one."""
        number = self._run_of(call)
        ends = [*(run[0] for run in self._runs[number + 1 : number + 2]), self.calls]
        step = self._runs[number][2]
        steps = _run(ends[0] - call, step)
        if len(ends) > 1:
            first, _, last, _ = self._runs[-1]
            text = self._text[self._runs[number + 1][3] - self._cut :].decode()
            steps += f",{text}{_run(self.calls - first, last)}"
        return {"before": self[call] - step, "steps": steps}

    def forget(self, call: int) -> None:
        """Nobody will ask for those before this call."""
        number = self._run_of(call)
        if number > 0:
            del self._runs[:number]
            begins = self._runs[0][3]
            del self._text[: begins - self._cut]
            self._cut = begins


def _run(times: int, step: int) -> str:
    return str(step) if times == 1 else f"{times}*{step}"
