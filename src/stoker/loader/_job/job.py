"""Runs a unit in a worker: fetches its samples under the right seeds, and collates them.

The file is long because one class knows all ways of a unit, which must agree: from a map or a stream, whole, in parts,
joined of them, and the short way of a batch in process (`plain`).
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from stoker import collate
from stoker._core import mistakes
from stoker._core.interruption import harmless, tears
from stoker._core.worker_info import WorkerInfo, current
from stoker._engine.activity import ACTIVITY, COLLATE, NEW_MARK, PLACE, START, TRANSFORM, WRITE, Activity, Mark
from stoker._engine.backend import (
    NOT_PLAIN,
    BatchIndices,
    JobFactory,
    KnownFaults,
    Lender,
    MadeRows,
    PlainMaker,
    PlainPlace,
    UnitReport,
)
from stoker._engine.transport import segments
from stoker._engine.transport.leaves import SMALL
from stoker._engine.transport.owned import LEAST, Recycled
from stoker._engine.transport.rows import MisfitError
from stoker.collate import tensors
from stoker.datasets.awaited import close as close_coroutines
from stoker.datasets.gather import gatherer
from stoker.datasets.nesting import held_by
from stoker.datasets.worker_share import own_copy
from stoker.errors import BatchError
from stoker.loader._accounting import observer
from stoker.loader._job import datapipes, jpeg_reader, torch_worker_info
from stoker.loader._job.error_policy import LEFT_OUT, ErrorPolicy
from stoker.loader._job.map_fetcher import MapFetcher
from stoker.loader._job.timed_steps import stopwatch_of
from stoker.loader._job.torch_worker_info import run_init_fn
from stoker.loader._job.work import CONCURRENCY, SMALL_BATCH, TRIES, JobSettings, Raised, Work, positions_of
from stoker.loader._random.batch_transform import BatchTransform
from stoker.loader._random.find_generators import find_generators
from stoker.loader._random.generators import loaded_torch, mix
from stoker.loader._random.mersenne_twister import offset_in_torchs
from stoker.loader._random.sample_rng import SampleRNG, TasksRNG
from stoker.loader._random.sample_seeding import SampleSeeding, Seeding, key_of_samples, weakly

if TYPE_CHECKING:
    from stoker.collate._compiled.incremental import RowSink
    from stoker.loader._job.async_samples import AsyncSamples, Awaiting
    from stoker.loader._job.sample_threads import Threads
    from stoker.loader._job.stream_fetcher import StreamFetcher


def assemble(parts: dict[str, Any]) -> JobFactory:
    """Returns the factory of a worker's job, from the parts that are sent to it: those of `LoaderJob`."""
    settings: JobSettings = parts["settings"]
    # Here: workers that are forked then share it
    if loaded_torch() is not None:
        offset_in_torchs()
    if settings.iterable:
        import stoker.loader._job.stream_fetcher
    if settings.threads > 1:
        import stoker.loader._job.sample_threads
    if settings.concurrency:
        import stoker.loader._job.async_samples  # noqa: F401
    generators = None
    if settings.capabilities.own_process:
        torch_worker_info.load()
        if jpeg_reader.is_wanted(settings.jpegs, own_process=True):
            jpeg_reader.load()
        if parts["worker_init_fn"] is None and settings.seeding != "worker":
            generators = find_generators(_seeded(settings, parts["dataset"], _of_batches(parts)))
    return functools.partial(LoaderJob, parts, generators)


def _of_batches(parts: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the user's functions of whole batches."""
    own, transform = (parts["collate_fn"],), (parts["batch_transform"],)
    return (() if parts["settings"].own_collate else own) + (() if parts["batch_transform"] is None else transform)


def _seeded(settings: JobSettings, dataset: Any, of_batches: tuple[Any, ...]) -> Any:
    """Returns the objects whose generators are seeded for each sample, in addition to the global ones."""
    if settings.threads > 1 or settings.concurrency > 1:
        return of_batches  # generators that the dataset holds are for samples made at the same time to share
    parts = (dataset, *of_batches) if of_batches else dataset
    if not settings.iterable:
        return parts
    # Generators of a stream are part of its state: workers and ranks may have to draw the same numbers from them
    own = set(map(id, find_generators(dataset)))
    return [generator for generator in find_generators(parts) if id(generator) not in own]


class LoaderJob:
    """Fetches and collates. One for each worker, made in it; started by its first unit, which brings the seed.

    Args:
        parts: dataset, collate_fn, batch_transform, worker_init_fn, on_error, settings.
        generators: the generators that the dataset holds, if the search ran before the worker was forked.
        number: of the worker.
    """

    def __init__(self, parts: dict[str, Any], generators: list[Any] | None, number: int) -> None:
        self.mark: Mark = [*NEW_MARK]
        self.weigh: Callable[[], None] = lambda: None
        self.upcoming: Callable[[], Iterable[object]] = tuple
        self._settings: JobSettings = parts["settings"]
        self._held = generators
        self.repeats = not self._settings.iterable
        self._number = number
        self._dataset = parts["dataset"]
        self.stopwatch = stopwatch_of(self._dataset, number, self._settings) if self._settings.timed else None
        self._init_fn = parts["worker_init_fn"]
        capabilities = self._settings.capabilities
        # Each thread walks, and may configure, its own stream
        copied = capabilities.are_threads and self._settings.iterable
        self._dataset = own_copy(self._dataset) if copied else self._dataset
        self._is_told = copied or capabilities.own_process  # of an epoch: others share the trainer's dataset
        if capabilities.has_workers or loaded_torch() is None:
            torch_worker_info.connect()
        if jpeg_reader.is_wanted(self._settings.jpegs, capabilities.own_process):
            jpeg_reader.register()
        self._collate_fn = parts["collate_fn"]
        self._collate = collate.compiling(self._collate_fn)
        self._collate_may_draw = not self._settings.own_collate and not _keeps_samples(self._collate_fn)
        self._users = _of_batches(parts)
        self._user_transform = parts["batch_transform"]
        self._transform: BatchTransform | None = None
        is_compiled = isinstance(self._collate, collate.Compiled) and self._settings.batched
        self._compiled = cast("collate.Compiled", self._collate) if is_compiled else None
        self._gathered: collate.Gathered | None = None
        self._error_policy = ErrorPolicy(parts["on_error"], self._dataset, number)
        self._rng: Any = None
        self._seeding: SampleSeeding | None = None
        self._init_error: Exception | None = None
        self._run: int | None = None
        self._map: MapFetcher | None = None
        self._threads: Threads | AsyncSamples | None = None
        self._awaiting: Awaiting | None = None
        self._own: tuple[WorkerInfo, SampleRNG, Seeding]
        self._stream: StreamFetcher | None = None
        self._resumed: bytes | None = None
        self._samples = 0
        self._rows_at: tuple[int, Sequence[int]] | None = None
        self._run_of_samples: list[Any] = []
        self._notes: list[str] = []
        self._failed: Any = None
        self._knows = False  # whether something is known of the unit
        self._short: PlainMaker | None = None  # of a thread, for units of this epoch that need no more
        self._units, self._place = 0, (0, 1)  # of this epoch; position and stride of the present one
        self._lend: Lender | None = None
        # A transformed batch is written behind its transform: the collated one before it stays in the worker
        lends = capabilities.lends_memory and self._user_transform is None
        self._recycled = None if lends else Recycled()
        self._has_process, self._has_workers = capabilities.own_process, capabilities.has_workers
        # The job detects a collate_fn that keeps lent memory, and gives it a copy
        self._may_lend = segments.CAN_DETACH or self._settings.own_collate
        self._is_thread = capabilities.are_threads
        self._plain_samples = 0  # of the last unit, if it took the short path

    def run(
        self,
        unit: object,
        /,
        lend: Lender | None = None,
        known: KnownFaults = (),
        rows: tuple[int, int] | None = None,
        made_rows: Sequence[MadeRows] = (),
    ) -> Any:
        """Returns the batch of a unit, or `rows` of it, in memory from `lend` if `lend` provides it."""
        work = unit if type(unit) is Work else Work(*cast("tuple[Any, ...]", unit))
        if known or made_rows or rows:
            self._short = None  # it does not know what such a unit draws from
        elif self._has_workers and (self._short is not None or self._may_be_short(work)):
            batch = self._run_short(work, lend)
            if batch is not NOT_PLAIN:
                return batch
        if observer.current is None:
            return self._run_unit(work, lend, known, rows, made_rows)
        share = 1.0 if rows is None else max(1, rows[1] - rows[0]) / len(work.indices)
        return observer.current.make(share, lambda: self._run_unit(work, lend, known, rows, made_rows))

    def _may_be_short(self, work: Work) -> bool:
        """Makes the short path of a worker, if nothing of this epoch needs more; returns whether there is one."""
        if work.run != self._run:
            return False
        self._units += 1
        if self._units > TRIES and self._units % TRIES:
            return False
        me = weakref.ref(self)  # the path keeps this function, and the generators of samples keep the path
        self._short = self.plain(work.seed, lambda: (0, 1) if (job := me()) is None else job._place)
        return self._short is not None

    def _run_short(self, work: Work, lend: Lender | None) -> Any:
        """Returns the batch of a unit that needs no more than samples and collation; else `NOT_PLAIN`."""
        short, indices = self._short, work.indices
        assert short is not None and self._seeding is not None
        is_same = work.run == self._run and work.drawn == self._seeding.known
        if is_same and observer.current is None and not isinstance(indices, np.ndarray):
            self._place = work.position, work.stride
            self._failed = indices
            if self._recycled is None:
                self._lend = lend
            indices = indices if self._settings.batched else [indices]
            batch = short(indices)
            if batch is not NOT_PLAIN:
                self.mark[ACTIVITY] = Activity.WRITE
                self._plain_samples = len(indices)
                return batch
        self._short = None
        return NOT_PLAIN

    def _run_unit(
        self,
        work: Work,
        lend: Lender | None,
        known: KnownFaults,
        rows: tuple[int, int] | None,
        made_rows: Sequence[MadeRows],
    ) -> Any:
        outside = current.rng
        self._failed, self._samples = None, len(work.indices) if self._has_list else 1
        self._rows_at = None
        self._error_policy.unit = work
        if known or self._error_policy.is_touched:
            self._error_policy.begin(known)
            self._knows = self._error_policy.knows_any
        try:
            seeds = self._begin(work)
            if self._has_process:
                collate.write_in_place()  # torch may have been imported by the last unit
            if self._recycled is None:
                self._lend = lend if self._may_lend else None
            else:
                self._lend = self._recycled.lend
            return self._made(work, seeds, rows, made_rows)
        finally:
            if self._compiled is not None:
                self._compiled.end()
            if not self._has_workers:
                current.rng = outside  # of another loader, if this one runs within its dataset

    def _made(self, work: Work, seeds: SampleSeeding, rows: tuple[int, int] | None, parts: Sequence[MadeRows]) -> Any:
        if rows is not None:
            return self._rows(work, seeds, *rows)
        if self._settings.iterable:
            return self._from_stream(work, seeds)
        return self._from_map(work, seeds, parts)

    def plain(self, seed: int, place: PlainPlace) -> PlainMaker | None:
        """Returns a function that makes the batch of a list of indices; None if units of this epoch need more than
        that.

        For a job in the trainer's process, or of cheap batches in a worker, once its first units have shown the kind of
        samples and the generators that they draw from: a batch is then its collated samples. The function detects a
        change, leaves the fetched samples for `run`, and returns `NOT_PLAIN`. `run` fetches only those that are
        missing.

        Args:
            seed: of the epoch.
            place: of the batch that is being made.
        """
        if self._seeding is None or not self._is_plain():
            return None
        if self._settings.iterable:
            return None if self._has_workers else self._plain_stream()
        if self._compiled is not None and (fetch_all := self._source.fetch_all) is not None:
            return self._plain_whole(seed, place, fetch_all, self._compiled)
        return self._plain_one_by_one(seed, place)

    def _is_plain(self) -> bool:
        """Returns whether a batch needs no more than its samples, their seeds, and a collation that is known."""
        if self._knows or self._gathered is not None or self._user_transform is not None:
            return False
        if self.stopwatch is not None or observer.current is not None:  # who measures each batch
            return False
        compiled = self._compiled
        is_large = compiled is not None and compiled.may_take(self._samples, SMALL_BATCH)
        if self._recycled is None and (is_large or not self._may_lend):
            return False
        if compiled is not None:
            return compiled.is_settled
        # Each sample is converted, and is no batch
        settings = self._settings
        return settings.own_collate and not settings.batched and not isinstance(self._collate, collate.Compiled)

    def _plain_one_by_one(self, seed: int, place: PlainPlace) -> PlainMaker | None:
        """Returns the function of `plain` for samples that are fetched one by one."""
        source, compiled, convert, rng = (
            self._source,
            self._compiled,
            cast("Callable[..., Any]", self._collate),
            self._rng,
        )
        seeds = cast("SampleSeeding", self._seeding)
        if (fetch := source.fetch) is None or (plain := seeds.plain()) is None:
            return None
        (lent, run), active = plain, seeds.active
        known = len(active)
        lend, take_back, dataset, key = lent.lend, lent.take_back, source.indexed, key_of_samples(seed)
        mark: Any = self.mark
        walk, has_process = _BatchWalk(), self._has_process

        def begin_rng() -> int:
            """Returns the position of the current sample, at which a generator of `rng` is made. It is the last one
            here: from the next on, the generator is seeded for each.
            """
            if run is not None:
                return run.end()
            position, stride = place()
            at = position + stride * walk.end()
            weak_rng.find_position = lambda: at  # type: ignore[attr-defined]
            return at

        weak_rng = weakref.proxy(rng)  # `rng` keeps `begin_rng`

        @harmless
        def make(indices: list[Any]) -> Any:
            if len(active) > known or rng.streams or source.is_ahead:  # ahead: an interrupt has ended the last call
                return NOT_PLAIN
            outside, rng.key, rng.find_position = current.rng, key, begin_rng
            samples: list[Any] = []
            current.rng = rng
            following, count = walk.begin(indices, mark, has_process), len(indices)
            mark[ACTIVITY] = Activity.SAMPLE
            try:
                lend()
                if run is not None:
                    if run.take(key, *place(), walk.fetched(following, fetch), samples, count):
                        raise walk.stopped.pop()
                elif dataset is None:
                    for index in following:
                        samples.append(fetch(index))
                else:
                    append = samples.append
                    for index in following:
                        append(dataset[index])
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) and not self._is_thread:
                    raise
                source.has_fetched(samples, error)
                return NOT_PLAIN
            finally:
                moved = take_back()
                current.rng = outside
                if moved:
                    seeds.learn_moved(moved)
                if len(active) > known:
                    seeds.put_back()
            if len(active) > known or rng.streams or len(samples) < count:
                source.has_fetched(samples)
                return NOT_PLAIN
            if compiled is None:
                batch = _converted(convert, samples[0])
                if batch is NOT_PLAIN:
                    source.has_fetched(samples)
                return batch
            mark[ACTIVITY] = Activity.COLLATE
            batch = self._settled(compiled, samples)
            if batch is None:
                source.has_fetched(samples)
                return NOT_PLAIN
            return batch

        return make

    def _plain_whole(
        self, seed: int, place: PlainPlace, fetch_all: Callable[[list[Any]], Any], compiled: collate.Compiled
    ) -> PlainMaker:
        """Returns the function of `plain` for a dataset with `__getitems__`, whose call is seeded as in a unit."""
        source, seeds, rng = self._source, cast("SampleSeeding", self._seeding), self._rng
        mark, is_thread = self.mark, self._is_thread

        @harmless
        def make(indices: list[Any]) -> Any:
            if source.is_ahead:
                return NOT_PLAIN
            outside, current.rng = current.rng, rng
            mark[ACTIVITY] = Activity.WHOLE
            try:
                samples = seeds.whole(seed, place()[0], lambda: fetch_all(getattr(indices, "given", [*indices])))
            except BaseException as error:
                if not (is_thread or isinstance(error, Exception)):
                    raise
                source.has_fetched_all(Raised(error))
                return NOT_PLAIN
            finally:
                current.rng = outside
            mark[ACTIVITY] = Activity.COLLATE
            is_usual = type(samples) is list and len(samples) == len(indices) > 0
            batch = self._settled(compiled, samples) if is_usual else None
            if batch is None:
                source.has_fetched_all(samples)
                return NOT_PLAIN
            return batch

        return make

    def _plain_stream(self) -> PlainMaker | None:
        """Returns the function of `plain` for a stream: it needs no indices, and returns the batch, the number of its
        samples and the stream's state.
        """
        stream, seeds, rng, compiled = self._stream, cast("SampleSeeding", self._seeding), self._rng, self._compiled
        if stream is None or compiled is None:
            return None
        many = self._settings.batch_size or 1

        def make(_indices: list[Any]) -> Any:
            samples: list[Any] = []
            outside, current.rng = current.rng, rng
            try:
                if not stream.plain(seeds, samples, many):
                    return NOT_PLAIN
            finally:
                current.rng = outside
            batch = self._settled(compiled, samples)
            if batch is None:
                stream.leave(samples)
                return NOT_PLAIN
            return batch, many, stream.plain_state()

        return make

    def _settled(self, compiled: collate.Compiled, samples: list[Any]) -> Any:
        """Returns the batch of samples; None if it needs the full path of a unit."""
        lend, least = (self._lend, SMALL) if self._recycled is None else (self._recycled.lend, LEAST)
        may_lend = compiled.may_take(len(samples), least)
        if not (may_lend or tensors.is_lent()):
            return compiled.settled(samples)
        with tensors.lent_by(lend if may_lend else None):
            return compiled.settled(samples)

    def report(self) -> UnitReport:
        """Returns the report of the last unit."""
        if self._plain_samples:
            samples, self._plain_samples = self._plain_samples, 0
            return UnitReport(samples=samples)
        stream = self._stream
        if stream is None:
            notes, self._notes = self._notes, []
            drawn = () if self._seeding is None else self._seeding.news()
            faults = self._error_policy.met if self._error_policy.has_met_any else []
            report = UnitReport(notes, None, faults, self._samples, drawn=drawn, rows_at=self._rows_at)
        else:
            notes, self._notes = [*self._notes, *(stream.notes.pop(0) for _ in range(len(stream.notes)))], []
            state, movable, since = stream.report()
            faults, guess = self._error_policy.met, stream.guess
            rows_at = self._rows_at
            report = UnitReport(notes, state, faults, self._samples, movable, guess, since=since, rows_at=rows_at)
        return report if self.stopwatch is None else report._replace(timings=(self.stopwatch.read(),))

    def failed_index(self) -> Any:
        """Returns the index of the sample at which the last unit failed, all of its batch's if the batch failed, or
        None.
        """
        return self._failed.tolist() if isinstance(self._failed, np.ndarray) else self._failed

    def resume(self, state: bytes) -> None:
        """Resumes the stream of the worker that this one replaces, from its saved state."""
        self._resumed = state

    def stream_state(self, since: bytes) -> bytes | None:
        """Returns the state of the stream now, if it stands where it said `since`; else None."""
        return None if self._stream is None else self._stream.asked(since)

    @property
    def _has_list(self) -> bool:
        return self._settings.batched and not self._settings.iterable

    def _begin(self, work: Work) -> SampleSeeding:
        """Runs the user's init function once, and applies the changes of a new epoch."""
        self.mark[ACTIVITY] = Activity.START
        if self._knows:
            self._error_policy.raise_known(START)
        begins = work.run != self._run
        if begins:
            self._run, self._stream, self._gathered, self._units = work.run, None, None, 0
            if work.set_epoch is not None and self._is_told:
                self._dataset.set_epoch(work.set_epoch)  # persistent workers' copy; others were born with it
                self._held = None  # it may have made new generators
            if work.order is not None and self._is_told:
                datapipes.seed(self._dataset, work.order)
        seeds = self._seeding or self._start(work.seed)
        seeds.learn(work.drawn)
        current.rng = self._rng
        if self._init_error is not None:
            raise self._init_error
        if begins and self._has_list:
            source = gatherer(self._dataset)
            if source is not None:
                self._gathered = collate.gathering(self._collate_fn, self._dataset, source)
        return seeds if self._threads is None else self._threads.seeds

    def _start(self, seed: int) -> SampleSeeding:
        """Applies the epoch's seed from the first unit, and runs the user's init function in the worker."""
        settings = self._settings
        if settings.rank:  # the epoch's seed is that of all ranks, and a worker's own has to differ
            seed = mix(seed, settings.rank) >> 1
        serial, threads = not self._has_workers, settings.capabilities.are_threads
        if self.stopwatch is not None:
            self.mark = self.stopwatch.over(self.mark)
        rng = SampleRNG(seed + self._number)
        self._rng, self._error_policy.rng = TasksRNG(rng) if settings.concurrency > 1 else rng, rng
        self._error_policy.mark = self.mark
        info = WorkerInfo(
            id=self._number,
            num_workers=max(self._number + 1, settings.num_workers),  # "auto" may have asked for more
            seed=seed + self._number,
            dataset=self._dataset,
            rng=self._rng,
            worker_method="thread" if threads else "multiprocessing",
        )
        self._introduce(info)
        mode = settings.seeding
        try:
            if self._has_process:
                own_course = run_init_fn(self._init_fn, self._number, seed, mode=mode, dataset=self._dataset)
                mode = "worker" if own_course else mode
            elif threads and self._init_fn is not None:
                self._init_fn(self._number)
        except Exception as error:
            self._init_error = error
        self._own = info, rng, mode
        holder = _seeded(settings, self._dataset, self._users)
        if settings.threads > 1:
            from stoker.loader._job.sample_threads import Threads

            self._threads = Threads(settings.threads, info, mode, self.mark, self._begin_ahead, self._tell)
        elif settings.concurrency:
            self._await()
        generators, self._held = self._held, None
        self._seeding = SampleSeeding(
            mode,
            dataset=holder,
            threads=threads,
            restore=serial,
            rng=rng,
            mark=self.mark,
            generators=generators,
            looked_at=settings.looked_at,
            held_by=None if settings.iterable else functools.partial(held_by, methods=("__getitem__", "__getitems__")),
            tell=weakly(self._tell),
        )
        if self._user_transform is not None:
            if mode == "worker" and not threads:
                self._transform = BatchTransform.with_own_seeding(self._user_transform)
            else:
                self._transform = BatchTransform(self._user_transform, self._seeding)
        return self._seeding

    def _introduce(self, info: WorkerInfo) -> None:
        """Makes the information on this worker known to the code that runs in it."""
        if self._has_process:
            current.becomes_with_all_threads(info)
        elif self._has_workers:
            current.becomes(info)
        else:
            current.rng = self._rng  # the trainer is no worker

    def _await(self) -> None:
        """Prepares an event loop for the samples."""
        from stoker.loader._job.async_samples import AsyncSamples, Awaiting

        info, rng, mode = self._own
        count, peers = self._settings.concurrency, self._settings.capabilities.are_threads
        if count == 1:
            self._awaiting = Awaiting(rng, self.mark, self._has_process, self._begin_ahead)
            return
        self._awaiting = self._threads = AsyncSamples(
            count, info, rng, mode, self.mark, self._has_process, peers, self._begin_ahead, self._tell
        )

    def _await_these(self, samples: Sequence[Any]) -> bool:
        """Prepares an event loop if there are coroutines among samples that cannot be collated: those of a function
        that is no `async def`. They have not run; the samples have to be fetched again.
        """
        if self._awaiting is not None or not self._settings.own_collate or not close_coroutines(samples):
            return False
        self._settings = replace(self._settings, concurrency=CONCURRENCY)
        info, rng, mode = self._own
        self._rng, self._map = TasksRNG(rng), None
        self._own = replace(info, rng=self._rng), rng, mode
        self._introduce(self._own[0])
        self._await()
        return True

    def close(self) -> None:
        """Ends samples that are in flight. Their event loop ends with the thread."""
        self._short = None  # it keeps this job
        if self._awaiting is not None:
            self._awaiting.end()
        if self._seeding is not None:
            self._seeding.give_back()

    def _rows(self, work: Work, seeds: SampleSeeding, first: int, last: int) -> Any:
        """Returns a run of a batch's rows. Samples raise their own errors; all other errors are left to the worker that
        joins the samples.
        """
        source = self._source
        samples = self._run_of_samples = list[Any]()
        self._samples = last - first
        keep = self._keep(last - first, run_of=len(work.indices))
        try:
            source.run(work, seeds, first, last, samples, keep)
        except MisfitError:
            raise
        except Exception:
            samples.clear()
            self._failed = source.failed_index if seeds.failed_at is not None else work.indices
            raise
        if any(sample is LEFT_OUT for sample in samples):
            raise MisfitError("a sample to be left out")
        self.mark[ACTIVITY] = Activity.COLLATE
        try:
            with tensors.lent_by(self._lend):
                batch = None if self._compiled is None else self._compiled.rows(samples)
        except Exception as error:
            awaited = close_coroutines(samples) > 0
            raise MisfitError("samples that do not go together", for_good=awaited) from error
        if batch is None:
            raise MisfitError("samples with what has no rows of one size", for_good=True)
        self.mark[ACTIVITY] = Activity.WRITE
        return batch

    def handed_over(self, written: bool) -> Any:
        """Returns the samples of the last rows, as far as they were made, or only their form; forgets them."""
        samples, self._run_of_samples = self._run_of_samples, []
        return collate.form_of(samples[0]) if written else samples

    def _keep(self, count: int, run_of: int | None = None) -> RowSink | None:
        """Returns a sink that takes samples as they are made, or None if it gains nothing."""
        if self._compiled is None:
            return None
        return self._compiled.begin(count, self._lend, travels=self._recycled is None, run_of=run_of)

    def _begin_ahead(self) -> None:
        """Lets threads begin the next units of this epoch."""
        gathers = self._gathered is not None and self._gathered.gathers
        for upcoming in self.upcoming():
            work = Work(*cast("tuple[Any, ...]", upcoming))
            if work.run == self._run and not gathers:
                self._source.begin(work)

    def _tell(self, note: str) -> None:
        self._notes.append(note)

    @property
    def _source(self) -> MapFetcher:
        if self._map is None:
            settings = self._settings
            self._map = MapFetcher(
                self._dataset,
                settings.batched,
                self._error_policy,
                self.mark,
                self._threads,
                self._awaiting,
                counted=settings.own_collate,
                in_thread=settings.capabilities.are_threads,
            )
        return self._map

    def _from_map(self, work: Work, seeds: SampleSeeding, made_rows: Sequence[MadeRows]) -> Any:
        source = self._source
        self._failed = work.indices
        if self._gathered is not None and not self._knows and not made_rows:
            self.mark[ACTIVITY] = Activity.WHOLE
            may_keep = segments.CAN_DETACH or self._recycled is not None  # `out` is in the user's hands
            with tensors.lent_by(self._lend if may_keep else None):
                batch = self._gathered(work.indices)
            if batch is not collate.NOT_GATHERED:
                if self._transform is not None:
                    batch = self._transformed(work, work.seed, positions_of(work, work.indices), batch)
                self.mark[ACTIVITY] = Activity.WRITE
                return batch
        if isinstance(work.indices, np.ndarray):  # datasets get Python integers
            self._failed = work.indices.tolist()
            work = work._replace(indices=self._failed)
        samples: list[Any] = []
        try:
            keep = self._keep(len(work.indices) if self._settings.batched else 1)
            joined = functools.partial(source.joined, by_place=_by_place(made_rows)) if made_rows else source.samples
            samples = joined(work, seeds, keep=keep)
            batch = self._collated(work, work.seed, work.position, source.positions, samples)
        except Exception as error:
            if self._await_these(samples) and self._threads is not None:
                return self._from_map(work, self._threads.seeds, ())
            self._failed = source.failed_index if seeds.failed_at is not None else self._odd_ones(work.indices, error)
            raise
        if self._gathered is not None and (trouble := self._gathered.trouble) is not None:
            self._gathered.trouble = None
            if not self._error_policy.has_met_any:  # else it was right to raise: a sample raises too
                self._notes.append(
                    f"{type(self._dataset).__name__}.gather() raised {type(trouble).__name__}: {trouble}, for samples "
                    "that __getitem__ gives: they are fetched one by one instead. Correct gather(), or leave it out."
                )
        return batch

    def _from_stream(self, work: Work, seeds: SampleSeeding) -> Any:
        stream = self._stream
        if stream is None:
            from stoker.loader._job.stream_fetcher import StreamFetcher

            stream = self._stream = StreamFetcher(
                self._dataset,
                self._settings,
                self._number,
                init_fn=self._init_fn is not None,
                run=work.run,
                faults=self._error_policy,
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
        return self._collated(work, stream.seed, stream.first, stream.positions, samples)

    def _collated(self, work: Work, seed: int, position: int, positions: Sequence[int], samples: list[Any]) -> Any:
        self._samples = len(samples)
        self.mark[ACTIVITY] = Activity.COLLATE
        if self._knows:
            self._error_policy.raise_known(COLLATE)
        collated = samples if self._settings.batched else samples[0]
        with tensors.lent_by(self._lend):
            if self._seeding is None or not self._collate_may_draw:
                batch = self._collate(collated)
            else:
                batch = self._seeding.collate(seed, position, lambda: self._collate(collated))
        if isinstance(self._collate_fn, collate.Flavoured) and (note := self._collate_fn.excess(batch)) is not None:
            self._tell(note)
        if self._transform is not None:
            batch = self._transformed(work, seed, positions, batch)
        elif self._settings.transformed_later and not isinstance(positions, range):
            self._rows_at = seed, tuple(positions)
        if not self._settings.own_collate:
            self.weigh()  # with its samples and the batch
        self.mark[ACTIVITY] = Activity.WRITE
        if self._knows:
            self._error_policy.raise_known(WRITE)
        return batch

    def _transformed(self, work: Work, seed: int, positions: Sequence[int], batch: Any) -> Any:
        assert self._transform is not None
        self.mark[ACTIVITY] = Activity.TRANSFORM
        if self._knows:
            self._error_policy.raise_known(TRANSFORM)
        return self._transform(batch, seed, positions, epoch=work.epoch, number=work.batch)

    def _odd_ones(self, indices: Any, error: Exception) -> Any:
        """Returns the indices of a batch, with the odd samples marked if Stoker's collation names them. If the sampler
        yielded lists, the error begins with that.
        """
        places = error.places if isinstance(error, BatchError) and self._settings.own_collate else ()
        if not places or not isinstance(indices, list) or self._samples != len(indices):  # some were left out
            return indices
        if isinstance(error, BatchError) and isinstance(indices[0], list):
            error.args = (f"{mistakes.of_index(indices[0], None)} {error.args[0]}", *error.args[1:])
        marked = BatchIndices(indices)
        marked.odd = places
        return marked


class _BatchWalk:
    """The indices of a batch of `plain`, while their samples are fetched. The mark may keep it: it keeps no dataset.

    Attributes:
        stopped: a `StopIteration` of a sample, which would look like the end of the samples.
    """

    __slots__ = ("_indices", "_pending", "stopped")

    def __init__(self) -> None:
        self._indices: list[Any] = []
        self._pending: Iterator[Any] = iter(())
        self.stopped: list[StopIteration] = []

    def begin(self, indices: list[Any], mark: Any, is_read: bool) -> Iterator[Any]:
        """Returns an iterator over the indices of a batch.

        Args:
            indices: of the batch.
            mark: where the place of the current sample is left.
            is_read: whether another process reads the mark.
        """
        self._indices = indices
        self._pending = pending = iter(indices)
        if is_read:
            return _marked(pending, mark)
        mark[PLACE] = self._place
        return pending

    def fetched(self, indices: Iterator[Any], fetch: Callable[[Any], Any]) -> Iterator[Any]:
        """Yields the samples."""
        for index in indices:
            try:
                sample = fetch(index)
            except StopIteration as error:
                self.stopped.append(error)
                return
            yield sample

    def end(self) -> int:
        """Makes the current sample the last one; returns its place."""
        place = self._place()
        for _ in self._pending:
            pass
        return place

    def _place(self) -> int:
        return len(self._indices) - operator.length_hint(self._pending) - 1


def _converted(convert: Callable[[Any], Any], sample: Any) -> Any:
    """Returns `convert(sample)`, or NOT_PLAIN: the general path gives the sample, or a readable error."""
    try:
        return convert(sample)
    except Exception as error:
        if tears(error):
            raise
        return NOT_PLAIN


def _marked(indices: Iterator[Any], mark: Any) -> Iterator[Any]:
    mark[PLACE] = 0
    for mark[PLACE], index in enumerate(indices):
        yield index


def _keeps_samples(collate_fn: object) -> bool:
    """Whether a user's `collate_fn` returns its samples as they are, and so draws no random numbers."""
    if isinstance(collate_fn, FunctionType):
        code = collate_fn.__code__
        return code.co_argcount == 1 and code.co_code == _SAME.__code__.co_code
    return collate_fn is list or collate_fn is tuple


_SAME: Callable[[object], object] = lambda samples: samples  # noqa: E731 - its code is what counts


def _by_place(made_rows: Sequence[MadeRows]) -> dict[int, Any]:
    """Returns samples that other workers have made, by their places in the unit."""
    by_place: dict[int, Any] = {}
    for first, rows, form in made_rows:
        samples = cast("list[Any]", rows) if form is None else collate.samples_of(form, rows)
        by_place.update(enumerate(samples, first))
    return by_place
