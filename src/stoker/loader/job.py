"""What a worker does with a unit: fetch its samples under the right seeds, and collate them."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from stoker import collate
from stoker._engine.base import Lender, Recipe, StreamEnd
from stoker._worker_info import WorkerInfo, current
from stoker.collate import memory
from stoker.loader import seeding, torch_bridge
from stoker.loader.generators import mix
from stoker.loader.sample_rng import SampleRNG
from stoker.loader.sharding import shared_out
from stoker.loader.worker_seeding import run_init_fn

Method = Literal["serial", "thread", "process"]


class Work(NamedTuple):
    """A unit as it travels: everything that its batch follows from, beside the dataset."""

    epoch: int
    seed: int
    position: int
    indices: Any


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


def assemble(parts: dict[str, Any]) -> Recipe:
    """The recipe of a worker's job, from the parts that travel: dataset, collate_fn, worker_init_fn, settings."""
    return functools.partial(LoaderJob, parts)


class LoaderJob:
    """Fetches and collates. One for each worker, made in it; started by its first unit, which brings the seed."""

    def __init__(self, parts: dict[str, Any], number: int) -> None:
        self._settings: Settings = parts["settings"]
        self._number = number
        self._dataset = parts["dataset"]
        self._init_fn = parts["worker_init_fn"]
        if self._settings.method == "thread" and self._settings.iterable:
            self._dataset = copy.copy(self._dataset)  # each thread walks, and may configure, its own stream
        if self._settings.method != "serial":
            torch_bridge.connect()
        self._collate = parts["collate_fn"]
        self._info: WorkerInfo | None = None
        self._seeding: SampleSeeding | None = None
        self._sick: Exception | None = None
        self._epoch: int | None = None
        self._stream: Iterator[Any] | None = None
        self._stream_seed = 0
        self._notes: list[str] = []
        self._failed: Any = None

    def run(self, work: Work, lend: Lender | None = None) -> Any:
        """Makes the batch of a unit, in memory that `lend` gives where it does."""
        self._failed = None
        work = Work(*work)
        if self._seeding is None:
            self._start(work.seed)
        if self._sick is not None:
            raise self._sick
        outside, current.info = current.info, self._info
        if self._settings.method == "process":
            collate.write_in_place()  # torch may have been imported by the last unit
        try:
            with contextlib.nullcontext() if lend is None else memory.lent_by(lend):
                return self._from_stream(work) if self._settings.iterable else self._from_map(work)
        finally:
            if self._settings.method == "serial":
                current.info = outside  # of a worker, where a dataset has a loader of its own

    def take_notes(self) -> list[str]:
        """Things to tell the user once, since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def failed_index(self) -> Any:
        """Index of the sample at which the last unit failed, or None."""
        return self._failed

    def _start(self, seed: int) -> None:
        """The first unit brings the epoch's seed; the user's init function runs now, in the worker."""
        settings = self._settings
        serial, threads = settings.method == "serial", settings.method == "thread"
        rng = SampleRNG(seed + self._number)
        self._info = WorkerInfo(
            id=self._number,
            num_workers=max(1, settings.num_workers),
            seed=seed + self._number,
            dataset=self._dataset,
            rng=rng,
            worker_method="multiprocessing" if settings.method == "process" else settings.method,
        )
        current.info = self._info
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
        held = (self._dataset, self._collate) if self._own_collate else self._dataset
        self._seeding = SampleSeeding(mode, dataset=held, threads=threads, restore=serial, rng=rng)

    def _from_map(self, work: Work) -> Any:
        assert self._seeding is not None
        seeds, dataset = self._seeding, self._dataset
        if not self._settings.batched:
            self._failed = work.indices
            sample = seeds.samples(work.seed, [work.position], self._get, [work.indices])
            self._failed = None
            return self._collated(work, sample[0])
        fetch_all = getattr(dataset, "__getitems__", None)
        if callable(fetch_all):
            samples = seeds.whole(work.seed, work.position, lambda: fetch_all(work.indices))
        else:
            positions = range(work.position, work.position + len(work.indices))
            try:
                samples = seeds.samples(work.seed, positions, self._get, work.indices)
            except Exception:
                self._failed = None if seeds.failed_at is None else work.indices[seeds.failed_at]
                raise
        return self._collated(work, samples)

    def _get(self, index: Any) -> Any:
        return self._dataset[index]

    def _from_stream(self, work: Work) -> Any:
        if work.epoch != self._epoch:
            self._epoch, self._stream = work.epoch, None
            self._open_stream(work)
        if self._stream is None:
            raise StreamEnd
        if not self._settings.batched:
            sample = next(self._stream, _END)
            if sample is _END:
                self._stream = None
                raise StreamEnd
            return self._collated(work, sample)
        samples = []
        for sample in self._stream:
            samples.append(sample)
            if len(samples) == self._settings.batch_size:
                return self._collated(work, samples)
        self._stream = None
        if not samples or self._settings.drop_last:
            raise StreamEnd
        return self._collated(work, samples)

    def _open_stream(self, work: Work) -> None:
        """The worker's stream of samples in this epoch, each made under its own seed."""
        settings = self._settings
        share = settings.shard == "auto" and settings.num_workers > 1 and self._init_fn is None
        seeds = self._seeding
        assert seeds is not None
        if share:
            source, whole = seeds.one(work.seed, 0, self._shared_out)
        else:
            source, whole = enumerate(seeds.one(work.seed, 0, lambda: iter(self._dataset))), 0
        seed = work.seed if whole else mix(work.seed, self._number)
        self._stream = self._samples(source, seed)

    def _shared_out(self) -> Any:
        return shared_out(self._dataset, self._number, self._settings.num_workers, self._notes.append)

    def _samples(self, source: Iterator[Any], seed: int) -> Iterator[Any]:
        seeds = self._seeding
        assert seeds is not None
        position = 0
        while True:
            item: Any = seeds.one(seed, position, lambda: next(source, _END))
            if item is _END:
                return
            position = item[0] + 1
            yield item[1]

    def _collated(self, work: Work, samples: Any) -> Any:
        if self._settings.own_collate:
            return self._collate(samples)
        assert self._seeding is not None
        return self._seeding.collate(work.seed, work.position, lambda: self._collate(samples))


_END = object()
