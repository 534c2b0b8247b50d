"""`shards_itself`: a stream's declaration whether it divides its samples among the workers of a loader.

    class Logs(IterableDataset):
        shards_itself = False  # it reads get_worker_info().id only to log it

True: each worker reads everything that its copy of the stream gives. False: the loader divides the samples. Without the
attribute, the loader has to guess from the fields of `get_worker_info()` that the stream reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker._core.ours import is_ours
from stoker.datasets.base import is_stream

_KNOWN = {
    ("datasets.iterable_dataset", "IterableDataset"),
    ("litdata.streaming.dataset", "StreamingDataset"),
    ("streaming.base.dataset", "StreamingDataset"),
    ("webdataset.compat", "WebDataset"),
}
"""Module and name of library classes that divide themselves among workers, so that the loader need not guess."""


def declared(dataset: Any) -> bool | None:
    """Returns the value of `shards_itself` of a dataset or its class; None if it is not set.

    Raises:
        TypeError: the attribute is neither True, False nor None.
    """
    if not hasattr(type(dataset), "shards_itself") and "shards_itself" not in getattr(dataset, "__dict__", ()):
        return None
    said = dataset.shards_itself
    if said is None or said is True or said is False:
        return said
    raise TypeError(f"shards_itself of {type(dataset).__name__} is {said!r:.100}, expected True or False")


def declared_by_all(dataset: Any) -> bool | None:
    """Returns the declaration that a dataset, or all streams in it, make; None if they differ or there is none."""
    said = {declared(stream) for stream in streams_in(dataset)}
    return said.pop() if len(said) == 1 else None


def undeclared(dataset: Any) -> str:
    """Returns the names of a dataset's streams that declare nothing and are of no class known to divide itself among
    workers; empty if there are none.
    """
    found = [stream for stream in streams_in(dataset) if declared(stream) is None and not _is_known(stream)]
    names = dict.fromkeys(map(_name, found))
    if names and found != [dataset]:
        names["a function around it" if len(found) == 1 else "a function around them"] = None
    return " or ".join(names)


def streams_in(dataset: Any, declared_too: bool = False) -> list[Any]:
    """Returns the streams that give a dataset its samples: itself, or those inside a combinator of Stoker.

    Args:
        dataset: any dataset.
        declared_too: whether to look into combinators that declare whether they share themselves out.
    """
    if not is_ours(type(dataset)) or (not declared_too and declared(dataset) is not None):
        return [dataset]
    attributes = getattr(dataset, "__dict__", {})
    inner: list[Any] = [attributes["dataset"]] if "dataset" in attributes else []
    for name in ("datasets", "streams"):
        held = attributes.get(name)
        inner += held if isinstance(held, Sequence) else ()
    found = [stream for one in inner if is_stream(one) for stream in streams_in(one, declared_too)]
    return found or [dataset]


def _is_known(dataset: Any) -> bool:
    return any((base.__module__, base.__name__) in _KNOWN for base in type(dataset).__mro__)


def _name(dataset: Any) -> str:
    factory = vars(dataset).get("factory") if is_ours(type(dataset)) else None
    if factory is None:
        return type(dataset).__name__
    return f"from_iterable({getattr(factory, '__name__', type(factory).__name__)})"
