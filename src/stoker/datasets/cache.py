"""Samples that are made once and kept: in memory that all workers share, on disk, or both."""

from __future__ import annotations

import operator
import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stoker._worker_info import current
from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.cache_pickle import loaded, pickled
from stoker.datasets.cache_store import Folder, Memory, Store
from stoker.datasets.combining import become_stream, checked, positive, shard_of, shards_of
from stoker.datasets.described import describe
from stoker.datasets.listening import listened
from stoker.datasets.read_again import ReadAgain
from stoker.datasets.stream import State, Stream, StreamIterator, count, part

T = TypeVar("T")

_CHUNK = 1 << 22
"""Bytes of pickled samples that a stream keeps together."""
_CHUNKS = 1 << 16
"""How many chunks of a stream are kept at most: 256 GiB of each shard."""


class CacheDataset(Dataset[T]):
    """The samples of a dataset, each made once and then kept.

    What is kept is a sample's pickle: each access gives a new object, which may be changed. So a sample is kept as it
    was made the first time: put random augmentation above the cache, and below it what costs time and is always the
    same. Nothing is evicted: what no longer fits is made again each time. (An epoch visits each sample once, so
    evicting would trade a sample that is kept for one that is needed no sooner.)

    `memory` is shared by all workers, forked or clean, of all epochs, and gone with the last process that has it.
    `folder` outlives them: a file in it for each `key`, which jobs of the same machine may share, and which stays until
    you delete it. Any number of processes read and write at once, wait for nobody, and may be killed at any moment: a
    sample is found whole or not at all, on disk too (a checksum says which). Keep the folder on a disk of the machine,
    and where nobody else may write: reading a pickle runs what it says.

    Over a stream: a stream. The first pass keeps what it reads, in chunks of 4 MiB, each with the source's state after
    it. The next pass reads them, and the source only after what was kept, because the first pass may have been left or
    killed. The order of that pass is kept too, so shuffle above the cache. After an error of the source the rest of a
    pass is not kept. Each shard has a file of its own, and so has each of several workers where the loader does not
    share the stream out (`worker_init_fn`, `shard="none"`). The state holds the source's state before the chunk, and so
    does not need the files that it was taken with.

    Args:
        dataset: by index or a stream. The epoch is not passed on to it.
        memory: how many bytes of memory to use, 16 for each sample of the dataset included. By index only.
        folder: where to keep samples on disk; is made if it is not there.
        key: names the version of the samples, for instance "photos of May, 224 pixels": change it when the data or the
            code below has changed, and the samples are made again. The dataset's length counts too.
        disk: how many bytes the file of this key (and of each shard of a stream) may take; None for no limit.

    Raises:
        TypeError: `dataset` is no dataset or has no length, or something is of another type than it should be. When
            accessed: a sample cannot be pickled.
        ValueError: neither `memory` nor `folder` is given, or `memory` for a stream, or `folder` without `key`, or
            `memory` or `disk` is too small.
        MemoryLimitError: the machine or the container has not so much memory left.
        OSError: the folder cannot be used.
        RuntimeError: when accessed, a sample on disk cannot be unpickled: its class is another one now.
        ShardingError: while iterating, the stream calls `get_worker_info()` where the loader shares it out: what one
            worker is given of it would be kept as if it were the whole.
    """

    dataset: Any

    def __init__(
        self,
        dataset: Any,
        memory: int | None = None,
        folder: str | os.PathLike[str] | None = None,
        key: str | None = None,
        disk: int | None = None,
    ) -> None:
        self.dataset = checked(dataset, "CacheDataset")
        self.memory = None if memory is None else positive(memory, "memory")
        self.folder = None if folder is None else os.fspath(folder)
        self.key = key
        self.disk = None if disk is None else positive(disk, "disk")
        if memory is None and folder is None:
            raise ValueError("CacheDataset needs memory= (bytes), or folder= and key=, or both")
        if folder is not None and not isinstance(key, str):
            raise (ValueError if key is None else TypeError)(
                f"key is {key!r}, expected a text that names what the samples follow from: samples on disk outlive the "
                "program, so it must say when they are no longer the right ones"
            )
        if disk is not None and folder is None:
            raise ValueError("disk= limits what is kept in a folder: pass folder= and key= too")
        if is_stream(dataset):
            if memory is not None:
                raise ValueError("memory= is for a dataset by index: keep a stream in a folder, pass folder= and key=")
            become_stream(self, _CacheStream)
        self._slots = _CHUNKS if is_stream(dataset) else len(dataset)
        self._stores: list[Store] = []
        if self.memory is not None:
            self._stores.append(Memory(self._slots, self.memory))
        if self.folder is not None:
            self._stores.append(self._file(self.folder, key))

    def __len__(self) -> int:
        """Returns the source's length."""
        return len(self.dataset)

    def __getitem__(self, index: Any) -> T:
        """Returns the source's sample at `index`, kept or made.

        An index that is no number from 0 to the length that the source had when this was built goes to the source.
        """
        number = self._number(index)
        data = None if number is None else self._find(number)
        if data is None:
            return self._keep(number, self.dataset[index])
        sample: T = loaded(data, number)
        return sample

    def describe(self, index: Any) -> Any:
        """Returns what the source says of its sample at `index`, by a `describe(index)` of its own; else None."""
        return describe(self.dataset, index)

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[T]]:
        """Fetches several samples at once: there only if the source can, which is then asked for the missing ones.

        Raises:
            AttributeError: the source has no `__getitems__`.
        """
        fetch = self.dataset.__getitems__

        def samples(indices: Sequence[Any]) -> list[T]:
            numbers = [self._number(index) for index in indices]
            kept = [None if number is None else self._find(number) for number in numbers]
            missing = [index for index, data in zip(indices, kept, strict=True) if data is None]
            made = fetch(missing) if missing else []
            if len(made) != len(missing):  # whose are they?
                raise ValueError(
                    f"{type(self.dataset).__name__}.__getitems__ gave {len(made)} samples, expected {len(missing)}, "
                    "one for each index"
                )
            rest = iter(made)
            return [
                self._keep(number, next(rest)) if data is None else loaded(data, number)
                for number, data in zip(numbers, kept, strict=True)
            ]

        return samples

    def _file(self, folder: str, key: str | None) -> Store:
        identity = "stream" if is_stream(self.dataset) else "by index", key
        return Folder(folder, identity, self._slots, self.disk)

    def _number(self, index: Any) -> int | None:
        if type(index) is not int:
            if isinstance(index, bool) or getattr(index, "ndim", False) or "bool" in str(getattr(index, "dtype", "")):
                return None  # to arrays and tensors that is a mask, or several numbers
            try:
                index = operator.index(index)
            except TypeError:
                return None
        number: int = index
        return number if 0 <= number < self._slots else None

    def _find(self, number: int) -> bytes | None:
        for place, store in enumerate(self._stores):
            data = store.get(number)
            if data is not None:
                for quicker in self._stores[:place]:
                    quicker.put(number, data)
                return data
        return None

    def _keep(self, number: int | None, sample: T) -> T:
        if number is not None:
            data = pickled(sample, number)
            for store in self._stores:
                store.put(number, data)
        return sample


class _CacheStream(CacheDataset[T], Stream[T]):
    folder: str

    @property
    def num_shards(self) -> int:
        return shards_of(self.dataset)

    def shard(self, num_shards: int, index: int) -> CacheDataset[T]:
        source = shard_of(self.dataset, num_shards, index)
        key = f"{self.key} (shard {index} of {num_shards})"
        return CacheDataset(source, folder=self.folder, key=key, disk=self.disk)

    def _begin(self, state: State | None) -> StreamIterator[T]:
        store = self._stores[0]
        worker = current.one_of_several
        if worker is not None and current.reading.on_part is None:  # who shares it out among them, nobody knows here
            store = self._file(self.folder, f"{self.key} (worker {worker[0]} of {worker[1]})")
        return _Cached(self.dataset, store, state)


class _Cached(StreamIterator[T]):
    """Stands behind `given` samples of chunk `chunk`, which begins behind `before` samples.

    A chunk is read from the store, or, where it is not there, made from the source and then put there. Behind an error
    the rest of the pass is made and not kept: it is unsound.
    """

    def __init__(self, dataset: Any, store: Store, state: State | None) -> None:
        self._dataset = dataset
        self._store = store
        self._chunk, self._before = count(state, "chunk"), count(state, "before")
        self._state = part(state, "source") if state and "source" in state else None  # the source's before the chunk
        self._skip = count(state, "given")  # samples of the chunk that were given before
        self._sound = state is None or not state.get("unsound")
        self._source: ReadAgain | None = None
        self._loaded = state  # of which the source's errors are passed over that it had told
        self._calls = 0  # of the source before the chunk
        self._enter()

    def _enter(self) -> None:
        """At the start of a chunk."""
        self._given = 0
        self._samples: list[bytes] = []  # all of the chunk, or those made up to now
        self._size = 0
        self._behind: tuple[State, bool] | None = None  # the source's state behind it, and whether that is the end
        data = self._store.get(self._chunk) if self._sound else None
        if data is not None:
            before, samples, behind = loaded(data, self._chunk)
            if before == self._before:  # else somebody has cut the stream otherwise
                self._samples, self._behind, self._source = samples, behind, None
        if self._behind is None and self._source is None:
            self._open()

    def _open(self) -> ReadAgain:
        self._source = ReadAgain(listened(self._dataset, self._state, "CacheDataset"), self._loaded)
        self._loaded, self._calls = None, 0
        return self._source

    def __next__(self) -> T:
        while True:
            sample = self._next_one()
            if self._given > self._skip:
                return sample

    def _next_one(self) -> T:
        while self._behind is not None:
            if self._given < len(self._samples):
                self._given += 1
                sample: T = loaded(self._samples[self._given - 1], self._before + self._given - 1)
                return sample
            self._leave(*self._behind)
        return self._make()

    def _leave(self, state: State, ended: bool) -> None:
        if ended:
            raise StopIteration
        self._chunk, self._before, self._state = self._chunk + 1, self._before + len(self._samples), state
        if self._source is not None:
            self._calls = self._source.calls
            self._source.forget(self._calls)
        self._skip = max(0, self._skip - len(self._samples))
        self._enter()

    def _make(self) -> T:
        source = self._source or self._open()  # there is none where it could not be opened before
        try:
            sample: T = next(source)
            data = pickled(sample, self._before + self._given)
        except StopIteration:
            self._finish(ended=True)
            raise
        except BaseException:  # Ctrl-C too
            self._sound = False  # what is missing now may be there the next time, and move all that follows
            raise
        self._samples.append(data)
        self._given += 1
        self._size += len(data)
        if self._size >= _CHUNK:
            self._finish(ended=False)
        return sample

    def _finish(self, ended: bool) -> None:
        """The chunk is made."""
        assert self._source is not None
        self._behind = self._source.state_dict(), ended
        if self._sound:
            self._store.put(self._chunk, pickle.dumps((self._before, self._samples, self._behind), protocol=5))

    def state_dict(self) -> State:
        state: State = {"chunk": self._chunk, "before": self._before, "given": max(self._given, self._skip)}
        if not self._sound:
            state["unsound"] = True
        if self._source is not None:
            state |= self._source.told_since(self._calls)
        return state if self._state is None else state | {"source": self._state}
