"""Python objects that workers read: what that costs their memory, and whether they are marked immortal before.

Reading an object writes its reference count, and so makes a forked process copy the page that it lies on. Where the
zygote can mark its heap (`_engine/process/immortal.py`), workers copy nothing; elsewhere the user is told once.
"""

from __future__ import annotations

import itertools
import math
import mmap
import sys
from collections import deque
from collections.abc import Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker._engine.process import immortal
from stoker.loader import epoch

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader

SHARE = 0.1
"""Of an epoch: what takes no larger part of the last one is done again without asking what for."""

PAGES = 3
"""Pages, about, that one row lies on: a tuple, its texts, and its place in the list."""

TELLING = 256 << 20
"""Bytes that all workers together copy in an epoch, from which on they are worth to be spared, or to be told of."""

_TOLD = "heap"
"""Stands among what the loader has told for that it was looked at."""

_MAKING = ("__getitem__", "__getitems__", "__iter__", "__next__")
"""Methods of a dataset."""

_MANY, _LOOKED_AT, _DEPTH = 100_000, 1000, 4
_SAMPLES = 64


def is_marked(loader: DataLoader[Any]) -> bool:
    """Whether the zygote of the next workers is to mark its heap, if that is large (`immortal.worth_it`)."""
    if not loader.share_heap or not immortal.worth_it():
        return loader.share_heap
    ledger = loader._ledger
    if ledger.marked is not None and 0 < ledger.marked[1] <= SHARE * ledger.epoch.spent:
        return True
    return copied(loader) >= TELLING


def copied(loader: DataLoader[Any], found: Heavy | None = None) -> int:
    """Bytes, about, that all workers copy in an epoch, or as long as they live: the pages of the rows that they read,
    of the largest collection of the dataset's."""
    found = found or heaviest(loader.dataset)
    if found is None:
        return 0
    each = _samples(loader) / loader.num_workers * PAGES * mmap.PAGESIZE
    return loader.num_workers * int(min(found.size, each))


def _samples(loader: DataLoader[Any]) -> float:
    """How many the workers read; without an end where nobody says."""
    if loader._is_stream or loader.persistent_workers or (loader.batch_size is None and loader._auto_collation):
        return math.inf
    try:
        return (loader.batch_size or 1) * epoch.length_of(loader)
    except Exception:  # a sampler without a length, or with any mind of its own: this is only an estimate
        return math.inf


def text(loader: DataLoader[Any]) -> str | None:
    """About the heap, for `describe()`; None where there is nothing to say."""
    marked = loader._ledger.marked
    if loader._method != "process" or not (marked or immortal.worth_it()):
        return None
    if not loader.share_heap:
        return "not marked immortal (share_heap=False): each worker copies the Python objects that it reads"
    size = copied(loader) / 2**20
    if marked is None:
        if is_marked(loader):
            return (
                "large, so it is marked immortal before workers are forked, who then share it: 0.1 to 0.5 s a million "
                f"(else they would copy some {size:,.0f} MiB)"
            )
        return f"large, and not marked immortal: workers copy some {size:,.0f} MiB of it, as far as can be seen"
    objects, seconds = marked
    done = f"{objects:,} objects were marked immortal in {seconds:.2g} s, so that workers share them"
    if loader.persistent_workers:
        return done
    again = "and will be" if is_marked(loader) else "and will not be"
    return (
        f"{done}; {again} in the next epoch, in which workers would copy some {size:,.0f} MiB (the last one took "
        f"{loader._ledger.epoch.spent:.2g} s)"
    )


def tell(loader: DataLoader[Any]) -> None:
    """Warns, once for each loader, of a dataset whose Python objects each worker process will copy."""
    if immortal.supported() or _TOLD in loader._told:
        return
    loader._told.add(_TOLD)
    found = heaviest(loader.dataset)
    if found is None or (size := copied(loader, found)) < TELLING:
        return
    loader._tell_once(
        f"{found.path} holds {found.rows:,} rows of Python objects, some {found.size / 2**20:,.0f} MiB. Reading an "
        f"object writes its reference count, so each of the {loader.num_workers} workers ends up with a copy of its "
        f"own: up to {size / 2**20:,.0f} MiB in an epoch. stoker.columns({found.path}) "
        "reads like it and lies in arrays, which all share; CPython 3.12 and 3.13 share the objects as they are."
    )


class Heavy(NamedTuple):
    """A collection of many Python objects."""

    path: str
    rows: int
    size: int
    """Bytes, estimated from some of its rows."""


def heaviest(dataset: Any) -> Heavy | None:
    """The largest list, tuple or dict of at least 100,000 rows that a dataset holds as, or below, an attribute, or that
    its methods name."""
    return max(_collections(dataset), key=lambda found: found.size, default=None)


def _collections(dataset: Any) -> Iterator[Heavy]:
    waiting: deque[tuple[str, Any, int]] = deque([("dataset", dataset, 0)])
    seen: set[int] = set()
    while waiting and len(seen) < _LOOKED_AT:
        path, value, depth = waiting.popleft()
        if id(value) in seen or isinstance(value, type):
            continue
        seen.add(id(value))
        plain = type(value) in (list, tuple, dict)
        if plain and len(value) >= _MANY:
            yield Heavy(path, len(value), _size(value))
        elif depth < _DEPTH:
            inside = _items(path, value) if plain else (*_attributes(path, value), *_named(type(value)))
            waiting.extend((name, each, depth + 1) for name, each in inside)


def _items(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return ((f"{path}[{key!r}]", each) for key, each in itertools.islice(pairs, _SAMPLES))


def _named(kind: type) -> Iterator[tuple[str, Any]]:
    """Global variables that are read where samples are made."""
    for name in _MAKING:
        function = getattr(kind, name, None)
        if isinstance(function, FunctionType):
            known = function.__globals__
            named = (each for each in function.__code__.co_names if type(known.get(each)) in (list, tuple, dict))
            yield from ((f"{function.__module__}.{each}", known[each]) for each in named)


def _attributes(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    try:
        fields = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return iter(())
    return ((f"{path}.{name}", each) for name, each in [*fields.items()])


def _size(rows: Any) -> int:
    """Bytes of all rows, from some: of a list they lie evenly. What they share counts once."""
    is_dict = isinstance(rows, dict)
    some = [*itertools.islice(rows.items(), _SAMPLES)] if is_dict else rows[:: len(rows) // _SAMPLES]
    objects = {id(each): sys.getsizeof(each, 0) for row in some for each in (row, *_within(row))}
    return sys.getsizeof(rows) + len(rows) * sum(objects.values()) // len(some)


def _within(row: Any) -> Iterator[Any]:
    if isinstance(row, dict):
        yield from itertools.chain(row.keys(), row.values())
    elif isinstance(row, (list, tuple)):
        yield from itertools.islice(row, _LOOKED_AT)
