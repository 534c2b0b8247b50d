"""`Progress`: the batches of a loader's latest epoch that the user has received, from which a state follows; and the
indices of any batch.

The loader and its latest iterator share one object, so that a state can be taken while the iterator is in use, after
`break`, and after the iterator is deleted.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoker._core.protocol import asked
from stoker.errors import SamplerError, StateError
from stoker.loader._epoch import epoch as epochs_
from stoker.loader._epoch import ranks
from stoker.loader._options import argument_checks
from stoker.loader._state.resharding import holds_own, name_shards, not_begun
from stoker.loader._state.resharding import since as unread_since
from stoker.loader._state.schema import START, Place

if TYPE_CHECKING:
    from stoker._engine.backend import UnitReport
    from stoker.loader._epoch.draws import EpochSeed
    from stoker.loader._epoch.epoch import Epoch
    from stoker.loader._epoch.epoch_counter import EpochCounter
    from stoker.loader._epoch.sampler_walk import SamplerWalk
    from stoker.loader._options.loader_options import LoaderOptions


class Progress:
    """Counts what an iterator delivers. Used by the iterator's thread.

    Args:
        place: start of the iterator's epoch.
        walk: the pass over a walked sampler, else None.
        numbers: of the iterator's epoch; None without an iterator.
        ended: of the epoch before, from whose end the same datasets continue.

    Attributes:
        numbers: as given, until the epoch is decided; then None.
    """

    def __init__(
        self,
        place: Place = START,
        walk: SamplerWalk | None = None,
        numbers: EpochSeed | None = None,
        ended: Progress | None = None,
    ) -> None:
        self._walk = walk
        self._ended = ended
        self.numbers = numbers
        self._epoch: Epoch | None = None
        self._streams: dict[int, tuple[bytes, bool]] = {}
        self._stands: dict[str, Any] | None = None  # a later state of the only stream, as it is in process
        self._since: dict[int, tuple[bytes, bool]] = {}  # what was read behind these
        self._ask: Callable[[], Callable[[bytes], bytes | None] | None] | None = None
        self._of = 0  # number of streams
        self._finished = False
        self._stand(place)

    def _stand(self, place: Place) -> None:
        self._begin = place
        self._batches = place.batches  # received without a gap
        self._ahead = set(place.ahead)  # received beyond a gap
        self._turn = place.turn

    @property
    def epoch(self) -> Epoch | None:
        """Returns the iterator's epoch, if it is decided."""
        return self._epoch

    @property
    def has_begun(self) -> bool:
        """Returns whether the epoch is decided."""
        return self._epoch is not None

    @property
    def batches_done(self) -> int:
        """Returns the batches of the epoch that are done with: received, or left out by `skip()`."""
        return self._batches + len(self._ahead)

    @property
    def is_over(self) -> bool:
        """Returns whether the user has received the whole epoch and its StopIteration."""
        return self._finished

    def at_end(self, place: Place) -> Place:
        """Returns the start of the next epoch, with the states of the datasets at the end of this one."""
        states = [self._stream(number) for number in range(self._of)]
        return place._replace(workers=states, through=True, before=None) if holds_own(states) else place

    def with_past(self, place: Place) -> Place:
        """Returns the start of the next epoch, with the states in which this one's streams have ended, if these name
        shards: those of ranks that are still in this epoch are merged with them."""
        states = [self._stream(number) for number in range(self._of)]
        return place._replace(past=states) if name_shards(states) else place

    def waits(self, steps: int) -> None:
        """Records a step that other ranks take after this rank's last batch: its place is that of all ranks."""
        self._finished = False
        self._batches = min(self._batches + 1, steps)

    def begin(self, epoch: Epoch, walk: SamplerWalk | None, streams: int = 0) -> None:
        """Records the decided epoch, whose start may differ from the expected one (`set_epoch`).

        Args:
            epoch: the decided epoch.
            walk: the pass over a walked sampler, else None.
            streams: number of streams; 0 if the dataset has indices.
        """
        self._epoch, self._walk, self.numbers, self._ended = epoch, walk, None, None
        self._of = streams
        self._stand(epoch.place)

    def received(self, number: int) -> None:
        """Records that the user has received a batch or its error."""
        if number == self._batches and not self._ahead:  # nearly always
            self._batches += 1
        else:
            self._ahead.add(number)
            plan = None if self._walk is None else self._walk.plan
            while self._batches in self._ahead and (plan is None or plan.knows(self._batches)):  # up to the next gap
                self._ahead.discard(self._batches)
                self._batches += 1
        if self._walk is not None and self._walk.plan is not None:
            self._walk.plan.delivered(self._batches)

    def asks(self, ask: Callable[[bytes], bytes | None]) -> None:
        """Sets the method that returns the stream's state now, if it stands where it said what it had read; else None.

        Its object is kept only once the epoch is over: a stream that is left ends then.
        """
        self._ask = weakref.WeakMethod(ask)

    def settle(self) -> None:
        """Asks the stream for its state, because it will be gone: in the middle of an epoch."""
        if not self._finished:
            for worker in list(self._since):
                self._ask_stream(worker)

    def _ask_stream(self, worker: int) -> None:
        ask = None if self._ask is None else self._ask()
        since, ended = self._since[worker]
        if ask is not None and (state := ask(since)) is not None:
            self._streams[worker] = state, ended
            del self._since[worker]

    def streamed(self, worker: int, report: UnitReport, ended: bool) -> None:
        """Records that the user has received a batch of a worker's stream or its error, or that the stream ended."""
        self._take_state()
        if report.stream_state is not None:  # None from a worker that died or could not open its stream
            self._streams[worker] = report.stream_state, ended
            self._since.pop(worker, None)
        elif report.since is not None:
            self._since[worker] = report.since, ended
        if not ended:
            self._turn = worker + 1
            self._batches += 1

    def delivered(self, state: dict[str, Any], batch: Any) -> Any:
        """Records that the user receives a batch of the only stream, which has this state behind it; returns it."""
        self._turn, self._batches, self._stands = 1, self._batches + 1, state
        return batch

    def _take_state(self) -> None:
        state, self._stands = self._stands, None
        if state is not None:
            self._streams[0] = pickle.dumps(state, 5), False
            self._since.pop(0, None)

    def finish(self) -> None:
        """Records that the user has received the whole epoch and its StopIteration."""
        self._finished = True
        ask = None if self._ask is None or not self._since else self._ask()
        self._ask = None if ask is None else lambda: ask

    def place(self, following: int) -> tuple[int, Place]:
        """Returns the number of the epoch, and the user's place in it.

        Args:
            following: number of the epoch that would begin next.

        Raises:
            StateError: the `state_dict()` of a stream raised.
        """
        epoch = self._epoch
        if epoch is None:
            place = self._begin if self._ended is None else self._ended.at_end(self._begin)
            drawn_since = self.numbers is not None and not self.numbers.is_fixed
            if self._walk is not None and not place.batches and (drawn_since or self._walk.drew_globally):
                place = place._replace(generators=self._walk.generators or place.generators)
            return following, place if self._walk is None else self._walk.place_behind(place)
        if self._finished:
            return following, epoch.next_place() if following == epoch.number + 1 else START  # START: by `set_epoch`
        place = Place(
            seed=epoch.seed,
            batches=self._batches,
            position=epoch.position(self._batches),
            ahead=frozenset(self._ahead),
            generators=None if self._walk is None else self._walk.generators,
            workers=[self._stream(number) for number in range(self._of)] if self._of else None,
            turn=self._turn,
            order=epoch.place.order,
            root=epoch.root,
            before=None if self._batches else self._begin.before,
        )
        return epoch.number, place if self._walk is None else self._walk.place_behind(place)

    def _stream(self, worker: int) -> Any:
        self._take_state()
        before = None if self._begin.workers is None else self._begin.workers[worker]
        if worker in self._since:
            self._ask_stream(worker)
        if worker not in self._streams and worker not in self._since:
            return before
        state = before or not_begun(None)
        if worker in self._streams:
            blob, ended = self._streams[worker]
            state = {"ended": ended, **pickle.loads(blob)}
            state.pop("run", None)
        if worker in self._since:
            since, ended = self._since[worker]
            state = {**state, "ended": ended, "again": pickle.loads(since)}
        if "failed" in state:
            raise StateError(
                f"the stream of worker {worker} cannot say where it stands: {state['failed']}. Correct its "
                "state_dict(), or remove it; read a dataset that you cannot change through a generator without one: "
                "stoker.from_iterable(lambda: (sample for sample in dataset)). A stream without one is resumed by "
                "reading again what came before."
            )
        return unread_since(before, state)


def batch_indices(
    options: LoaderOptions,
    epochs: EpochCounter,
    progress: Progress,
    resumed: Place | None,
    number: int,
    k: int,
    rank: int | None,
) -> list[Any]:
    """Returns the indices of batch `k` of epoch `number`, as `DataLoader.batch_indices` describes.

    Args:
        options: of the loader.
        epochs: counts its epochs.
        progress: of its latest iterator.
        resumed: the place of a loaded state, in epoch `epochs.begun`.
        number: of the epoch.
        k: of the batch.
        rank: whose batch; None for this one.
    """
    number, k = argument_checks.count("epoch", number), argument_checks.count("k", k)
    _check_is_computed(options)
    here = _world(options, rank)
    seed, place = _begin_of(options, epochs, progress, resumed, number)
    first = epochs_.start(options, epochs, number)._replace(order=place.order)
    if k < place.batches:
        _, share, size = epochs_.computed(options, seed, first, here)
        if share.global_position(place.batches, size) != place.position:
            raise SamplerError(
                f"batch {k} of epoch {number} was made by a run with another number of ranks or another batch size: "
                f"this run has continued after batch {place.batches - 1}. Ask a loader with the settings of that run."
            )
        place = first
    plan, _, _ = epochs_.computed(options, seed, place, here)
    step = plan.step(k - place.batches)
    if step is None:
        of_rank = f" on rank {here.rank} of {here.size}" if here.size > 1 else ""
        raise IndexError(f"epoch {number} has no batch {k}{of_rank}: they are counted from 0, and there are too few")
    return list(step.indices) if options.auto_collation else [step.indices]


def _check_is_computed(options: LoaderOptions) -> None:
    """Refuses orders that are not a function of a number."""
    if options.is_stream:
        raise SamplerError(
            f"the batches of a stream ({type(options.dataset).__name__}) cannot be computed: each is known when it is "
            "read. A dataset with indices (__getitem__ and __len__) has an order."
        )
    if not epochs_.is_computed(options):
        sampler = options.index_sampler
        inner = asked(sampler, "sampler", sampler)
        raise SamplerError(
            f"the order of {type(inner).__name__} can only be iterated from its start, with its generators as they "
            "were then. Leave the sampler out (shuffle=True), or import it from stoker."
        )


def _world(options: LoaderOptions, rank: int | None) -> ranks.World:
    here = epochs_.world_of(options)
    if rank is None:
        return here
    if not 0 <= argument_checks.count("rank", rank) < here.size:
        raise ValueError(f"rank is {rank}, and there are {here.size} ranks ({here.source}), counted from 0")
    return here._replace(rank=rank)


def _begin_of(
    options: LoaderOptions, epochs: EpochCounter, progress: Progress, resumed: Place | None, number: int
) -> tuple[int, Place]:
    """Returns the seed of an epoch, and the place at which this loader began it, or would begin it."""
    current = progress.epoch
    if current is not None and current.number == number:
        return current.seed, current.place
    if resumed is not None and resumed.seed is not None and epochs.begun == number:
        return resumed.seed, resumed
    if not epochs_.is_fixed(options):
        known = f"epoch {current.number}" if current is not None else "none"
        raise SamplerError(
            f"the order of epoch {number} is not known: its seed is drawn when it begins ({known} is known now). "
            "Pass seed=0 to the loader, and each epoch follows from its number; or load the state of that run first."
        )
    return epochs_.seed_of(options, number), epochs_.start(options, epochs, number)
