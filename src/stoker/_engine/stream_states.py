"""The states of workers' streams, from which other workers continue."""

from __future__ import annotations

from stoker._engine.backend import UnitReport


class StreamStates:
    """The latest state of each worker's stream, and what it has read since.

    Args:
        states: by worker, as `all()` returns them.
    """

    def __init__(self, states: dict[int, bytes] | None = None) -> None:
        self._whole = dict(states or {})
        self._since: dict[int, bytes] = {}

    def take(self, worker: int, said: UnitReport) -> None:
        """Takes a worker's report on a unit."""
        if said.stream_state is not None:
            self._whole[worker] = said.stream_state
            self._since.pop(worker, None)
        elif said.since is not None:
            self._since[worker] = said.since

    def of(self, worker: int) -> bytes | None:
        """Returns a worker's state, with what it has read since behind it; None if it has given nothing."""
        whole = self._whole.get(worker)
        return None if whole is None else whole + self._since.get(worker, b"")

    def all(self) -> dict[int, bytes]:
        """Returns the states of all workers."""
        return {worker: whole + self._since.get(worker, b"") for worker, whole in self._whole.items()}
