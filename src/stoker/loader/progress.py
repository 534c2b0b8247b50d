"""What the user has received of a loader's latest epoch: all that a state follows from.

The loader and its latest iterator share one object, so that a state can be taken while the iterator is in use, after
`break`, and when it is gone.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from stoker.errors import StateError
from stoker.loader.resharding import since
from stoker.loader.state import START, Place

if TYPE_CHECKING:
    from stoker.loader.epoch import Epoch
    from stoker.loader.walk import Walk


class Progress:
    """Counts what an iterator delivers. Used by the iterator's thread.

    Args:
        place: where its epoch begins.
        walk: the pass over the user's sampler, where that is walked.
    """

    def __init__(self, place: Place = START, walk: Walk | None = None) -> None:
        self._walk = walk
        self._epoch: Epoch | None = None
        self._streams: dict[int, tuple[bytes, bool]] = {}
        self._of = 0  # streams there are
        self._finished = False
        self._stand(place)

    def _stand(self, place: Place) -> None:
        self._begin = place
        self._batches = place.batches  # received without a gap
        self._ahead = set(place.ahead)  # received beyond a gap
        self._marks: dict[int, Any] = {}  # of batches that are planned and not received
        self._mark = None if place.mark is None else (place.position, place.mark)
        self._turn = place.turn
        self._planned = place.batches
        self._over = place.batches if place.over else None  # that many batches, where the sampler has ended

    @property
    def has_begun(self) -> bool:
        """Whether the epoch is decided."""
        return self._epoch is not None

    def begin(self, epoch: Epoch, walk: Walk | None, streams: int = 0) -> None:
        """The epoch is decided, and may begin elsewhere than was thought (`set_epoch`).

        Args:
            epoch: what was decided.
            walk: the pass over the user's sampler, where that is walked.
            streams: how many there are; 0 where the dataset has indices.
        """
        self._epoch, self._walk = epoch, walk
        self._of = streams
        self._stand(epoch.place)

    def planned(self, number: int, mark: Any) -> None:
        """Where the user's sampler stands behind a batch, and whether that is known to be its end."""
        *where, is_over = mark
        self._marks[number] = where
        self._planned = number + 1
        if is_over:
            self._over = self._planned

    def over(self, mark: Any) -> None:
        """The user's sampler has ended, and where it stands now."""
        *where, _ = mark
        self._over = self._planned
        if self._batches == self._planned:
            self._mark = where
        self._marks[self._planned - 1] = where

    def received(self, number: int) -> None:
        """The user has received a batch, or its error."""
        if number == self._batches and not self._ahead:  # nearly always
            if self._marks:
                self._mark = self._marks.pop(number, self._mark)
            self._batches += 1
            return
        self._ahead.add(number)
        while self._batches in self._ahead:
            self._ahead.discard(self._batches)
            self._mark = self._marks.pop(self._batches, self._mark)
            self._batches += 1

    def streamed(self, worker: int, state: bytes | None, ended: bool) -> None:
        """The user has received a batch of a worker's stream, or its error, or would have if it had not ended."""
        if state is not None:  # a worker that died has not said, nor has one whose stream could not be opened
            self._streams[worker] = state, ended
        if not ended:
            self._turn = worker + 1
            self._batches += 1

    def finish(self) -> None:
        """The user has received the whole epoch, and has been told so."""
        self._finished = True

    def place(self, following: int) -> tuple[int, Place]:
        """Number of the epoch, and where it stands for the user.

        Args:
            following: number of the epoch that would begin next.

        Raises:
            StateError: a stream could not say where it stands.
        """
        epoch = self._epoch
        if epoch is None:
            return following, self._begin
        if self._finished:
            return following, epoch.next_place() if following == epoch.number + 1 else START  # START: by `set_epoch`
        position, mark = self._mark or (epoch.position(self._batches), None)
        return epoch.number, Place(
            seed=epoch.seed,
            batches=self._batches,
            position=position,
            ahead=frozenset(self._ahead),
            mark=mark,
            over=mark is not None and self._batches == self._over,
            generators=None if self._walk is None else self._walk.generators,
            workers=[self._stream(number) for number in range(self._of)] if self._of else None,
            turn=self._turn,
        )

    def _stream(self, worker: int) -> Any:
        before = None if self._begin.workers is None else self._begin.workers[worker]
        if worker not in self._streams:
            return before
        blob, ended = self._streams[worker]
        state = pickle.loads(blob)
        state.pop("run", None)
        if "failed" in state:
            raise StateError(
                f"the stream of worker {worker} cannot say where it stands: {state['failed']}. Mend its state_dict(), "
                "or remove it, or read a dataset that is not yours through a generator, which has none: "
                "stoker.from_iterable(lambda: (sample for sample in dataset)). A stream without one is resumed by "
                "reading again what came before."
            )
        return since(before, {"ended": ended, **state})
