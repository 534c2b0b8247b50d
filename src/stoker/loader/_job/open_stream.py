"""A stream that one worker reads: opened or resumed, all of it or a share, each sample under its own seeds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stoker._core.worker_info import current
from stoker.datasets.fingerprint import same_again
from stoker.datasets.stream import Counted
from stoker.errors import StateMismatchError
from stoker.loader._job.stream_sharding import Numbered, read_again, shared_out
from stoker.loader._state.resharding import drawn_in

if TYPE_CHECKING:
    from stoker.datasets.stream import State, StreamIterator
    from stoker.loader._job.stream_sharding import Share
    from stoker.loader._random.sample_seeding import SampleSeeding

Item = tuple[int, Any]


class OpenStream:
    """An iteration over a stream, in one worker.

    Args:
        dataset: the stream.
        state: state to resume from: `state_dict()` of an earlier iteration, or the result of `reshared`; None for the
            start.
        seeds: under which it is opened.
        seed: of all workers, for streams that each of them reads whole.
        own: this worker's seed.
        share: the part to read; None for all of it.
        whole: whether all workers read the same, if it is not shared out.

    Attributes:
        seed: under which samples are made.
        position: of the next sample.
    """

    def __init__(
        self,
        dataset: Any,
        state: State | None,
        seeds: SampleSeeding,
        *,
        seed: int,
        own: int,
        share: Share | None,
        whole: bool,
    ) -> None:
        self._drawn = {} if state is None else drawn_in(state)
        again, then = read_again(dataset, state), state
        if state is not None and again:
            state = {**state, "position": 0, "stream": None} if state.get("strided") else None
        self.position = 0 if state is None else state["position"]
        merged = state is not None and state.get("merged")
        # If it was opened before, the draws of opening it belong to no sample
        drawn = self._drawn if state is None or merged else dict(self._drawn)
        at = self.position if merged else 0
        self.seed = seed
        outside = current.reading.on_read_from
        self._source: StreamIterator[Item]
        if state is not None and not merged:
            of_all = whole if share is None else state.get("strided")
            seed_then = seed if of_all else own
            current.reading.on_read_again = self._reader(seeds, seed_then, self.position)
            current.reading.on_read_from = functools.partial(_read_from, seeds, seed_then)
        try:
            with seeds.undisturbed(seed):
                if share is None:
                    self._source = seeds.one(seed, at, functools.partial(Numbered, dataset, state), drawn)
                else:
                    self._source, whole = self._shared_out(dataset, share, state, seeds, own, at, drawn)
        finally:
            current.reading.on_read_again, current.reading.on_read_from = None, outside
        self.seed = seed if whole else own
        self._into: tuple[Sequence[Any], int] = (), 0  # samples that `several` is reading, and those before them
        self._pull: Callable[[], Item | None] = functools.partial(next, self._source, None)
        with seeds.undisturbed(self.seed):
            while self.position < again:
                self._read_again(seeds, again)
                if then is not None and self.position in (1, again):
                    same_again(self._source.state_dict()["stream"], then["stream"])

    def _shared_out(
        self,
        dataset: Any,
        share: Share,
        state: State | None,
        seeds: SampleSeeding,
        own: int,
        at: int,
        drawn: dict[str, int],
    ) -> tuple[StreamIterator[Item], bool]:
        """Workers begin alike, until the stream asks which of them it is in: then its draws are that worker's."""

        def use_own_seed() -> None:
            self.seed = own
            seeds.again(own, at)

        def opened() -> None:
            seeds.next_one(self.seed, at)

        outside = current.reading.on_resumed
        current.reading.on_asked, current.reading.on_resumed = use_own_seed, lambda: seeds.again(self.seed, at)
        try:
            return seeds.one(self.seed, at, lambda: shared_out(dataset, share, state, opened), drawn)
        finally:
            current.reading.on_asked, current.reading.on_resumed = None, outside

    def _reader(self, seeds: SampleSeeding, seed: int, position: int) -> Callable[[int], None]:
        return lambda back: seeds.again(seed, position - back)

    def next(self, seeds: SampleSeeding) -> Item | None:
        """Returns its next sample, with its position, under that sample's seeds; None at the end. A sample that raises
        has a position too.
        """
        ended = False
        try:
            item = seeds.one(self.seed, self.position, self._pull, self._drawn)
            ended = item is None
            return item
        finally:
            self.position += not ended

    def several(self, seeds: SampleSeeding, samples: list[Any], most: int) -> bool | None:
        """Appends samples as calls of `next` would return them, without their positions: see `Counted.several`."""
        source = self._source
        if type(source) is not Numbered or type(counted := source.stream) is not Counted:
            return None
        before, failed = len(samples), 0
        self._into = samples, before
        take = functools.partial(seeds.several, self.seed, self.position, self._drawn)
        try:
            return counted.several(take, samples, most)
        except BaseException:
            failed = 1
            raise
        finally:
            self._into = (), 0
            done = len(samples) - before + failed
            self.position += done
            source.position += done

    def again(self, seeds: SampleSeeding) -> None:
        """Seeds the generators within `next` as if nothing had been drawn."""
        samples, before = self._into
        seeds.again(self.seed, self.position + len(samples) - before)

    def read_from(self, seeds: SampleSeeding, position: int) -> None:
        """Seeds the generators within `next` as at that position."""
        _read_from(seeds, self.seed, position)

    def state_dict(self) -> State:
        """Returns the state of the stream."""
        return {**self._source.state_dict(), "drawn": {**self._drawn}}

    def _read_again(self, seeds: SampleSeeding, until: int) -> None:
        """Reads a delivered sample again, with the same draws, and drops it."""
        try:
            has_sample = self.next(seeds) is not None
        except Exception:  # so it was then
            return
        if not has_sample:
            raise StateMismatchError(
                f"the state stands behind sample {until} of a stream that has {self.position} now: it is another "
                "stream, or has lost samples since."
            )


def _read_from(seeds: SampleSeeding, seed: int, position: int) -> None:
    if not seeds.are_at(seed, position):  # else what another stream drew there comes first, as it did then
        seeds.again(seed, position)
