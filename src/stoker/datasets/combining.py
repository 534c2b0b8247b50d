"""Operations of combinators on the datasets below them, and their conversion to streams over streams."""

from __future__ import annotations

import copy
import operator
import sys
from typing import Any, Self, TypeVar

from stoker._core.protocol import follows, has, is_ours, offered, offers
from stoker.datasets.base import is_stream
from stoker.datasets.declared import declared
from stoker.datasets.stream import Stream
from stoker.datasets.subset import Subset
from stoker.datasets.worker_share import DeclaredShard, OfWorker, WorkerShare

T_co = TypeVar("T_co", covariant=True)


class OverStream(Stream[T_co]):
    """A stream over another one, with the shards of that stream: a base of what combinators become."""

    dataset: Any

    @property
    def num_shards(self) -> int:
        return shards_of(self.dataset)

    def shard(self, num_shards: int, index: int) -> Self:
        part = copy.copy(self)
        part.dataset = shard_of(self.dataset, num_shards, index)
        part.load_state_dict({})
        return part


class NoDatasetError(TypeError):
    """An argument that should be a dataset is not one."""


def become_stream(dataset: Any, form: type[Stream[Any]]) -> None:
    """Makes a dataset that is being constructed over a stream an instance of `form`, a stream class.

    Loaders use `isinstance`, so a stream must be one by its class, and only the constructor sees the argument.
    (`__init__` does this, because `__new__` would hide the arguments from `help()` and complicate pickling.)
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
    """Returns the dataset, if it is a stream or has `__getitem__`.

    Raises:
        NoDatasetError: it is neither.
    """
    if is_stream(dataset) or hasattr(dataset, "__getitem__"):
        return dataset
    raise NoDatasetError(
        f"{where} was given a {type(dataset).__name__}, which is not a dataset: neither an IterableDataset nor an "
        "object with __getitem__. To read any other iterable, use from_iterable(f, …) with a function f that returns a "
        "new iterable at each call."
    )


def absolute(index: Any, length: int) -> int:
    """Returns the index counted from the start; a negative index counts from the end."""
    place = operator.index(index)
    if not -length <= place < length:
        raise IndexError(f"index {place} is outside of a dataset of {length} samples")
    return place + length if place < 0 else place


def positive(number: Any, name: str) -> int:
    """Returns the number as a positive integer."""
    if not hasattr(number, "__index__") or isinstance(number, bool):
        raise TypeError(f"{name} is {number!r}, expected an integer")
    if operator.index(number) < 1:
        raise ValueError(f"{name} is {number}, expected at least 1")
    return operator.index(number)


def pass_epoch(dataset: Any, epoch: int) -> None:
    """Passes the epoch to a dataset that offers `set_epoch`."""
    if offers(dataset, "set_epoch"):
        dataset.set_epoch(epoch)


def shards_of(dataset: Any) -> int:
    """Returns the number of shards into which a dataset can be cut: 1 for a stream without `shard`, unlimited without
    `num_shards`.
    """
    if not is_stream(dataset):
        return len(dataset)
    if not offers(dataset, "shard"):
        return 1
    if (number := offered(dataset, "num_shards")) is not None:
        return int(number)
    return 1 if has(dataset, "num_shards") else sys.maxsize  # a `num_shards` with another meaning: the limit is unknown


def filled_shards_of(dataset: Any) -> int:
    """Returns the number of shards that can have samples: less than `shards_of` for a stream whose further shards are
    empty, 0 for a shard that is known to be empty.
    """
    number = shards_of(dataset)
    if not is_stream(dataset) or not is_ours(type(dataset)):
        return number
    if (filled := getattr(dataset, "_filled_shards", None)) is not None:
        return min(number, int(filled))
    inner = getattr(dataset, "__dict__", {}).get("dataset")
    return number if inner is None else min(number, filled_shards_of(inner))


def shard_of(dataset: Any, num_shards: int, index: int) -> Any:
    """Returns one shard of a dataset; of a dataset by index, every `num_shards`-th sample."""
    if num_shards == 1:
        return dataset
    if not is_stream(dataset):
        return Subset(dataset, range(index, len(dataset), num_shards))
    if not isinstance(index, OfWorker) or is_ours(type(dataset)):
        return dataset.shard(num_shards=num_shards, index=index)
    if declared(dataset):
        return dataset
    if isinstance(dataset, Stream) or follows(dataset):
        return DeclaredShard(dataset, num_shards, int(index))
    return WorkerShare(dataset, num_shards, int(index))
