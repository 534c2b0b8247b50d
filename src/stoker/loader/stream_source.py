"""How a unit's samples are read from a worker's stream, and how a stream goes on where another one stood."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stoker._engine.base import NothingLeft, StreamEnd
from stoker._stories import text_of
from stoker._worker_info import current
from stoker.errors import ErrorBudgetError, StateMismatchError, StreamLostError
from stoker.loader.faults import Faults
from stoker.loader.generators import mix
from stoker.loader.held_generators import held_generators
from stoker.loader.open_stream import OpenStream
from stoker.loader.sharding import OTHERS, is_chain, is_counted, other_dataset

if TYPE_CHECKING:
    from stoker.collate.early import Keep
    from stoker.datasets.stream import State
    from stoker.loader.job import Settings, Work
    from stoker.loader.seeding import SampleSeeding


PATIENCE = 10
"""Samples in a row that a stream may fail to give instead of one another."""


class StreamSource:
    """One worker's stream in one epoch of its iterator; opened by the first unit.

    Args:
        dataset: what is iterated over.
        settings: the loader's.
        number: the worker's.
        init_fn: whether the user's function ran in the worker, which is where he would share a stream out.
        run: number of the iterator's epoch.
        faults: what is done about samples that fail.
        mark: where what is being done is left.
        resumed: `state()` of the worker that this one replaces, or None.

    Attributes:
        notes: things to tell the user once.
        seed: under which its samples are made.
        first: position of the unit's first sample.
        read: samples that were read for the unit, with one that raised.
    """

    def __init__(
        self,
        dataset: Any,
        settings: Settings,
        number: int,
        *,
        init_fn: bool,
        run: int,
        faults: Faults,
        mark: Any,
        resumed: bytes | None,
    ) -> None:
        self._dataset = dataset
        self._settings = settings
        self._number = number
        self._init_fn = init_fn
        self._run = run
        self._faults = faults
        self._mark = mark
        self._resumed = resumed
        self._stream: OpenStream | None = None  # that is read
        self._begun = False
        self._parts: Iterator[Any] | None = None  # of a chain, which is shared out part by part: those that follow
        self._part = 0
        self._must_be_the_same: int | None = None  # what is read again, behind so many samples that were delivered
        self._gave_others = False
        self._draws = False  # whether its samples draw random numbers
        self._before = 0  # samples of parts that are through
        self._open: Callable[[Any, Any, SampleSeeding, int], OpenStream]
        self._ended = False
        self._never_opened = False
        self._at = 0  # position of its latest sample, given or raised
        self.seed = 0
        self.first = 0
        self.read = 0
        self.notes: list[str] = []

    def samples(self, work: Work, seeds: SampleSeeding, keep: Keep | None = None) -> list[Any]:
        """The samples of the next batch. `keep` is given each as it comes, and its place; it gives what stands for it.

        Raises:
            StreamEnd: there are none.
            NothingLeft: all that were read were left out.
        """
        self._mark[0] = self.read = 0
        self._raise_known(0)
        if self._resumed is not None and self._left_at_its_end(self._resumed):
            self._resumed, self._ended = None, True
        wanted = (self._settings.batch_size or 1) if self._settings.batched else 1
        with self._as_it_was_read(seeds):
            if not self._begun and not self._ended:
                self._ended = self._never_opened = True  # one that cannot be opened is not tried again
                self._begin(work, seeds)
                self._ended, self._never_opened, self._begun = False, False, True
            with seeds.undisturbed(self.seed):
                samples, left_out = self._read(seeds, wanted, keep)
        if not samples or (self._settings.drop_last and len(samples) + left_out < wanted):
            # What was met on the way to the end is to be counted; the end is then the next unit's
            raise NothingLeft if self._faults.has_met_any else StreamEnd
        return samples

    @contextmanager
    def _as_it_was_read(self, seeds: SampleSeeding) -> Iterator[None]:
        """Within it, a sample whose stream has first to be resumed draws what it would have drawn in its turn, a
        generator that is over is told from one that was read to its end, and what is read again has to be the same."""
        current.reading.on_resumed = lambda: None if self._stream is None else self._stream.again(seeds)
        current.reading.on_other_samples, current.reading.leaves_out = self._others, self._faults.is_lenient
        current.reading.position, current.reading.draws = lambda: seeds.position, lambda: seeds.draws
        current.reading.on_read_from = lambda at: None if self._stream is None else self._stream.read_from(seeds, at)
        try:
            yield
        finally:
            current.reading.on_resumed = current.reading.on_other_samples = current.reading.position = (
                current.reading.on_read_from
            ) = None
            current.reading.draws, current.reading.leaves_out = None, False
            self._draws = seeds.draws

    def _left_at_its_end(self, state: bytes) -> bool:
        """Whether the worker that this one replaces had come to the end of its stream."""
        left = pickle.loads(state)
        return left.get("run") == self._run and bool(left.get("ended"))

    def _read(self, seeds: SampleSeeding, wanted: int, keep: Keep | None) -> tuple[list[Any], int]:
        """So many samples, or those that there are; and how many of them were left out."""
        samples: list[Any] = []
        left_out = read = in_a_row = 0
        while len(samples) + left_out < wanted:
            self._mark[0] = read
            self.read = read + 1
            if self._faults.knows_any:
                self._raise_known(read)
            try:
                sample = self._next_sample(seeds)
            except StreamLostError:  # at the sample before, of which it is told only now
                self.read = read
                if self._faults.has_met(read - 1):
                    self._faults.gave_up(read - 1)
                raise
            except Exception as error:
                self.first = self.first if read else self._at
                decision = self._faults.decide(read, None, self._at, error)
                if decision == "raise":
                    raise
                left_out += decision == "skip"
                in_a_row += 1
                if in_a_row > max(PATIENCE, wanted):
                    raise ErrorBudgetError(
                        f"the stream raised {in_a_row} times, one after the other, where each of its samples was to "
                        f"take the place of the last: {type(error).__name__}: {text_of(error)}. Is all of it out of "
                        "reach?"
                    ) from error
            else:
                if sample is _END:
                    break
                self.first = self.first if read else self._at
                samples.append(sample if keep is None else keep(len(samples), sample))
                del sample  # or it would still be there while the next one is made
                in_a_row = 0
            read += 1
        left_out += self._faults.not_replaced(wanted - len(samples) - left_out)
        self._faults.replaced_by(len(samples))
        return samples, left_out

    def _raise_known(self, place: int) -> None:
        """A sample that ends its workers: the stream cannot be asked for those behind it, so it is over."""
        try:
            self._faults.raise_known(place)
        except Exception:
            self._ended = True
            raise

    def _begin(self, work: Work, seeds: SampleSeeding) -> None:
        """Opens the worker's stream in this epoch."""
        settings, state = self._settings, work.indices
        if self._resumed is not None:
            left = pickle.loads(self._resumed)
            if left.get("run") == self._run:
                state = self._after_a_death(left)
        several, strided = settings.num_workers > 1, state is not None and state.get("strided")
        shares = settings.shard == "auto" and not self._init_fn and (several or strided)
        share = (self._number, max(1, settings.num_workers), self.notes.append) if shares else None

        def opened(dataset: Any, state: State | None, seeds: SampleSeeding, seed: int) -> OpenStream:
            own = mix(seed, self._number)
            return OpenStream(dataset, state, seeds, seed=seed, own=own, share=share, whole=not several)

        self._open, self.seed = opened, work.seed
        if share is None or strided or not is_chain(self._dataset, share[1]):
            self._stream = self._open(self._dataset, state, seeds, work.seed)
            self.seed = self._stream.seed
            return
        if state is not None and "part" not in state:
            raise other_dataset(self._dataset)
        self._epochs_seed = work.seed
        self._part = 0 if state is None else state["part"]
        self._parts = itertools.islice(iter(self._dataset.datasets), self._part, None)
        self._before = 0 if state is None else state["position"]
        if state is not None and state["in"] is not None:
            self._before -= state["in"]["position"]
            if not self._begin_part(seeds, state["in"]):
                raise StateMismatchError(
                    f"the state stands in stream {self._part} of a chain that has no more than that"
                )

    def _begin_part(self, seeds: SampleSeeding, state: State | None = None) -> bool:
        """Opens the next stream of a chain, if there is one. All workers read what they share out of it by stride under
        the same seeds, however many samples of those before were whose."""
        assert self._parts is not None
        dataset = next(self._parts, _END)
        if dataset is _END:
            return False
        try:
            self._stream = self._open(dataset, state, seeds, mix(self._epochs_seed, self._part))
        except Exception:  # one that cannot be opened is not tried again
            self._part, self._before = self._part + 1, self._before + 1
            raise
        self.seed = self._stream.seed
        return True

    @property
    def _position(self) -> int:
        """Where it goes on to look for its samples."""
        return self._before + (0 if self._stream is None else self._stream.position)

    def state(self) -> tuple[bytes | None, bool]:
        """Where the stream stands behind the last unit (None where there is none yet, nor where it could not be opened:
        a later run may), and whether another worker can go on from there."""
        if not self._begun:
            ended = self._ended and not self._never_opened
            return (pickle.dumps({"run": self._run, "ended": True}, 5) if ended else None), True
        current.reading.draws = lambda: self._draws
        try:
            inner = None if self._stream is None else self._stream.state_dict()
            whole = {"part": self._part, "position": self._position, "in": inner} if self._parts is not None else inner
            state = {"run": self._run, **(whole or {})}
            blob = pickle.dumps({**state, "ended": True} if self._ended else state, 5)
            return blob, self._ended or self._goes_on(state)
        except Exception as error:
            return pickle.dumps({"run": self._run, "position": self._position, "failed": repr(error)}, 5), False
        finally:
            current.reading.draws = None

    def _after_a_death(self, state: dict[str, Any]) -> dict[str, Any]:
        """Where the stream of a worker that died goes on: read again from its start, where it cannot say. Nothing may
        be skipped or come twice without a word."""
        if "failed" in state:
            raise self._lost(state.get("position", 0), f"it could not say where: {state['failed']}")
        if not self._goes_on(state):
            self._must_be_the_same = state["position"]
        return {"ended": False, **state}

    def _others(self, seen: int) -> None:
        """What is read again gives other samples than before."""
        if self._must_be_the_same is not None:
            self._ended = True
            raise self._lost(self._must_be_the_same, f"read again, it gives other samples, seen at its {seen}. one")
        if not self._gave_others:
            self.notes.append(_OTHER_SAMPLES)
            self._gave_others = True

    def _lost(self, delivered: int, why: str) -> StreamLostError:
        return StreamLostError(
            f"worker {self._number} died, and its stream cannot be opened again where it stood ({why}): {delivered} "
            "samples had been delivered, and what it had read beyond is lost. Give the dataset state_dict() and "
            "load_state_dict(state), or build it from stoker's streams; then the run survives this."
        )

    def _goes_on(self, state: dict[str, Any]) -> bool:
        """Whether a stream can be opened where it stood, or is sure to come to it.

        One that every worker walks whole is read again: that its samples come in one order is what sharing it out by
        stride rests on anyway. In the first epoch of its workers, that is, where it holds generators: a new worker has
        these as they were then.
        """
        if "failed" in state or not is_counted(state):
            return "failed" not in state
        return bool(state.get("strided")) and (self._run == 0 or not self._holds_generators)

    @functools.cached_property
    def _holds_generators(self) -> bool:
        return bool(held_generators(self._dataset))

    def _next_sample(self, seeds: SampleSeeding) -> Any:
        """The next sample that is this worker's, or _END. A stream may raise, and go on behind it."""
        while not self._ended:
            self._at = self._position
            if self._stream is None and not self._begin_part(seeds):
                self._ended = True
                break
            stream: Any = self._stream
            item = stream.next(seeds)
            if item is None and self._parts is None:
                self._ended = True
            elif item is None:
                self._before, self._stream = self._position, None
                self._part += 1
            elif item[1] is not OTHERS:
                return item[1]
        return _END


_OTHER_SAMPLES = (
    "A stream that cannot say where it stands was read again, and gave other samples than before the state was saved. "
    "If their order is another, some are missing in this epoch, and some come twice. What is read again must come out "
    "the same: draw the order from a seed, put random augmentation into a MapDataset around the stream, or give it "
    "state_dict() and load_state_dict(state)."
)
_END: Any = object()
