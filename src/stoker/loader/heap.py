"""Estimates the memory that workers copy by reading Python objects, and decides on marking them immortal.

Reading an object writes its reference count, so a forked process copies the page of the object. If the zygote can mark
its heap (`_engine/fork/heap_sharing.py`), workers copy nothing; otherwise the loader warns once.
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

from stoker._engine.fork import heap_sharing
from stoker.loader._epoch import epoch
from stoker.loader.worker_start import birth_of

if TYPE_CHECKING:
    from stoker.loader._accounting.ledger import Ledger
    from stoker.loader._options.loader_options import LoaderOptions
    from stoker.loader.record import LoaderRecord

SHARE = 0.1
"""Part of the last epoch's time. Marking that took at most this part is repeated without an estimate of its use."""

PAGES = 3
"""Estimated pages that hold one row: a tuple, its texts, and its place in the list."""

TELLING = 256 << 20
"""Bytes that all workers together copy in an epoch. From this size on, marking the heap or a warning is worthwhile."""

_TOLD = "heap"
"""Entry in `LoaderRecord.told` after the heap was examined."""

_MAKING = ("__getitem__", "__getitems__", "__iter__", "__next__")
"""Methods of a dataset."""

_MANY, _LOOKED_AT, _DEPTH = 100_000, 1000, 4
_SAMPLES = 64


def is_marked(options: LoaderOptions, ledger: Ledger) -> bool:
    """Returns whether the zygote of the next workers is to mark its heap, if large (`heap_sharing.worth_it`)."""
    if birth_of(options).rebuilds:
        return False  # the zygote's heap does not hold the dataset
    if not options.share_heap or not heap_sharing.worth_it():
        return options.share_heap
    if ledger.marked is not None and 0 < ledger.marked[1] <= SHARE * ledger.epoch.spent:
        return True
    return copied(options) >= TELLING


def copied(options: LoaderOptions, heavy: Heavy | None = None) -> int:
    """Returns an estimate of the bytes that all workers copy in an epoch, or during their lives.

    Counted are the pages of the rows that workers read in the dataset's largest collection, or the whole collection if
    each worker unpickles it.
    """
    heavy = heavy or heaviest(options.dataset)
    if heavy is None:
        return 0
    if birth_of(options).rebuilds:
        return options.num_workers * heavy.size
    each = _samples(options) / options.num_workers * PAGES * mmap.PAGESIZE
    return options.num_workers * int(min(heavy.size, each))


def _samples(options: LoaderOptions) -> float:
    """Returns the number of samples that the workers read; infinity if it is unknown."""
    if options.is_stream or options.persistent_workers or (options.batch_size is None and options.auto_collation):
        return math.inf
    try:
        return (options.batch_size or 1) * epoch.length_of(options)
    except Exception:  # of a sampler's length: this is only an estimate
        return math.inf


def text(options: LoaderOptions, ledger: Ledger) -> str | None:
    """Returns the text on the heap for `describe()`, or None."""
    marked = ledger.marked
    rebuilds = options.capabilities.shares_heap and birth_of(options).rebuilds
    if not options.capabilities.shares_heap or rebuilds or not (marked or heap_sharing.worth_it()):
        return None
    if not options.share_heap:
        return "not marked immortal (share_heap=False): each worker copies the Python objects that it reads"
    size = copied(options) / 2**20
    if marked is None:
        if is_marked(options, ledger):
            return (
                "large, so it is marked immortal before workers are forked, which then share it: 0.1 to 0.5 s for each "
                f"million objects (otherwise they would copy about {size:,.0f} MiB)"
            )
        return f"large, and not marked immortal: workers copy an estimated {size:,.0f} MiB of it"
    objects, seconds = marked
    done = f"{objects:,} objects were marked immortal in {seconds:.2g} s, so that workers share them"
    if options.persistent_workers:
        return done
    again = "and will be" if is_marked(options, ledger) else "and will not be"
    return (
        f"{done}; {again} in the next epoch, in which workers would copy some {size:,.0f} MiB (the last one took "
        f"{ledger.epoch.spent:.2g} s)"
    )


def tell(options: LoaderOptions, record: LoaderRecord) -> None:
    """Warns, once for each loader, if each worker process will copy the dataset's Python objects."""
    birth = birth_of(options)
    if (heap_sharing.supported() and not birth.rebuilds) or _TOLD in record.told:
        return
    record.told.add(_TOLD)
    heavy = heaviest(options.dataset)
    if heavy is None or (size := copied(options, heavy)) < TELLING:
        return
    if birth.rebuilds:
        record.tell_once(
            f"{heavy.path} holds {heavy.rows:,} rows of Python objects, some {heavy.size / 2**20:,.0f} MiB. Each of "
            f"the {options.num_workers} workers unpickles the dataset itself ({birth.why}) and has its own copy of "
            f"these objects: {size / 2**20:,.0f} MiB in all. stoker.columns({heavy.path}) has the same interface and "
            "keeps its data in arrays, which all workers share. If unpickling the dataset opens no file or connection, "
            "declare unpickle_once = True in its class: it is then unpickled once for all workers."
        )
        return
    record.tell_once(
        f"{heavy.path} holds {heavy.rows:,} rows of Python objects, some {heavy.size / 2**20:,.0f} MiB. Reading an "
        f"object writes its reference count, so each of the {options.num_workers} workers ends up with a copy of its "
        f"own: up to {size / 2**20:,.0f} MiB in an epoch. stoker.columns({heavy.path}) "
        "has the same interface and keeps its data in arrays, which all workers share; CPython 3.12 and 3.13 share the "
        "objects as they are."
    )


class Heavy(NamedTuple):
    """A collection of many Python objects."""

    path: str
    rows: int
    size: int
    """Bytes, estimated from some of its rows."""


def heaviest(dataset: Any) -> Heavy | None:
    """Returns the largest list, tuple or dict of at least 100,000 rows that a dataset holds in or below an attribute,
    or that its methods name as a global variable; else None."""
    return max(_collections(dataset), key=lambda collection: collection.size, default=None)


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
    """Yields the collections in global variables that the methods of a dataset read."""
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
    """Returns the bytes of all rows, estimated from some (evenly spaced in a list). Shared objects count once."""
    is_dict = isinstance(rows, dict)
    some = [*itertools.islice(rows.items(), _SAMPLES)] if is_dict else rows[:: len(rows) // _SAMPLES]
    objects = {id(each): sys.getsizeof(each, 0) for row in some for each in (row, *_within(row))}
    return sys.getsizeof(rows) + len(rows) * sum(objects.values()) // len(some)


def _within(row: Any) -> Iterator[Any]:
    if isinstance(row, dict):
        yield from itertools.chain(row.keys(), row.values())
    elif isinstance(row, (list, tuple)):
        yield from itertools.islice(row, _LOOKED_AT)
