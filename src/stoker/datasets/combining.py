"""What combinators ask of the datasets below them, whatever those are, and how they become streams over streams."""

from __future__ import annotations

import operator
import sys
from typing import Any

from stoker.datasets.base import is_stream
from stoker.datasets.stream import Stream
from stoker.datasets.subset import Subset
from stoker.datasets.worker_share import OfWorker, WorkerShare


class NoDatasetError(TypeError):
    """What was given as a dataset is none."""


def become_stream(dataset: Any, form: type[Stream[Any]]) -> None:
    """Makes a dataset that is being built over a stream a stream itself: an instance of `form`.

    Only the constructor knows what it was given, and a stream must be one by its class: loaders ask `isinstance`. (In
    `__init__` and not in `__new__`, which would hide the arguments from `help()`, and stand in the way of pickle.)

    Args:
        dataset: of the class that is `form`'s first base.
        form: a subclass of that class and of `Stream`.

    Raises:
        TypeError: it is of a user's subclass, which this would undo.
    """
    if isinstance(dataset, form):
        return
    if type(dataset) is not form.__bases__[0]:
        raise TypeError(
            f"{type(dataset).__name__} was given a stream, but it is a subclass for datasets by index. Put a "
            f"{form.__bases__[0].__name__} around the stream, or derive your class from Stream."
        )
    dataset.__class__ = form


def checked(dataset: Any, where: str) -> Any:
    """The dataset, if it is one: a stream, or anything with `__getitem__`.

    Raises:
        NoDatasetError: it is neither.
    """
    if is_stream(dataset) or hasattr(dataset, "__getitem__"):
        return dataset
    raise NoDatasetError(
        f"{where} was given a {type(dataset).__name__}, which is no dataset: neither an IterableDataset nor anything "
        "with __getitem__. What can be iterated over becomes a dataset by from_iterable(f, …), where f(…) returns it "
        "anew each time."
    )


def absolute(index: Any, length: int) -> int:
    """The index counted from the start, where a negative one counts from the end.

    Raises:
        IndexError: it is outside.
    """
    place = operator.index(index)
    if not -length <= place < length:
        raise IndexError(f"index {place} is outside of a dataset of {length} samples")
    return place + length if place < 0 else place


def positive(number: Any, name: str) -> int:
    """The number as an integer, if it is one and above 0.

    Raises:
        TypeError: it is no integer.
        ValueError: it is 0 or negative.
    """
    if not hasattr(number, "__index__") or isinstance(number, bool):
        raise TypeError(f"{name} is {number!r}, expected an integer")
    if operator.index(number) < 1:
        raise ValueError(f"{name} is {number}, expected at least 1")
    return operator.index(number)


def pass_epoch(dataset: Any, epoch: int) -> None:
    """Tells a dataset which epoch follows, if it wants to know."""
    if callable(getattr(dataset, "set_epoch", None)):
        dataset.set_epoch(epoch)


def shards_of(dataset: Any) -> int:
    """Into how many shards a dataset can be cut: 1 for a stream that names none, any number where it sets no limit."""
    if not is_stream(dataset):
        return len(dataset)
    if not callable(getattr(dataset, "shard", None)):
        return 1
    return int(getattr(dataset, "num_shards", sys.maxsize))


def shard_of(dataset: Any, num_shards: int, index: int) -> Any:
    """One shard of a dataset; of one by index, every `num_shards`-th sample."""
    if num_shards == 1:
        return dataset
    if not is_stream(dataset):
        return Subset(dataset, range(index, len(dataset), num_shards))
    if isinstance(index, OfWorker) and not isinstance(dataset, Stream):
        return WorkerShare(dataset, num_shards, int(index))
    return dataset.shard(num_shards=num_shards, index=index)
