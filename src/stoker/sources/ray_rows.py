"""The rows of a Ray Data dataset: by index where its blocks exist, else as a stream that executes it."""

from __future__ import annotations

import importlib
import logging
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np

from stoker._core.worker_info import current
from stoker.datasets.base import Dataset, IterableDataset
from stoker.datasets.combining import absolute
from stoker.datasets.stream import Counted, Stream, StreamIterator
from stoker.errors import ShardingError
from stoker.extend import State

HELD = 16
"""Blocks that a process holds at once. Those of its own machine are views of Ray's shared memory."""


def from_ray_dataset(ds: Any) -> Dataset[dict[str, Any]] | IterableDataset[dict[str, Any]]:
    """Returns the rows of a Ray Data dataset: each a dict by column name, with the values that Ray's batches have.

    The result depends on what `ds` is.

    - What `ds.materialize()` returns becomes a dataset by index: with a length, a true shuffle, exact resume, and any
      number of workers. Its blocks are in Ray's object store, and a worker reads those that it needs. They exist as
      long as the process that materialized them.
    - Any other `ray.data.Dataset`, and a `DataIterator` as `ray.train.get_dataset_shard()` returns, becomes a stream.
      Each epoch executes it. Ray's own processes do its work, so it is read in the training process
      (`num_workers=0`), or by one worker. Several would execute it several times, and are refused. A `Dataset` gives
      its blocks in their order. Of a `DataIterator`, Ray decides the order, unless
      `DataContext.get_current().execution_options.preserve_order` is set before it is made. On resume the rows before
      the position are read again and discarded.

    Ranks are not divided here: pass each its own shard (`get_dataset_shard`), or to `DistributedSampler` what is
    materialized. Workers connect to the cluster of this process by themselves, in clean interpreters.

    Args:
        ds: of Ray Data (`stoker[ray]`, and `ray[data]`). This process must be connected to its cluster.

    Raises:
        TypeError: `ds` is none of these.
        RuntimeError: this process is not connected to a cluster.

    While iterating:
        ShardingError: a stream is read by several workers.
        RuntimeError: a forked worker reads it, which has not the threads of Ray.
    """
    try:
        data = importlib.import_module("ray.data")
    except ImportError:
        data = None
    if data is None or not isinstance(ds, (data.Dataset, data.DataIterator)):
        raise TypeError(
            f"from_ray_dataset(ds) takes a ray.data.Dataset or a DataIterator, but got a {type(ds).__name__}"
        )
    return (
        _RayRows(ds)
        if isinstance(ds, importlib.import_module("ray.data.dataset").MaterializedDataset)
        else _RayStream(ds)
    )


class _Cluster:
    """Something of Ray's, in this process and in workers, which connect to the same cluster when they first use it."""

    def __init__(self, what: Any) -> None:
        ray = importlib.import_module("ray")
        if not ray.is_initialized():
            raise RuntimeError("this process is not connected to a cluster of Ray: call ray.init() before.")
        self._address: str = ray.get_runtime_context().gcs_address
        self._pickled: bytes = importlib.import_module("ray.cloudpickle").dumps(what)
        self._process, self._what = os.getpid(), what

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": 0, "_what": None}

    def here(self) -> Any:
        """Returns it, as this process may use it."""
        if self._process not in (0, os.getpid()):
            raise RuntimeError(
                "a forked worker reads a dataset of Ray, but has not the threads with which its parent is connected. "
                "Leave out multiprocessing_context, or pass multiprocessing_context='forkserver'."
            )
        if self._what is None:
            ray = importlib.import_module("ray")
            if not ray.is_initialized():
                ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
            self._what, self._process = importlib.import_module("ray.cloudpickle").loads(self._pickled), os.getpid()
        return self._what


class _RayRows(Dataset[dict[str, Any]]):
    """The rows of blocks that are in the object store."""

    stoker_protocol = True
    prefer_whole_batches = True  # the next row is in the same block

    def __init__(self, ds: Any) -> None:
        blocks, sizes = [], []
        for bundle in ds.iter_internal_ref_bundles():
            slices = getattr(bundle, "slices", None) or [None] * len(bundle.blocks)
            for block, part in zip(bundle.blocks, slices, strict=True):
                reference, metadata = block if isinstance(block, tuple) else (block.ref, block.metadata)
                begin, end = (0, metadata.num_rows) if part is None else (part.start_offset, part.end_offset)
                blocks.append((reference, begin))
                sizes.append(end - begin)
        self._blocks = _Cluster(blocks)
        self._ends = list(accumulate(sizes))
        self._held: OrderedDict[int, Any] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": OrderedDict()}

    def __len__(self) -> int:
        """Returns the number of rows."""
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns the row at `index`; a negative index counts from the end."""
        number = absolute(index, len(self))
        block = bisect_right(self._ends, number)
        columns, begin = self._columns(block)
        return _row(columns, begin + number - (self._ends[block - 1] if block else 0))

    def _columns(self, block: int) -> tuple[Any, int]:
        """Returns the columns of a block, and the place of its first row in them."""
        if (found := self._held.get(block)) is None:
            reference, begin = self._blocks.here()[block]
            read = importlib.import_module("ray").get(reference)
            accessor = importlib.import_module("ray.data.block").BlockAccessor
            found = self._held[block] = accessor.for_block(read).to_batch_format("numpy"), begin
            while len(self._held) > HELD:
                self._held.popitem(last=False)
        return found


class _RayStream(Stream[dict[str, Any]]):
    """The rows of a dataset that is executed when it is read."""

    _in_step = True
    shards_itself = False

    def __init__(self, ds: Any) -> None:
        self._ds = _Cluster(ds)

    def _begin(self, state: State | None) -> StreamIterator[dict[str, Any]]:
        on_read_again, current.reading.on_read_again = current.reading.on_read_again, None
        if current.info is not None and current.info.num_workers > 1:
            raise ShardingError(
                f"{current.info.num_workers} workers read a dataset of Ray that is not materialized, and each would "
                "execute it. Pass num_workers=0, because Ray's own processes do its work; or read ds.materialize(), "
                "which any number of workers can share."
            )
        return Counted(_rows(self._ds.here()), state, on_read_again)


def _rows(ds: Any) -> Iterator[dict[str, Any]]:
    if (context := getattr(ds, "context", None)) is not None:
        context.execution_options.preserve_order = True
    for columns in ds.iter_batches(batch_size=None, batch_format="numpy"):
        for place in range(len(next(iter(columns.values()), ()))):
            yield _row(columns, place)


def _row(columns: dict[str, Any], place: int) -> dict[str, Any]:
    """Returns a row; its arrays are its own, and may be written."""
    values = ((name, column[place]) for name, column in columns.items())
    return {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in values}
