"""Shares Python objects between forked processes: marks them immortal, and `freeze` copies a dataset's objects once for
all.

Reading a Python object writes its reference count, and the first write to a shared page copies it: forked workers that
only read a list of tuples end up with a copy each. CPython 3.12 and 3.13 never write the count of an immortal object,
which is one whose count's lower half is all ones. Setting that half is all that a mark is; what is marked is never
freed, so `__del__` and callbacks of weak references do not run. Mutation, sorting, pickling, garbage and exceptions
work as before. What objects cache in themselves (`hash(str)`, `vars(obj)`) is still written.

Objects are found by the garbage collector's own means, in chunks, and their counts are read and written by NumPy with
addresses as indices. A mark also says that the object has been visited. Frames and suspended generators are left out:
they hold what is being computed at this moment, our own lists among it.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from stoker.errors import StokerWarning

if TYPE_CHECKING:
    from numpy.typing import NDArray


_MARK = 0xFFFF_FFFF
_IMMORTAL_FROM = 0x8000_0000
"""CPython takes every count whose lower half, as a signed number, is negative for immortal."""
_BASE = 4096
"""Address at which the view of the memory begins: no object lies below, and NumPy would allocate for an address of
zero.
"""
_END = 1 << 56
_LIST_ITEMS = 24
"""Offset of the address of a list's items."""
_CHUNK = 1 << 16
_LOTS = 1 << 20
_WORTH = 1_000_000

_reachable = 0
"""Objects that `mark_reachable` has marked here, or in a process that this one was forked from."""

_ORDINARY, _LEFT_OUT, _FUNCTION, _ARRAY, _DICT = range(5)
_RUNNING = (types.FrameType, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


@dataclass(frozen=True)
class SharedHeap:
    """The number of objects that a call marked, and the seconds it took."""

    objects: int
    seconds: float


def mark_heap() -> SharedHeap | None:
    """Marks every object of this process immortal that the garbage collector knows or that such an object refers to.

    Also freezes the collector (`gc.freeze`). Meant for a process that leaves by `os._exit` and whose stack below the
    caller never continues: a tuple that is being built there could not be finished. Not for several threads at once.

        Returns:
            The marked objects, or None, with nothing changed, if `supported()` is False.
    """
    if not supported():
        return None
    with _collector_off():
        gc.unfreeze()  # `gc.get_objects` leaves out frozen objects
        objects = gc.get_objects()
        gc.freeze()
        return _mark(objects, _kinds())


def mark_reachable(root: object) -> SharedHeap | None:
    """Marks `root` and the objects that it refers to, directly or not, immortal.

    Modules and types are left out, and so are the globals of functions: they are no part of an object. Other threads
    may run meanwhile; an object that they use at that moment may stay unmarked.

        Returns:
            The marked objects, or None, with nothing changed, if `supported()` is False.
    """
    global _reachable
    if not supported():
        return None
    with _collector_off():
        outside = dict.fromkeys(_all_below(types.ModuleType, type), _LEFT_OUT)
        marked = _mark([root], {**_kinds(), **outside, id(types.FunctionType): _FUNCTION})
    _reachable += marked.objects
    return marked


def worth_it() -> bool:
    """Whether the heap is so large that marking it (0.1 to 0.5 s for a million objects) pays in shared memory.

    Told from the blocks that Python has allocated, at no cost: more than a million that are not frozen. An interpreter
    with NumPy holds some 100,000, one with torch half a million. False where marking is not supported, and where
    Python's own allocator is not in use (`PYTHONMALLOC=malloc`), because nothing is counted there.
    """
    return supported() and sys.getallocatedblocks() - _reachable > _WORTH


@lru_cache(maxsize=1)
def supported() -> bool:
    """Whether objects of this interpreter can be marked: CPython 3.12 or 3.13 as released, on a 64-bit Linux or macOS.

    `sys.abiflags` is empty there; free-threaded and debug builds, whose counts differ, name themselves in it. The
    layout is tried on an object that is thrown away (and is then the first that is never freed).
    """
    if sys.implementation.name != "cpython" or sys.version_info[:2] not in ((3, 12), (3, 13)):
        return False
    if getattr(sys, "abiflags", "none") or sys.maxsize < _END or sys.byteorder != "little":
        return False
    probe = object()
    count, kind = (ctypes.c_uint64.from_address(id(probe) + at) for at in (0, 8))
    before = count.value
    more = [probe] * 5
    if before + 5 != count.value or count.value != sys.getrefcount(probe) - 1 or kind.value != id(object):
        return False
    items = ctypes.c_uint64.from_address(id(more) + _LIST_ITEMS)
    if ctypes.c_uint64.from_address(items.value).value != id(probe):
        return False
    ctypes.c_uint32.from_address(id(probe)).value = _MARK
    more += [probe]
    more.clear()
    return count.value == _MARK and sys.getrefcount(probe) == _MARK


@contextmanager
def _collector_off() -> Iterator[None]:
    """Disables the collector: a collection during the walk would only visit everything once more."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _mark(pending: list[Any], kind_of: dict[int, int]) -> SharedHeap:
    """Marks the objects of `pending`, which it empties, and what they refer to.

    `kind_of` gives for addresses of types what is special about their objects. Where an object is in a chunk twice, or
    its address draws the same lot as another's, one is taken and the others have to come again, marked or not by then.
    """
    start = time.perf_counter()
    counts, words = _memory(ctypes.c_uint32), _memory(ctypes.c_int64)
    special, kinds = np.array([*sorted(kind_of.items()), (np.iinfo(np.int64).max, _ORDINARY)], np.int64).T
    numbers, lots = np.arange(_CHUNK), np.empty(_LOTS, np.int64)
    marked = 0
    while pending:
        chunk = pending[-_CHUNK:]
        del pending[-_CHUNK:]
        items = (words[(id(chunk) + _LIST_ITEMS - _BASE) >> 3] - _BASE) >> 3
        at = words[items : items + len(chunk)] - _BASE  # a list is an array of addresses; `id` for each takes longer
        types_at = words[(at >> 3) + 1]  # the word after the count is the address of the type
        places = np.searchsorted(special, types_at)
        kind = np.where(special[places] == types_at, kinds[places], _ORDINARY)
        fresh = (counts[at >> 2] < _IMMORTAL_FROM) & (kind != _LEFT_OUT)
        lot = (at >> 4) & (_LOTS - 1)
        lots[lot] = numbers[: len(chunk)]
        again = fresh & (lots[lot] != numbers[: len(chunk)])
        fresh &= ~again
        counts[at[fresh] >> 2] = _MARK
        marked += int(np.count_nonzero(fresh))
        for opened, inside in _INSIDE.items():
            for each in _those(chunk, fresh & (kind == opened)):
                pending += inside(each)
        pending += gc.get_referents(*_those(chunk, fresh & (kind != _FUNCTION)))
        pending += _those(chunk, again)
    return SharedHeap(marked, time.perf_counter() - start)


def _memory(word: type[Any]) -> NDArray[Any]:
    """All addresses from `_BASE` on as one array of words; nothing is read before an index asks for it."""
    return np.ctypeslib.as_array((word * ((_END - _BASE) // ctypes.sizeof(word))).from_address(_BASE))


def _those(chunk: list[Any], mask: NDArray[np.bool_]) -> Iterable[Any]:
    return compress(chunk, mask.tolist()) if mask.any() else ()


def _all_below(*bases: type) -> Iterator[int]:
    """Yields the addresses of types and of all that inherit from them."""
    for base in bases:
        yield id(base)
        yield from _all_below(*type.__subclasses__(base))


def _inside_a_function(function: types.FunctionType) -> list[Any]:
    """Returns the objects that a function refers to, except its module."""
    return [function.__closure__, function.__defaults__, function.__kwdefaults__]


def _inside_an_array(array: NDArray[Any]) -> list[Any]:
    return [np.ndarray.base.__get__(array), *_elements(np.asarray(array))]


def _elements(array: NDArray[Any]) -> Iterator[Any]:
    if array.dtype.kind == "O":
        yield from array.ravel().tolist()
    elif array.dtype.names is not None and array.dtype.hasobject:
        for name in array.dtype.names:
            yield from _elements(array[name])


_INSIDE: dict[int, Callable[[Any], Iterable[Any]]] = {
    _FUNCTION: _inside_a_function,
    _ARRAY: _inside_an_array,
    _DICT: dict.keys,
}
"""References that the collector does not report: owner and elements of arrays, keys of dicts with only strings as keys.
"""


def _kinds() -> dict[int, int]:
    return {
        **dict.fromkeys(map(id, _RUNNING), _LEFT_OUT),
        **dict.fromkeys(_all_below(np.ndarray), _ARRAY),
        **dict.fromkeys(_all_below(dict), _DICT),
    }


# `freeze`: one copy of a dataset's Python objects for the trainer and all its workers.


T = TypeVar("T")


def freeze(dataset: T) -> T:
    """Keeps the lists, dicts, tuples and strings of `dataset` in memory once for any number of forked workers.

    Reading a Python object writes its reference count, which makes a forked process copy the object's page. `freeze`
    makes every object that `dataset` refers to, directly or not, immortal: its count is never written again, and it is
    never freed, nor closed when it goes out of scope. It can be changed, sorted and pickled as before. Call `freeze`
    once, after filling the dataset and before the loader starts its workers. The dataset should live as long as the
    program and refer to no object that should not (a model, an open connection). Modules and types stay unchanged.

    Takes 0.1 to 0.5 s for a million objects, and a full garbage collection. Other threads may run meanwhile if they do
    not change the dataset. Arrays and tensors gain nothing: their contents have no reference counts.

    Args:
        dataset: any object.

    Returns:
        The same object. On Pythons that cannot make objects immortal (all but released 64-bit CPython 3.12 and 3.13),
        nothing changes and a `StokerWarning` is issued.
    """
    if mark_reachable(dataset) is None:
        warnings.warn(
            "stoker.freeze changed nothing: this Python cannot make objects immortal (CPython 3.12 and 3.13 can), so "
            "each worker will hold a copy of the objects that it reads. Use stoker.columns(rows), a sequence backed "
            "by arrays, which is shared on any Python.",
            StokerWarning,
            stacklevel=2,
        )
    elif gc.isenabled():
        gc.collect()  # moves the marked objects aside now, instead of page after page during training
    return dataset
