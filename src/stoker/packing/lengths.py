"""`lengths`: the lengths of all samples of a dataset, for buckets; made in parallel once, and kept in a file."""

from __future__ import annotations

import hashlib
import logging
import marshal
import operator
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any, cast

import numpy as np

from stoker._core.machine.cpus import cpus
from stoker.datasets.base import Dataset, is_stream
from stoker.errors import MissingExtraError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.sources.index_file import Integers, index_cache, index_place, load_index, save_index
from stoker.sources.urls import is_remote

_FORMAT = "stoker lengths 1"
_BATCH = 512
_CHECKED = 16
"""Samples whose lengths are compared with the ones that were kept."""
_MOST = 1 << 30
"""Bytes of a pickled dataset that are hashed at most."""
_log = logging.getLogger("stoker")

Key = str | int | Callable[[Any], Any]


def lengths(dataset: Any, key: Key, workers: int | None = None) -> Integers:
    """Returns the lengths of all samples of a dataset, as an int64 array for `BucketBatchSampler`.

    The samples are made once, by workers, with a bar on a terminal. The lengths are kept in a file: beside the
    dataset's first file if that is local and its folder can be written, else in the user's cache folder
    (`~/.cache/stoker/indexes`). The next call reads the file if dataset and `key` are the same: their pickles, the code
    of their functions, and the size and time of files that the dataset knows (as Stoker's do). It also makes 16 samples
    anew, and makes all anew if one of these has another length. A dataset that cannot be pickled is read each time.

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
                return kept[0]
            _log.info("the lengths in %s are those of other samples, and are made anew", path)
    made = _made(measured, min(cpus().number, len(dataset) // _BATCH) if workers is None else workers)
    any(save_index(path, identity, [made]) for path in paths)
    return made


class _Measured(Dataset[int]):
    """The lengths of a dataset's samples, by index."""

    stoker_protocol = True

    def __init__(self, dataset: Any, key: Key) -> None:
        self.dataset, self.key = dataset, key

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> int:
        return self._length(self.dataset[index], index)

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[int]]:
        """A function that measures several samples. Exists only if the dataset has `__getitems__`."""
        fetch = self.dataset.__getitems__
        return lambda indices: list(map(self._length, fetch(indices), indices))

    def _length(self, sample: Any, index: int) -> int:
        value = self.key(sample) if callable(self.key) else sample[self.key]
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
        measured,
        batch_size=_BATCH,
        sampler=indices,
        num_workers=workers,
        collate_fn=_as_array,
        seed=0,
        output="numpy",
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
    """Hashes the pickle of an object, in which functions and classes of the user's are their code."""

    def __init__(self) -> None:
        super().__init__(cast("Any", self), protocol=5)
        self._hash = hashlib.blake2b(digest_size=16)
        self._size = 0

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
        if isinstance(value, FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            return _Digest, (value.__qualname__, marshal.dumps(value.__code__), value.__defaults__, cells)
        if isinstance(value, type) and value.__module__.partition(".")[0] not in {"stoker", *sys.stdlib_module_names}:
            functions = [part for part in vars(value).values() if isinstance(part, FunctionType)]
            return _Digest, (value.__qualname__, [marshal.dumps(function.__code__) for function in functions])
        return NotImplemented

    def of(self, value: Any) -> str:
        self.dump(value)
        return self._hash.hexdigest()


def _digest(value: Any) -> str | None:
    """Returns the digest of an object; None if it cannot be pickled."""
    try:
        return _Digest().of(value)
    except Exception as error:  # whatever the user's objects raise
        _log.info("the lengths are not kept, because the dataset cannot be compared by its pickle: %s", error)
        return None
