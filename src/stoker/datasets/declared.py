"""Facts that a stream declares or shows: whether it divides itself among workers, is its own iterator, and which part a
rank reads.

    class Logs(IterableDataset):
        shards_itself = False  # it reads get_worker_info().id only to log it

True: each worker reads everything that its copy of the stream gives. False: the loader divides the samples. Without the
attribute, the loader has to guess from the fields of `get_worker_info()` that the stream reads.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stoker._core.protocol import is_ours
from stoker.datasets.base import is_stream

_KNOWN = {
    ("datasets.iterable_dataset", "IterableDataset"),
    ("litdata.streaming.dataset", "StreamingDataset"),
    ("streaming.base.dataset", "StreamingDataset"),
    ("webdataset.compat", "WebDataset"),
}
"""Module and name of library classes that divide themselves among workers, so that the loader need not guess."""


def declared(dataset: Any) -> bool | None:
    """Returns the value of `shards_itself` of a dataset or its class; None if it is not set."""
    if not hasattr(type(dataset), "shards_itself") and "shards_itself" not in getattr(dataset, "__dict__", ()):
        return None
    declaration = dataset.shards_itself
    if declaration is None or declaration is True or declaration is False:
        return declaration
    raise TypeError(f"shards_itself of {type(dataset).__name__} is {declaration!r:.100}, expected True or False")


def declared_by_all(dataset: Any) -> bool | None:
    """Returns the declaration that a dataset, or all streams in it, make; None if they differ or there is none."""
    declarations = {declared(stream) for stream in streams_in(dataset)}
    return declarations.pop() if len(declarations) == 1 else None


def undeclared(dataset: Any) -> str:
    """Returns the names of a dataset's streams that declare nothing and are of no class known to divide itself among
    workers; empty if there are none.
    """
    streams = [stream for stream in streams_in(dataset) if declared(stream) is None and not _is_known(stream)]
    names = dict.fromkeys(map(_name, streams))
    if names and streams != [dataset]:
        names["a function around it" if len(streams) == 1 else "a function around them"] = None
    return " or ".join(names)


def streams_in(dataset: Any, declared_too: bool = False) -> list[Any]:
    """Returns the streams that give a dataset its samples: itself, or those inside a combinator of Stoker.

    Args:
        declared_too: whether to look into combinators that declare whether they share themselves out.
    """
    if not is_ours(type(dataset)) or (not declared_too and declared(dataset) is not None):
        return [dataset]
    attributes = getattr(dataset, "__dict__", {})
    inner: list[Any] = [attributes["dataset"]] if "dataset" in attributes else []
    for name in ("datasets", "streams"):
        value = attributes.get(name)
        inner += value if isinstance(value, Sequence) else ()
    streams = [stream for one in inner if is_stream(one) for stream in streams_in(one, declared_too)]
    return streams or [dataset]


def _is_known(dataset: Any) -> bool:
    return any((base.__module__, base.__name__) in _KNOWN for base in type(dataset).__mro__)


def _name(dataset: Any) -> str:
    factory = vars(dataset).get("factory") if is_ours(type(dataset)) else None
    if factory is None:
        return type(dataset).__name__
    return f"from_iterable({getattr(factory, '__name__', type(factory).__name__)})"


# Streams that are their own iterator need not go back to their start at `iter()`. A state taken before the first sample
# therefore holds the stream's own state, which is loaded before `iter()`. Other streams begin with a new iterator.


def places(dataset: Any) -> list[Any] | None:
    """Returns the own states of all such streams in a dataset, in a fixed order; None if there are none.

    A stream that cannot say its state before its first `__iter__` has None: it makes its state there.
    """
    states = [_said_by(stream) for stream in _own_iterators(dataset)]
    return states if any(state is not None for state in states) else None


def put_back(dataset: Any, states: Sequence[Any]) -> None:
    """Loads states from `places` into the same streams of an equal dataset."""
    for stream, state in zip(_own_iterators(dataset), states, strict=False):
        if state is not None:
            with contextlib.suppress(AttributeError):  # what `__iter__` makes is not there yet
                stream.load_state_dict(copy.deepcopy(state))


def _own_iterators(dataset: Any) -> list[Any]:
    names = ("__next__", "state_dict", "load_state_dict")
    streams = streams_in(dataset, declared_too=True)
    return [stream for stream in streams if all(callable(getattr(type(stream), name, None)) for name in names)]


def _said_by(stream: Any) -> Any:
    try:
        return copy.deepcopy(stream.state_dict())
    except Exception:
        return None


# The part of a stream that a rank reads, as `shard(num_shards, index)` has cut it.


_MOST_STEPS = 16
_MOST_PARTS = 256  # items of a list that are examined


class KnowsShare:
    """Base of streams: each notes the arguments of its `shard`."""

    _share: tuple[int, int] | None = None  # number of parts of the whole stream, and the number of this one

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "shard" in vars(cls):
            cls.shard = _noting(vars(cls)["shard"])  # type: ignore[attr-defined]


def _noting(shard: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(shard)
    def noted(self: KnowsShare, num_shards: int, index: int) -> Any:
        part = shard(self, num_shards, index)
        if isinstance(part, KnowsShare) and num_shards > 1:
            of, number = self._share or (1, 0)
            part._share = int(of * num_shards), int(number + of * index)
        return part

    return noted


def rank_share(stream: Any) -> tuple[int, int] | None:
    """Returns the number of parts into which a stream, or one inside it, was cut, and the number of its part; None for
    a whole stream. A part that was cut again is a part of the whole stream."""
    ring, seen = [stream], {id(stream)}
    shares: list[tuple[int, int]] = []
    for _ in range(_MOST_STEPS):
        shares += [each._share for each in ring if isinstance(each, KnowsShare) and each._share is not None]
        inner = {id(part): part for each in ring for part in _streams_in(each) if id(part) not in seen}
        ring = list(inner.values())
        seen |= inner.keys()
    return max(shares, default=None)


def _streams_in(holder: Any) -> Iterator[Any]:
    try:
        attributes = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return
    for value in attributes.values():
        items = value[:_MOST_PARTS] if type(value) in (list, tuple) else [value]
        yield from filter(is_stream, items)
