"""Makes the backend that runs a loader's units, from its options."""

from __future__ import annotations

from stoker import collate
from stoker._engine.backend import Backend
from stoker._engine.fork.trainer import ProcessBackend
from stoker._engine.serial import SerialBackend
from stoker._engine.supervision.rules import Rules
from stoker.loader import heap
from stoker.loader._accounting.ledger import EventDispatcher
from stoker.loader._autotune.hint import HintBackend
from stoker.loader._epoch import epoch
from stoker.loader._job import datapipes
from stoker.loader._job.job import assemble
from stoker.loader._job.work import JobSettings
from stoker.loader._options.loader_options import LoaderOptions
from stoker.loader.record import LoaderRecord
from stoker.loader.worker_start import birth_of


def new_backend(options: LoaderOptions, record: LoaderRecord, dispatcher: EventDispatcher, workers: int) -> Backend:
    """Returns a new backend.

    Args:
        options: of the loader.
        record: of the loader; counts heaps and deaths.
        dispatcher: receives the events.
        workers: number of workers at first; `options.num_workers` is the maximum.

    Raises:
        AssertionError: `timeout` without workers, as torch words it.
        CannotSendError, WorkerStartError, MemoryLimitError: the workers cannot be started.
    """
    # The trainer makes the tensors of process workers, so that these need no torch, unless a transform takes them
    deferred = options.capabilities.own_process and options.worker_transform is None
    output = "deferred" if deferred and options.output == "torch" else options.output
    collate_fn = options.collation(output)
    parts = {
        "dataset": options.dataset,
        "collate_fn": collate_fn,
        "batch_transform": options.worker_transform,
        "worker_init_fn": datapipes.sharing_out(options.dataset, options.worker_init_fn),
        "on_error": options.on_error,
        "settings": _settings(options, collate.is_ours(collate_fn), record),
    }
    if not options.capabilities.has_workers:
        if options.in_flight:
            from stoker.loader._job.async_samples import check_no_loop_runs

            check_no_loop_runs()
        if options.timeout != 0:
            raise AssertionError(
                "_SingleProcessDataLoaderIter requires timeout == 0: without workers a batch cannot be timed out. "
                f"Leave out timeout={options.timeout}, or use num_workers=1."
            )
        datapipes.shard_here(options.dataset)
        hint = record.hint
        return SerialBackend(assemble(parts)) if hint is None else HintBackend(assemble(parts), hint, dispatcher)
    rules = _rules(options, record)
    if not options.capabilities.own_process:
        from stoker._engine.thread import ThreadBackend  # imported late: forked workers inherit loaded modules

        return ThreadBackend(assemble(parts), workers, rules, dispatcher)
    birth = birth_of(options, record.tell_once)
    if not birth.zygote:
        from stoker._engine.spawn.trainer import SpawnBackend  # only on platforms without fork

        return SpawnBackend(parts, assemble, workers, rules, dispatcher)
    backend = ProcessBackend(parts, assemble, workers, birth, rules, dispatcher, options.remote, record.births)
    heap.tell(options, record)  # while the zygote starts
    return backend


def _settings(options: LoaderOptions, own_collate: bool, record: LoaderRecord) -> JobSettings:
    timed = record.timing_sink is not None
    return JobSettings(
        iterable=options.is_stream,
        batched=options.auto_collation,
        batch_size=options.batch_size,
        drop_last=options.drop_last,
        num_workers=options.num_workers,
        method=options.method,
        seeding=options.seeding,
        own_collate=own_collate,
        shard=options.shard,
        threads=options.threads,
        concurrency=options.in_flight,
        rank=epoch.world_of(options).rank,
        timed=timed,
        sampled=timed and record.sampled,
        jpegs=options.jpegs,
        transformed_later=options.device_transform is not None,
        looked_at=0 if options.capabilities.has_workers else record.ledger.total.delivered,
        snapshot_every=options.snapshot_every,
    )


def _rules(options: LoaderOptions, record: LoaderRecord) -> Rules:
    return Rules(
        max_restarts=options.max_restarts,
        stall_warning=options.stall_warning,
        stall_action=options.stall_action,
        memory_budget=options.memory_budget,
        max_samples_per_worker=options.max_samples_per_worker,
        row_seconds=record.ledger.row_seconds,
        growth=record.ledger.growth,
        dearer=record.ledger.dearer,
        mark_heap=heap.is_marked(options, record.ledger),
        units_at_once=options.units_at_once,
        remote=record.remote_workers,
        on_demand=options.on_demand,
    )
