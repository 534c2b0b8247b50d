"""Tar shards as a dataset by index."""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from zlib import crc32

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.combining import absolute
from stoker.errors import ShardError, ShardIndexError
from stoker.sources.per_process import OpenFiles
from stoker.sources.places import Place, expand_braces, places_of
from stoker.sources.storage import Version, opened_all
from stoker.sources.storage_of import storage_of
from stoker.sources.tar.decode import Decoder, SampleDecoder
from stoker.sources.tar.foreign_index import AllowedPlaces, foreign_index, wids_shards
from stoker.sources.tar.index import Folder, ShardIndex, index_of, local_place
from stoker.sources.tar.members import BLOCK, SMALL_WINDOW, MemberReader, read_sample, warn_of_no_end
from stoker.sources.urls import hub_fingerprint, is_remote, shown


class TarDataset(Dataset[Any]):
    """Samples of tar shards in the WebDataset layout, by index: with a length, a true shuffle, exact resume.

    A sample is a dict: `__key__` (the path of its members up to the first dot of the file name), `__url__` (the shard),
    and an entry for each extension. Samples are in the order of the shards and, in a shard, of their members.

    An index beside each shard (`shard.tar.index`) holds the byte at which each sample begins. It is made at first use
    (see `index_shards`); in a folder that cannot be written, it lives in memory. Indexes of Megatron-Energon
    (`shard.tar.idx`), DALI (`shard.idx`) and webshart (`shard.json`) are used if there are such. Every read checks that
    the sample lies at the index's place. Memory: 12 bytes for each sample.

    Each process opens shards when it first needs them, at most 64 at once; none is open when the dataset is made.
    Thread safe.

    Args:
        shards: a path, a glob pattern (`*.tar`), a brace pattern (`train-{000..127}.tar`), a URL of an object store or
            a web server, a list of these, or a wids index (`.json`), which names shards.
        decode: False leaves bytes. True decodes by extension: images (jpg, png, webp) with Pillow in the mode of the
            file, json, cls, txt, npy, npz, pth. A mapping from extensions to functions of bytes adds decoders, or
            replaces these.
        transform: a function of the decoded sample, whose result is the sample.
        index_folder: a folder of this machine for the indexes. None for beside the shards, or for remote ones the
            user's cache folder (`~/.cache/stoker/indexes`); an index beside a remote shard is used, too.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.
        allowed_hosts: hosts (`data.example.com`), buckets (`s3://bucket`) or repositories of the Hub that a wids index
            may name. Those of the given places, and folders of the given places, are allowed.

    Raises:
        FileNotFoundError: a path or pattern leads to no file.
        PlaylistError: a wids index names a shard on another host, or outside of its folder.
        ValueError: there are no shards, or no samples in them.
        ShardError: a shard is truncated or damaged.
        ShardIndexError: an index does not belong to its shard.
        DuplicateKeyError: two samples of a shard have the same key.

    Attributes:
        shards: the paths of the shards, in order.

    At each access:
        IndexError: the index is out of range.
        ShardError, ShardIndexError: the shard was damaged or changed since.
        RecordError: a member cannot be decoded.
    """

    stoker_protocol = True

    def __init__(
        self,
        shards: Place | Iterable[Place],
        *,
        decode: bool | Mapping[str, Decoder] = True,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        index_folder: Folder | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
        allowed_hosts: Iterable[str] = (),
    ) -> None:
        self._decoder = SampleDecoder(decode, transform)
        self._places, self._claims = _shards_of(places_of(shards, "shards", storage_options), allowed_hosts)
        self.shards = [shown(path) for path in self._places]
        storage = storage_of(self._places, storage_options, cache, cache_size)
        self._files = OpenFiles(storage)
        indexes = []
        for path, file in zip(self._places, opened_all(storage, self._places), strict=True):
            has_own = is_remote(path) or os.path.exists(local_place(path, index_folder))
            others = None if has_own else foreign_index(path, file)
            indexes.append(index_of(path, file, storage, index_folder) if others is None else others)
        self._keep(indexes)

    def _keep(self, indexes: list[ShardIndex]) -> None:
        without_end = [path for path, index in zip(self.shards, indexes, strict=True) if not index.has_end]
        for path, index in zip(self.shards, indexes, strict=True):
            claim = self._claims.get(path, len(index))
            if claim > len(index) and not index.has_end:
                raise ShardError(
                    f"{path} ends at byte {index.version.size}, behind {len(index)} samples and without an end mark, "
                    f"but the wids index names {claim}: the shard is truncated. Was it copied or written completely?"
                )
            if claim != len(index):
                raise ShardIndexError(
                    f"{path} has {len(index)} samples, but the wids index names {claim}: it is of another "
                    "shard. Pass the shards themselves, or make the index anew."
                )
        if without_end:
            warn_of_no_end(without_end[0], len(without_end) - 1)
        self._versions: list[Version] = [index.version for index in indexes]
        self._ends: list[int] = np.cumsum([len(index) for index in indexes]).tolist()
        if not self._ends[-1]:
            raise ValueError(f"there is no sample in {len(self.shards)} shards: {self.shards[:3]}")
        # one column for all shards: sample s of shard k has row s + k + the number of samples in shards before it
        self._offsets = np.concatenate([index.offsets for index in indexes])
        nothing = [np.zeros(len(index), np.uint32) if index.checks is None else index.checks for index in indexes]
        self._checks = np.concatenate(nothing)
        self._checked = [index.checks is not None for index in indexes]

    @property
    def fingerprint(self) -> str | None:
        """The commits of files on the Hugging Face Hub, with which a state is compared; None for other places."""
        return hub_fingerprint(self.shards)

    def __len__(self) -> int:
        """Returns the number of samples."""
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        """Returns the sample at `index`; a negative index counts from the end."""
        return self._decoder(self._raw(absolute(index, len(self))))

    def describe(self, index: int) -> str:
        """Returns the shard, byte and, if it can be read, the key of the sample at `index`."""
        number = absolute(index, len(self))
        shard, begin, _ = self._place(number)
        message = f"sample {number}: {self.shards[shard]}, byte {begin}"
        with contextlib.suppress(OSError, ValueError):
            reader = self._reader(number)
            message += f", key {reader.key!r}"
        return message

    def _place(self, number: int) -> tuple[int, int, int]:
        """Returns the shard of a sample, and the bytes at which the sample begins and ends."""
        shard = bisect.bisect_right(self._ends, number)
        row = number + shard
        return shard, int(self._offsets[row]), int(self._offsets[row + 1])

    def _reader(self, number: int) -> MemberReader:
        """Returns a reader that holds the bytes of a sample, at its first member.

        Raises:
            ShardIndexError: the sample is not there.
        """
        shard, begin, end = self._place(number)
        path = self.shards[shard]
        file = self._files.get(self._places[shard], self._versions[shard])
        if file.version != self._versions[shard]:
            self._files.close()
            raise self._changed(shard, begin, "the shard was changed since it was indexed")
        data = file.read(begin, end - begin)
        if len(data) < end - begin:
            raise ShardError(f"{path} ends at byte {begin + len(data)}, within sample {number}, which ends at {end}")
        if self._checked[shard] and crc32(data[:BLOCK]) != self._checks[number]:
            raise self._changed(shard, begin, "another member lies there")
        reader = MemberReader(file, path, begin, window=SMALL_WINDOW)
        reader.hold(data, begin)
        try:
            member = reader.advance()
        except ShardError as error:
            if not self._checked[shard]:
                raise self._changed(shard, begin, str(error)) from None
            raise
        if not member:
            raise self._changed(shard, begin, "no member lies there")
        return reader

    def _raw(self, number: int) -> dict[str, Any]:
        shard, begin, end = self._place(number)
        reader = self._reader(number)
        reader.stop = end
        sample = read_sample(reader, self.shards[shard])
        if reader.key is not None:
            raise self._changed(shard, begin, f"the sample {sample['__key__']!r} ends before byte {end}")
        return sample

    def _changed(self, shard: int, begin: int, what: str) -> ShardIndexError:
        return ShardIndexError(
            f"{self.shards[shard]}, byte {begin}: {what}. Its index does not belong to it: make it anew with "
            "stoker.index_shards(shards, overwrite=True), and delete indexes of other libraries."
        )


def _shards_of(places: list[str], allowed_hosts: Iterable[str]) -> tuple[list[str], dict[str, int]]:
    """Returns the shards, and for those that a wids index names, the number of samples that it gives."""
    shards: list[str] = []
    claims: dict[str, int] = {}
    allowed = AllowedPlaces(places, allowed_hosts)
    for place in places:
        named = wids_shards(place) if place.endswith(".json") and not is_remote(place) else None
        if named is None:
            shards.append(place)
            continue
        claims |= dict(named)
        allowed.check([url for text, _ in named for url in expand_braces(text) if is_remote(url)], place)
        files = places_of([path for path, _ in named], "shards of a wids index")
        allowed.check(files, place)
        shards += files
    return shards, claims
