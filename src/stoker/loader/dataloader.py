"""`DataLoader`: torch's arguments and meanings, on Stoker's engine.

The file is long because half of it is the documentation of the arguments. The work is done elsewhere: options in
`_options`, iteration in `iterator.py`, states in `_state`.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from stoker import collate, errors
from stoker._core import nominal
from stoker._core.machine import cpus
from stoker._core.mistakes import with_known_names
from stoker._engine.machines.cluster import Ray
from stoker._engine.supervision.rules import StallAction
from stoker._engine.tracebacks import hide_own_frames, without_own_frames
from stoker.datasets.base import is_stream
from stoker.datasets.described import loaded_by
from stoker.events import Listener
from stoker.loader import loader_kind, torch_support
from stoker.loader._accounting import observer
from stoker.loader._accounting.report import Report
from stoker.loader._epoch import draws, epoch, ranks
from stoker.loader._epoch.progress import Progress
from stoker.loader._epoch.sampler_epochs import check_samplers, lend_to_samplers
from stoker.loader._job import jpeg_reader
from stoker.loader._job.error_policy import OnError
from stoker.loader._options import argument_checks
from stoker.loader._options.loader_options import TORCHS, LoaderOptions, checked
from stoker.loader._state import merging, schema
from stoker.loader.iterator import LoaderIterator
from stoker.loader.record import NAME, LoaderRecord, options_of, record_of
from stoker.loader.torch_support import keep_dynamo_out, untraced
from stoker.samplers.base import Sampler
from stoker.samplers.batch import BatchSampler
from stoker.samplers.random import RandomSampler
from stoker.samplers.sequential import SequentialSampler

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from stoker.diagnostics.profile.loader_profile import LoaderProfile
    from stoker.diagnostics.profile.profiling import Profiling
    from stoker.loader._autotune.controller import AutotuneController

T_co = TypeVar("T_co", covariant=True)

_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class _Endless(Sampler[None]):
    """The sampler of an IterableDataset: yields None without end, since a stream has no indices."""

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)


class _Shuffle:
    """`loader.shuffle`: read from the sampler and absent from `vars(loader)`, as in torch.

    Frameworks that rebuild a loader from `vars(loader)` also pass a batch sampler, which excludes `shuffle=`. A
    subclass may define its own `shuffle`.
    """

    def __get__(self, loader: DataLoader[Any] | None, kind: type | None = None) -> Any:
        return self if loader is None else isinstance(record_of(loader).own_sampler, RandomSampler)


class DataLoader(nominal.base("DataLoader"), Generic[T_co]):  # type: ignore[misc]  # chosen at run time
    """Combines a dataset and a sampler, and iterates over batches: `torch.utils.data.DataLoader` on Stoker's engine.

        loader = stoker.DataLoader(dataset, 64, shuffle=True, num_workers="auto")
        for images, labels in loader:
            train_step(images, labels)
        print(loader.report())  # how long the loop waited; what became of each sample

    The first thirteen arguments, and those up to `in_order`, are torch's, with torch's meanings, defaults and errors.
    Stoker's own follow. Here they stand by subject; the page "What to choose" names them by problem.

    Args: samples and batches
        dataset: map-style (`__getitem__`, `__len__`; `__getitems__` for a batch at once) or an `IterableDataset`.
        batch_size: samples in a batch; None turns batching off.
        batch_sampler: any iterable of lists of indices.
        collate_fn: makes a batch from a list of samples, in the worker. The default and `PadCollator` write straight
            into the shared memory of the batch; the result of any other function is copied once.
        batch_transform: called with each collated batch, and returns the batch that is delivered: in the worker, or,
            with `device=`, in this process with the batch on the device, on the stream of copies and ahead of the loop.
            `stoker.device.Compose`, a module of Kornia or torchvision, any function. `stoker.batch_draws()` gives it
            random numbers for each sample; other generators are seeded once for the batch. What it returns is copied
            once. Its numbers do not depend on where it runs.
        pad_to: sizes by field, such as `{"input_ids": (128, 256, 512)}`: the second dimension of the field in a batch
            gets the least that fits, padded in collation with the `PadCollator`'s value, or 0 in the default collation.
            A longer batch keeps its own length, with one warning. A field is a key, a place, the name of an attribute,
            or a tuple of them.
        drop_last: leaves out a last, smaller batch.
        batches_per_epoch: number of batches in an epoch. One shuffled pass over the samples follows another without
            end, and each epoch takes the next that many batches.
        output: "torch" (if it is installed) for tensors, "numpy" for arrays. Neither copies the data; making a
            tensor takes the training process some microseconds.
        pin_memory: puts tensors into page-locked memory. Costs a copy of each batch in the training thread, which
            counts as waiting.
        pin_memory_device: deprecated by torch, and ignored.

    Args: devices
        device: where batches arrive: "cuda", "cuda:1", "xpu", "mps", a `torch.device`; None or "cpu" leaves them on the
            host. Each is copied once, while the last one computes; without workers, when it is asked for. By field: a
            mapping from keys of the batch, places in a tuple or dotted paths to devices, with `...` as the last key for
            all others; or a function of (path, tensor) that returns a device or None. What is not named stays on the
            host. Objects with a `to()` of their own move themselves.
        prefetch_to_device: batches that are copied before they are asked for, as far as an eighth of the device's
            memory holds them. Needs workers.
        device_buffers: number of sets of fixed device memory that batches use in turn, for CUDA graphs: a batch is
            valid up to the n-th `next()` after it, of any iterator of this loader, and a captured graph belongs to one
            set. Batches of another shape have sets of their own. One more copy, on the device.

    Args: workers
        num_workers: number of workers; 0 makes batches in the training process. `"auto"` begins with as many as
            affinity, cgroup and memory allow, finds the best number during the first batches (up to four for each CPU
            if samples wait and the CPUs idle), and sets the attribute to it. The batches do not depend on the number.
            With `remote`, all CPUs here work, and workers elsewhere come and go as the training loop needs them.
        prefetch_factor: batches ahead for each worker (default 2, or as many as its threads or `concurrency` need).
            Each takes memory for one batch. If a batch takes over 50 ms and all workers share each one,
            `prefetch_factor` + 1 in all. By default, batches that take under a millisecond are made up to 32 ahead for
            each worker, and 2 MB of them.
        persistent_workers: workers, and their copy of the dataset, live as long as the loader.
        threads_per_worker: threads that call `dataset[index]` in each worker process, for samples whose work releases
            the GIL or waits: files, networks, decoding. The dataset must allow calls from several threads at once, and
            random numbers come from `stoker.sample_rng()`. Datasets that fetch a whole batch at once
            (`__getitems__`, `gather`) do so in one thread; with `num_workers=0` there is no worker, and no thread.
        concurrency: for a dataset with `async def __getitem__` or `__getitems__`: samples that each worker (or this
            thread, with `num_workers=0`) awaits at a time, 16 by default, also of its next batches. Random numbers come
            from `stoker.sample_rng()`; a sample's own error, order and number are as ever. 1 awaits one after another;
            0 awaits none, and gives `collate_fn` what `__getitem__` returns, as torch's loader does. Not with
            `threads_per_worker`.
        worker_method: "process", or "thread": threads of this process, for samples whose work releases the GIL. One
            copy of the dataset, no transport; randomness comes from `stoker.sample_rng()`.
        multiprocessing_context: a start method or context. "fork" forks; "spawn" and "forkserver" start clean
            workers, each of which unpickles the dataset itself, unless its class declares `unpickle_once = True`. None
            uses multiprocessing's default.
        worker_init_fn: called in each worker with its number, before its first batch. With it, worker k mod n makes
            batch k, so it may keep state; without it, any free worker takes the next batch.
        timeout: seconds to wait for a batch; 0 waits without a limit. Needs workers.
        in_order: False delivers batches in the order in which they are completed.
        shard: "auto" divides a stream that does not shard itself among the workers, with one warning: each worker
            reads the whole stream and keeps its share. The stream's attribute `shards_itself` declares whether it
            shards itself; without it the loader guesses, with one warning. "none" does not divide it.

    Args: order and randomness
        shuffle: a new order each epoch, by a keyed permutation: constant time and memory for any number of samples.
        sampler: any iterable of indices: `RandomSampler(generator=g)` gives torch's order. The order of Stoker's
            samplers without a generator follows from the epoch's seed instead.
        seed: fixes all epochs: epoch e is a function of (seed, e), and `torch.manual_seed` does not change the order.
            Costs no time. Without it each epoch's seed is drawn at `iter()`, from `generator` or the global
            generator.
        generator: source of the epoch's seed (`torch.Generator` or `numpy.random.Generator`).
        seeding: "sample" seeds Python's, NumPy's and torch's generators (and the dataset's own) before each sample,
            from the epoch's seed and the sample's position, some 10 us; "auto" does so only if samples draw;
            "worker" seeds once for each worker, as torch does, and results then depend on the number of workers.

    Args: several GPUs
        distributed: divides each epoch among the ranks of a job, without a sampler; `batch_size` is a rank's. If
            samples do not divide evenly, "pad" repeats some (as `DistributedSampler` does), "drop" leaves out the last,
            "exact" delivers each once, so that some ranks have one more sample or batch. Without `seed=` the order
            follows from seed 0, because all ranks need the same.
        num_replicas, rank: the number of ranks, and this rank; by default from `torch.distributed` or the launcher.
        mesh: in their place, a pair of a `DeviceMesh` and the name of its data-parallel dimension, or a tuple of names;
            or a mesh of one dimension. Ranks along other dimensions (tensor, context, pipeline) get the same data. Read
            when the loader is made; the attributes `num_replicas` and `rank` show its numbers.

    Args: faults
        on_error: treatment of a sample that raises, or kills its workers. "raise" raises the error in its batch's
            place; the next `next()` continues. "skip" leaves the sample out; "replace" takes another of its batch, or a
            neighbour in the epoch's order, always the same one. Or a function of an `ErrorRecord` that returns one of
            these; it runs in the worker. A dataset may raise `SkipSample` itself.
        max_errors, max_error_rate: bad samples that an epoch may have, by number (default 100) and as a share of those
            seen (default 0.01; the first ten are free unless the share is 0), before `ErrorBudgetError`. None for no
            limit.
        quarantine: a file to which each bad sample is written as a line of JSON, before its batch is delivered; see
            `stoker.quarantine`.
        max_restarts: deaths of worker processes in ten minutes that the run survives (default 5): another worker
            makes the unfinished batches again, bit for bit. If one sample keeps killing workers, `on_error` decides
            about that sample. 0 raises at the first death, as torch does.
        stall_warning: seconds (default 60) after which a warning reports a batch that a worker is still busy with, its
            sample and the worker's stack, at the training loop's next `next()`; None or 0 for never. Not with
            `num_workers=0`; with worker threads, only while the training loop waits for a batch.
        stall_action: "warn" lets it continue, "restart" ends the worker and tries again (process workers), "raise"
            raises `StalledError`.
        on_event: called in the training process with an `Event` for each death, stall, bad sample, …

    Args: other machines
        remote: `stoker.Ray(num_workers=...)` for workers on other machines, in addition to `num_workers` of this one
            (0 is allowed: all are elsewhere). The batches are the same. A free worker of this machine gets the next
            batch first.

    Args: memory
        memory_budget: bytes that loading may take in addition to the dataset: half for batches, half for the growth of
            the workers, in equal parts. More is refused, and a worker that grows beyond its part is replaced between
            two batches. The default is the free memory of the machine or container. For process workers only; threads
            and `num_workers=0` ignore it.
        max_samples_per_worker: number of samples after which a worker process is replaced, between two batches.
        share_heap: whether a heap of over a million Python objects is marked immortal before workers are forked, so
            that workers share its pages when they read them (CPython 3.12 and 3.13). Takes 0.1 to 0.5 s for each
            million objects, in each epoch in which workers would copy over 256 MiB of the dataset. In a worker, marked
            objects are never freed.

    Raises:
        ValueError, TypeError: contradictory or impossible arguments, as torch words them.
        AssertionError: `timeout` with `num_workers=0`, as in torch.
        CannotSendError: at `iter()`, with a clean interpreter: names the path of the object that cannot be sent.
        MissingExtraError: `output="torch"` without torch; `pin_memory=True` without it, at `iter()`.
        WorkerStartError, MemoryLimitError, QuarantineError: at `iter()`.
        DeviceError: at `next()`: a device is not there, a batch lacks a field of `device=`, or a stream is captured.
        EventLoopError: at `iter()`, with `num_workers=0` in a thread that runs an event loop, as a notebook does, and a
            dataset whose samples are awaited.
        SamplerError: at the `next()` whose batch is no list of indices, or if a sampler cannot draw as many samples
            as it should. An index outside the dataset raises the dataset's own error (`IndexError`, `TypeError`).

    Attributes have the arguments' names. torch's may be set, with effect from the next `iter()` on. Stoker's own are
    fixed when the loader is made: setting their attributes has no effect, and a subclass may use these names for
    attributes, properties and methods of its own.

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

    __initialized = False  # mangled as torch's: some frameworks switch it off to replace a sampler

    @without_own_frames
    @with_known_names
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
        concurrency: int | None = None,
        output: Literal["torch", "numpy"] | None = None,
        seed: int | None = None,
        seeding: Literal["auto", "sample", "worker"] = "auto",
        shard: Literal["auto", "none"] = "auto",
        batches_per_epoch: int | None = None,
        max_restarts: int = 5,
        on_error: OnError = "raise",
        max_errors: int | None = 100,
        max_error_rate: float | None = 0.01,
        quarantine: str | os.PathLike[str] | None = None,
        stall_warning: float | None = 60.0,
        stall_action: StallAction = "warn",
        distributed: Literal["pad", "drop", "exact"] | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        mesh: Any = None,
        memory_budget: int | None = None,
        max_samples_per_worker: int | None = None,
        share_heap: bool = True,
        on_event: Listener | None = None,
        device: Any = None,
        prefetch_to_device: int = 1,
        device_buffers: int | None = None,
        remote: Ray | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
        pad_to: Mapping[Any, int | Sequence[int]] | None = None,
    ) -> None:
        auto = _automatic() if num_workers == "auto" else None
        number = auto.most if auto is not None else argument_checks.integer("num_workers", num_workers, "'auto'")
        arguments = {name: value for name, value in locals().items() if name in _ARGUMENTS}
        local, number = number, number + getattr(remote, "num_workers", 0) if number >= 0 else number
        options = checked({**arguments, "num_workers": number})
        if auto is not None and remote is not None:
            options, auto = replace(options, on_demand=auto.may_change(options)), None
        shuffle = bool(shuffle)
        if sampler is None:
            if options.is_stream:
                sampler = _Endless()
            else:
                sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
            options = replace(options, own_sampler=sampler)
        if options.batch_size is not None and batch_sampler is None:
            batch_sampler = BatchSampler(sampler, options.batch_size, options.drop_last)
        options = replace(options, sampler=sampler, batch_sampler=batch_sampler)
        options = replace(options, auto_collation=batch_sampler is not None)
        if number > 0 and prefetch_factor is None:
            options = replace(options, prefetch_factor=max(2, options.units_at_once))
        options = replace(options, prefetch_is_given=prefetch_factor is not None)
        if collate_fn is None:
            collate_fn = collate.default_collate if options.auto_collation else collate.default_convert
        options = replace(options, collate_fn=collate_fn)
        record = self.__dict__[NAME] = LoaderRecord(options, auto)
        for name in TORCHS:
            setattr(self, name, getattr(options, name))
        self.num_workers = local
        for name, value in record.own().items():
            if not _has_own(self, name):
                self.__dict__[name] = value
        self._dataset_kind = int(options.is_stream)
        self._IterableDataset_len_called: int | None = None
        self._iterator: LoaderIterator | None = None
        now = record.options(self)
        epoch.check_shares(now)
        check_samplers(now, record.tell_once)
        lend_to_samplers(now, record.epochs)
        self.__initialized = True
        self.check_worker_number_rationality()
        _check_memory_budget(now, record)
        if now.threads_per_worker > 1 and not now.capabilities.has_workers:
            record.tell_once(
                f"threads_per_worker={now.threads_per_worker} has no effect with num_workers=0: there is no worker. "
                "Pass num_workers=1 or more, or leave it out."
            )

    @classmethod
    def from_torch(cls, loader: Any, **changes: Any) -> Self:
        """Returns a loader with the settings of a torch loader, on Stoker's engine.

        Args:
            loader: a `torch.utils.data.DataLoader`. From a Stoker loader, Stoker's own arguments are taken over too.
            **changes: arguments to change, such as `num_workers=4`; `num_workers=0` also leaves out arguments that
                need workers.

        A loader that shuffles by torch's default sampler also shuffles here, but by Stoker's permutation: the order
        differs for the same seed. Any other sampler is kept. Constant time: nothing is started or drawn.

        Raises:
            TypeError: `loader` is not a torch loader, or its class chooses the batches in methods of its own, such as
                `__iter__`, which the new loader would lack.
        """
        ours, torch = isinstance(loader, DataLoader), sys.modules.get("torch")
        if not ours and (torch is None or not isinstance(loader, torch.utils.data.DataLoader)):
            raise TypeError(
                f"from_torch needs a torch.utils.data.DataLoader, but got {type(loader).__name__}. To load from a "
                "dataset, call DataLoader(dataset, ...)."
            )
        names = _ARGUMENTS if ours else _ARGUMENTS[: _ARGUMENTS.index("in_order") + 1]
        torch_support.check_class(loader, cls)
        record = record_of(loader) if ours else None
        settings = torch_support.settings(loader, record, names, is_stream(loader.dataset))
        return cls(**torch_support.changed(settings, changes))

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__initialized and name in _FIXED:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        if name == "multiprocessing_context":
            value = argument_checks.context_of(value, self.num_workers or record_of(self).remote_workers)
        object.__setattr__(self, name, value)

    @untraced
    def __iter__(self) -> Iterator[Any]:
        """Begins an epoch: starts the workers now; the first `next()` waits for the first batch.

        Iterators are independent of each other. With `persistent_workers` there is only one, and each call restarts it.
        """
        keep_dynamo_out()
        watching = observer.current
        try:
            return _begin_epoch(self) if watching is None else watching.iterate(self, _begin_epoch)
        except BaseException as error:
            hide_own_frames(error, keep_first=True)
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {loaded_by(self)}>"

    def __len__(self) -> int:
        """Returns the batches in an epoch; for an IterableDataset with a length, the best guess from it."""
        if not self._dataset_kind:
            return epoch.length_of(options_of(self))
        length = self._IterableDataset_len_called = len(self.dataset)
        if self.batch_size is None:
            return length
        return length // self.batch_size if self.drop_last else math.ceil(length / self.batch_size)

    def close(self) -> None:
        """Ends persistent workers now. Delivered batches stay valid; the loader can be iterated over again.

        Takes some milliseconds, and at most a second if a worker is busy.
        """
        _end_workers(self)

    def __enter__(self) -> Self:
        """Returns the loader and starts nothing; the end of the `with` block closes the loader."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end_workers(self)

    def to(self, device: Any) -> Self:
        """Makes batches arrive on another device, from the next `iter()` on; returns this loader.

        Args:
            device: as the argument `device`.
        """
        record = record_of(self)
        is_own = vars(self).get("device", self) is record.own()["device"]  # else a subclass's
        record.move_to(device)
        if is_own:
            self.__dict__["device"] = device
        return self

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch`, counted from 0, the next one. Without calls, epochs follow each other.

        If a loaded state belongs to `epoch`, the next `iter()` continues from it; otherwise the epoch begins at its
        start.
        """
        record = record_of(self)
        record.epochs.set_epoch(record.options(self), epoch)
        record.obey_set_epoch()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name, value in record_of(self).own().items():  # options that an earlier version did not have
            if name not in state and not _has_own(self, name):
                self.__dict__[name] = value

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update({**self.__dict__, "_iterator": None, NAME: copy.copy(record_of(self))})
        return other

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the latest epoch right after the last batch received, however many are made ahead.

        The state has plain values, as in JSON (a stream's own state has the form that its dataset gives it); under 1 kB
        and constant time for datasets with indices. It describes the latest iterator, also after `break`. After the end
        of an epoch it is the start of the next. With `distributed=` the states of all ranks at the same step are
        interchangeable. Without it, and with `torch.distributed` initialised, a key of the state names its rank.

        Raises:
            StateError: a stream's or a sampler's own `state_dict` raised, or a framework that writes the state of one
                rank alone asks for that of a stream.
        """
        record = record_of(self)
        record.obey_set_epoch()
        options, epochs, progress = record.options(self), record.epochs, record.progress
        number, place = progress.place(epochs.begun)
        has_never_begun = record.resumed is None and not progress.has_begun and progress.numbers is None
        if epochs.moved and place.is_decided and not progress.has_begun:
            progress.numbers = None
            place = schema.START  # `set_epoch` since `iter()`: the loaded state is of another epoch
        if place is schema.START:
            place = epoch.start(options, epochs, number)
        if not progress.has_begun or progress.is_over:
            place = place._replace(ahead=place.ahead | record.skipped_at(place))
        if progress.numbers is not None:
            progress.numbers.find_order()
            place = progress.numbers.at(place, number)
        elif progress.is_over:
            iterator = self._iterator
            keeps_workers = self.persistent_workers and iterator is not None and getattr(iterator, "is_open", True)
            if options.is_stream and (keeps_workers or not options.num_workers):
                place = progress.at_end(place)
            if options.is_stream:
                place = progress.with_past(place)
            place = draws.seeds_ahead(options, epochs, number, place, keeps_workers)
        elif has_never_begun:
            place = draws.seeds_ahead(options, epochs, number, place, keeps_workers=False)
        if (refusal := loader_kind.refusal(record, options)) is not None:
            raise errors.StateError(refusal)
        rank = loader_kind.owner(options)
        place = place._replace(epochs_ahead=epochs.epochs_ahead, drawn=record.drawn)
        return schema.packed(number, place, loader_kind.kind_of(options), rank and (rank.rank, rank.size))

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Makes the next `iter()` continue from a state; with `seed=` all later epochs follow as well.

        Constant time, except for a sampler that can only be iterated over from its start. The number of workers,
        processes or threads, `prefetch_factor` and the number of ranks may differ from those of the loader that saved
        the state.

        Args:
            state_dict: the result of `state_dict()`, also after JSON or pickle.
            strict: whether a state of another dataset or order is an error.

        Raises:
            StateFormatError: the state is damaged, not a state of Stoker's, or of a newer format.
            StateMismatchError: the state does not fit this loader; the message names the differences. Or it is that
                of a stream on another rank. The loader is unchanged.
        """
        record = record_of(self)
        options = record.options(self)
        state, is_own = merging.of_rank(state_dict, lambda: ranks.find()[:2], strict)
        number, place, theirs = schema.unpacked(state)
        ours = loader_kind.kind_of(options)
        if not is_own:
            place, theirs = loader_kind.with_own_seed(options, number, place, theirs)
        if strict:
            schema.check_fits(theirs, ours, bool(place.ahead))
            epoch.check_seed(options, number, place, theirs)
        elif not schema.same_batches(theirs, ours):
            place = place._replace(ahead=frozenset())
        record.learn_drawn(place.drawn)
        place = place._replace(drawn=())
        record.resumed = epoch.resumed(options, record.epochs, number, place, record.tell_once)
        record.progress = Progress(record.resumed)

    def batch_indices(self, epoch: int, k: int, *, rank: int | None = None) -> list[Any]:
        """Returns the indices of the samples of batch `k` of an epoch, both counted from 0, in the batch's order.

        Computed from the order, in the time of one batch: nothing is started, drawn or fetched. Needs an order that is
        known by position (`shuffle=`, Stoker's samplers), and a seed: `seed=` or `distributed=`, else only the latest
        epoch and that of a loaded state are known. Batches that `skip()` leaves out keep their numbers.

        Args:
            epoch: its number.
            k: the batch, as ranks count them: each has a batch k.
            rank: whose batch, with `distributed=`; None for this rank.

        Raises:
            SamplerError: the order cannot be computed, or is not known.
            IndexError: the epoch has no such batch.
        """
        from stoker.loader._epoch.progress import batch_indices

        record = record_of(self)
        record.obey_set_epoch()
        options = record.options(self)
        return batch_indices(options, record.epochs, record.progress, record.resumed, epoch, k, rank)

    def skip(self, batches: Iterable[int]) -> None:
        """Leaves batches out of the epoch that the next `iter()` begins, or continues from a loaded state.

        For batches that upset a training run: resume from the state before them, and leave them out. Their samples are
        not fetched, the other batches stay the same, bit for bit, and `state_dict()` holds what is still to be left
        out. Call it on all ranks alike. A later call adds batches; `set_epoch` to another epoch forgets them.

        Args:
            batches: numbers of batches in the epoch, counted from 0, such as `range(1200, 1210)`. At most 10,000.

        Raises:
            SamplerError: the dataset is a stream, whose batches have no numbers.
        """
        record = record_of(self)
        record.obey_set_epoch()
        numbers = frozenset(argument_checks.count("batches", number) for number in batches)
        record.skip(numbers, self._dataset_kind == 1)

    def describe(self) -> str:
        """Returns a description of the run: workers, memory, order, and the reasons for them. Starts nothing."""
        from stoker.loader.describe import describe

        record = record_of(self)
        auto = record.automatic(self)
        return describe(record.options(self), record, auto)

    def report(self, *, stacks: bool = False) -> Report:
        """Returns counts of samples and faults, events of workers, and the use of memory and time so far.

        The report covers the latest epoch and all epochs, also while an iterator is in use. `print` it, or call
        `as_dict()`.

        Args:
            stacks: whether to ask the workers for their Python stacks, which takes a moment for each.
        """
        record = record_of(self)
        iterator = record.latest() if record.latest is not None else None
        memory, text = ({}, None) if iterator is None else iterator.inspect(stacks)
        options = record.options(self)
        whole = jpeg_reader.decoded_whole(options.jpegs, options.capabilities.own_process)
        pool = {} if iterator is None else iterator.pool
        return Report.of(record.ledger, memory, text, whole, record.copies.as_dict(), pool)

    def progress(self, name: str = "batches") -> Iterator[Any]:
        """Returns an iterator over the next epoch that draws a bar on stderr, or in a notebook's cell.

        The bar shows batches, samples/s, the share of time waited for batches, and the time left; on a terminal of
        fewer than some 80 columns, the figures alone. It begins at the batch at which a loaded state resumes, and is
        closed at the end, by `break` and by exceptions. The epoch begins at the first `next()`.

        Args:
            name: the text in front of the bar.
        """
        from stoker.loader._display.progress_bar import progress

        return progress(self, name)

    @overload
    def profile(
        self,
        batches: int | None = None,
        *,
        step: None = None,
        replay: int | None = None,
        stacks: bool = False,
        trace: str | os.PathLike[str] | None = None,
    ) -> Profiling: ...

    @overload
    def profile(
        self,
        batches: int | None = None,
        *,
        step: Callable[[Any], object],
        replay: int | None = None,
        stacks: bool = False,
        trace: str | os.PathLike[str] | None = None,
    ) -> LoaderProfile: ...

    def profile(
        self,
        batches: int | None = None,
        *,
        step: Callable[[Any], object] | None = None,
        replay: int | None = None,
        stacks: bool = False,
        trace: str | os.PathLike[str] | None = None,
    ) -> Profiling | LoaderProfile:
        """Measures where the time of the next epoch goes: by stage, sample, transform and worker.

        Without `step`, returns an iterator over the epoch's batches, for the place of the loader in the training loop;
        afterwards its `result` has the `LoaderProfile`. With `step`, runs the loop and returns the `LoaderProfile`:

            print(loader.profile(100, step=train_on))

        Samples, order, random numbers and errors are the loader's own. Behind the last batch the second one is given
        again, `replay` times, while no worker runs: what the loop then takes for a step is what it would take if it
        never waited. Ends persistent workers before and after. Measuring costs some microseconds for each sample.

        Args:
            batches: number of batches after which the epoch is left; None for all of it.
            step: called with each batch.
            replay: steps on the held batch; None for a fifth of `batches`, from 5 to 20, and none without `batches`.
            stacks: whether a thread in each worker process looks at its Python stacks every 10 ms: where samples spend
                their time, as estimates.
            trace: file for the timeline of the loop and the workers, as Chrome JSON for ui.perfetto.dev.

        Raises:
            TypeError: `batches` or `replay` is no integer.
            ValueError: `batches` is less than 1, or `replay` less than 0.
            OSError: `trace` cannot be written.
        """
        from stoker.diagnostics.profile.profiling import Profiling

        profiling = Profiling(self, batches, replay, functools.partial(_end_workers, self), stacks, trace)
        if step is None:
            return profiling
        with profiling:
            for batch in profiling:
                step(batch)
        return profiling.result

    def preview(
        self,
        path: str | os.PathLike[str] | None = "preview.png",
        *,
        images: int = 64,
        classes: Sequence[str] | None = None,
        mean: Any = None,
        std: Any = None,
        seconds: float = 300,
    ) -> Any:
        """Writes a contact sheet of the next epoch's first batch, and returns its path. Needs the extra
        `stoker[images]`.

        The batch is made and drawn in a forked process, without workers. So the loader's state and order, its dataset,
        samplers and generators stay as they are, also in mid-epoch: the next `iter()` gives the batches that it would
        have given. Shown is the first array or tensor of the batch that holds images: channels first or last (1, 3 or
        4), without channels, or a list of images of different sizes. Labels are the first array with a number for each
        image.

        Args:
            path: of the PNG to write; None returns a PIL image instead.
            images: the number of images at most.
            classes: names of the labels. None takes `dataset.classes`, also through datasets that wrap it.
            mean: mean of each channel that a normalisation has subtracted, of values from 0 to 1.
            std: deviation of each channel that it has divided by. Floats beyond 0 to 1 without both of these are scaled
                from the smallest and the largest value of the batch.
            seconds: that the batch may take.

        Returns:
            `path`, or a PIL image of mode RGB.

        Raises:
            PreviewError: the batch holds no images, the epoch has no batch, or its process died or took too long.
            MissingExtraError: Pillow is not installed.
            Exception: any that a sample, the sampler or the `collate_fn` has raised.
        """
        from stoker.loader._display.preview import preview

        return preview(self, path, images, classes, mean, std, seconds)

    # Read by frameworks, under torch's names

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        return self.batch_sampler if self._auto_collation else self.sampler

    def _get_iterator(self) -> LoaderIterator:
        record = record_of(self)
        record.prepare(self)
        iterator = LoaderIterator(self)
        record.latest = weakref.ref(iterator)
        return iterator

    def check_worker_number_rationality(self) -> None:
        """Warns, once for each loader, if there are more workers than CPUs that this process may use."""
        record = record_of(self)
        if self.num_workers == 0:
            return
        usable = cpus.cpus()
        if self.num_workers > usable.number and record.options(self).capabilities.own_process:
            record.tell_once(
                f"This DataLoader will create {self.num_workers} worker processes in total. Our suggested max number "
                f"of worker in current system is {usable.number} ({usable.source}), which is smaller than what this "
                "DataLoader is going to create. Please be aware that excessive worker creation might get DataLoader "
                "running slow or even freeze, lower the worker number to avoid potential slowness/freeze if necessary."
            )


_ARGUMENTS = tuple(inspect.signature(DataLoader).parameters)


def _has_own(loader: DataLoader[Any], name: str) -> bool:
    """Returns whether a subclass has an attribute, a property or a method of its own with this option's name."""
    kinds = set(type(loader).__mro__) - set(DataLoader.__mro__)
    return name in vars(loader) or any(name in vars(kind) for kind in kinds)


def _begin_epoch(loader: DataLoader[Any]) -> Iterator[Any]:
    """Returns the iterator of the loader's next epoch."""
    record = record_of(loader)
    record.obey_set_epoch()
    if not record.is_compared:
        record.is_compared = True
        loader_kind.notice(record, record.options(loader))
    iterator = loader._iterator
    if isinstance(iterator, LoaderIterator) and not iterator.suits(record.options(loader)):
        _end_workers(loader)
    if (auto := record.automatic(loader)) is not None:
        if not auto.fits(loader, record.ledger):
            record.goes_on = getattr(iterator, "is_open", False) and loader.num_workers > 0
            _end_workers(loader)
    elif isinstance(iterator, LoaderIterator) and iterator.workers != loader.num_workers:  # the attribute was set since
        _end_workers(loader)
    if loader.persistent_workers and (loader.num_workers or record.remote_workers) > 0:
        if loader._dataset_kind and record.resumed is not None:
            _end_workers(loader)  # their copies of a dataset with a state are at the end of the last epoch
        iterator = loader._iterator  # an iterator of a subclass needs only _reset(), as with torch
        if iterator is None or (isinstance(iterator, LoaderIterator) and not iterator.is_open):
            iterator = loader._iterator = loader._get_iterator()
        else:
            iterator._reset(loader)
        return iterator
    return loader._get_iterator()


def _end_workers(loader: DataLoader[Any]) -> None:
    """Ends persistent workers without calling the `close` of a subclass."""
    iterator, loader._iterator = loader._iterator, None
    if iterator is not None and hasattr(iterator, "close"):
        iterator.close()


def _automatic() -> AutotuneController:
    from stoker.loader._autotune.controller import AutotuneController

    return AutotuneController()


def _check_memory_budget(options: LoaderOptions, record: LoaderRecord) -> None:
    """Warns of a budget that has no effect."""
    if options.memory_budget is None or options.capabilities.own_process:
        return
    cause = f"worker_method={options.method!r} makes" if options.capabilities.has_workers else "num_workers=0 makes"
    record.tell_once(
        f"memory_budget={options.memory_budget} has no effect: {cause} batches in this process, whose memory is not "
        "limited. Use process workers, or leave it out."
    )
