"""`lengths`: the lengths of all samples of a dataset, for buckets; made in parallel once, and kept in a file."""

from __future__ import annotations

import hashlib
import inspect
import logging
import operator
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from importlib.util import find_spec
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, cast

import numpy as np

from stoker._core.machine.cpus import cpus
from stoker.datasets.awaited import then
from stoker.datasets.base import Dataset, is_stream
from stoker.errors import MissingExtraError, MissingFieldError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.loader.worker_start import is_own, named_in
from stoker.sources.index_file import Integers, index_cache, index_place, load_index, save_index
from stoker.sources.urls import is_remote

_FORMAT = "stoker lengths 2"
_BATCH = 512
_CHECKED = 16
"""Samples whose lengths are compared with the ones that were kept."""
_MOST = 1 << 30
"""Bytes of a pickled dataset that are hashed at most."""
_LruCached: Any = type(lru_cache(lambda: None))
_log = logging.getLogger("stoker")

Key = str | int | Callable[[Any], Any]


def lengths(dataset: Any, key: Key, workers: int | None = None) -> Integers:
    """Returns the lengths of all samples of a dataset, as an int64 array for `BucketBatchSampler`.

    The samples are made once, by workers, with a bar on a terminal. The lengths are kept in a file: beside the
    dataset's first file if that is local and its folder can be written, else in the user's cache folder
    (`~/.cache/stoker/indexes`). The next call reads the file if dataset and `key` are the same: their pickles, the size
    and time of files that the dataset knows (as Stoker's do), and the code of their functions and classes, with the
    global variables, functions and classes of your own modules that it names. It also makes 16 samples anew, and makes
    all anew if one of these has another length. If any of this cannot be pickled, or has more than 1 GiB, all samples
    are made each time.

    The length of a sample should not be random: put augmentation that changes it above the dataset.

    Args:
        dataset: by index, with a length.
        key: the field of a sample that is measured, such as "tokens" or, of tuples, 0; or a function of the sample. A
            field, or what the function returns, is a length if it is an integer, and else has one: `len(value)`. The
            length of a text is its number of characters.
        workers: processes; None takes one for each CPU; 0 makes samples in this process.

    Raises:
        TypeError: the dataset is a stream or has no length, `key` is of another type, or a sample's value is no integer
            and has no length.
        WorkerDiedError: a worker died. An exception of the dataset is raised as it is in a `DataLoader`.
    """
    if is_stream(dataset) or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"a {type(dataset).__name__} has no length and no sample by index, so a sampler cannot draw from it: read "
            "the files by index (JSONLinesDataset for JSONLinesStream, TarDataset for TarStream, ParquetDataset for "
            "ParquetStream), or sort the samples of a window of the stream in a transform"
        )
    if not callable(key) and type(key) not in (str, int):
        raise TypeError(f"key is {key!r}, expected the name of a field, or a function of the sample")
    measured = _Measured(dataset, key)
    if not len(dataset):
        return np.empty(0, np.int64)
    identity = {"format": _FORMAT, "count": len(dataset), "digest": _digest(measured)}
    paths = [] if identity["digest"] is None else _paths(measured, str(identity["digest"]))
    for path in paths:
        kept = load_index(path, identity)
        if kept is not None and len(kept) == 1 and len(kept[0]) == len(dataset):
            some = np.linspace(0, len(dataset) - 1, min(_CHECKED, len(dataset))).astype(int).tolist()
            if np.array_equal(_of_batches(_loader(measured, 0, some)), kept[0][some]):
                return kept[0].copy()  # which can be written
            _log.info("the lengths in %s are those of other samples, and are made anew", path)
    try:
        made = _made(measured, min(cpus().number, len(dataset) // _BATCH) if workers is None else workers)
    except MissingFieldError as error:
        raise error.with_traceback(None) from None  # its message says it all
    any(save_index(path, identity, [made]) for path in paths)
    return made


class _Measured(Dataset[int]):
    """The lengths of a dataset's samples, by index."""

    stoker_protocol = True

    def __init__(self, dataset: Any, key: Key) -> None:
        self.dataset, self.key = dataset, key

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return then(self.dataset[index], lambda sample: self._length(sample, index))

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], Any]:
        """A function that measures several samples. Exists only if the dataset has `__getitems__`."""
        fetch = self.dataset.__getitems__
        if not inspect.iscoroutinefunction(fetch):
            return lambda indices: list(map(self._length, fetch(indices), indices))

        async def measured(indices: Sequence[Any]) -> list[int]:
            return list(map(self._length, await fetch(indices), indices))

        return measured

    def _length(self, sample: Any, index: int) -> int:
        if isinstance(sample, Mapping) and not callable(self.key) and self.key not in sample:
            raise MissingFieldError(f"sample {index} has no {self.key!r}: it has {', '.join(map(repr, sample))}")
        value = self.key(sample) if callable(self.key) else sample[self.key]
        if not getattr(value, "ndim", 0):  # a tensor of one element is an integer too
            with suppress(TypeError):
                return operator.index(value)
        try:
            return len(value)
        except TypeError:
            raise TypeError(
                f"sample {index}: {self.key!r} gave a {type(value).__name__}, which is no integer and has no length"
            ) from None


def _made(measured: _Measured, workers: int) -> Integers:
    loader = _loader(measured, workers)
    batches: Any = loader
    if sys.stderr is not None and sys.stderr.isatty():
        with suppress(MissingExtraError):
            batches = loader.progress("lengths")
    return _of_batches(batches)


def _loader(measured: _Measured, workers: int, indices: list[int] | None = None) -> DataLoader[Any]:
    """Returns a loader, so that samples which draw random numbers change no generator of this process."""
    return DataLoader(
        measured, batch_size=_BATCH, sampler=indices, num_workers=workers, collate_fn=_as_array, seed=0, output="numpy"
    )


def _of_batches(batches: Any) -> Integers:
    with warnings.catch_warnings():  # the hint that workers would help is about training loops
        warnings.filterwarnings("ignore", "the training loop waits", StokerWarning)
        return np.concatenate([np.array(batch) for batch in batches])


def _as_array(lengths: list[int]) -> Integers:
    return np.array(lengths, np.int64)


def _paths(measured: _Measured, digest: str) -> list[str]:
    """Returns the places of the lengths: beside the dataset's first file, if it has one here, and the cache folder.

    Lengths of changed data take the place of the former beside the file.
    """
    cached, below = os.path.join(index_cache(), f"{digest}.lengths"), measured.dataset
    name = _digest((type(below).__qualname__, len(measured), measured.key))
    while not (files := getattr(below, "files", None) or getattr(below, "shards", None)) and hasattr(below, "dataset"):
        below = below.dataset
    first = files[0] if isinstance(files, list) and files else None
    if not isinstance(first, str) or is_remote(first) or not os.path.isfile(first):
        return [cached]
    return [index_place(first, f".{str(name)[:8]}.lengths"), cached]


class _Digest(pickle.Pickler):
    """Hashes the pickle of an object, in which functions and classes are what they are made of."""

    def __init__(self) -> None:
        super().__init__(cast("Any", self), protocol=5)
        self._hash = hashlib.blake2b(digest_size=16)
        self._size = 0
        self._seen: dict[int, tuple[int, Any]] = {}

    def write(self, data: bytes | memoryview) -> int:
        self._hash.update(data)
        self._size += len(data)
        if self._size > _MOST:
            raise OverflowError(f"it has more than {_MOST:,} bytes")
        return len(data)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:  # a view, or read-only, is the same array
            if value.nbytes > _MOST:
                raise OverflowError(f"it has an array of {value.nbytes:,} bytes")
            return _Digest, (str(value.dtype), value.shape, value.tobytes())
        if id(value) in self._seen:  # a function that names itself
            return _Digest, self._seen[id(value)][:1]
        if (parts := _parts(value)) is None:
            return NotImplemented
        self._seen[id(value)] = len(self._seen), value
        return _Digest, parts

    def of(self, value: Any) -> str:
        self.dump(value)
        return self._hash.hexdigest()


def _parts(value: Any) -> tuple[Any, ...] | None:
    """Returns what determines what a function, class or module does; None for other objects.

    Of the user's own modules, that is all that their code names; of installed packages, the version and own code.
    """
    if isinstance(value, ModuleType):
        if value.__name__ not in sys.modules and not _is_library(value.__name__):
            raise ImportError(f"{value.__name__}, which a function imports, is not loaded yet")
        return value.__name__, _version(value.__name__)
    if isinstance(value, _LruCached):
        return (value.__wrapped__,)
    if isinstance(value, FunctionType):
        parts = (value.__module__, value.__qualname__, _code(value.__code__))
        if not is_own(value) and _is_named(value):
            return *parts, _version(value.__module__)
        cells = [_ordered(cell.cell_contents) for cell in value.__closure__ or ()]
        named = [_ordered(each) for each in named_in(value)] if is_own(value) else _version(value.__module__)
        return *parts, value.__defaults__, value.__kwdefaults__, vars(value), cells, named
    if isinstance(value, type) and is_own(value):
        return (
            value.__module__,
            value.__qualname__,
            [[*_members(base)] if is_own(base) else base for base in value.__mro__],
        )
    if isinstance(value, type) and value.__module__.partition(".")[0] not in {"stoker", *sys.stdlib_module_names}:
        codes = [_code(part.__code__) for part in vars(value).values() if isinstance(part, FunctionType)]
        return value.__module__, value.__qualname__, _version(value.__module__), codes
    return None


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the functions and attributes of one class by name."""
    for name, part in vars(kind).items():
        if isinstance(part, (staticmethod, classmethod)):
            yield name, part.__func__
        elif isinstance(part, property):
            yield name, (part.fget, part.fset)
        elif isinstance(part, cached_property):
            yield name, part.func
        elif not isinstance(part, (MemberDescriptorType, GetSetDescriptorType)) and (
            callable(part) or (name != "_abc_impl" and not name.startswith("__"))
        ):
            yield name, _ordered(part)


def _code(code: CodeType) -> tuple[Any, ...]:
    """Returns a description of code, without the file and the lines in which it stands."""
    constants = [
        _code(each)
        if isinstance(each, CodeType)
        else repr(sorted(map(repr, each)) if isinstance(each, frozenset) else each)
        for each in code.co_consts
    ]
    names = repr((code.co_qualname, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    counts = repr((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags))
    return names, counts, code.co_code, code.co_exceptiontable, constants


def _ordered(value: Any) -> Any:
    """Returns a set of plain values in an order that is the same in each process; other values as they are."""
    is_plain = type(value) in (set, frozenset) and {type(each) for each in value} <= {bool, int, float, str, bytes}
    return (type(value).__name__, sorted(map(repr, value))) if is_plain else value


def _is_named(function: FunctionType) -> bool:
    """Returns whether a function is the one that its module has under its name."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found is function


def _version(module: str) -> str:
    """Returns the version of a module's package, as it states it."""
    package = sys.modules.get(module.partition(".")[0])
    return str(getattr(package, "__dict__", {}).get("__version__"))


def _is_library(name: str) -> bool:
    """Returns whether a module that is not loaded is of an installed package, which is found without running code."""
    package = name.partition(".")[0]
    if package in sys.stdlib_module_names:
        return True
    spec = find_spec(package)
    return spec is not None and not {"site-packages", "dist-packages"}.isdisjoint(str(spec.origin).split(os.sep))


def _digest(value: Any) -> str | None:
    """Returns the digest of an object; None if it cannot be pickled, or what its code names cannot."""
    try:
        return _Digest().of(value)
    except Exception as error:  # whatever the user's objects raise
        _log.info("the lengths are not kept, because the dataset cannot be compared by its pickle: %s", error)
        return None
