"""Streams that do not share themselves out among workers: the loader does, so that no sample is read twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from stoker._worker_info import current
from stoker.datasets import ChainDataset
from stoker.errors import ShardingError


def shared_out(dataset: Any, worker: int, workers: int, tell: Callable[[str], None]) -> tuple[Iterator[Any], int]:
    """The worker's share of a stream, and the stride at which its samples stand in the whole stream.

    A dataset that asks `get_worker_info()` before its first sample shares itself out, and is left alone. One with a
    method `shard(num_shards=, index=)` is asked for its shard. Of any other, worker i takes samples i, i + n, i + 2n, ….

    Returns:
        An iterator over (position in the stream that was read, sample), and whether positions are those of the whole
        stream: 1 if the worker reads it all and keeps its share, 0 if it reads a stream of its own.
    """
    current.asked = False
    if callable(getattr(dataset, "shard", None)) and getattr(dataset, "num_shards", workers) >= workers:
        return enumerate(iter(dataset.shard(num_shards=workers, index=worker))), 0
    if type(dataset).__iter__ is ChainDataset.__iter__:
        parts = [_share(part, worker, workers, tell) for part in dataset.datasets]
        return enumerate(itertools.chain.from_iterable(parts)), 0
    stream = iter(dataset)
    first = list(itertools.islice(stream, 1))
    if current.asked:
        return enumerate(itertools.chain(first, stream)), 0
    tell(_told(dataset, workers))
    return _strided(enumerate(itertools.chain(first, stream)), worker, workers), 1


def _share(dataset: Any, worker: int, workers: int, tell: Callable[[str], None]) -> Iterator[Any]:
    """One part of a chain, begun when the parts before it are through."""
    stream, _ = shared_out(dataset, worker, workers, tell)
    for _, sample in stream:
        yield sample


def _strided(stream: Iterator[Any], worker: int, workers: int) -> Iterator[Any]:
    current.asked = False
    for position, sample in stream:
        if current.asked:
            raise ShardingError(
                "the dataset called get_worker_info() after its first sample, when the loader had begun to share its "
                "samples out among the workers: both together would lose samples. Call it at the start of __iter__, or "
                "pass shard='none'."
            )
        if position % workers == worker:
            yield position, sample


def _told(dataset: Any, workers: int) -> str:
    return (
        f"{type(dataset).__name__} does not share its samples out among workers (it never calls get_worker_info()), so "
        f"each of the {workers} workers would have read all of it. The loader shares them out: worker i reads the whole "
        f"stream and keeps samples i, i + {workers}, i + {2 * workers}, …. To save that reading, give the dataset a "
        "method shard(num_shards, index), or let it read its share; shard='none' turns this off."
    )
