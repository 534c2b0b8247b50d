"""What a worker does with a unit: fetch its samples under the right seeds, and collate them."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import operator
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from stoker import collate
from stoker._engine.base import Lender, Recipe, StreamEnd
from stoker._worker_info import WorkerInfo, current
from stoker.collate import memory
from stoker.datasets.stream import StreamIterator
from stoker.errors import SamplerError, StateMismatchError, StreamLostError
from stoker.loader import torch_bridge
from stoker.loader.generators import mix
from stoker.loader.sample_rng import SampleRNG
from stoker.loader.seeding import SampleSeeding, Seeding
from stoker.loader.sharding import OTHERS, Numbered, read_again, shared_out
from stoker.loader.worker_seeding import run_init_fn

Method = Literal["serial", "thread", "process"]


class Work(NamedTuple):
    """A unit as it travels: everything that its batch follows from, beside the dataset."""

    run: int  # of the iterator's epochs: a stream is opened once in each
    seed: int
    position: int
    indices: Any  # of a stream: where it is resumed, or None
    stride: int = 1
    set_epoch: int | None = None  # what the dataset is to be told


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
        # Each thread walks, and may configure, its own stream
        copied = self._settings.method == "thread" and self._settings.iterable
        self._dataset = copy.copy(self._dataset) if copied else self._dataset
        self._is_told = copied or self._settings.method == "process"  # of an epoch: others share the trainer's dataset
        if self._settings.method != "serial":
            torch_bridge.connect()
        self._collate = parts["collate_fn"]
        self._info: WorkerInfo | None = None
        self._seeding: SampleSeeding | None = None
        self._sick: Exception | None = None
        self._run: int | None = None
        self._source: StreamIterator[tuple[int, Any]] | None = None
        self._ended = False
        self._resumed: dict[str, Any] | None = None
        self._position = 0
        self._stream_seed = 0
        self._notes: list[str] = []
        self._failed: Any = None

    def run(self, work: Work, lend: Lender | None = None) -> Any:
        """Makes the batch of a unit, in memory that `lend` gives where it does."""
        self._failed = None
        work = Work(*work)
        outside = current.info
        try:
            if work.run != self._run:
                self._run, self._source, self._ended = work.run, None, False
                if work.set_epoch is not None and self._is_told:
                    self._dataset.set_epoch(work.set_epoch)  # persistent workers' copy; others were born with it
            seeds = self._seeding or self._start(work.seed)
            current.info = self._info
            if self._sick is not None:
                raise self._sick
            if self._settings.method == "process":
                collate.write_in_place()  # torch may have been imported by the last unit
            with contextlib.nullcontext() if lend is None else memory.lent_by(lend):
                return self._from_stream(work, seeds) if self._settings.iterable else self._from_map(work, seeds)
        finally:
            if self._settings.method == "serial":
                current.info = outside  # a worker's, where its dataset has a loader of its own

    def take_notes(self) -> list[str]:
        """Things to tell the user once, since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def failed_index(self) -> Any:
        """Index of the sample at which the last unit failed, those of its batch if it was the batch, or None."""
        return self._failed

    def _start(self, seed: int) -> SampleSeeding:
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
        mode = settings.seeding
        try:
            if settings.method == "process":
                own_course = run_init_fn(self._init_fn, self._number, seed, mode=mode, dataset=self._dataset)
                mode = "worker" if own_course else mode
            elif threads and self._init_fn is not None:
                self._init_fn(self._number)
        except Exception as error:
            self._sick = error
        held = self._dataset if settings.own_collate else (self._dataset, self._collate)
        self._seeding = SampleSeeding(mode, dataset=held, threads=threads, restore=serial, rng=rng)
        return self._seeding

    def _from_map(self, work: Work, seeds: SampleSeeding) -> Any:
        batched = self._settings.batched
        indices = list(work.indices) if batched else [work.indices]
        fetch_all = getattr(self._dataset, "__getitems__", None) if batched else None
        try:
            if callable(fetch_all):
                samples = seeds.whole(work.seed, work.position, lambda: fetch_all(indices))
            else:
                positions = range(work.position, work.position + work.stride * len(indices), work.stride)
                samples = seeds.samples(
                    work.seed, positions, functools.partial(operator.getitem, self._dataset), indices
                )
            return self._collated(work.seed, work.position, samples if batched else samples[0])
        except Exception as error:
            failed_at = seeds.failed_at
            if failed_at is None:
                self._failed = work.indices
            elif failed_at < len(indices):
                self._failed = indices[failed_at]
                _blame_the_sampler(error, self._failed, self._dataset)
            raise

    def _from_stream(self, work: Work, seeds: SampleSeeding) -> Any:
        if self._source is None and not self._ended:
            self._ended = True  # one that cannot be opened is not tried again
            self._open_stream(work, seeds)
            self._ended = False
        wanted = self._settings.batch_size if self._settings.batched else 1
        first = self._position
        with seeds.undisturbed(self._stream_seed):
            samples = list(itertools.islice(_until_end(lambda: self._next_sample(seeds)), wanted))
        if not samples or (self._settings.drop_last and len(samples) < (wanted or 0)):
            raise StreamEnd
        return self._collated(self._stream_seed, first, samples if self._settings.batched else samples[0])

    def _open_stream(self, work: Work, seeds: SampleSeeding) -> None:
        """The worker's stream of samples in this epoch, each made under its own seed."""
        settings, state = self._settings, work.indices
        resumed, self._resumed = self._resumed, None
        if resumed is not None and resumed.get("run") == work.run:
            state = _after_a_death(resumed, self._number)
        several, strided = settings.num_workers > 1, state is not None and state.get("strided")
        again = read_again(self._dataset, state)
        if again:
            state = {**state, "position": 0, "stream": None} if strided else None
        if settings.shard == "auto" and self._init_fn is None and (several or strided):
            share = (self._dataset, self._number, max(1, settings.num_workers), self._tell, state)
            # Workers begin alike, until the stream asks which of them it is in: then its draws are that worker's
            current.on_told = functools.partial(seeds.again, mix(work.seed, self._number), 0)
            try:
                self._source, whole = seeds.one(work.seed, 0, lambda: shared_out(*share))
            finally:
                current.on_told = None
        else:
            self._source, whole = seeds.one(work.seed, 0, lambda: Numbered(self._dataset, state)), not several
        self._position = 0 if state is None else state["position"]
        self._stream_seed = work.seed if whole else mix(work.seed, self._number)
        with seeds.undisturbed(self._stream_seed):
            while self._position < again:
                self._read_again(seeds, again)

    def _read_again(self, seeds: SampleSeeding, until: int) -> None:
        """A sample that was delivered before: read as then, also what it draws, and thrown away."""
        try:
            found = self._next_item(seeds) is not None
        except Exception:  # so it was then
            return
        if not found:
            raise StateMismatchError(
                f"the state stands behind sample {until} of a stream that has {self._position} now: it is another's, "
                "or has lost samples since."
            )

    def resume(self, state: bytes) -> None:
        """This worker replaces one whose stream stood there: `stream_state()` of it."""
        self._resumed = pickle.loads(state)

    def stream_state(self) -> bytes | None:
        """Where the worker's stream stands behind the last unit; None where there is none."""
        if self._source is None:
            return pickle.dumps({"run": self._run, "ended": True}, 5) if self._ended else None
        try:
            state = {"run": self._run, **self._source.state_dict()}
            return pickle.dumps({**state, "ended": True} if self._ended else state, 5)
        except Exception as error:
            return pickle.dumps({"failed": repr(error)}, 5)

    def _tell(self, note: str) -> None:
        self._notes.append(note)

    def _next_sample(self, seeds: SampleSeeding) -> Any:
        """The next sample that is this worker's, or _END. A stream may raise, and go on behind it."""
        while not self._ended:
            item = self._next_item(seeds)
            if item is None:
                self._ended = True
                break
            if item[1] is not OTHERS:
                return item[1]
        return _END

    def _next_item(self, seeds: SampleSeeding) -> tuple[int, Any] | None:
        """The next of the stream that is read, under the seeds of its position; None at the end."""
        assert self._source is not None
        ended = False
        try:
            item: tuple[int, Any] | None
            item = seeds.one(self._stream_seed, self._position, functools.partial(next, self._source, None))
            ended = item is None
            return item
        finally:
            self._position += not ended

    def _collated(self, seed: int, position: int, samples: Any) -> Any:
        if self._settings.own_collate or self._seeding is None:
            return self._collate(samples)
        return self._seeding.collate(seed, position, lambda: self._collate(samples))


def _after_a_death(state: dict[str, Any], worker: int) -> dict[str, Any]:
    """Where the stream of a worker that died goes on. Nothing may be skipped or come twice without a word.

    A stream that every worker walks whole is read again: that its samples come in one order is what sharing it out by
    stride rests on anyway.
    """
    stream = state.get("stream")
    if "failed" not in state and (state.get("strided") or not (isinstance(stream, dict) and "seen" in stream)):
        return {"ended": False, **state}
    raise StreamLostError(
        f"worker {worker} died, and its stream cannot be opened again where it stood: {state.get('position', 0)} "
        "samples had been delivered, and what it had read beyond is lost. Give the dataset state_dict() and "
        "load_state_dict(state), or build it from stoker's streams; then the run survives this."
    )


_END = object()


def _until_end(call: Callable[[], Any]) -> Iterator[Any]:
    while (sample := call()) is not _END:
        yield sample


def _blame_the_sampler(error: Exception, index: Any, dataset: Any) -> None:
    """Gives an error a cause to read where the index is none of the dataset's; its type stays the dataset's."""
    if error.__cause__ is not None or not isinstance(error, (LookupError, TypeError)):
        return
    with contextlib.suppress(Exception):  # a dataset without a length, or with any other mind of its own
        length = len(dataset)
        if not hasattr(index, "__index__"):
            what = f"{index!r} ({type(index).__name__}), which is no integer"
        elif not -length <= index < length:
            what = f"index {index}, but the dataset has {length} samples"
        else:
            return
        error.__cause__ = SamplerError(
            f"the sampler yielded {what}. Was it made for another dataset, or has the dataset changed since?"
        )
