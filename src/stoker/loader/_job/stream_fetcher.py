"""Reads a unit's samples from a worker's stream, and resumes the stream of another worker.

The file is long because the ways to read and to resume a stream share its position, and the record of its state.
"""

from __future__ import annotations

import functools
import itertools
import pickle
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stoker._core.exceptions import safe_str
from stoker._core.interruption import tears
from stoker._core.worker_info import current
from stoker._engine.activity import ACTIVITY, PLACE, Activity
from stoker._engine.activity import sample as at_sample
from stoker._engine.backend import NothingLeft, PlainGuess, StreamEnd
from stoker.datasets.declared import declared_by_all, undeclared
from stoker.datasets.fingerprint import Fingerprint
from stoker.errors import ErrorBudgetError, StateMismatchError, StreamLostError
from stoker.loader._job import datapipes
from stoker.loader._job.error_policy import ErrorPolicy
from stoker.loader._job.open_stream import OpenStream
from stoker.loader._job.stream_guesses import AS_TORCH, FirstSamples
from stoker.loader._job.stream_sharding import OTHERS, Share, is_chain, is_counted, other_dataset
from stoker.loader._random.find_generators import find_generators
from stoker.loader._random.generators import mix
from stoker.loader._state.resharding import Snapshots, names_shards, not_begun, state_of

if TYPE_CHECKING:
    from stoker.collate._compiled.incremental import RowSink
    from stoker.datasets.stream import State
    from stoker.loader._job.work import JobSettings, Work
    from stoker.loader._random.sample_seeding import SampleSeeding


PATIENCE = 10
"""Consecutive failures of a stream, each in place of the last, before it is given up."""


class StreamFetcher:
    """One worker's stream in one epoch of its iterator; opened by the first unit.

    Args:
        dataset: the stream.
        settings: the loader's.
        number: the worker's.
        init_fn: whether the user's init function ran in the worker, and may have shared the stream out.
        run: number of the iterator's epoch.
        faults: the policy for samples that fail.
        mark: memory for the current activity.
        resumed: `state()` of the worker that this one replaces, or None.

    Attributes:
        notes: texts to report to the user once.
        seed: under which its samples are made.
        first: position of the unit's first sample.
        positions: of its samples that were not left out.
        read: samples that were read for the unit, including one that raised.
    """

    def __init__(
        self,
        dataset: Any,
        settings: JobSettings,
        number: int,
        *,
        init_fn: bool,
        run: int,
        faults: ErrorPolicy,
        mark: Any,
        resumed: bytes | None,
    ) -> None:
        self._dataset = dataset
        self._settings = settings
        self._number = number
        self._init_fn = init_fn
        self._run = run
        self._error_policy = faults
        self._mark = mark
        self._resumed = resumed
        self._stream: OpenStream | None = None  # that is read
        self._begun = False
        self._parts: Iterator[Any] | None = None  # of a chain, which is shared out part by part: those that follow
        self._part = 0
        self._must_be_the_same: int | None = None  # delivered samples, if they are read again
        self._gave_others = False
        self._draws = False  # whether its samples draw random numbers
        self._before = 0  # samples of parts that are through
        self._open: Callable[[Any, Any, SampleSeeding, int], OpenStream]
        self._ended = False
        self._never_opened = False
        self._at = 0  # position of its latest sample, given or raised
        self.seed = 0
        self.first = 0
        self.positions: list[int] = []
        self.read = 0
        self.notes: list[str] = []
        self._first_samples = FirstSamples(number)
        self._snapshots = Snapshots(settings.snapshot_every, when_asked=not settings.capabilities.has_workers)
        self._unit_began = 0.0
        self._may_wait = False  # whether a state does as well behind which samples are read again
        self._left: tuple[list[Any], list[BaseException]] = [], []  # `plain` has read them, and met an error

    def samples(self, work: Work, seeds: SampleSeeding, keep: RowSink | None = None) -> list[Any]:
        """Returns the samples of the next batch. `keep` gets each sample and its place, and returns its substitute.

        Raises:
            StreamEnd: there are none.
            NothingLeft: all that were read were left out.
        """
        self._unit_began = time.perf_counter()
        self._mark[PLACE] = self.read = 0
        self._mark[ACTIVITY] = Activity.SAMPLE
        self._raise_known(0)
        if self._resumed is not None and self._left_at_its_end(self._resumed):
            self._resumed, self._ended = None, True
        wanted = (self._settings.batch_size or 1) if self._settings.batched else 1
        self._answer(seeds)
        try:
            if not self._begun and not self._ended:
                self._ended = self._never_opened = True  # one that cannot be opened is not tried again
                self._begin(work, seeds)
                self._ended, self._never_opened, self._begun = False, False, True
            with seeds.undisturbed(self.seed):
                samples, left_out = self._read(seeds, wanted, keep)
        finally:
            self._answer_no_more(seeds)
        if self._ended:
            self._first_samples.end()
        if not samples or (self._settings.drop_last and len(samples) + left_out < wanted):
            # Faults met before the end are counted first; the end is the next unit's
            raise NothingLeft if self._error_policy.has_met_any else StreamEnd
        return samples

    def _answer(self, seeds: SampleSeeding) -> None:
        """Until `_answer_no_more`, a sample of a stream that must first be resumed draws the same numbers as in its
        turn; an exhausted generator is distinguished from a stream read to its end; and samples read again must be the
        same.
        """
        reading = current.reading
        reading.on_resumed = lambda: None if self._stream is None else self._stream.again(seeds)
        reading.on_other_samples, reading.leaves_out = self._others, self._error_policy.is_lenient
        reading.position, reading.draws = lambda: seeds.position, lambda: seeds.draws
        reading.on_read_from = lambda at: None if self._stream is None else self._stream.read_from(seeds, at)

    def _answer_no_more(self, seeds: SampleSeeding) -> None:
        reading = current.reading
        reading.on_resumed = reading.on_other_samples = reading.position = reading.on_read_from = None
        reading.draws, reading.leaves_out = None, False
        self._draws = seeds.draws

    def _left_at_its_end(self, state: bytes) -> bool:
        """Returns whether the replaced worker had reached the end of its stream."""
        left = state_of(state)
        return left.get("run") == self._run and bool(left.get("ended"))

    def _read(self, seeds: SampleSeeding, wanted: int, keep: RowSink | None) -> tuple[list[Any], int]:
        """Returns the requested number of samples, or fewer at the end, and the number of samples left out."""
        (samples, errors), self._left = self._left, ([], [])
        self.positions, read = [*range(self.first, self.first + len(samples))], len(samples)
        if keep is not None:
            samples = [keep(place, sample) for place, sample in enumerate(samples)]
        left_out = in_a_row = 0
        several = keep is None and self._is_plain
        while len(samples) + left_out < wanted or errors:
            self._mark[PLACE] = read
            self.read = read + 1
            if self._error_policy.knows_any:
                self._raise_known(read)
            try:
                if errors:
                    raise errors.pop()
                if several and self._several(seeds, samples, wanted - left_out):
                    read, in_a_row = len(samples) + left_out, 0
                    continue
                sample = self._next_sample(seeds)
            except StreamLostError:  # at the sample before, but raised only now
                self.read = read
                if self._error_policy.has_met(read - 1):
                    self._error_policy.gave_up(read - 1)
                raise
            except Exception as error:
                if several:
                    read = len(samples) + left_out
                    self._mark[PLACE], self.read = read, read + 1
                self.first = self.first if read else self._at
                decision = self._error_policy.decide(read, None, self._at, error)
                if decision == "raise":
                    raise
                left_out += decision == "skip"
                self._snapshots.failed()
                in_a_row += 1
                if in_a_row > max(PATIENCE, wanted):
                    raise ErrorBudgetError(
                        f"the stream raised {in_a_row} times in a row, while each of its samples was to replace the "
                        f"one before: {type(error).__name__}: {safe_str(error)}. Is all of it out of reach?"
                    ) from error
            else:
                if sample is _END:
                    break
                self.first = self.first if read else self._at
                self._snapshots.took(sample)
                if self._first_samples.are_own:
                    self._first_samples.take(sample)
                self.positions.append(self._at)
                samples.append(sample if keep is None else keep(len(samples), sample))
                del sample  # or it would still be there while the next one is made
                in_a_row = 0
            read += 1
        left_out += self._error_policy.not_replaced(wanted - len(samples) - left_out)
        self._error_policy.replaced_by(len(samples))
        return samples, left_out

    def plain(self, seeds: SampleSeeding, samples: list[Any], wanted: int) -> bool:
        """Reads the samples of a batch where they need no more than seeds. Otherwise it returns False, and the next
        unit begins with those that it has read.
        """
        if not (self._begun and self._is_plain):
            return False
        going_on, errors = True, list[BaseException]()
        self.positions = []
        self._answer(seeds)
        try:
            restore = seeds.allow(self.seed)
            try:
                while going_on and len(samples) < wanted:
                    self.read = len(samples) + 1
                    going_on = self._several(seeds, samples, wanted)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) or tears(error):
                    raise
                errors.append(error)
            finally:
                seeds.refuse(restore)
        finally:
            self._answer_no_more(seeds)
        if errors or len(samples) < wanted or current.reading.keeps_own:
            self._left = samples, errors
            return False
        return True

    def leave(self, samples: list[Any]) -> None:
        """Leaves the samples that `plain` has read to the next unit."""
        self._left = samples, []

    def plain_state(self) -> State:
        """Returns what `state` has pickled, behind a batch of `plain`."""
        assert self._stream is not None
        return {"run": self._run, **self._stream.state_dict()}

    @property
    def _is_plain(self) -> bool:
        """Returns whether samples need no more than seeds: none is shared out, kept, compared, timed or replaced."""
        if self._settings.capabilities.has_workers or self._settings.timed or self._parts is not None:
            return False
        if self._error_policy.is_lenient or self._error_policy.knows_any or self._first_samples.are_own:
            return False
        return not (self._snapshots.are_few or current.reading.keeps_own or self._stream is None or self._ended)

    def _several(self, seeds: SampleSeeding, samples: list[Any], wanted: int) -> bool:
        """Reads several samples in compiled code; returns False if the next one has to be read alone."""
        stream, before = self._stream, len(samples)
        assert stream is not None
        begin = self._at = stream.position
        self.first = self.first if self.read > 1 else begin
        try:
            ended = stream.several(seeds, samples, wanted - before)
        finally:
            done = len(samples) - before
            self._at = begin + done
            self.positions.extend(range(begin, begin + done))
        self._ended, going_on = bool(ended), ended is False
        self._at -= going_on
        return going_on

    def _raise_known(self, place: int) -> None:
        """Raises the fault of a sample that ends its workers. The stream cannot skip it, so the stream ends."""
        try:
            self._error_policy.raise_known(at_sample(place))
        except Exception:
            self._ended = True
            raise

    def _begin(self, work: Work, seeds: SampleSeeding) -> None:
        """Opens the worker's stream in this epoch, and reads again what was read since its state."""
        state, died = work.indices, False
        if self._resumed is not None:
            left = state_of(self._resumed)
            if left.get("run") == self._run:
                state, died = self._after_a_death(left), True
        again = None if state is None else state.pop("again", None)
        current.reading.keeps_own = False
        self._open_at(state, work, seeds)
        if again is not None:
            with seeds.undisturbed(self.seed):
                self._read_again(again, seeds, died)
        if current.reading.keeps_own:
            self._snapshots.begin()

    def _read_again(self, again: State, seeds: SampleSeeding, died: bool) -> None:
        """Reads what the stream had given behind its state, with the same draws, and compares it.

        Raises:
            StreamLostError, StateMismatchError: it gives other samples. A sample may be lost, or come twice.
        """
        marks, self._ended = Fingerprint(), False
        for number in range(again["read"]):
            try:
                sample = self._next_sample(seeds)
            except Exception:  # so it was then
                continue
            if sample is _END:
                break
            marks.take(sample, number + 1)
        self._snapshots.restart(again["read"], marks)
        if not self._ended and marks.now == again["print"]:
            return
        self._ended = True
        why = f"the {again['read']} samples behind its last state, read again, are others"
        if died:
            raise self._lost(self._position, why)
        raise StateMismatchError(
            f"the stream of worker {self._number} cannot be resumed where it stood: {why}. Its state_dict() takes "
            "long, so it was not called for each batch. Let the stream give the same samples from one state on, or use "
            "StatefulDataLoader(..., snapshot_every_n_steps=1)."
        )

    def _open_at(self, state: Any, work: Work, seeds: SampleSeeding) -> None:
        settings = self._settings
        through = state is not None and state.get("through")
        several, strided = settings.num_workers > 1, state is not None and state.get("strided")
        declaration = declared_by_all(self._dataset) if several else None
        # A function of the user's in each worker may have shared it out: the loader does not do it as well
        shares = settings.shard == "auto" and (not self._init_fn or declaration is False) and (several or strided)
        workers = max(1, settings.num_workers)
        number, guessed = self._number, self._first_samples.guessed
        share = Share(number, workers, self.notes.append, guessed, self._first_samples) if shares else None
        leaves = several and settings.shard == "auto" and not shares and state is None
        if leaves and not datapipes.shards(self._dataset) and (streams := undeclared(self._dataset)):
            guessed(streams, "the loader has a worker_init_fn, which may shard the stream")
        if several and settings.shard == "torch" and state is None and (streams := undeclared(self._dataset)):
            guessed(streams, AS_TORCH)

        # Not of `self`, which would live until garbage is collected, and so would the user's stream and dataset
        def opened(dataset: Any, state: State | None, seeds: SampleSeeding, seed: int) -> OpenStream:
            own = mix(seed, number)
            return OpenStream(dataset, state, seeds, seed=seed, own=own, share=share, whole=not several)

        self._open, self.seed = opened, work.seed
        if through:  # the dataset comes to the end of the epoch before, and goes on from there
            at_end = self._open(self._dataset, state, seeds, work.seed).next(seeds) is None
            state, strided = None if at_end else not_begun(state["stream"]), None  # else its start follows its end
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

    @property
    def guess(self) -> PlainGuess | None:
        """Returns the news about the guess that the stream shares itself out, or None."""
        return self._first_samples.news()

    def _begin_part(self, seeds: SampleSeeding, state: State | None = None) -> bool:
        """Opens the next stream of a chain, if there is one. All workers read a stream shared out by stride under the
        same seeds, for any distribution of earlier samples.
        """
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
        """Returns the position of the next sample to read."""
        return self._before + (0 if self._stream is None else self._stream.position)

    def state(self) -> tuple[bytes | None, bool]:
        """Returns the stream's state behind the last unit (None before the first unit, or if the stream could not be
        opened: a later run may), and whether another worker can resume from it.
        """
        if not self._begun:
            ended = self._ended and not self._never_opened
            return (pickle.dumps({"run": self._run, "ended": True}, 5) if ended else None), True
        current.reading.draws = lambda: self._draws
        try:
            inner = None if self._stream is None else self._stream.state_dict()
            whole = {"part": self._part, "position": self._position, "in": inner} if self._parts is not None else inner
            state = {"run": self._run, **(whole or {})}
            self._may_wait = self._draws_again and not names_shards(state)
            blob = pickle.dumps({**state, "ended": True} if self._ended else state, 5)
            return blob, self._ended or self._goes_on(state)
        except Exception as error:
            if tears(error) and not self._settings.capabilities.has_workers:
                raise
            return pickle.dumps({"run": self._run, "position": self._position, "failed": repr(error)}, 5), False
        finally:
            current.reading.draws = None

    def report(self) -> tuple[bytes | None, bool, bytes | None]:
        """Returns the stream's state behind the last unit and whether another worker can resume from it, or what was
        read since the last such state.
        """
        snapshots = self._snapshots
        if not self._begun:
            return (*self.state(), None)
        if not snapshots.are_few and current.reading.keeps_own:
            snapshots.begin()  # after this unit's
        elif not snapshots.is_due(self._ended):
            return None, True, snapshots.since()
        return (*self._state_if_due(), None)

    def asked(self, since: bytes) -> bytes | None:
        """Returns the state of the stream now, if it stands where it reported `since`; else None."""
        return self._state_if_due()[0] if self._begun and self._snapshots.since() == since else None

    def _state_if_due(self) -> tuple[bytes | None, bool]:
        if not self._snapshots.are_few:
            return self.state()
        seconds, before = time.perf_counter() - self._unit_began, time.thread_time()
        state, movable = self.state()
        cost = time.thread_time() - before
        self._snapshots.measured(cost, seconds, may_wait=self._may_wait)
        return state, movable

    def _after_a_death(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns the state from which the stream of a dead worker resumes: its start, if it has no state of its own.
        No sample may be skipped or come twice without an error.
        """
        if "failed" in state:
            raise self._lost(state.get("position", 0), f"it could not say where: {state['failed']}")
        if not self._goes_on(state):
            self._must_be_the_same = state["position"]
        return {"ended": False, **state}

    def _others(self, seen: int) -> None:
        """Handles a stream that gives other samples when read again."""
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
        """Returns whether a stream can be opened at its state, or is sure to reach it.

        A stream that every worker reads whole is read again: sharing it out by stride requires one order of samples
        anyway. If it holds generators, this is true in its workers' first epoch only, in which a new worker has the
        same generators.
        """
        if "failed" in state or not is_counted(state):
            return "failed" not in state
        return bool(state.get("strided")) and (self._run == 0 or not self._holds_generators)

    @functools.cached_property
    def _draws_again(self) -> bool:
        """Returns whether samples that are read again draw the same numbers: generators are seeded for each sample."""
        settings = self._settings
        seeded = settings.capabilities.own_process and settings.seeding != "worker" and not self._init_fn
        return seeded and not self._holds_generators

    @functools.cached_property
    def _holds_generators(self) -> bool:
        return bool(find_generators(self._dataset))

    def _next_sample(self, seeds: SampleSeeding) -> Any:
        """Returns the next sample of this worker, or _END. A stream may raise, and continue after it."""
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
