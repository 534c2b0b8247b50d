"""The loader's positions at which a source was called for its samples; random numbers depend on the position.

A state lists the positions of all held samples, thousands of them, and is taken at each batch. They are therefore
recorded in the text form of the state: the step from each position to the next, run-length encoded.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from operator import itemgetter

from stoker.datasets.stream import State
from stoker.errors import StateFormatError

_STEPS = re.compile(r"(?:(?:\d+\*)?-?\d+,)*(?:\d+\*)?-?\d+")


class Positions:
    """The positions of calls, which are counted from 0.

    Args:
        state: the result of `since`.

    Attributes:
        calls: the number of calls.

    Raises:
        StateFormatError: `state` is not a result of `since`.
    """

    def __init__(self, state: State | None = None) -> None:
        self.calls = 0
        self._latest = 0
        self._runs: list[tuple[int, int, int, int]] = []  # first call, position before it, step, start of its text
        self._text = bytearray()  # the text of all runs but the last
        self._cut = 0  # length of the text removed from the front
        if state is not None:
            self._load(state)

    def _load(self, state: State) -> None:
        before, steps = state.get("before"), state.get("steps")
        if type(before) is not int or not isinstance(steps, str) or not _STEPS.fullmatch(steps):
            raise StateFormatError(f"the positions of calls were expected, found {str(state)[:200]}")
        self._latest = before
        for run in steps.split(","):
            times, _, step = run.rpartition("*")
            self._begin(int(step))
            self.calls += int(times or 1)
            self._latest += int(step) * int(times or 1)

    def add(self, position: int) -> None:
        """Records the position of the next call."""
        step = position - self._latest if self.calls else 0
        if not self._runs or step != self._runs[-1][2]:
            self._latest = self._latest if self.calls else position
            self._begin(step)
        self._latest = position
        self.calls += 1

    def _begin(self, step: int) -> None:
        """Begins another run."""
        if self._runs:
            first, _, last, _ = self._runs[-1]
            self._text += b"%s," % _run(self.calls - first, last).encode()
        self._runs.append((self.calls, self._latest, step, self._cut + len(self._text)))

    def __getitem__(self, call: int) -> int:
        """Returns the position of a call."""
        first, before, step, _ = self._runs[self._run_of(call)]
        return before + (call - first + 1) * step

    def _run_of(self, call: int) -> int:
        return bisect_right(self._runs, call, key=itemgetter(0)) - 1

    def since(self, call: int) -> State:
        """Returns the positions from this call on, at least one, as plain values."""
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
        """Removes the positions before this call, which are no longer needed."""
        number = self._run_of(call)
        if number > 0:
            del self._runs[:number]
            begins = self._runs[0][3]
            del self._text[: begins - self._cut]
            self._cut = begins


def _run(times: int, step: int) -> str:
    return str(step) if times == 1 else f"{times}*{step}"
