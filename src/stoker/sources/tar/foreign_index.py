"""Indexes of tar shards that other libraries have written, so that a shard need not be scanned.

| library | file | content |
|---|---|---|
| Megatron-Energon | `shard.tar.idx` | the byte at which each sample begins, and the end: uint64 |
| DALI (`wds2idx`) | `shard.idx` | text: a line for each sample with extension, offset, size and name of its members |
| webshart, cheesechaser | `shard.json` | JSON: offset and length (or size) of each member |
| wids | one JSON for all shards | the shards with their numbers of samples, no offsets |

Members of a tar file lie one behind the other. So the byte at which a sample begins follows from the end of the member
before it, also where only the offsets of the data are known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from stoker.errors import PlaylistError, ShardError, ShardIndexError
from stoker.sources.per_process import Once
from stoker.sources.storage import File, Storage
from stoker.sources.tar.index import Folder, ShardIndex, existing_index
from stoker.sources.tar.members import is_of_a_sample, padded, warn_of_no_end
from stoker.sources.urls import hub_place, is_on_hub, is_remote, parsed, shown


def foreign_index(path: str, file: File) -> ShardIndex | None:
    """Returns the index that another library has written beside a shard; None if there is none.

    Raises:
        ShardIndexError: the file does not belong to the shard: it is damaged, or names bytes behind the shard's end.
    """
    stem = path.removesuffix(".tar")
    folder, name = os.path.split(path)
    dali = os.path.join(folder, name[: name.find(".", 1)] + ".idx")
    for candidate, read in ((f"{stem}.tar.idx", _energon), (dali, _dali), (f"{stem}.json", _members_in_json)):
        if not os.path.isfile(candidate):
            continue
        try:
            offsets = read(candidate)
        except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise ShardIndexError(f"{candidate} is not a whole index of {path} ({error}): delete it.") from None
        if offsets is not None:
            return _checked(offsets, candidate, path, file)
    return None


def _checked(offsets: list[int], candidate: str, path: str, file: File) -> ShardIndex:
    array = np.array(offsets, np.uint64)
    size = file.version.size
    if len(array) < 1 or np.any(array % np.uint64(512)) or np.any(array[1:] <= array[:-1]) or int(array[-1]) > size:
        raise ShardIndexError(
            f"{candidate} does not belong to {path}, a shard of {size} bytes: its offsets are not those of members, or "
            f"end at byte {offsets[-1] if offsets else 0}. Delete it; stoker.index_shards makes another."
        )
    return ShardIndex(array, None, file.version)


def _energon(path: str) -> list[int]:
    size = os.path.getsize(path)
    if size % 8 or not size:
        raise ValueError(f"{size} bytes are not a number of 64-bit integers")
    return [int(offset) for offset in np.fromfile(path, "<u8")]


def _dali(path: str) -> list[int]:
    with open(path, encoding="utf-8") as file:
        version, _, count = file.readline().strip().partition(" ")
        lines = file.read().splitlines()
    if version not in ("v1.1", "v1.2"):
        raise ValueError(f"its first line says {version!r}, expected v1.1 or v1.2")
    if len(lines) != int(count):
        raise ValueError(f"it has {len(lines)} samples of {int(count)}")
    step = 4 if version == "v1.2" else 3
    fields = [line.split(" ") for line in lines]
    return _begins(
        [
            (int(one[place + 1]), int(one[place + 2]), sample)
            for sample, one in enumerate(fields)
            for place in range(0, len(one), step)
        ]
    )


def _members_in_json(path: str) -> list[int] | None:
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict):  # a JSON file of another purpose
        return None
    return _begins(_keyed(files))


def _keyed(files: dict[str, dict[str, Any]]) -> Iterator[tuple[int, int, Any]]:
    for name, entry in files.items():
        if is_of_a_sample(name):
            dot = name.find(".", name.rfind("/") + 1)
            yield int(entry["offset"]), int(entry["length"] if "length" in entry else entry["size"]), name[:dot]


def _begins(members: Iterable[tuple[int, int, Any]]) -> list[int]:
    """Returns the byte at which each sample begins, and the end, from (data offset, size, sample) of each member."""
    offsets: list[int] = []
    end = 0
    previous: Any = offsets  # equal to no sample
    for data, size, sample in sorted(members):
        if sample != previous:
            offsets.append(end)
            previous = sample
        end = data + padded(size)
    return [*offsets, end]


def wids_shards(path: str) -> list[tuple[str, int]] | None:
    """Returns the shards that a wids index names, as paths beside it or URLs, with their numbers of samples; None if
    the JSON file is no such index.
    """
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    if not isinstance(content, dict) or "shardlist" not in content:
        return None
    folder = os.path.dirname(path)
    try:
        entries = [(entry["url"], int(entry["nsamples"])) for entry in content["shardlist"]]
        return [(url if is_remote(url) else os.path.join(folder, url), count) for url, count in entries]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: an entry of its shard list lacks 'url' or 'nsamples' ({error!r})") from None


class AllowedPlaces:
    """The places that a playlist may name: folders and hosts that the user has named.

    Args:
        given: places that the user gave, the playlist among them: their folders and hosts are allowed.
        allowed_hosts: others, as `TarDataset` takes them.
    """

    def __init__(self, given: Iterable[str], allowed_hosts: Iterable[str]) -> None:
        if isinstance(allowed_hosts, str):
            raise TypeError(f"allowed_hosts is a text, expected a list of hosts: [{allowed_hosts!r}]")
        self._hosts = {_host_of(host) if is_remote(host) else host.lower() for host in allowed_hosts}
        self._folders = set()
        for place in given:
            if is_remote(place):
                self._hosts.add(_host_of(place))
            else:
                self._folders.add(os.path.dirname(os.path.abspath(place)))

    def check(self, places: Iterable[str], playlist: str) -> None:
        """Checks places that a playlist names."""
        for place in places:
            if is_remote(place):
                if _host_of(place) not in self._hosts:
                    raise PlaylistError(
                        f"{playlist} names {shown(place)}, whose host neither the playlist nor another of the given "
                        f"places is on. If it is right, allow it: allowed_hosts=[{_host_of(place)!r}]"
                    )
            elif not any(_is_below(place, folder) for folder in self._folders):
                raise PlaylistError(
                    f"{playlist} names {place}, which lies outside of the playlist's folder. If it is right, pass the "
                    "shards themselves, or move the playlist into a folder above them (allowed_hosts= is for URLs)."
                )


def _host_of(place: str) -> str:
    """Returns the host of a URL as `host:port`, or the bucket as `s3://bucket`, or the repository of the Hub."""
    if is_on_hub(place):
        hub = hub_place(place)
        return f"hf://{hub.repository}" if hub.kind == "model" else f"hf://{hub.kind}s/{hub.repository}"
    url = parsed(place)
    if url.kind == "http":
        return urlsplit(shown(place)).netloc.lower()
    return f"{url.kind}://{url.root}" + (f"@{url.account}" if url.account else "")


def _is_below(path: str, folder: str) -> bool:
    if ".." in path.split(os.sep):  # which may lead through a link
        path, folder = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath([os.path.abspath(path), folder]) == folder


def check_no_end(path: str, file: File, storage: Storage, folder: Folder | None, once: Once) -> None:
    """Warns of a shard that is read in sequence and has no end mark, once for a stream."""
    size = file.version.size
    try:
        own = existing_index(path, storage, folder)
        index = own[0] if own is not None else None if is_remote(path) else foreign_index(path, file)
    except ShardIndexError as error:
        raise ShardError(
            f"{shown(path)} ends at byte {size} without an end mark, and its index does not fit: {error}"
        ) from None
    if index is not None and max(index.version.size, int(index.offsets[-1])) > size:
        raise ShardError(
            f"{shown(path)} ends at byte {size} without an end mark, but its index is of a shard of "
            f"{index.version.size} bytes with {len(index)} samples: the shard is truncated. Was it copied or written "
            "completely?"
        )
    if once.is_first():
        warn_of_no_end(shown(path))
