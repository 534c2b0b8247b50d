"""What a worker does with a unit: fetch its samples under the right seeds, and collate them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from stoker import collate
from stoker._engine.base import COLLATE, IDLE, START, WHOLE, WRITE, Batch, Known, Lender, Recipe, Said
from stoker._transport import segments
from stoker._transport.recycled import Recycled
from stoker._transport.rows import MisfitError
from stoker._worker_info import WorkerInfo, current
from stoker.collate import memory
from stoker.datasets.copies import own_copy
from stoker.datasets.gather import gatherer
from stoker.errors import BatchError, SkipSample
from stoker.loader import late_parts, torch_bridge
from stoker.loader.faults import Faults
from stoker.loader.generators import loaded_torch, mix
from stoker.loader.held_generators import held_generators
from stoker.loader.map_source import MapSource
from stoker.loader.sample_rng import SampleRNG
from stoker.loader.seeding import SampleSeeding, Seeding
from stoker.loader.twisters import offset_in_torchs
from stoker.loader.worker_seeding import run_init_fn

if TYPE_CHECKING:
    from stoker.collate.early import Keep
    from stoker.loader.stream_source import StreamSource
    from stoker.loader.threads import Threads

Method = Literal["serial", "thread", "process"]


class Work(NamedTuple):
    """A unit as it travels: everything that its batch follows from, beside the dataset."""

    run: int  # of the iterator's epochs: a stream is opened once in each
    seed: int
    position: int
    indices: Any  # of a stream: where it is resumed, or None
    stride: int = 1
    set_epoch: int | None = None  # what the dataset is to be told
    epoch: int = 0
    batch: int = 0
    spares: Sequence[Any] = ()  # indices that may take the place of samples that fail


@dataclass(frozen=True)
class Settings:
    """The loader's settings that concern a worker."""

    iterable: bool
    batched: bool
    batch_size: int | None
    drop_last: bool
    num_workers: int
    method: Method
    seeding: Seeding
    own_collate: bool
    shard: Literal["auto", "none"]
    threads: int = 1  # that make samples, in each worker
    rank: int = 0  # of those that share the epoch, and its seed


def assemble(parts: dict[str, Any]) -> Recipe:
    """The recipe of a worker's job, from the parts that travel: those of `LoaderJob`."""
    settings: Settings = parts["settings"]
    # Here: workers that are forked then share it
    if loaded_torch() is not None:
        offset_in_torchs()
    if settings.iterable:
        import stoker.loader.stream_source
    if settings.threads > 1:
        import stoker.loader.threads  # noqa: F401
    held = None
    if settings.method == "process":
        late_parts.load()
        if parts["worker_init_fn"] is None and settings.seeding != "worker":
            held = held_generators(_seeded(settings, parts["dataset"], parts["collate_fn"]))
    return functools.partial(LoaderJob, parts, held)


def _seeded(settings: Settings, dataset: Any, collate_fn: Any) -> Any:
    """What holds the generators that are seeded for each sample, beside the global ones."""
    if settings.threads > 1:
        return collate_fn  # generators that the dataset holds are for the threads to share
    held = dataset if settings.own_collate else (dataset, collate_fn)
    if not settings.iterable:
        return held
    # Those that a stream holds are part of where it stands: workers and ranks may have to draw alike from them
    own = set(map(id, held_generators(dataset)))
    return [generator for generator in held_generators(held) if id(generator) not in own]


class LoaderJob:
    """Fetches and collates. One for each worker, made in it; started by its first unit, which brings the seed.

    Args:
        parts: dataset, collate_fn, worker_init_fn, on_error, settings.
        held: the generators that the dataset holds, where they were looked for before the worker was forked.
        number: the worker's.
    """

    def __init__(self, parts: dict[str, Any], held: list[Any] | None, number: int) -> None:
        self.mark: Any = [IDLE]
        self.weigh: Callable[[], None] = lambda: None
        self.upcoming: Callable[[], Iterable[Any]] = tuple
        self._settings: Settings = parts["settings"]
        self._held = held
        self.repeats = not self._settings.iterable
        self._number = number
        self._dataset = parts["dataset"]
        self._init_fn = parts["worker_init_fn"]
        # Each thread walks, and may configure, its own stream
        copied = self._settings.method == "thread" and self._settings.iterable
        self._dataset = own_copy(self._dataset) if copied else self._dataset
        self._is_told = copied or self._settings.method == "process"  # of an epoch: others share the trainer's dataset
        if self._settings.method != "serial":
            torch_bridge.connect()
        self._collate_fn = parts["collate_fn"]
        self._collate = collate.compiling(self._collate_fn)
        is_compiled = isinstance(self._collate, collate.Compiled) and self._settings.batched
        self._compiled = cast("collate.Compiled", self._collate) if is_compiled else None
        self._gathered: collate.Gathered | None = None
        self._faults = Faults(parts["on_error"], self._dataset, number)
        self._info: WorkerInfo | None = None
        self._seeding: SampleSeeding | None = None
        self._sick: Exception | None = None
        self._run: int | None = None
        self._map: MapSource | None = None
        self._threads: Threads | None = None
        self._stream: StreamSource | None = None
        self._resumed: bytes | None = None
        self._samples = 0
        self._notes: list[str] = []
        self._failed: Any = None
        self._knows = False  # whether something is known of the unit
        self._lend: Lender | None = None
        self._recycled = None if self._settings.method == "process" else Recycled()
        # Who keeps what it was lent has to be found out, and to be given a copy
        self._may_lend = segments.CAN_DETACH or self._settings.own_collate

    def run(
        self, work: Work, lend: Lender | None = None, known: Known = (), rows: tuple[int, int] | None = None
    ) -> Any:
        """Makes the batch of a unit, or `rows` of it, in memory that `lend` gives where it does."""
        work = work if type(work) is Work else Work(*work)
        outside = current.info
        self._failed, self._samples = None, len(work.indices) if self._has_list(work) else 1
        self._faults.unit = work
        if known or self._faults.is_touched:
            self._faults.begin(known)
            self._knows = self._faults.knows_any
        try:
            seeds = self._begin(work)
            if self._settings.method == "process":
                collate.write_in_place()  # torch may have been imported by the last unit
            if self._recycled is None:
                self._lend = lend if self._may_lend else None
            else:
                self._lend = self._recycled.lend
            return self._made(work, seeds, rows)
        finally:
            if self._compiled is not None:
                self._compiled.end()
            if self._settings.method == "serial":
                current.info = outside  # a worker's, where its dataset has a loader of its own

    def _made(self, work: Work, seeds: SampleSeeding, rows: tuple[int, int] | None) -> Any:
        if rows is not None:
            return self._rows(work, seeds, *rows)
        return self._from_stream(work, seeds) if self._settings.iterable else self._from_map(work, seeds)

    def said(self) -> Said:
        """About the last unit."""
        stream = self._stream
        if stream is None:
            notes, self._notes = self._notes, []
            return Said(notes, None, self._faults.met if self._faults.has_met_any else [], self._samples)
        notes = [stream.notes.pop(0) for _ in range(len(stream.notes))]
        state, movable = stream.state()
        return Said(notes, state, self._faults.met, self._samples, movable)

    def failed_index(self) -> Any:
        """Index of the sample at which the last unit failed, those of its batch if it was the batch, or None."""
        return self._failed.tolist() if isinstance(self._failed, np.ndarray) else self._failed

    def resume(self, state: bytes) -> None:
        """This worker replaces one whose stream stood there: what that one said of it."""
        self._resumed = state

    def _has_list(self, work: Work) -> bool:
        return self._settings.batched and not self._settings.iterable

    def _begin(self, work: Work) -> SampleSeeding:
        """The user's function, where it has not run yet, and what a new epoch brings."""
        self.mark[0] = START
        if self._knows:
            self._faults.raise_known(START)
        begins = work.run != self._run
        if begins:
            self._run, self._stream, self._gathered = work.run, None, None
            if work.set_epoch is not None and self._is_told:
                self._dataset.set_epoch(work.set_epoch)  # persistent workers' copy; others were born with it
                self._held = None  # it may have made new generators
        seeds = self._seeding or self._start(work.seed)
        current.info = self._info
        if self._sick is not None:
            raise self._sick
        if begins and self._has_list(work):
            source = gatherer(self._dataset)
            if source is not None:
                self._gathered = collate.gathering(self._collate_fn, self._dataset, source)
        return seeds if self._threads is None else self._threads.seeds

    def _start(self, seed: int) -> SampleSeeding:
        """The first unit brings the epoch's seed; the user's init function runs now, in the worker."""
        settings = self._settings
        if settings.rank:  # the epoch's seed is that of all ranks, and a worker's own has to differ
            seed = mix(seed, settings.rank) >> 1
        serial, threads = settings.method == "serial", settings.method == "thread"
        rng = SampleRNG(seed + self._number)
        self._faults.mark, self._faults.rng = self.mark, rng
        self._info = WorkerInfo(
            id=self._number,
            num_workers=max(self._number + 1, settings.num_workers),  # "auto" may have asked for more
            seed=seed + self._number,
            dataset=self._dataset,
            rng=rng,
            worker_method="multiprocessing" if settings.method == "process" else settings.method,
        )
        if settings.method == "process":
            current.becomes_with_all_threads(self._info)
        elif threads:
            current.becomes(self._info)
        else:
            current.info = self._info
        mode = settings.seeding
        try:
            if settings.method == "process":
                own_course = run_init_fn(self._init_fn, self._number, seed, mode=mode, dataset=self._dataset)
                mode = "worker" if own_course else mode
            elif threads and self._init_fn is not None:
                self._init_fn(self._number)
        except Exception as error:
            self._sick = error
        holder = _seeded(settings, self._dataset, self._collate_fn)
        if settings.threads > 1:
            from stoker.loader.threads import Threads

            self._threads = Threads(settings.threads, self._info, mode, self.mark, self._begin_ahead, self._tell)
        held, self._held = self._held, None
        self._seeding = SampleSeeding(
            mode, dataset=holder, threads=threads, restore=serial, rng=rng, mark=self.mark, held=held
        )
        return self._seeding

    def _rows(self, work: Work, seeds: SampleSeeding, first: int, last: int) -> Any:
        """A run of a batch's rows. Samples raise what they raise; all else that is wrong is for the whole batch."""
        source = self._source
        self._samples = last - first
        keep = self._keep(last - first, run_of=len(work.indices))
        try:
            samples = source.run(work, seeds, first, last, keep)
        except SkipSample as wish:
            raise MisfitError("a sample to be left out") from wish
        except Exception:
            self._failed = source.failed_index if seeds.failed_at is not None else work.indices
            raise
        self.mark[0] = COLLATE
        try:
            with memory.lent_by(self._lend):
                batch = None if self._compiled is None else self._compiled.rows(samples)
        except Exception as error:
            raise MisfitError("samples that do not go together") from error
        if batch is None:
            raise MisfitError("samples with what has no rows of one size", for_good=True)
        self.mark[0] = WRITE
        return batch

    def _keep(self, count: int, run_of: int | None = None) -> Keep | None:
        """What so many samples are given to as they come, where that is worth it."""
        if self._compiled is None:
            return None
        return self._compiled.begin(count, self._lend, travels=self._recycled is None, run_of=run_of)

    def _begin_ahead(self) -> None:
        """Threads have time for what comes next, as far as it is of this epoch: the dataset stands there."""
        gathers = self._gathered is not None and self._gathered.gathers
        for upcoming in self.upcoming():
            work = Work(*upcoming)
            if work.run == self._run and not gathers:
                self._source.begin(work)

    def _tell(self, note: str) -> None:
        self._notes.append(note)

    @property
    def _source(self) -> MapSource:
        if self._map is None:
            settings = self._settings
            self._map = MapSource(
                self._dataset,
                settings.batched,
                self._faults,
                self.mark,
                self._threads,
                counted=settings.own_collate,
                in_thread=settings.method == "thread",
            )
        return self._map

    def _from_map(self, work: Work, seeds: SampleSeeding) -> Any:
        source = self._source
        self._failed = work.indices
        if self._gathered is not None and not self._knows:
            self.mark[0] = WHOLE
            may_keep = segments.CAN_DETACH or self._recycled is not None  # `out` is in the user's hands
            with memory.lent_by(self._lend if may_keep else None):
                batch = self._gathered(work.indices)
            if batch is not collate.NOT_GATHERED:
                self.mark[0] = WRITE
                return batch
        if isinstance(work.indices, np.ndarray):  # those who fetch samples get integers of Python's
            self._failed = work.indices.tolist()
            work = work._replace(indices=self._failed)
        keep = self._keep(len(work.indices) if self._settings.batched else 1)
        try:
            batch = self._collated(work.seed, work.position, source.samples(work, seeds, keep))
        except Exception as error:
            self._failed = source.failed_index if seeds.failed_at is not None else self._odd_ones(work.indices, error)
            raise
        if self._gathered is not None and (trouble := self._gathered.trouble) is not None:
            self._gathered.trouble = None
            if not self._faults.has_met_any:  # else it was right to raise: a sample raises too
                self._notes.append(
                    f"{type(self._dataset).__name__}.gather() raised {type(trouble).__name__}: {trouble}, for samples "
                    "that __getitem__ gives: they are fetched one by one instead. Correct gather(), or leave it out."
                )
        return batch

    def _from_stream(self, work: Work, seeds: SampleSeeding) -> Any:
        stream = self._stream
        if stream is None:
            from stoker.loader.stream_source import StreamSource

            stream = self._stream = StreamSource(
                self._dataset,
                self._settings,
                self._number,
                init_fn=self._init_fn is not None,
                run=work.run,
                faults=self._faults,
                mark=self.mark,
                resumed=self._resumed,
            )
            self._resumed = None
        keep = self._keep(self._settings.batch_size or 1)
        try:
            samples = stream.samples(work, seeds, keep)
        except Exception:
            self._samples = max(1, stream.read)
            raise
        return self._collated(stream.seed, stream.first, samples)

    def _collated(self, seed: int, position: int, samples: list[Any]) -> Any:
        self._samples = len(samples)
        self.mark[0] = COLLATE
        if self._knows:
            self._faults.raise_known(COLLATE)
        made = samples if self._settings.batched else samples[0]
        with memory.lent_by(self._lend):
            if self._settings.own_collate or self._seeding is None:
                batch = self._collate(made)
            else:
                batch = self._seeding.collate(seed, position, lambda: self._collate(made))
        if not self._settings.own_collate:
            self.weigh()  # with its samples and what was made of them
        self.mark[0] = WRITE
        if self._knows:
            self._faults.raise_known(WRITE)
        return batch

    def _odd_ones(self, indices: Any, error: Exception) -> Any:
        """The indices of a batch, with those marked that differ from the others, where our collation says which."""
        places = error.places if isinstance(error, BatchError) and self._settings.own_collate else ()
        if not places or not isinstance(indices, list) or self._samples != len(indices):  # some were left out
            return indices
        marked = Batch(indices)
        marked.odd = places
        return marked
