"""Streams that do not share themselves out among workers: the loader does, so that no sample is read twice."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

from stoker._worker_info import current
from stoker.datasets import ChainDataset
from stoker.errors import ShardingError

OTHERS = object()
"""Stands in a worker's stream for a sample that another worker gives."""


def shared_out(
    dataset: Any, worker: int, workers: int, tell: Callable[[str], None]
) -> tuple[Iterator[tuple[int, Any]], bool]:
    """The worker's share of a stream.

    A dataset that asks `get_worker_info()` before its first sample shares itself out, and is left alone. One with a
    method `shard(num_shards=, index=)` is asked for its shard. Of any other, worker i takes samples i, i + n, …

    Returns:
        An iterator over (position in the stream that is read, sample or `OTHERS`), and whether that stream is the
        whole one, the same in each worker. An error of the stream's passes through, and the next sample may follow.
    """
    current.asked = False
    if callable(getattr(dataset, "shard", None)) and getattr(dataset, "num_shards", workers) >= workers:
        return enumerate(iter(dataset.shard(num_shards=workers, index=worker))), False
    if type(dataset).__iter__ is ChainDataset.__iter__:

        def begun(part: Any) -> Iterator[Any]:  # when the parts before it are through
            return map(operator.itemgetter(1), shared_out(part, worker, workers, tell)[0])

        return enumerate(itertools.chain.from_iterable(map(begun, dataset.datasets))), False
    stream = iter(dataset)
    first = list(itertools.islice(stream, 1))
    samples = enumerate(itertools.chain(first, stream))
    if current.asked:
        return samples, False
    tell(_told(dataset, workers))
    return _Strided(samples, worker, workers), True


class _Strided(Iterator[tuple[int, Any]]):
    """Every n-th sample of a stream that does not ask who reads it."""

    def __init__(self, stream: Iterator[tuple[int, Any]], worker: int, workers: int) -> None:
        self._stream = stream
        self._worker = worker
        self._workers = workers

    def __next__(self) -> tuple[int, Any]:
        current.asked = False
        position, sample = next(self._stream)
        if current.asked:
            raise ShardingError(
                "the dataset called get_worker_info() after its first sample, when the loader had begun to share its "
                "samples out among the workers: both together would lose samples. Call it at the start of __iter__, or "
                "pass shard='none'."
            )
        return position, sample if position % self._workers == self._worker else OTHERS


def _told(dataset: Any, workers: int) -> str:
    return (
        f"{type(dataset).__name__} does not share its samples out among workers (it never calls get_worker_info()), so "
        f"each of the {workers} workers would have read all of it. The loader shares them out: worker i reads the "
        f"whole stream and keeps samples i, i + {workers}, i + {2 * workers}, …. To save that reading, give the "
        "dataset a method shard(num_shards, index), or let it read its share; shard='none' turns this off."
    )
