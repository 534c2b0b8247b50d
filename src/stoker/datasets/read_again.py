"""A source that is read again from an earlier place: what it raises once more, and was told of already, is passed over.

Streams that hold samples hand out a state of their source from before these, and read it again when they are resumed.
A sample that fails is told once all the same: told again, it would count for another sample, and all those behind it
would be taken for their neighbours.
"""

from __future__ import annotations

from typing import Any

from stoker._worker_info import current
from stoker.datasets.fingerprint import Fingerprint, same_again
from stoker.datasets.stream import State, StreamIterator, part
from stoker.errors import StateFormatError


class ReadAgain(StreamIterator[Any]):
    """The samples of a source, and its errors but for those that were told.

    Args:
        source: where it stood.
        state: of the stream that reads it, as it was then; its `failed` are the calls, counted from there, that failed.

    Attributes:
        calls: of the source that gave a sample, or failed. A mark of where it stands, for `told_since`.

    Raises:
        StateFormatError: `failed` is no list of counts.
    """

    def __init__(self, source: StreamIterator[Any], state: State | None) -> None:
        again = [] if state is None else state.get("failed", [])
        if not isinstance(again, list) or any(type(call) is not int for call in again):
            raise StateFormatError(f"a state with a list 'failed' of counts was expected, not {str(state)[:200]}")
        self._source = source
        self._again = set(again)
        self._told: list[int] = []
        self._print = Fingerprint()
        self._from: int | None = None  # the position of the sample for which its first call was made
        self._then: State | None = None if state is None or "again" not in state else part(state, "again")
        self.calls = 0

    def __next__(self) -> Any:
        while True:
            try:
                sample = next(self._source) if self.calls else self._first()
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

    def _first(self) -> Any:
        """Where it is read again, drawn as then: its order is drawn there, most likely."""
        now = None if current.reading.position is None else current.reading.position()
        then = None if self._then is None else self._then.get("from")
        self._from = now if then is None else then
        if then is None or now is None or current.reading.on_read_from is None:
            return next(self._source)
        current.reading.on_read_from(then)
        try:
            return next(self._source)
        finally:
            current.reading.on_read_from(now)

    def _called(self) -> None:
        """Where the source stands at its start, its own state cannot tell that it gives the same again."""
        self.calls += 1
        if self._then is not None and self.calls in (1, self._then.get("seen")):
            same_again(self._now(), self._then)

    def _now(self) -> State:
        state = {"seen": self.calls, **self._print.state_dict()}
        return state if self._from is None else {**state, "from": self._from}

    def fails(self) -> bool:
        """The latest call has failed, or what it gave is refused; returns whether that was told before."""
        self._told.append(self.calls - 1)
        return self.calls - 1 in self._again

    def told_since(self, calls: int) -> State:
        """What a state has to say of errors, and of the samples that are to be read again, if the source's state in it
        is that after so many calls: never fewer than the last time, so those before are forgotten."""
        self._told = [call for call in self._told if call >= calls]
        failed = {"failed": [call - calls for call in self._told]} if self._told else {}
        return failed if calls or not self.calls else {**failed, "again": self._now()}

    def state_dict(self) -> State:
        return self._source.state_dict()
