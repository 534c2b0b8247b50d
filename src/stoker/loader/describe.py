"""`DataLoader.describe()`: the loader's plan, numbers, memory, and the reasons for them, on one screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stoker import collate
from stoker._core import native
from stoker._core.machine import cpus, memory
from stoker._core.machine.reserve import replaced_by
from stoker._core.protocol import asked
from stoker._engine.supervision import split_policy
from stoker.datasets.nesting import batched_by, prefers_whole_batches
from stoker.loader import heap
from stoker.loader._epoch import epoch
from stoker.loader._epoch.gather_or_split import gathers, may_share, under_way
from stoker.loader._job import jpeg_reader
from stoker.loader._random.generators import GLOBALS
from stoker.loader.worker_start import birth_of
from stoker.samplers.random import RandomSampler

if TYPE_CHECKING:
    from stoker.device.copies import CopyCounts
    from stoker.loader._accounting.ledger import Ledger
    from stoker.loader._autotune.controller import AutotuneController
    from stoker.loader._options.loader_options import LoaderOptions
    from stoker.loader.record import LoaderRecord


def describe(options: LoaderOptions, record: LoaderRecord, auto: AutotuneController | None) -> str:
    """Returns the text of `DataLoader.describe()`."""
    rows = list(_rows(options, record, auto))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _rows(options: LoaderOptions, record: LoaderRecord, auto: AutotuneController | None) -> Iterator[tuple[str, str]]:
    usable, free = cpus.cpus(), memory.available()
    yield "dataset", f"{type(options.dataset).__name__}, {_size(options)}; {_fetched(options)}"
    yield "order", _order(options)
    if options.distributed is not None:
        here = epoch.world_of(options)
        yield "ranks", f"this is rank {here.rank} of {here.size} ({here.source}), distributed={options.distributed!r}"
    yield "batches", _batches(options)
    yield "workers", _workers(options, record.ledger)
    if options.threads_per_worker > 1:
        yield "threads", _threads(options)
    if options.in_flight:
        where = "in each worker" if options.capabilities.has_workers else "in this thread"
        yield "awaited", f"samples, {options.in_flight} in flight at most {where}"
    if (about := heap.text(options, record.ledger)) is not None:
        yield "heap", about
    if auto is not None:
        yield "auto", auto.text(options)
    yield "ahead", _ahead(options, record.ledger)
    yield "collation", _collation(options)
    if options.device is not None:
        yield "device", _device(options, record.copies)
    yield "compiled", _compiled()
    if (images := jpeg_reader.in_words(options.jpegs, options.capabilities.own_process)) is not None:
        yield "images", images
    yield "randomness", _randomness(options, record.drawn)
    yield "faults", _faults(options)
    yield "CPUs", f"{usable.number} ({usable.source})"
    yield "memory", f"{free.bytes / 2**30:.1f} GiB free of {free.limit / 2**30:.1f} GiB ({free.source})"


def _size(options: LoaderOptions) -> str:
    try:
        return f"{len(options.dataset):,} samples"
    except (TypeError, NotImplementedError):
        return "without a length"


def _fetched(options: LoaderOptions) -> str:
    if options.is_stream:
        if options.num_workers < 2:
            return "one stream"
        if options.worker_init_fn is not None:
            return "a stream for each worker, shared out by worker_init_fn"
        if options.shard != "auto":
            return f"each worker reads all of its stream (shard={options.shard!r})"
        return "a stream for each worker; if it does not shard itself, the loader shares it out"
    gathered = gathers(options)
    if gathered is not False:
        return "a batch at once, by gather" + ("" if gathered else ", where its layout allows it")
    if options.auto_collation and batched_by(options.dataset) is not None:
        return "a batch at once, by __getitems__"
    return "sample by sample, by __getitem__"


def _order(options: LoaderOptions) -> str:
    if options.is_stream:
        return "as the streams give it, workers in turn"
    if not epoch.is_computed(options):
        return f"walked from {type(options.index_sampler).__name__}"
    fixed = options.seed is not None or options.distributed is not None
    source = f"seed={options.seed or 0} and the epoch's number" if fixed else "a seed drawn at each epoch"
    known = epoch.knower(options)
    if known is not options.own_sampler:
        return f"known by position from {type(known).__name__}, from {source}"
    return (
        f"shuffled by a keyed permutation, from {source}"
        if isinstance(options.sampler, RandomSampler)
        else "0, 1, 2, …"
    )


def _batches(options: LoaderOptions) -> str:
    if not options.auto_collation:
        return "none: single samples (batch_size=None)"
    try:
        count = f", {epoch.length_of(options):,} in an epoch"
    except (TypeError, NotImplementedError):
        count = ""
    size = f"of {options.batch_size}" if options.batch_size is not None else "as the batch sampler makes them"
    return size + count + (", a smaller last one is dropped" if options.drop_last else "")


def _workers(options: LoaderOptions, ledger: Ledger) -> str:
    if not options.capabilities.has_workers:
        return "none: samples are fetched in this process, when a batch is asked for"
    has_init = options.worker_init_fn is not None
    bound = "; batch k is made by worker k mod n, because of worker_init_fn" if has_init else ""
    lives = ", kept between epochs" if options.persistent_workers else ", new for each epoch"
    if options.capabilities.are_threads:
        return f"{options.num_workers} threads of this process{lives}{bound}"
    birth = birth_of(options)
    kind = "forked"
    if birth.rebuilds:
        kind = f"clean interpreters, each of which unpickles the dataset{_rebuilt(options, ledger)}"
    elif not birth.forked:
        kind = "clean interpreters, for which the dataset is unpickled once (its class declares unpickle_once)"
    remote = options.remote
    if remote is not None:
        shared = "" if remote.pool is None else f", shared with the ranks that name pool={remote.pool!r}"
        many = f"up to {remote.num_workers}, as they are needed," if options.on_demand else f"{remote.num_workers}"
        bound = f"; {many} on other machines, placed by Ray (address={remote.address!r}){shared}{bound}"
    number = options.num_workers - (0 if remote is None else remote.num_workers)
    return f"{number} processes, {kind} ({birth.why}){lives}{bound}"


def _rebuilt(options: LoaderOptions, ledger: Ledger) -> str:
    """Returns the known or estimated cost of unpickling the dataset in each worker."""
    if (known := ledger.unpickled) is not None:
        seconds, size = known
        return f" in {seconds:.2g} s and {size / 2**20:,.0f} MiB of its own; arrays are shared"
    if (heavy := heap.heaviest(options.dataset)) is not None:
        return f" and holds {heavy.path} itself, some {heavy.size / 2**20:,.0f} MiB; arrays are shared"
    return "; arrays are shared"


def _threads(options: LoaderOptions) -> str:
    if not options.capabilities.has_workers:
        return "none: without workers, samples are fetched one by one (threads_per_worker is for workers)"
    if options.threads == 1:
        return "1 in each worker: a whole batch is fetched at once"
    gathered = gathers(options)
    if gathered:
        return "1 in each worker: batches are gathered"
    if gathered is None:
        return f"{options.threads} in each worker make the samples of batches that are not gathered"
    return f"{options.threads} in each worker make samples; a worker begins up to {options.units_at_once} batches"


def _ahead(options: LoaderOptions, ledger: Ledger) -> str:
    if not options.capabilities.has_workers:
        return "nothing"
    count = max(1, (options.prefetch_factor or 1) * options.num_workers)
    order = "delivered in order" if options.in_order else "delivered as they come"
    if options.capabilities.are_threads:
        return f"up to {count} batches, {order}"
    memory = f"in {replaced_by() or 'anonymous shared memory (no /dev/shm)'}; it is reserved before it is written"
    shared = ""
    if may_share(options):
        fewer = under_way(options, options.batch_size or options.num_workers, options.num_workers)
        at_most = f", and {fewer} are under way at most" if fewer < count else ""
        shared = f"; one that takes over {1e3 * split_policy.WORTH:g} ms is made by all workers together{at_most}"
        if prefers_whole_batches(options.dataset):
            shared += ", unless its indices ascend (the dataset's class declares prefer_whole_batches)"
        elif ledger.dearer >= split_policy.COMPARISONS:
            shared += f", unless its indices ascend (in parts these cost {split_policy.DEARER:g} times as much or more)"
    return f"up to {count} batches, {order}, {memory}{shared}"


def _collation(options: LoaderOptions) -> str:
    own = collate.is_ours(options.collation(options.output))
    name = asked(options.collate_fn, "__name__", type(options.collate_fn).__name__)
    if options.worker_transform is not None:
        transform = asked(options.batch_transform, "__name__", type(options.batch_transform).__name__)
        own, name = False, f"{name}, then batch_transform={transform}"
    if not options.capabilities.lends_memory:
        return f"{name}, {options.output} leaves"
    how = "straight into shared memory" if own else "what it returns is copied into shared memory once"
    return f"{name}, in the worker, {how}, {options.output} leaves"


def _device(options: LoaderOptions, copies: CopyCounts) -> str:
    if not options.moves_batches:
        return f"{options.device}: batches stay on the host"
    names = "by a function" if callable(options.device) and not hasattr(options.device, "type") else options.device
    ahead = options.prefetch_to_device if options.capabilities.has_workers else 0
    when = f"{ahead} ahead" if ahead else "when they are asked for"
    text = f"{names}: batches are copied on a stream of their own, {when}"
    if options.device_transform is not None:
        name = asked(options.batch_transform, "__name__", type(options.batch_transform).__name__)
        text += f", behind each of which batch_transform={name} runs"
    if options.device_buffers is not None:
        text += f", and delivered in {options.device_buffers} fixed sets of memory in turn"
    if options.capabilities.own_process and not birth_of(options).zygote:
        text += "; all go through pinned memory, since without fork their own memory cannot be registered"
    elif copies.registered:
        text += f"; {copies.registered:,} slots of workers were registered, and are read in place"
    elif copies.batches:
        why = f" ({copies.why_staged})" if copies.why_staged else ""
        text += f"; up to now all went through pinned memory{why}"
    return text


def _compiled() -> str:
    if native.functions is None:
        return f"nothing ({native.why}): NumPy and torch do it, and batches are the same"
    return "orders, and copies of large rows past the processor's caches"


def _faults(options: LoaderOptions) -> str:
    name = options.on_error if isinstance(options.on_error, str) else "decide"
    policy = {
        "raise": "a bad sample raises in its batch's place",
        "skip": "a bad sample is left out",
        "replace": "a bad sample is replaced by another",
        "decide": "on_error decides about a bad sample",
    }[name]
    if name != "raise":
        allowed = [] if options.max_errors is None else [f"{options.max_errors:,} in an epoch"]
        allowed += [] if options.max_error_rate is None else [f"{options.max_error_rate:.2%} of those seen"]
        policy += f" (at most {' and '.join(allowed)})" if allowed else " (any number)"
    lines = [policy]
    if options.capabilities.own_process:
        lines.append(f"{options.max_restarts} deaths of workers in ten minutes are survived")
    if options.capabilities.has_workers and options.stall_warning:
        action = {"warn": "reported", "restart": "ended and tried again", "raise": "an error"}[options.stall_action]
        lines.append(f"a batch that takes {options.stall_warning:g} s is {action}")
    return "; ".join(lines)


def _randomness(options: LoaderOptions, drawn: Sequence[str]) -> str:
    if options.capabilities.are_threads:
        return "sample_rng() is seeded for each sample; global generators are left alone"
    if max(options.threads, options.in_flight) > 1 and options.seeding != "worker":
        return "sample_rng() is seeded for each sample; others are shared by samples that are made at the same time"
    kinds = Counter(name.partition(" ")[0] for name in drawn)
    names = [name for name in GLOBALS if kinds.pop(name, 0)]
    names += [f"the dataset's own ({kind}{f', {count} times' * (count > 1)})" for kind, count in sorted(kinds.items())]
    suffix = f" (up to now: {', '.join(names)})" if names else ""
    return {
        "auto": f"generators that samples draw from{suffix} are seeded for each sample, by its position in the epoch",
        "sample": "all generators are seeded for each sample, by its position in the epoch",
        "worker": "generators are seeded once for each worker",
    }[options.seeding]
