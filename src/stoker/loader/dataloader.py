"""`DataLoader`: torch's arguments and meanings, on Stoker's engine."""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from stoker import _nominal, collate, errors
from stoker._engine.base import Backend
from stoker._engine.process.birth import choose
from stoker._engine.process.trainer import ProcessBackend
from stoker._engine.serial import SerialBackend
from stoker._events import Listener
from stoker._machine import cpus
from stoker._supervision import restarts, stalls
from stoker._supervision.rules import Rules, StallAction
from stoker.datasets import IterableDataset
from stoker.datasets.nesting import batched_by
from stoker.loader import arguments, budget, epoch, heap, state, taken_over
from stoker.loader.faults import OnError
from stoker.loader.hint import Hint
from stoker.loader.iterator import LoaderIterator
from stoker.loader.job import Settings, assemble
from stoker.loader.ledger import Ledger
from stoker.loader.numbering import Epochs
from stoker.loader.passes import lend_to_samplers
from stoker.loader.progress import Progress
from stoker.loader.report import Report
from stoker.loader.state import Place
from stoker.loader.untraced import keep_dynamo_out, untraced
from stoker.loader.watched import WatchedBackend
from stoker.loader.witness import Witness, users_level
from stoker.samplers import BatchSampler, RandomSampler, Sampler, SequentialSampler

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from stoker.loader.automatic import Automatic

T_co = TypeVar("T_co", covariant=True)

_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class _Endless(Sampler[None]):
    """The sampler of an IterableDataset: None for ever, since there is nothing to choose."""

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)


class _Shuffle:
    """`loader.shuffle`: read from the sampler, and no attribute of the loader's own, as torch's has none.

    Who rebuilds a loader from all that `vars` has gives a batch sampler beside it. A subclass may set one of its own.
    """

    def __get__(self, loader: DataLoader[Any] | None, kind: type | None = None) -> Any:
        return self if loader is None else isinstance(loader._own_sampler, RandomSampler)


class DataLoader(_nominal.base("DataLoader"), Generic[T_co]):  # type: ignore[misc]  # chosen at run time
    """Combines a dataset and a sampler, and iterates over batches: `torch.utils.data.DataLoader` on Stoker's engine.

    The first thirteen arguments, and those up to `in_order`, are torch's, with torch's meanings, defaults and errors.

    Args:
        dataset: map-style (`__getitem__`, `__len__`; `__getitems__` for a batch at once) or an `IterableDataset`.
        batch_size: samples in a batch; None turns batching off.
        shuffle: a new order each epoch, by a keyed permutation: constant time and memory for any number of samples.
        sampler: any iterable of indices: `RandomSampler(generator=g)` gives torch's order. The order of Stoker's
            samplers without a generator follows from the epoch's seed instead.
        batch_sampler: any iterable of lists of indices.
        num_workers: number of workers; 0 makes batches in the training process. `"auto"` begins with what affinity,
            cgroup and memory allow, measures during the first batches how many are best (up to four for each CPU where
            samples wait and the CPUs idle), and sets the attribute to that number. The batches do not depend on it.
        collate_fn: makes a batch from a list of samples, in the worker. The default and `PadCollator` write straight
            into the memory in which the batch is handed over; the result of any other function is copied once.
        pin_memory: puts tensors into page-locked memory. Costs a copy of each batch in the training thread, which
            counts as waiting.
        drop_last: leaves out a last, smaller batch.
        timeout: seconds to wait for a batch, 0 for any time. Needs workers.
        worker_init_fn: called in each worker with its number, before its first batch. With it, worker k mod n makes
            batch k, so it may keep state; without it, any free worker takes the next batch.
        multiprocessing_context: a start method or context. "fork" forks; "spawn" and "forkserver" start a clean
            interpreter, which is sent the dataset once. None uses multiprocessing's default.
        generator: where the epoch's seed is drawn from (`torch.Generator`, or `numpy.random.Generator`).
        prefetch_factor: batches ahead for each worker (default 2, or as many as its threads need). Each costs its
            memory. Where a batch takes over 50 ms and all workers make each one together, one more, in all.
        persistent_workers: workers, and their copy of the dataset, live as long as the loader.
        pin_memory_device: deprecated by torch, and ignored.
        in_order: False delivers batches as they come.
        worker_method: "process", or "thread": threads of this process, for samples whose work releases the GIL. One
            copy of the dataset, no transport; randomness comes from `get_worker_info().rng`.
        threads_per_worker: threads that call `dataset[index]` in each worker process, for samples whose work releases
            the GIL or waits: files, networks, decoding. The dataset must allow calls from several threads at once, and
            random numbers come from `get_worker_info().rng`. Datasets that fetch a whole batch at once
            (`__getitems__`, `gather`) do so in one thread; with `num_workers=0` there is no worker, and no thread.
        seeding: "sample" seeds Python's, NumPy's and torch's generators (and the dataset's own) before each sample,
            from the epoch's seed and the sample's position, some 10 us; "auto" does so only if samples draw;
            "worker" seeds once for each worker, as torch does, and results then depend on the number of workers.
        shard: "auto" shares a stream that does not shard itself out among the workers, with one warning: each worker
            reads all of it, and keeps its share. "none" does not.
        seed: fixes all epochs: epoch e is a function of (seed, e), and `torch.manual_seed` does not change the order.
            Costs no time. Without it each epoch's seed is drawn at the first `next()`, from `generator` or the global
            generator.
        output: "torch" (where it is installed) for tensors, "numpy" for arrays. Neither copies the data; making a
            tensor takes the training process some microseconds.
        distributed: shares each epoch out among the ranks of a job, without a sampler; `batch_size` is a rank's. Where
            samples do not divide evenly, "pad" gives some twice (as `DistributedSampler` does), "drop" leaves the last
            out, "exact" gives each once, so that some ranks have one more sample or batch. Without `seed=` the order
            follows from seed 0, because all ranks need the same.
        num_replicas, rank: the number of ranks, and this rank; by default as `torch.distributed` or the launcher says.
        batches_per_epoch: number of batches in an epoch. One shuffled pass over the samples follows another without
            end, and each epoch takes the next that many batches.
        max_restarts: how many deaths of worker processes in ten minutes the run survives (default 5): another worker
            makes the unfinished batches again, bit for bit. If one sample keeps killing workers, `on_error` decides
            about that sample. 0 raises at the first death, as torch does.
        on_error: what becomes of a sample that raises, or kills its workers. "raise" raises the error in its batch's
            place; the next `next()` continues. "skip" leaves the sample out; "replace" takes another of its batch, or a
            neighbour in the epoch's order, always the same one. Or a function of an `ErrorRecord` that returns one of
            these; it runs in the worker. A dataset may raise `SkipSample` itself.
        max_errors, max_error_rate: bad samples that an epoch may have, by number (default 100) and as a share of those
            seen (default 0.01; the first ten are free, but for a share of 0), before `ErrorBudgetError`. None for any.
        quarantine: a file to which each bad sample is written as a line of JSON, before its batch is delivered; see
            `stoker.quarantine`.
        stall_warning: seconds (default 60) after which a warning reports a batch that a worker is still busy with, its
            sample and the worker's stack, at the training loop's next `next()`; None or 0 for never. Not with
            `num_workers=0`; with worker threads, only while the training loop waits for a batch.
        stall_action: "warn" lets it continue, "restart" ends the worker and tries again (process workers), "raise"
            raises `StalledError`.
        memory_budget: bytes that loading may take in addition to the dataset: half for batches, half for the growth of
            the workers, in equal parts. More is refused, and a worker that grows beyond its part is replaced between
            two batches. By default what the machine or container has left. For process workers only; threads and
            `num_workers=0` ignore it.
        max_samples_per_worker: number of samples after which a worker process is replaced, between two batches.
        share_heap: whether a heap of over a million Python objects is marked immortal before workers are forked, so
            that they share what they read of it (CPython 3.12 and 3.13). Costs 0.1 to 0.5 s a million, in each epoch
            in which workers would copy over 256 MiB of the dataset. In a worker, marked objects are never freed.
        on_event: called in the training process with an `Event` for each death, stall, bad sample, …

    Raises:
        ValueError, TypeError: contradictory or impossible arguments, as torch words them.
        AssertionError: `timeout` with `num_workers=0`, as in torch.
        CannotSendError: at `iter()`, with a clean interpreter: what cannot be sent, by its path.
        MissingExtraError: `output="torch"` without torch; `pin_memory=True` without it, at `iter()`.
        WorkerStartError, MemoryLimitError, QuarantineError: at `iter()`.
        SamplerError: at the `next()` whose batch is no list of indices, or where a sampler cannot draw as many samples
            as it should. An index that is not the dataset's raises what the dataset raises (`IndexError`, `TypeError`).

    A batch belongs to the user and is never overwritten. The same seed gives the same batches in the same order with
    any number of workers, processes or threads (map-style datasets).
    """

    dataset: Any
    batch_size: int | None
    num_workers: int
    pin_memory: bool
    drop_last: bool
    timeout: float
    sampler: Any
    batch_sampler: Any
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], None] | None
    generator: Any
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    shuffle = _Shuffle()
    multiprocessing_context: Any = None  # hides torch's property: ours is a plain attribute

    __initialized = False  # mangled as torch's, because some who replace a sampler switch it off

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[Any] | Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        worker_method: Literal["process", "thread"] = "process",
        threads_per_worker: int = 1,
        seeding: Literal["auto", "sample", "worker"] = "auto",
        shard: Literal["auto", "none"] = "auto",
        seed: int | None = None,
        output: Literal["torch", "numpy"] | None = None,
        distributed: Literal["pad", "drop", "exact"] | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        batches_per_epoch: int | None = None,
        max_restarts: int = restarts.DEFAULT,
        on_error: OnError = "raise",
        max_errors: int | None = budget.DEFAULT_COUNT,
        max_error_rate: float | None = budget.DEFAULT_RATE,
        quarantine: str | os.PathLike[str] | None = None,
        stall_warning: float | None = stalls.DEFAULT,
        stall_action: StallAction = "warn",
        memory_budget: int | None = None,
        max_samples_per_worker: int | None = None,
        share_heap: bool = True,
        on_event: Listener | None = None,
    ) -> None:
        auto = self._new_automatic() if num_workers == "auto" else None
        number = auto.most if auto is not None else arguments.integer("num_workers", num_workers, "'auto'")
        arguments.check_workers(number, timeout, prefetch_factor, persistent_workers)
        threads = arguments.check_threads(threads_per_worker, number, worker_method, _is_iterable(dataset))
        if output is None:
            output = "torch" if _nominal.torch_is_wanted() else "numpy"
        arguments.check_generator(generator)
        arguments.check_choice("worker_method", worker_method, arguments.METHODS)
        arguments.check_choice("seeding", seeding, arguments.SEEDINGS)
        arguments.check_choice("shard", shard, arguments.SHARDS)
        arguments.check_output(output)
        self.dataset = dataset
        self.num_workers = number
        self.prefetch_factor = prefetch_factor
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.in_order = in_order
        self.worker_method = worker_method
        self.threads_per_worker = threads
        self.seeding = seeding
        self.shard = shard
        self.seed = None if seed is None else arguments.integer("seed", seed, "None")
        self.output = output
        self.distributed = distributed
        self.num_replicas, self.rank, self.batches_per_epoch = arguments.check_ranks(
            distributed, num_replicas, rank, batches_per_epoch
        )
        self.max_restarts = arguments.count("max_restarts", max_restarts)
        arguments.check_faults(on_error, on_event, stall_action, self._method)
        self.on_error = on_error
        self.max_errors, self.max_error_rate = budget.check(max_errors, max_error_rate)
        self.quarantine = None if quarantine is None else os.path.abspath(quarantine)
        self.stall_warning = arguments.seconds("stall_warning", stall_warning)
        self.stall_action = stall_action
        self.memory_budget = arguments.size("memory_budget", memory_budget, of=" of bytes, such as 2**30,")
        self.max_samples_per_worker = arguments.size("max_samples_per_worker", max_samples_per_worker)
        self.share_heap = bool(share_heap)
        self.on_event = on_event

        self._is_stream = _is_iterable(dataset)
        arguments.check_dataset(dataset, self._is_stream)
        if self._is_stream:
            arguments.check_stream(shuffle, sampler, batch_sampler)
        else:
            shuffle = bool(shuffle)
        arguments.check_batching(batch_size, bool(shuffle), sampler, batch_sampler, drop_last)
        if batch_sampler is not None:
            batch_size, drop_last = None, False
        self._own_sampler: Any = None
        if sampler is None:
            sampler = self._own_sampler = self._default_sampler(bool(shuffle), generator)
        if batch_size is not None and batch_sampler is None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        if number > 0 and prefetch_factor is None:
            self.prefetch_factor = max(2, self._units_at_once)
        self.generator = generator
        if collate_fn is None:
            collate_fn = collate.default_collate if self._auto_collation else collate.default_convert
        self.collate_fn = collate_fn
        self.persistent_workers = persistent_workers
        self._IterableDataset_len_called: int | None = None
        self._iterator: LoaderIterator | None = None
        self._latest: weakref.ref[LoaderIterator] | None = None
        self._epochs = Epochs()
        self._progress = Progress()
        self._resumed: Place | None = None
        self._told: set[str] = set()
        self._ledger = Ledger()
        self._auto = auto
        self._hint = Hint() if number == 0 else None
        epoch.check_shares(self)
        epoch.check_samplers(self)
        lend_to_samplers(self)
        self.__initialized = True
        self.check_worker_number_rationality()
        self._check_memory_budget()

    def _default_sampler(self, shuffle: bool, generator: Any) -> Any:
        if self._is_stream:
            return _Endless()
        return RandomSampler(self.dataset, generator=generator) if shuffle else SequentialSampler(self.dataset)

    @classmethod
    def from_torch(cls, loader: Any, **changes: Any) -> Self:
        """Makes a loader with the settings of a torch loader, on Stoker's engine.

        Args:
            loader: a `torch.utils.data.DataLoader`. From a Stoker loader, Stoker's own arguments are taken over too.
            **changes: arguments to change, such as `num_workers=4`; `num_workers=0` also leaves out arguments that
                need workers.

        A loader that shuffles by torch's default sampler also shuffles here, but by Stoker's permutation: the order
        differs for the same seed. Any other sampler is kept. Constant time: nothing is started or drawn.

        Raises:
            TypeError: `loader` is not a torch loader.
        """
        ours, torch = isinstance(loader, DataLoader), sys.modules.get("torch")
        if not ours and (torch is None or not isinstance(loader, torch.utils.data.DataLoader)):
            raise TypeError(
                f"from_torch needs a torch.utils.data.DataLoader, but got {type(loader).__name__}. To load from a "
                "dataset, call DataLoader(dataset, ...)."
            )
        names = _ARGUMENTS if ours else _ARGUMENTS[: _ARGUMENTS.index("in_order") + 1]
        found = taken_over.settings(loader, loader if ours else None, names, _is_iterable(loader.dataset))
        return cls(**taken_over.changed(found, changes))

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__initialized and name in _FIXED:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        if name == "multiprocessing_context":
            value = arguments.context_of(value, self.num_workers)
        object.__setattr__(self, name, value)

    @untraced
    def __iter__(self) -> Iterator[Any]:
        """Begins an epoch: starts the workers now; the first `next()` waits for the first batch.

        Iterators are independent of each other. With `persistent_workers` there is only one, and each call restarts it.
        """
        keep_dynamo_out()
        self._obey_set_epoch()
        kept = self._iterator
        if (auto := self._automatic) is not None:
            if not auto.fits(self):
                self.close()
        elif getattr(kept, "workers", self.num_workers) != self.num_workers:  # somebody has set another number
            self.close()
        if self.persistent_workers and self.num_workers > 0:
            if self._is_stream and self._resumed is not None:
                self.close()  # their copies of a dataset with a state of its own stand where the last epoch left them
            # A class of the user's may stand before ours
            if self._iterator is not None and getattr(self._iterator, "is_open", True):
                self._iterator._reset(self)
            else:
                self._iterator = self._get_iterator()
            return self._iterator
        return self._get_iterator()

    def __len__(self) -> int:
        """Batches in an epoch; for an IterableDataset with a length, the best guess from it."""
        if not self._is_stream:
            return epoch.length_of(self)
        length = self._IterableDataset_len_called = len(self.dataset)
        if self.batch_size is None:
            return length
        return length // self.batch_size if self.drop_last else math.ceil(length / self.batch_size)

    def close(self) -> None:
        """Ends persistent workers now. Batches that were delivered stay; the loader can be iterated over again.

        Takes some milliseconds, and at most a second where a worker is busy.
        """
        iterator, self._iterator = self._iterator, None
        if iterator is not None and hasattr(iterator, "close"):
            iterator.close()

    def __enter__(self) -> Self:
        """Nothing is done, and nothing started: `with` closes the loader at its end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def set_epoch(self, epoch: int) -> None:
        """Makes this epoch the next one, counted from 0. Without calls, epochs follow each other.

        If a loaded state belongs to this epoch, the next `iter()` continues from it; otherwise the epoch begins at its
        start.
        """
        self._epochs.set_epoch(self, epoch)
        self._obey_set_epoch()

    def _obey_set_epoch(self) -> None:
        if self._epochs.moved and self._resumed is not None:
            self._resumed, self._progress = None, Progress()

    def __getstate__(self) -> dict[str, Any]:
        # Another process goes its own way from here
        own = {"_progress": Progress(self._resumed or state.START), "_ledger": Ledger()}
        own["_auto"] = None if self._auto is None else self._auto.copy()
        return {**self.__dict__, "_iterator": None, "_latest": None, **own}

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__getstate__(), _epochs=copy.copy(self._epochs))
        return other

    def state_dict(self) -> dict[str, Any]:
        """Returns where the latest epoch stands: right after the last batch received, however many are made ahead.

        Plain values, as in JSON (a stream's own state is as its dataset makes it); under 1 kB and constant time for
        datasets with indices. It describes the latest iterator, also after `break`. After the end of an epoch it is
        the start of the next. The states of all ranks at the same step are interchangeable.

        Raises:
            StateError: a stream's own `state_dict` raised.
        """
        self._obey_set_epoch()
        number, place = self._progress.place(self._epochs.begun)
        if self._epochs.moved and place.is_decided and not self._progress.has_begun:
            place = state.START  # by a `set_epoch` since `iter()`: what was loaded is of another epoch
        if place is state.START:
            place = epoch.start(self, number)
        return state.packed(number, place._replace(told=self._epochs.told), epoch.kind_of(self))

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Makes the next `iter()` continue from a state; with `seed=` all later epochs follow as well.

        Constant time, except for a sampler that can only be iterated over from its start. The number of workers,
        processes or threads, `prefetch_factor` and the number of ranks may differ from those that saved it.

        Args:
            state_dict: what `state_dict()` returned, also after JSON or pickle.
            strict: whether a state of another dataset or order is an error.

        Raises:
            StateFormatError: it is damaged, not a state of Stoker's, or of a newer format.
            StateMismatchError: it does not fit this loader; the message names what differs. The loader is unchanged.
        """
        number, place, theirs = state.unpacked(state_dict)
        ours = epoch.kind_of(self)
        if strict:
            state.check_fits(theirs, ours, bool(place.ahead))
        elif not state.same_batches(theirs, ours):
            place = place._replace(ahead=frozenset())
        self._resumed = epoch.resumed(self, number, place)
        self._progress = Progress(self._resumed)

    def describe(self) -> str:
        """Returns what will run, with how many workers and which memory, and why, as text. Starts nothing."""
        from stoker.loader.description import describe

        return describe(self)

    def report(self, *, stacks: bool = False) -> Report:
        """Returns what became of the samples so far, what happened to the workers, where memory and time went.

        For the latest epoch and for all epochs; also while an iterator is in use. `print` it, or call `as_dict()`.

        Args:
            stacks: whether to ask the workers for their Python stacks: a moment for each.
        """
        iterator = self._latest() if self._latest is not None else None
        memory, text = ({}, None) if iterator is None else iterator._inspect(stacks)
        return Report.of(self._ledger, memory, text)

    # What frameworks look at, under torch's names

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        return self.batch_sampler if self._auto_collation else self.sampler

    @property
    def _dataset_kind(self) -> int:
        return int(self._is_stream)

    @staticmethod
    def _new_automatic() -> Automatic:
        from stoker.loader.automatic import Automatic

        return Automatic()

    @property
    def _automatic(self) -> Automatic | None:
        """Who finds the number of workers, unless somebody has set one meanwhile."""
        if self._auto is not None and not self._auto.obeyed(self):
            self._auto = None
        return self._auto

    def _get_iterator(self) -> LoaderIterator:
        if (auto := self._automatic) is not None:
            auto.prepare(self)
        iterator = LoaderIterator(self)
        self._latest = weakref.ref(iterator)
        return iterator

    def check_worker_number_rationality(self) -> None:
        """Warns, once for each loader, of more workers than CPUs that this process may use."""
        if self.num_workers == 0:
            return
        usable = cpus.cpus()
        if self.num_workers > usable.number and self.worker_method == "process":
            self._tell_once(
                f"This DataLoader will create {self.num_workers} worker processes in total. Our suggested max number "
                f"of worker in current system is {usable.number} ({usable.source}), which is smaller than what this "
                "DataLoader is going to create. Please be aware that excessive worker creation might get DataLoader "
                "running slow or even freeze, lower the worker number to avoid potential slowness/freeze if necessary."
            )

    def _check_memory_budget(self) -> None:
        """Warns of one that nobody keeps."""
        if self.memory_budget is None or self._method == "process":
            return
        made = "num_workers=0 makes" if self._method == "serial" else "worker_method='thread' makes"
        self._tell_once(
            f"memory_budget={self.memory_budget} has no effect: {made} batches in this process, where nobody limits "
            "them. Use process workers, or leave it out."
        )

    # What the iterator needs

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, errors.StokerWarning, stacklevel=users_level())

    def _snapshot(self) -> DataLoader[Any]:
        """What an iterator keeps of the loader: not itself, so that neither waits for the garbage collector."""
        snapshot: DataLoader[Any] = object.__new__(DataLoader)
        snapshot.__dict__.update((name, self.__dict__[name]) for name in _SEEN_BY_ITERATORS)
        return snapshot

    @property
    def _method(self) -> Literal["serial", "thread", "process"]:
        return self.worker_method if self.num_workers else "serial"

    @property
    def _threads(self) -> int:
        """How many threads make samples in each worker."""
        whole = self._auto_collation and batched_by(self.dataset) is not None
        return 1 if self._is_stream or whole or self._method != "process" else self.threads_per_worker

    @property
    def _units_at_once(self) -> int:
        """Units that a worker holds, so that its threads have the next ones to go on with."""
        if self._threads == 1:
            return 1
        from stoker.loader.threads import units_at_once

        return units_at_once(self._threads, self.batch_sampler if self._auto_collation else None)

    def _settings(self, own_collate: bool) -> Settings:
        return Settings(
            iterable=self._is_stream,
            batched=self._auto_collation,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            num_workers=self.num_workers,
            method=self._method,
            seeding=self.seeding,
            own_collate=own_collate,
            shard=self.shard,
            threads=self._threads,
            rank=epoch.world_of(self).rank,
        )

    def _new_backend(self, witness: Witness) -> Backend:
        if self._auto is None:
            return self._plain_backend(witness, self.num_workers)
        return self._auto.wrapped(self._plain_backend(witness, self._auto.at_first(self)), self, witness)

    def _plain_backend(self, witness: Witness, workers: int) -> Backend:
        # A process worker leaves it to the trainer to make tensors: it may do without torch
        output = "deferred" if self._method == "process" and self.output == "torch" else self.output
        collate_fn = collate.for_output(self.collate_fn, output)
        parts = {
            "dataset": self.dataset,
            "collate_fn": collate_fn,
            "worker_init_fn": self.worker_init_fn,
            "on_error": self.on_error,
            "settings": self._settings(own_collate=collate.is_ours(collate_fn)),
        }
        if self._method == "serial":
            if self.timeout != 0:
                raise AssertionError(
                    "_SingleProcessDataLoaderIter requires timeout == 0: without workers nobody watches the clock. "
                    f"Leave out timeout={self.timeout}, or use num_workers=1."
                )
            hint = self._hint
            return SerialBackend(assemble(parts)) if hint is None else WatchedBackend(assemble(parts), hint, witness)
        if self._method == "thread":
            from stoker._engine.thread import ThreadBackend  # what is not loaded, workers do not have either

            return ThreadBackend(assemble(parts), workers, self._rules, witness)
        birth = choose(self.multiprocessing_context)
        if not birth.zygote:
            from stoker._engine.spawn import SpawnBackend  # where there is no fork, and only there

            return SpawnBackend(parts, assemble, workers, self._rules, witness)
        backend = ProcessBackend(parts, assemble, workers, birth, self._rules, witness)
        heap.tell(self)  # while it is born
        return backend

    @property
    def _rules(self) -> Rules:
        known: dict[str, Any] = {"row_seconds": self._ledger.row_seconds, "units_at_once": self._units_at_once}
        known["growth"], known["deaths"] = self._ledger.growth, ()
        known["mark_heap"] = heap.is_marked(self)
        return Rules(**known, **{name: getattr(self, name) for name in Rules._fields if name not in known})


_ARGUMENTS = tuple(inspect.signature(DataLoader).parameters)

_SEEN_BY_ITERATORS = (
    *(name for name in _ARGUMENTS if name != "shuffle"),
    *("_is_stream", "_own_sampler", "_epochs", "_told", "_ledger", "_IterableDataset_len_called"),
)
"""Not what a subclass adds: it may be an iterator, and that is for the subclass alone to keep."""


def _is_iterable(dataset: Any) -> bool:
    """Whether it is an IterableDataset, ours or torch's."""
    if isinstance(dataset, IterableDataset):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(dataset, torch.utils.data.IterableDataset)
