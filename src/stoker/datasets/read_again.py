"""A source that is read again from an earlier state, with the same random numbers and without errors already raised.

Streams that hold samples return a state of their source from before these samples, and read the source again when they
are resumed. The random numbers of a sample depend on the position, in the whole stream, at which it was read; that
position is recorded for each call, and the call is repeated at it. An error is raised only once: raised again, it would
count for another sample, and all later samples would be off by one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from operator import itemgetter
from typing import Any

from stoker._core.worker_info import current
from stoker.datasets.fingerprint import Fingerprint, same_again
from stoker.datasets.stream import State, StreamIterator, part
from stoker.errors import StateFormatError


class ReadAgain(StreamIterator[Any]):
    """The samples of a source, and its errors except those already raised.

    Args:
        source: the source, at the position of the state.
        state: of the stream that reads the source: `failed` lists the calls, counted from that position, that failed,
            `at` the positions at which calls were made.

    Attributes:
        calls: the number of the source's calls that gave a sample or failed; an argument for `state_since`.

    Raises:
        StateFormatError: `failed` is not a list of counts, or `at` does not hold positions.
    """

    def __init__(self, source: StreamIterator[Any], state: State | None) -> None:
        again = [] if state is None else state.get("failed", [])
        if not isinstance(again, list) or any(type(call) is not int for call in again):
            raise StateFormatError(f"a state with a list 'failed' of counts was expected, found {str(state)[:200]}")
        self._source = source
        self._again = set(again)
        self._told = [*again]
        self._print = Fingerprint()
        self._positions = Positions(None if state is None or "at" not in state else part(state, "at"))
        self._then_read = self._positions.calls  # the number of calls to repeat
        self._at: int | None = None  # position of the latest call, in a loader
        self._outside = 0  # the loader's position before going back
        self._then: State | None = None if state is None or "again" not in state else part(state, "again")
        self.calls = 0

    def __next__(self) -> Any:
        while True:
            try:
                sample = next(self._source) if current.reading.position is None else self._read()
            except StopIteration:
                raise
            except Exception:
                self._called()
                if self.fails():
                    continue
                raise
            self._print.take(sample, self.calls + 1)
            self._called()
            return sample

    def _read(self) -> Any:
        """Reads a sample in a loader."""
        reading = current.reading
        assert reading.position is not None
        now = reading.position()
        if self.calls >= self._then_read or reading.on_read_from is None:
            self._at = now
            return next(self._source)
        if now != self._at:
            self._outside = now
        self._at = self._positions[self.calls]
        if now != self._at:
            reading.on_read_from(self._at)
        try:
            return next(self._source)
        finally:
            if self.calls + 1 == self._then_read and self._at != self._outside:
                reading.on_read_from(self._outside)

    @property
    def is_fresh(self) -> bool:
        """Whether the next call is the first at its position. Only from such a call on can the source be read again
        unchanged.
        """
        position = current.reading.position
        if position is None or not 0 < self.calls <= self._positions.calls:  # or begun outside of a loader
            return True
        following = self._positions[self.calls] if self.calls < self._positions.calls else position()
        return following != self._positions[self.calls - 1]

    def _called(self) -> None:
        """Counts a call, and compares a repeated source with its first pass.

        The source's own state at its start cannot show whether it gives the same samples again.
        """
        if self._at is not None and self.calls == self._positions.calls:
            self._positions.add(self._at)
        self.calls += 1
        if self._then is not None and self.calls in (1, self._then.get("seen")):
            same_again(self._now(), self._then)

    def _now(self) -> State:
        return {"seen": self.calls, **self._print.state_dict()}

    def fails(self) -> bool:
        """Records that the latest call failed or its sample was rejected; returns whether that was raised before."""
        if self.calls - 1 in self._again:
            return True
        self._told.append(self.calls - 1)
        return False

    def state_since(self, calls: int) -> State:
        """Returns the entries of a state on errors and repeated samples, if the source's state in it was taken after
        `calls` calls.
        """
        state: State = {}
        if failed := [call - calls for call in self._told if call >= calls]:
            state["failed"] = failed
        draws = current.reading.draws
        if self.calls <= self._positions.calls > calls and draws is not None and draws():
            state["at"] = self._positions.since(calls)
        again = self._now() if self.calls else self._then
        return state if calls or again is None else {**state, "again": again}

    def forget(self, calls: int) -> None:
        """Removes the records before `calls` calls, which are no longer needed."""
        self._told = [call for call in self._told if call >= calls]
        self._positions.forget(calls)

    def state_dict(self) -> State:
        return self._source.state_dict()


# The loader's positions at which a source was called; random numbers depend on them. A state lists thousands of them
# at each batch, so they are recorded in the state's text form: steps between positions, run-length encoded.


_STEPS = re.compile(r"(?:(?:\d+\*)?-?\d+,)*(?:\d+\*)?-?\d+")


class Positions:
    """The positions of calls, which are counted from 0.

    Args:
        state: the result of `since`.

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
