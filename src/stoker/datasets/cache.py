"""Samples that are made once and cached: in memory shared by all workers, on disk, or both."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from stoker._core.worker_info import current
from stoker.datasets.awaited import then
from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.cache_store import Folder, Memory, Store
from stoker.datasets.combining import OverStream, become_stream, checked, positive, shard_of
from stoker.datasets.gather import describe
from stoker.datasets.read_again import ReadAgain
from stoker.datasets.sample_record import is_pickle, recorded, sample_of
from stoker.datasets.stream import State, StreamIterator, count, part
from stoker.datasets.worker_share import resume_and_report

T = TypeVar("T")

_CHUNK = 1 << 22
"""Bytes of samples that a stream stores together."""
_CHUNKS = 1 << 16
"""Chunks of a stream that are stored at most: 256 GiB of each shard."""


class CacheDataset(Dataset[T]):
    """The samples of a dataset, each made once and then cached.

    Each access returns a new object, which may be changed. A sample stays as it was first made, so put random
    augmentation above the cache, and slow, deterministic work below it. Nothing is evicted: samples that do not fit are
    made again each time. (An epoch visits each sample once, so eviction would only replace a cached sample by one that
    is needed no sooner.)

    `memory` is shared by all workers, forked or clean, in all epochs, and is freed with the last process that uses it.
    `folder` outlives them: it holds one file for each `key`, which jobs on the same machine may share, and which stays
    until you delete it. Any number of processes read and write at once, without waiting for each other, and may be
    killed at any moment: a sample is found complete or not at all, on disk too (by a checksum). Use a local disk.

    Samples on disk are no pickles if they are None, numbers, texts, bytes, NumPy arrays, tensors, and tuples, lists and
    dicts of them: reading them executes nothing, so several users may share the folder, and each reads the files that
    the system lets it read. Other samples are pickled, into a folder `pickles` within `folder`, of mode 700. A folder
    or file of another user than root is refused for them.

    Over a stream, the result is a stream. The first pass stores the samples in chunks of 4 MiB, each with the source's
    state after it. The next pass reads the chunks, and after them the source, because the first pass may have been
    abandoned or killed. The order of the first pass is stored too, so shuffle above the cache. After an error of the
    source the rest of a pass is not stored. Each shard has its own file, and so has each of several workers if the
    loader does not divide the stream (`worker_init_fn`, `shard="none"`). The state holds the source's state before the
    chunk, so it does not need the files with which it was taken.

    Args:
        dataset: by index or a stream. The epoch is not passed on to it.
        memory: the memory to use, in bytes, including 16 for each sample of the dataset. By index only.
        folder: the folder for samples on disk; created if it does not exist.
        key: names the version of the samples, for instance "photos of May, 224 pixels". Change it when the data or the
            code below has changed, and the samples are made again. The dataset's length counts too.
        disk: the maximum size of the file of this key (and of each shard of a stream), in bytes; None for no limit. A
            file of pickles has this size besides.

    Raises:
        TypeError: `dataset` is not a dataset or has no length, or another argument has a wrong type. At access: a
            sample cannot be pickled.
        ValueError: neither `memory` nor `folder` is given, or `memory` for a stream, or `folder` without `key`, or
            `memory` or `disk` is too small.
        MemoryLimitError: the machine or the container has less memory available than `memory`.
        OSError: the folder cannot be used.
        FolderOwnerError: at access, a sample can only be pickled, and the folder belongs to another user.
        RuntimeError: at access, a sample on disk cannot be unpickled: its class has changed.
        ShardingError: while iterating, the stream calls `get_worker_info()` although the loader divides it: the share
            of one worker would be stored as the whole.
    """

    stoker_protocol = True
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
                f"key is {key!r}, expected a text that names the version of the samples: samples on disk outlive the "
                "program, and only a new key shows that they are out of date"
            )
        if disk is not None and folder is None:
            raise ValueError("disk= limits the size of a file in a folder: pass folder= and key= too")
        if is_stream(dataset):
            if memory is not None:
                raise ValueError("memory= is for a dataset by index: cache a stream in a folder, pass folder= and key=")
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
        """Returns the source's sample at `index`, cached or made.

        An index other than a number from 0 to the source's length at construction is passed to the source.
        """
        number = self._number(index)
        data = None if number is None else self._find(number)
        if data is None:
            made: T = then(self.dataset[index], partial(self._keep, number))
            return made
        sample: T = sample_of(data, number)
        return sample

    def describe(self, index: Any) -> Any:
        """Returns the source's description of its sample at `index`, if it offers `describe`; else None."""
        return describe(self.dataset, index)

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[T]]:
        """Returns a function that fetches several samples. Exists only if the source has `__getitems__`, which fetches
        the missing samples.

        Raises:
            AttributeError: the source has no `__getitems__`.
        """
        fetch = self.dataset.__getitems__

        def samples(indices: Sequence[Any]) -> list[T]:
            numbers = [self._number(index) for index in indices]
            stored = [None if number is None else self._find(number) for number in numbers]
            missing = [index for index, data in zip(indices, stored, strict=True) if data is None]

            def completed(fetched: Any) -> list[T]:
                if len(fetched) != len(missing):  # the samples cannot be assigned to indices
                    raise ValueError(
                        f"{type(self.dataset).__name__}.__getitems__ gave {len(fetched)} samples, expected "
                        f"{len(missing)}, one for each index"
                    )
                rest = iter(fetched)
                return [
                    self._keep(number, next(rest)) if data is None else sample_of(data, number)
                    for number, data in zip(numbers, stored, strict=True)
                ]

            whole: list[T] = then(fetch(missing) if missing else [], completed)
            return whole

        return samples

    def _file(self, folder: str, key: str | None) -> Store:
        identity = "stream" if is_stream(self.dataset) else "by index", key
        return Folder(folder, identity, self._slots, self.disk)

    def _number(self, index: Any) -> int | None:
        if type(index) is not int:
            if isinstance(index, bool) or getattr(index, "ndim", False) or "bool" in str(getattr(index, "dtype", "")):
                return None  # arrays and tensors take it as a mask, or as several indices
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
            data = recorded(sample, number, plain=self.folder is not None)
            for store in self._stores:
                store.put(number, data)
        return sample


class _CacheStream(CacheDataset[T], OverStream[T]):
    folder: str

    def shard(self, num_shards: int, index: int) -> CacheDataset[T]:
        source = shard_of(self.dataset, num_shards, index)
        key = f"{self.key} (shard {index} of {num_shards})"
        return CacheDataset(source, folder=self.folder, key=key, disk=self.disk)

    def _begin(self, state: State | None) -> StreamIterator[T]:
        store = self._stores[0]
        worker = current.one_of_several
        if worker is not None and current.reading.on_part is None:  # not divided by the loader
            store = self._file(self.folder, f"{self.key} (worker {worker[0]} of {worker[1]})")
        return _Cached(self.dataset, store, state)


class _Cached(StreamIterator[T]):
    """Iterator that has given `_given` samples of chunk `_chunk`, which begins after `_before` samples.

    A chunk is read from the store, or made from the source and then stored. After an error the rest of the pass is made
    but not stored, because later samples may have moved.
    """

    def __init__(self, dataset: Any, store: Store, state: State | None) -> None:
        self._dataset = dataset
        self._store = store
        self._chunk, self._before = count(state, "chunk"), count(state, "before")
        self._state = part(state, "source") if state and "source" in state else None  # the source's before the chunk
        self._skip = count(state, "given")  # samples of the chunk that were given before
        self._sound = state is None or not state.get("unsound")
        self._source: ReadAgain | None = None
        self._loaded = state  # lists the source's errors that were raised before, to skip
        self._calls = 0  # of the source before the chunk
        self._enter()

    def _enter(self) -> None:
        """Enters the chunk at its start."""
        self._given = 0
        self._samples: list[bytes] = []  # all of the chunk, or those made so far
        self._size = 0
        self._behind: tuple[State, bool] | None = None  # the source's state after the chunk, and whether it is the end
        data = self._store.get(self._chunk) if self._sound else None
        if data is not None:
            before, samples, behind = sample_of(data, self._chunk)
            if not is_pickle(data) and any(map(is_pickle, samples)):  # not written by this class
                samples, behind = [], None
            if before == self._before:  # else another pass has cut the stream differently
                self._samples, self._behind, self._source = samples, behind, None
        if self._behind is None and self._source is None:
            self._open()

    def _open(self) -> ReadAgain:
        self._source = ReadAgain(resume_and_report(self._dataset, self._state, "CacheDataset"), self._loaded)
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
                sample: T = sample_of(self._samples[self._given - 1], self._before + self._given - 1)
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
        source = self._open() if self._source is None else self._source  # not open if opening failed before
        try:
            sample: T = next(source)
            data = recorded(sample, self._before + self._given)
        except StopIteration:
            self._finish(ended=True)
            raise
        except BaseException:  # Ctrl-C too
            self._sound = False  # a sample missing now may come the next time, and move all later ones
            raise
        self._samples.append(data)
        self._given += 1
        self._size += len(data)
        if self._size >= _CHUNK:
            self._finish(ended=False)
        return sample

    def _finish(self, ended: bool) -> None:
        """Completes the chunk and stores it."""
        assert self._source is not None
        self._behind = self._source.state_dict(), ended
        if self._sound:
            plain = not any(map(is_pickle, self._samples))
            self._store.put(self._chunk, recorded((self._before, self._samples, self._behind), self._chunk, plain))

    def state_dict(self) -> State:
        state: State = {"chunk": self._chunk, "before": self._before, "given": max(self._given, self._skip)}
        if not self._sound:
            state["unsound"] = True
        if self._source is not None:
            state |= self._source.state_since(self._calls)
        return state if self._state is None else state | {"source": self._state}
