"""The table of reasons why objects cannot be sent to a clean worker, with remedies."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import takewhile
from typing import Any, NamedTuple

SHARING = 'use multiprocessing_context="fork"' if hasattr(os, "fork") else 'use worker_method="thread"'
"""The workers that are sent nothing, because they share the trainer's memory."""
_HANDLE = "it is a handle of this process"
_TYPE = "ctypes makes its types anew in each process"
_OPEN_THERE = f"open it in __getitem__ (once per worker), or {SHARING}"
_LOAD_THERE = f"load it in __getitem__ (once per worker), at the top of a module, or {SHARING}"
_MAKE_THERE = f"leave it out in __getstate__ and make it anew in __setstate__, or {SHARING}"


class _Cause(NamedTuple):
    """A kind of object that cannot be sent: its name (`{}`: its type), the reason, and the change to make."""

    applies: Callable[[Any], bool]
    what: str
    why: str
    advice: str


def is_known(value: Any) -> bool:
    """Whether the table speaks of this object: if it is refused, it is itself the cause."""
    return any(cause.applies(value) for cause in _CAUSES)


def explained(value: Any, error: Exception) -> str:
    """A sentence on an object that was refused: its kind, the reason, the remedy."""
    what, why, advice = _what_and_why(value, error)
    return f"{what} cannot be sent to a clean worker, because {why} ({text(error)}); {advice}."


def explained_in_batch(place: str, value: Any, error: Exception) -> str:
    """A sentence on an object of a batch, at this place, that a worker could not send."""
    what, why, _ = _what_and_why(value, error)
    instead = "list(...) of it" if _is_iterator(value) else "arrays, tensors, numbers or texts"
    return (
        f"{place} is {what}, which cannot be sent from a worker, because {why} ({text(error)}); return {instead} "
        "in its place from the dataset or the collate_fn."
    )


def _what_and_why(value: Any, error: Exception) -> tuple[str, str, str]:
    """Returns an object's kind, the reason for its refusal, and the remedy where a worker is sent it."""
    name = _name(type(value))
    what, why, advice = f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}", "it does not pickle", _MAKE_THERE
    if isinstance(error.__cause__, RecursionError):
        why, advice = "it is nested too deeply", f"flatten it, or {SHARING}"
    for cause in _CAUSES:
        if cause.applies(value):
            return cause.what.format(name), cause.why, cause.advice
    return what, why, advice


def text(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".rstrip(".: ").replace("\n", " ")


def short_name(kind: type) -> str:
    """A class's name inside its module, without the functions that it was defined in."""
    return kind.__qualname__.rpartition("<locals>.")[2]


def _name(kind: type) -> str:
    """A class as its users write it: h5py.File, not h5py._hl.files.File."""
    public = takewhile(lambda part: not part.startswith("_") and part != "builtins", kind.__module__.split("."))
    return ".".join([*public, short_name(kind)])


def _of(*names: str) -> Callable[[Any], bool]:
    """Matches instances of the named classes and of those that inherit from them, without importing anything."""
    return lambda value: any(f"{base.__module__}.{base.__qualname__}" in names for base in type(value).__mro__)


def _from(*packages: str) -> Callable[[Any], bool]:
    """Matches instances of all classes of the named packages."""
    return lambda value: type(value).__module__.partition(".")[0] in packages


def _is_iterator(value: Any) -> bool:
    return type(value).__module__ in ("builtins", "itertools") and hasattr(type(value), "__next__")


def _is_on_a_device(value: Any) -> bool:
    """CUDA's own handles go to other processes, but only of tensors of no other class."""
    if not _TENSOR(value) or value.device.type in ("cpu", "meta"):
        return False
    return value.device.type != "cuda" or _name(type(value)) != "torch.Tensor"


def _is_of_fork_context(value: Any) -> bool:
    return _LOCK(value) and getattr(value, "_is_fork_ctx", True)


_TENSOR = _of("torch.Tensor", "torch.storage.UntypedStorage", "torch.storage.TypedStorage")
_LOCK = _of("multiprocessing.synchronize.SemLock")
_DATABASES = (
    "sqlite3",
    "psycopg",
    "psycopg2",
    "pymysql",
    "MySQLdb",
    "pyodbc",
    "duckdb",
    "sqlalchemy",
    "redis",
    "pymongo",
)
_LMDB = ("builtins.Environment", "builtins.Transaction", "builtins.Cursor")  # as lmdb calls them
_WEAK = ("weakref.ReferenceType", "weakref.WeakValueDictionary", "weakref.WeakKeyDictionary")

_CAUSES = (
    _Cause(_of("_io._IOBase"), "an open file ({})", _HANDLE, _OPEN_THERE),
    _Cause(_of("_socket.socket"), "an open {}", _HANDLE, _OPEN_THERE),
    _Cause(_from("h5py"), "an open {}", _HANDLE, _OPEN_THERE),
    _Cause(_of(*_LMDB), "an open lmdb.{}", _HANDLE, _OPEN_THERE),
    _Cause(_from(*_DATABASES), "a database handle ({})", _HANDLE, _OPEN_THERE),
    _Cause(_of("mmap.mmap"), "a mapped file ({})", _HANDLE, f"use np.memmap, which can be sent, or {SHARING}"),
    _Cause(
        _of("_thread.lock", "_thread.RLock"),
        "a lock between threads ({})",
        "it belongs to the threads of this process",
        _MAKE_THERE,
    ),
    _Cause(
        _of("threading.Thread", "concurrent.futures._base.Executor"),
        "a {}",
        "threads run in the process that started them",
        _MAKE_THERE,
    ),
    _Cause(
        _of("builtins.generator", "builtins.coroutine", "builtins.async_generator"),
        "a {}",
        "it is in the middle of running",
        f"make it in __iter__ or __getitem__, or {SHARING}",
    ),
    _Cause(_is_iterator, "an iterator ({})", "its position is in this process", f"make it in __iter__, or {SHARING}"),
    _Cause(_of(*_WEAK), "a weak reference ({})", "it points into this process", _MAKE_THERE),
    _Cause(_of("ctypes.CDLL"), "a loaded library ({})", _HANDLE, _LOAD_THERE),
    _Cause(_from("_ctypes"), "a ctypes type ({})", _TYPE, _MAKE_THERE),
    _Cause(_of("_ctypes.Array"), "a ctypes array ({})", _TYPE, f"use a NumPy array, which can be sent, or {SHARING}"),
    _Cause(_of("_ctypes._CData"), "a ctypes object ({})", "its pointers hold only in this process", _MAKE_THERE),
    _Cause(
        _is_on_a_device,
        "a tensor on an accelerator ({})",
        "the memory of a device belongs to the process that allocated it, and no worker can use it",
        "keep the dataset's tensors on the CPU (.cpu()), and move batches to the device in the training loop",
    ),
    _Cause(
        _is_of_fork_context,
        "a {} of the fork context",
        "only forked processes share it",
        f'make it by multiprocessing.get_context("spawn"), or {SHARING}',
    ),
)
