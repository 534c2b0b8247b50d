"""`LoaderOptions`: the validated, frozen options of a loader, on which its epochs depend.

`DataLoader` keeps torch's attributes, which scripts and frameworks may set; `LoaderRecord.options` reads them at each
use. Stoker's own options are read from here alone: a subclass may use their names for its own attributes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from stoker import collate
from stoker._core import nominal
from stoker._engine.backend import Capabilities
from stoker._engine.backends import KINDS, kind_of
from stoker._engine.machines.cluster import Ray
from stoker._engine.supervision import restarts, rules
from stoker._engine.supervision.rules import StallAction
from stoker.collate import registry
from stoker.datasets import base
from stoker.datasets.awaited import is_awaited
from stoker.datasets.nesting import batched_by
from stoker.device.fields import FieldPlacement
from stoker.events import Listener
from stoker.loader._job import datapipes
from stoker.loader._job.error_policy import OnError
from stoker.loader._job.jpeg_reader import JpegReading
from stoker.loader._job.work import CONCURRENCY
from stoker.loader._options import argument_checks
from stoker.loader._options.argument_checks import DEFAULT_MAX_ERROR_RATE, DEFAULT_MAX_ERRORS, check_error_budget

Method = Literal["serial", "thread", "process"]
"""The backend that makes batches: `worker_method`, or "serial" without workers."""


@dataclass(frozen=True, eq=False)
class LoaderOptions:
    """The arguments of a `DataLoader`, under their names, and values derived from them. Immutable.

    `num_workers` counts the workers on other machines (`remote`) too; those of this machine come first.

    Attributes:
        is_stream: whether the dataset is iterated over, and not indexed.
        auto_collation: whether samples are put together to batches.
        index_sampler: gives the indices, of batches or of samples.
        own_sampler: the sampler that the loader made because none was given, else None.
        reported_length: batches that `len(loader)` last reported for a stream, or None.
        jpegs: the processes in which Pillow gets Stoker's reader of JPEGs.
        prefetch_is_given: whether the script gave a `prefetch_factor`.
        snapshot_every: batches from one state of a worker's stream to the next, if its states cost much; or None.
        on_demand: whether workers on other machines come and go as they are needed: `num_workers="auto"`, `remote`.

    `shard="torch"` is for loaders behind torch's: as "none", with one warning if all workers read the same.
    """

    # torch's
    dataset: Any
    batch_size: int | None = 1
    sampler: Any = None
    batch_sampler: Any = None
    num_workers: int = 0
    collate_fn: Any = None
    pin_memory: bool = False
    drop_last: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    generator: Any = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory_device: str = ""
    in_order: bool = True
    # Stoker's
    worker_method: Literal["process", "thread"] = "process"
    threads_per_worker: int = 1
    concurrency: int | None = None
    seeding: Literal["auto", "sample", "worker"] = "auto"
    shard: Literal["auto", "none", "torch"] = "auto"
    seed: int | None = None
    output: Literal["torch", "numpy"] = "torch"
    distributed: Literal["pad", "drop", "exact"] | None = None
    num_replicas: int | None = None
    rank: int | None = None
    mesh: Any = None
    batches_per_epoch: int | None = None
    max_restarts: int = restarts.DEFAULT
    on_error: OnError = "raise"
    max_errors: int | None = DEFAULT_MAX_ERRORS
    max_error_rate: float | None = DEFAULT_MAX_ERROR_RATE
    quarantine: str | None = None
    stall_warning: float | None = rules.STALL_WARNING
    stall_action: StallAction = "warn"
    memory_budget: int | None = None
    max_samples_per_worker: int | None = None
    share_heap: bool = True
    on_event: Listener | None = None
    device: Any = None
    prefetch_to_device: int = 1
    device_buffers: int | None = None
    remote: Ray | None = None
    batch_transform: Callable[[Any], Any] | None = None
    pad_to: Mapping[Any, Any] | None = None
    # Derived
    is_stream: bool = False
    auto_collation: bool = False
    index_sampler: Any = None
    own_sampler: Any = None
    reported_length: int | None = None
    jpegs: JpegReading = "workers"
    snapshot_every: int | None = None
    on_demand: bool = False
    prefetch_is_given: bool = False

    @property
    def method(self) -> Method:
        """Returns the backend that makes batches: threads also if the context asks for them."""
        threads = argument_checks.asks_for_threads(self.multiprocessing_context)
        return cast("Method", kind_of("thread" if threads else self.worker_method, self.num_workers).name)

    @property
    def capabilities(self) -> Capabilities:
        """Returns the capabilities of the backend that makes batches."""
        return KINDS[self.method].capabilities

    @property
    def worker_transform(self) -> Callable[[Any], Any] | None:
        """Returns the transform that is applied to a batch where it is made, after collation; None for none."""
        return None if self.moves_batches else self.batch_transform

    @property
    def device_transform(self) -> Callable[[Any], Any] | None:
        """Returns the transform that is applied to a batch on its device; None for none."""
        return self.batch_transform if self.moves_batches else None

    @property
    def moves_batches(self) -> bool:
        """Returns whether batches, or parts of them, are sent to a device."""
        return self.device is not None and not FieldPlacement(self.device).is_of_host

    def collation(self, output: registry.Output) -> Callable[[Any], Any]:
        """Returns the function that collates, with leaves of this kind."""
        padded = self.collate_fn if self.pad_to is None else collate.padded_to(self.collate_fn, self.pad_to)
        return collate.for_output(padded, output)

    @property
    def error_word(self) -> str | None:
        """Returns `on_error` if it is a word: a user's object is not compared with one."""
        return self.on_error if isinstance(self.on_error, str) else None

    @property
    def threads(self) -> int:
        """Returns the number of threads that make samples in each worker."""
        if self.is_stream or not self.capabilities.own_process:
            return 1
        whole = self.in_flight or (self.auto_collation and batched_by(self.dataset) is not None)
        return 1 if whole else self.threads_per_worker

    @property
    def in_flight(self) -> int:
        """Returns the number of samples that each worker awaits at a time; 0 if they are not awaited."""
        if self.is_stream or self.concurrency == 0 or not is_awaited(self.dataset, self.auto_collation):
            return 0
        return CONCURRENCY if self.concurrency is None else self.concurrency

    @property
    def units_at_once(self) -> int:
        """Returns the number of units that a worker holds, enough for its threads or the samples that it awaits."""
        at_once = max(self.threads, self.in_flight)
        if at_once == 1 or not self.capabilities.has_workers:
            return 1
        from stoker.loader._job.sample_threads import units_at_once

        return units_at_once(at_once, self.batch_sampler if self.auto_collation else None)

    @property
    def counts_batches(self) -> bool:
        """Returns whether `prefetch_factor` bounds the batches ahead: the default does not, of cheap batches."""
        return self.prefetch_is_given or self.prefetch_factor != max(2, self.units_at_once)


TORCHS = (
    *("dataset", "batch_size", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory", "drop_last"),
    *("timeout", "worker_init_fn", "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers"),
    *("pin_memory_device", "in_order"),
)
"""Options that are attributes of torch's loader: read from the loader at each epoch, since they may be set."""

STOKERS = (
    *("worker_method", "threads_per_worker", "concurrency", "seeding", "shard", "seed", "output", "distributed"),
    *("num_replicas", "rank", "mesh", "batches_per_epoch", "max_restarts", "on_error", "max_errors"),
    *("max_error_rate", "quarantine"),
    *("stall_warning", "stall_action", "memory_budget", "max_samples_per_worker", "share_heap", "on_event"),
    *("device", "prefetch_to_device", "device_buffers"),
    "remote",
    *("batch_transform", "pad_to"),
)
"""Options that torch's loader does not have."""


def checked(args: dict[str, Any]) -> LoaderOptions:
    """Returns the options of a new loader, without its samplers and its default `collate_fn`.

    Args:
        args: the arguments by name. `num_workers` is a number by now, with the workers on other machines.

    Raises:
        ValueError, TypeError, AssertionError, MissingExtraError: contradictory or impossible arguments, as torch words
            them.
    """
    dataset, number = args["dataset"], args["num_workers"]
    is_stream = base.is_stream(dataset)
    method = args["worker_method"]
    argument_checks.check_choice("worker_method", method, argument_checks.METHODS)
    argument_checks.check_workers(number, args["timeout"], args["prefetch_factor"], args["persistent_workers"])
    argument_checks.check_remote(args["remote"], method)
    threads = argument_checks.check_threads(args["threads_per_worker"], number, method, is_stream)
    output = args["output"]
    if output is None:
        output = "torch" if nominal.torch_is_wanted() else "numpy"
    argument_checks.check_generator(args["generator"])
    argument_checks.check_choice("seeding", args["seeding"], argument_checks.SEEDINGS)
    argument_checks.check_choice("shard", args["shard"], argument_checks.SHARDS)
    argument_checks.check_output(output)
    context = argument_checks.context_of(args["multiprocessing_context"], number)
    if argument_checks.asks_for_threads(context):
        method = "thread"
        argument_checks.check_remote(args["remote"], method)
    seed = args["seed"]
    num_replicas, rank, batches_per_epoch = argument_checks.check_ranks(
        args["distributed"],
        args["num_replicas"],
        args["rank"],
        args["batches_per_epoch"],
        args["mesh"],
    )
    max_restarts = argument_checks.count("max_restarts", args["max_restarts"])
    argument_checks.check_faults(args["on_error"], args["on_event"], args["stall_action"], kind_of(method, number))
    max_errors, max_error_rate = check_error_budget(args["max_errors"], args["max_error_rate"])
    quarantine = args["quarantine"]
    of_bytes = " of bytes, such as 2**30,"
    mine = {
        **args,
        "threads_per_worker": threads,
        "concurrency": argument_checks.check_concurrency(args, is_stream),
        "output": output,
        "multiprocessing_context": context,
        "seed": None if seed is None else argument_checks.integer("seed", seed, "None"),
        "mesh": None,  # num_replicas and rank stand for it from here on
        "num_replicas": num_replicas,
        "rank": rank,
        "batches_per_epoch": batches_per_epoch,
        "max_restarts": max_restarts,
        "max_errors": max_errors,
        "max_error_rate": max_error_rate,
        "quarantine": None if quarantine is None else os.path.abspath(quarantine),
        "stall_warning": argument_checks.seconds("stall_warning", args["stall_warning"]),
        "memory_budget": argument_checks.size("memory_budget", args["memory_budget"], of=of_bytes),
        "max_samples_per_worker": argument_checks.size("max_samples_per_worker", args["max_samples_per_worker"]),
        "share_heap": bool(args["share_heap"]),
        "prefetch_to_device": argument_checks.count("prefetch_to_device", args["prefetch_to_device"]),
        "device_buffers": argument_checks.size("device_buffers", args["device_buffers"]),
        "is_stream": is_stream,
    }
    argument_checks.check_device(args["device"], output, args["device_buffers"])
    argument_checks.check_dataset(dataset, is_stream)
    argument_checks.check_collate(args["collate_fn"])
    if args["pad_to"] is not None:
        batches = args["batch_size"] is not None or args["batch_sampler"] is not None
        default = collate.default_collate if batches else collate.default_convert
        collate.padded_to(default if args["collate_fn"] is None else args["collate_fn"], args["pad_to"])
    argument_checks.check_function("batch_transform", args["batch_transform"], "a batch")
    shuffle = mine.pop("shuffle")
    if is_stream:
        if datapipes.is_iter(dataset):
            datapipes.set_shuffle(dataset, shuffle)
            shuffle = None
        argument_checks.check_stream(shuffle, args["sampler"], args["batch_sampler"])
    argument_checks.check_batching(
        args["batch_size"], bool(shuffle), args["sampler"], args["batch_sampler"], args["drop_last"]
    )
    if args["batch_sampler"] is not None:
        mine["batch_size"], mine["drop_last"] = None, False
    return LoaderOptions(**mine)
