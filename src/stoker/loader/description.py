"""`DataLoader.describe()`: what will run, how many, with which memory, and why, on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stoker import _native, collate
from stoker._machine import cpus, memory
from stoker._supervision import cut
from stoker.datasets.nesting import batched_by
from stoker.loader import epoch, heap
from stoker.loader.sharing import gathers, may_share, under_way
from stoker.samplers import RandomSampler

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader


def describe(loader: DataLoader[Any]) -> str:
    """The text of `DataLoader.describe()`."""
    rows = list(_rows(loader))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _rows(loader: DataLoader[Any]) -> Iterator[tuple[str, str]]:
    usable, free = cpus.cpus(), memory.available()
    yield "dataset", f"{type(loader.dataset).__name__}, {_size(loader)}; {_fetched(loader)}"
    yield "order", _order(loader)
    if loader.distributed is not None:
        here = epoch.world_of(loader)
        yield "ranks", f"this is rank {here.rank} of {here.size} ({here.source}), distributed={loader.distributed!r}"
    yield "batches", _batches(loader)
    yield "workers", _workers(loader)
    if loader.threads_per_worker > 1:
        yield "threads", _threads(loader)
    if (about := heap.text(loader)) is not None:
        yield "heap", about
    if (auto := loader._automatic) is not None:
        yield "auto", auto.text(loader)
    yield "ahead", _ahead(loader)
    yield "collation", _collation(loader)
    yield "compiled", _compiled()
    yield "randomness", _randomness(loader)
    yield "faults", _faults(loader)
    yield "CPUs", f"{usable.number} ({usable.source})"
    yield "memory", f"{free.bytes / 2**30:.1f} GiB free of {free.limit / 2**30:.1f} GiB ({free.source})"


def _size(loader: DataLoader[Any]) -> str:
    try:
        return f"{len(loader.dataset):,} samples"
    except (TypeError, NotImplementedError):
        return "without a length"


def _fetched(loader: DataLoader[Any]) -> str:
    if loader._is_stream:
        if loader.num_workers < 2:
            return "one stream"
        if loader.worker_init_fn is not None:
            return "a stream for each worker, shared out by worker_init_fn"
        if loader.shard == "none":
            return "each worker reads all of its stream (shard='none')"
        return "a stream for each worker; if it does not shard itself, the loader shares it out"
    gathered = gathers(loader)
    if gathered is not False:
        return "a batch at once, by gather" + ("" if gathered else ", where its layout allows it")
    if loader._auto_collation and batched_by(loader.dataset) is not None:
        return "a batch at once, by __getitems__"
    return "sample by sample, by __getitem__"


def _order(loader: DataLoader[Any]) -> str:
    if loader._is_stream:
        return "as the streams give it, workers in turn"
    if not epoch.is_computed(loader):
        return f"walked from {type(loader._index_sampler).__name__}"
    fixed = loader.seed is not None or loader.distributed is not None
    source = f"seed={loader.seed or 0} and the epoch's number" if fixed else "a seed drawn at each epoch"
    known = epoch.knower(loader)
    if known is not loader._own_sampler:
        return f"known by position from {type(known).__name__}, from {source}"
    return (
        f"shuffled by a keyed permutation, from {source}" if isinstance(loader.sampler, RandomSampler) else "0, 1, 2, …"
    )


def _batches(loader: DataLoader[Any]) -> str:
    if not loader._auto_collation:
        return "none: single samples (batch_size=None)"
    try:
        count = f", {len(loader):,} in an epoch"
    except (TypeError, NotImplementedError):
        count = ""
    size = f"of {loader.batch_size}" if loader.batch_size is not None else "as the batch sampler makes them"
    return size + count + (", a smaller last one is dropped" if loader.drop_last else "")


def _workers(loader: DataLoader[Any]) -> str:
    if loader._method == "serial":
        return "none: samples are fetched in this process, when a batch is asked for"
    bound = "; batch k is made by worker k mod n, because of worker_init_fn" if loader.worker_init_fn else ""
    lives = ", kept between epochs" if loader.persistent_workers else ", new for each epoch"
    if loader._method == "thread":
        return f"{loader.num_workers} threads of this process{lives}{bound}"
    from stoker._engine.process.birth import choose

    birth = choose(loader.multiprocessing_context)
    kind = "forked" if birth.forked else "clean interpreters, which are sent the dataset once"
    return f"{loader.num_workers} processes, {kind} ({birth.why}){lives}{bound}"


def _threads(loader: DataLoader[Any]) -> str:
    if loader._method == "serial":
        return "none: without workers, samples are fetched one by one (threads_per_worker is for workers)"
    if loader._threads == 1:
        return "1 in each worker: a whole batch is fetched at once"
    gathered = gathers(loader)
    if gathered:
        return "1 in each worker: batches are gathered"
    if gathered is None:
        return f"{loader._threads} in each worker make the samples of batches that are not gathered"
    return f"{loader._threads} in each worker make samples; a worker begins up to {loader._units_at_once} batches"


def _ahead(loader: DataLoader[Any]) -> str:
    if loader._method == "serial":
        return "nothing"
    count = max(1, (loader.prefetch_factor or 1) * loader.num_workers)
    order = "delivered in order" if loader.in_order else "delivered as they come"
    if loader._method == "thread":
        return f"up to {count} batches, {order}"
    kept = "in anonymous shared memory (no /dev/shm) that is reserved before it is written"
    shared = ""
    if may_share(loader):
        fewer = under_way(loader, loader.batch_size or loader.num_workers, loader.num_workers)
        at_most = f", and {fewer} are under way at most" if fewer < count else ""
        shared = f"; one that takes over {1e3 * cut.WORTH:g} ms is made by all workers together{at_most}"
    return f"up to {count} batches, {order}, {kept}{shared}"


def _collation(loader: DataLoader[Any]) -> str:
    own = collate.is_ours(collate.for_output(loader.collate_fn, loader.output))
    name = getattr(loader.collate_fn, "__name__", type(loader.collate_fn).__name__)
    if loader._method != "process":
        return f"{name}, {loader.output} leaves"
    how = "straight into shared memory" if own else "what it returns is copied into shared memory once"
    return f"{name}, in the worker, {how}, {loader.output} leaves"


def _compiled() -> str:
    if _native.functions is None:
        return f"nothing ({_native.why}): NumPy and torch do it, and batches are the same"
    return "orders, and copies of large rows past the processor's caches"


def _faults(loader: DataLoader[Any]) -> str:
    name = loader.on_error if isinstance(loader.on_error, str) else "decide"
    policy = {
        "raise": "a bad sample raises in its batch's place",
        "skip": "a bad sample is left out",
        "replace": "a bad sample is replaced by another",
        "decide": "on_error decides about a bad sample",
    }[name]
    if name != "raise":
        allowed = [] if loader.max_errors is None else [f"{loader.max_errors:,} in an epoch"]
        allowed += [] if loader.max_error_rate is None else [f"{loader.max_error_rate:.2%} of those seen"]
        policy += f" (at most {' and '.join(allowed)})" if allowed else " (any number)"
    said = [policy]
    if loader._method == "process":
        said.append(f"{loader.max_restarts} deaths of workers in ten minutes are survived")
    if loader._method != "serial" and loader.stall_warning:
        action = {"warn": "reported", "restart": "ended and tried again", "raise": "an error"}[loader.stall_action]
        said.append(f"a batch that takes {loader.stall_warning:g} s is {action}")
    return "; ".join(said)


def _randomness(loader: DataLoader[Any]) -> str:
    if loader._method == "thread":
        return "get_worker_info().rng is seeded for each sample; global generators are left alone"
    if loader._threads > 1 and loader.seeding != "worker":
        return "get_worker_info().rng is seeded for each sample; other generators are shared by a worker's threads"
    return {
        "auto": "generators that samples draw from are seeded for each sample, by its position in the epoch",
        "sample": "all generators are seeded for each sample, by its position in the epoch",
        "worker": "generators are seeded once for each worker",
    }[loader.seeding]
