"""Checks of streams that share themselves out among the workers: by `get_worker_info()`, or by a queue that they hold.

A stream that reads another reports whether it has called `get_worker_info()`: see `stoker.datasets._stream.listening`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from stoker.errors import ShardingError
from stoker.loader._random.find_generators import find_objects

OnPart = Callable[[str, bool], None]

_CLASSES = {
    "multiprocessing.queues": ("Queue", "SimpleQueue"),  # torch's are derived from these
    "multiprocessing.connection": ("_ConnectionBase",),
    "multiprocessing.managers": ("BaseProxy",),
}
_CLOSED = ("multiprocessing", "concurrent")
"""Packages whose pools, executors and managers hold queues of their own."""
_PROXIES = ("Queue", "JoinableQueue")
"""What a manager's proxy of a queue stands for."""


def in_a_shard(reader: str, asked: bool) -> None:
    """Raises if a stream of an interleave shares itself out. Each worker has whole streams there, not shards of them.

    Raises:
        ShardingError: it does.
    """
    if not asked:
        return
    _check_kept(reader)
    if reader == "InterleaveDataset":
        raise ShardingError(
            "the streams of an InterleaveDataset are shared out among the workers, each to one of them, but one of the "
            "streams calls get_worker_info() and shares itself out: the rest of it would be lost. Let it give all its "
            "samples; or pass shard='none', and each worker reads its share of all streams."
        )


def all_or_none() -> OnPart:
    """Returns a check for streams that must all share themselves out, or none of them.

    Raises:
        ShardingError: by the returned check: some share themselves out, and others do not.
    """
    known: set[bool] = set()

    def tell(reader: str, asked: bool) -> None:
        if asked:
            _check_kept(reader)
        known.add(asked)
        if len(known) == 2:
            raise ShardingError(
                f"of the datasets that are read together, the last of them by {reader}, some call get_worker_info() "
                "and share themselves out among the workers, and the others do not: samples would be lost, or come "
                "once from each worker. Let none of them call it, and the loader shares out what they give together; "
                "or let all of them call it. One that calls it for another reason declares shards_itself = False."
            )

    return tell


def _check_kept(reader: str) -> None:
    if reader == "CacheDataset":
        raise ShardingError(
            "CacheDataset was given a stream that calls get_worker_info() and shares itself out among the workers: "
            "each would keep its share as if that were the whole. Give the stream a method shard(num_shards, index) "
            "and the class attribute stoker_protocol = True instead, and each shard is kept for itself; or let it give "
            "all its samples, and the loader shares them out."
        )


def shared_source(dataset: Any) -> str | None:
    """Returns the name of a queue or connection of multiprocessing that a dataset holds; None if it holds none.

    Locks, events and values do not count: workers that share them give the same samples.
    """
    there = [(sys.modules.get(module), names) for module, names in _CLASSES.items()]
    kinds = tuple(getattr(module, name) for module, names in there if module is not None for name in names)
    for found in find_objects(dataset, kinds, _CLOSED) if kinds else ():
        name, token = type(found).__name__, getattr(found, "_token", None)
        if token is None:
            return f"a {name} of multiprocessing"
        if getattr(token, "typeid", None) in _PROXIES:
            return "a manager's queue"
    return None
