"""A source that is read again from an earlier place: as it was read then, but for what it was told to have raised.

Streams that hold samples hand out a state of their source from before these, and read it again when they are resumed.
What a sample draws follows from the position, in the whole stream, of the one for which it was read: that is noted for
each, and they are read again at these positions. A sample that fails is told once all the same: told again, it would
count for another sample, and all those behind it would be taken for their neighbours.
"""

from __future__ import annotations

from typing import Any

from stoker._worker_info import current
from stoker.datasets.fingerprint import Fingerprint, same_again
from stoker.datasets.positions import Positions
from stoker.datasets.stream import State, StreamIterator, part
from stoker.errors import StateFormatError


class ReadAgain(StreamIterator[Any]):
    """The samples of a source, and its errors but for those that were told.

    Args:
        source: where it stood.
        state: of the stream that reads it, as it was then: `failed` are the calls, counted from there, that failed,
            `at` the positions for which they were made.

    Attributes:
        calls: of the source that gave a sample, or failed. A mark of where it stands, for `told_since`.

    Raises:
        StateFormatError: `failed` is no list of counts, or `at` tells of no positions.
    """

    def __init__(self, source: StreamIterator[Any], state: State | None) -> None:
        again = [] if state is None else state.get("failed", [])
        if not isinstance(again, list) or any(type(call) is not int for call in again):
            raise StateFormatError(f"a state with a list 'failed' of counts was expected, not {str(state)[:200]}")
        self._source = source
        self._again = set(again)
        self._told = [*again]
        self._print = Fingerprint()
        self._positions = Positions(None if state is None or "at" not in state else part(state, "at"))
        self._then_read = self._positions.calls  # so many calls are made again
        self._at: int | None = None  # that of the latest call, in a loader
        self._outside = 0  # the one from which it was gone back
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
        """In a loader."""
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
        """Whether the next call is the first for its position: only from there on it can be read again as it was."""
        position = current.reading.position
        if position is None or not 0 < self.calls <= self._positions.calls:  # or it was begun outside of a loader
            return True
        following = self._positions[self.calls] if self.calls < self._positions.calls else position()
        return following != self._positions[self.calls - 1]

    def _called(self) -> None:
        """Where the source stands at its start, its own state cannot tell that it gives the same again."""
        if self._at is not None and self.calls == self._positions.calls:
            self._positions.add(self._at)
        self.calls += 1
        if self._then is not None and self.calls in (1, self._then.get("seen")):
            same_again(self._now(), self._then)

    def _now(self) -> State:
        return {"seen": self.calls, **self._print.state_dict()}

    def fails(self) -> bool:
        """The latest call has failed, or what it gave is refused; returns whether that was told before."""
        if self.calls - 1 in self._again:
            return True
        self._told.append(self.calls - 1)
        return False

    def told_since(self, calls: int) -> State:
        """What a state has to say of errors, and of the samples that are to be read again, if the source's state in it
        is that after so many calls."""
        told: State = {}
        if failed := [call - calls for call in self._told if call >= calls]:
            told["failed"] = failed
        draws = current.reading.draws
        if self.calls <= self._positions.calls > calls and draws is not None and draws():
            told["at"] = self._positions.since(calls)
        again = self._now() if self.calls else self._then
        return told if calls or again is None else {**told, "again": again}

    def forget(self, calls: int) -> None:
        """Nobody will ask for what was told before so many calls."""
        self._told = [call for call in self._told if call >= calls]
        self._positions.forget(calls)

    def state_dict(self) -> State:
        return self._source.state_dict()
