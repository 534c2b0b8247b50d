"""What the user has received of a loader's latest epoch: all that a state follows from.

The loader and its latest iterator share one object, so that a state can be taken while the iterator is in use, after
`break`, and when it is gone.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from stoker.errors import StateError
from stoker.loader.state import START, Place

if TYPE_CHECKING:
    from stoker.loader.epoch import Epoch


class Progress:
    """Counts what an iterator delivers. Used by the iterator's thread.

    Args:
        place: where its epoch begins.
    """

    def __init__(self, place: Place = START) -> None:
        self._begin = place
        self._epoch: Epoch | None = None
        self._batches = place.batches  # received without a gap
        self._ahead = set(place.ahead)  # received beyond a gap
        self._marks: dict[int, Any] = {}  # of batches that are planned and not received
        self._mark = place.mark
        self._streams: dict[int, tuple[bytes | None, bool]] = {}
        self._turn = place.turn
        self._finished = False
        self.generators = place.generators

    def begin(self, epoch: Epoch) -> None:
        """The epoch is decided."""
        self._epoch = epoch

    def planned(self, number: int, mark: Any) -> None:
        """Where the user's sampler stands behind a batch."""
        self._marks[number] = mark

    def received(self, number: int) -> None:
        """The user has received a batch, or its error."""
        self._ahead.add(number)
        while self._batches in self._ahead:
            self._ahead.discard(self._batches)
            self._mark = self._marks.pop(self._batches, self._mark)
            self._batches += 1

    def streamed(self, worker: int, state: bytes | None, ended: bool) -> None:
        """The user has received a batch of a worker's stream, or its error, or would have if it had not ended."""
        self._streams[worker] = state, ended
        if not ended:
            self._turn = worker + 1
            self._batches += 1

    def finish(self) -> None:
        """The user has received the whole epoch, and has been told so."""
        self._finished = True

    def place(self, following: int, streams: int) -> tuple[int, Place]:
        """Number of the epoch, and where it stands for the user.

        Args:
            following: number of the epoch that would begin next.
            streams: how many streams there are; 0 where the dataset has indices.

        Raises:
            StateError: a stream could not say where it stands.
        """
        epoch = self._epoch
        if epoch is None:
            return following, self._begin
        if self._finished:
            return epoch.number + 1, epoch.next_place()
        mark, position = self._mark, epoch.position(self._batches)
        if mark is not None:
            position, mark = mark
        return epoch.number, Place(
            seed=epoch.seed,
            batches=self._batches,
            position=position,
            ahead=frozenset(self._ahead),
            mark=mark,
            generators=self.generators,
            workers=[self._stream(number) for number in range(streams)] if streams else None,
            turn=self._turn,
        )

    def _stream(self, worker: int) -> Any:
        if worker not in self._streams:
            before = self._begin.workers
            return None if before is None else before[worker]
        blob, ended = self._streams[worker]
        state = {} if blob is None else pickle.loads(blob)
        state.pop("run", None)
        if "failed" in state:
            raise StateError(
                f"the stream of worker {worker} cannot say where it stands: {state['failed']}. Mend its state_dict(), "
                "or remove it: a stream without one is resumed by reading again what came before."
            )
        return {"ended": ended, **state}
