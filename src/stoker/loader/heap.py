"""Python objects that workers read: what that costs their memory, and whether they are marked immortal before.

Reading an object writes its reference count, and so makes a forked process copy the page that it lies on. Where the
zygote can mark its heap (`_engine/process/immortal.py`), workers copy nothing; elsewhere the user is told once.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker._engine.process import immortal
from stoker._machine import memory

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader

SHARE = 0.1
"""Of an epoch: what takes a larger part of the last one is not done again, unless the memory is short."""

OBJECT = 100
"""Bytes, about, that an object takes: a tuple of two, a short text."""

TELLING = 256 << 20
"""Bytes that all workers together copy in an epoch, from which on the user is told."""

_TOLD = "heap"
"""Stands among what the loader has told for that it was looked at."""

_MANY, _LOOKED_AT, _DEPTH = 100_000, 1000, 4
_SAMPLES = 64


def is_marked(loader: DataLoader[Any]) -> bool:
    """Whether the zygote of the next workers is to mark its heap, if that is large (`immortal.worth_it`)."""
    ledger = loader._ledger
    if not loader.share_heap or ledger.marked is None or not ledger.epoch.spent:
        return loader.share_heap
    objects, seconds = ledger.marked
    return seconds <= SHARE * ledger.epoch.spent or _is_short(objects * OBJECT * loader.num_workers)


def _is_short(size: int) -> bool:
    return size > memory.available().bytes / 2


def text(loader: DataLoader[Any]) -> str | None:
    """About the heap, for `describe()`; None where there is nothing to say."""
    marked = loader._ledger.marked
    if loader._method != "process" or not (marked or immortal.worth_it()):
        return None
    if not loader.share_heap:
        return "not marked immortal (share_heap=False): each worker copies the Python objects that it reads"
    if marked is None:
        return "large, so it is marked immortal before workers are forked, who then share it: 0.1 to 0.5 s a million"
    objects, seconds = marked
    done = f"{objects:,} objects were marked immortal in {seconds:.2g} s, so that workers share them"
    if loader.persistent_workers:
        return done
    again = "and will be" if is_marked(loader) else "and will not be"
    return f"{done}; {again} in the next epoch (the last one took {loader._ledger.epoch.spent:.2g} s)"


def tell(loader: DataLoader[Any]) -> None:
    """Warns, once for each loader, of a dataset whose Python objects each worker process will copy."""
    if immortal.supported() or _TOLD in loader._told:
        return
    loader._told.add(_TOLD)
    found = heaviest(loader.dataset)
    if found is None or found.size * loader.num_workers < TELLING:
        return
    loader._tell_once(
        f"{found.path} holds {found.rows:,} rows of Python objects, some {found.size / 2**20:,.0f} MiB. Reading an "
        f"object writes its reference count, so each of the {loader.num_workers} workers ends up with a copy of its "
        f"own: up to {loader.num_workers * found.size / 2**20:,.0f} MiB in an epoch. stoker.columns({found.path}) "
        "reads like it and lies in arrays, which all share; CPython 3.12 and 3.13 share the objects as they are."
    )


class Heavy(NamedTuple):
    """A collection of many Python objects."""

    path: str
    rows: int
    size: int
    """Bytes, estimated from some of its rows."""


def heaviest(dataset: Any) -> Heavy | None:
    """The largest list, tuple or dict of at least 100,000 rows that a dataset holds as, or below, an attribute."""
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
            inside = _items(path, value) if plain else _attributes(path, value)
            waiting.extend((name, each, depth + 1) for name, each in inside)


def _items(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return ((f"{path}[{key!r}]", each) for key, each in itertools.islice(pairs, _SAMPLES))


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
