"""The shards of an MDS folder, as its index.json describes them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from stoker.errors import ShardError
from stoker.sources.lines.opened_text import zstd_module
from stoker.sources.mds.folder import FoundFile, MDSFolder
from stoker.sources.storage import Version
from stoker.sources.urls import shown

_COMPRESSIONS = ("zstd", "gz", "bz2")


@dataclass(frozen=True)
class Shard:
    """A shard, as index.json describes it.

    Attributes:
        path: of the file that is there: the shard, or its compressed form. Of a URL, without secrets.
        place: its path or URL.
        compression: its name; None if the file is the shard itself.
        samples: their number.
        size: of the shard in bytes, decompressed.
        version: of the file.
        names: of the columns.
        encodings: of the columns.
        sizes: of the columns; None where each sample states it.
    """

    path: str
    place: str = field(repr=False)
    compression: str | None
    samples: int
    size: int
    version: Version
    names: list[str]
    encodings: list[str]
    sizes: list[int | None]


def shards_in(folder: MDSFolder) -> list[Shard]:
    """Returns the shards of a folder, in order.

    Raises:
        FileNotFoundError: there is no index.json, or a shard is missing.
        ShardError: index.json is damaged or of another format, or a shard is truncated.
        MissingExtraError: a shard is compressed with zstd, and its package is not installed.
        ValueError: a shard is compressed in another way.
        OSError: the folder cannot be read.
    """
    path, contents = shown(folder.index), folder.read_index()
    try:
        index = json.loads(contents)
        if index["version"] != 2:
            raise ValueError(f"its version is {index['version']}, expected 2")
        entries = list(index["shards"])
        for entry in entries:
            if entry["format"] != "mds":
                raise ValueError(f"the format of a shard is {entry['format']!r}, expected 'mds'")
        names = [_names(entry) for entry in entries]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _damaged(path, error) from error
    files = folder.found(names)
    if missing := [shown(folder.place_of(each[0])) for each, file in zip(names, files, strict=True) if file is None]:
        raise FileNotFoundError(
            f"{len(missing)} of {len(entries)} shards of {path} are missing: {missing[:3]}. Copy them there"
        )
    shards: list[Shard] = []
    for entry, found in zip(entries, files, strict=True):
        assert found is not None
        compression = _compression(entry, found)
        try:
            shards.append(_shard(entry, found, compression, shards[-1] if shards else None))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise _damaged(path, error) from error
    return shards


def _damaged(path: str, error: Exception) -> ShardError:
    return ShardError(f"{path} is damaged, or not of MDS: {error!r}")


def _names(entry: dict[str, Any]) -> list[str]:
    """Returns the names of the files that hold a shard: of the shard, and of its compressed form if there is one."""
    forms = [entry["raw_data"], *([entry["zip_data"]] if entry.get("zip_data") else [])]
    names = [str(form["basename"]) for form in forms]
    for name in names:
        if os.path.basename(name) != name:
            raise ValueError(f"{name!r} is no name of a file in the folder")
    return names


def _compression(entry: dict[str, Any], file: FoundFile) -> str | None:
    """Returns the name of the compression of the file that is there; None if it is the shard itself."""
    if file.name == entry["raw_data"]["basename"]:
        return None
    compression = str(entry["compression"]).partition(":")[0]
    if compression not in _COMPRESSIONS:
        raise ValueError(
            f"{shown(file.place)} is compressed with {compression!r}; {', '.join(_COMPRESSIONS)} can be read. "
            "Decompress the shards beside the compressed ones"
        )
    if compression == "zstd":
        zstd_module()
    return compression


def _shard(entry: dict[str, Any], file: FoundFile, compression: str | None, before: Shard | None) -> Shard:
    """Returns a shard; it shares the lists of its columns with the one before it, if they are alike."""
    path = shown(file.place)
    raw_size = int(entry["raw_data"]["bytes"])
    size = raw_size if compression is None else int(entry["zip_data"]["bytes"])
    if file.version.size != size:
        raise ShardError(
            f"{path} has {file.version.size:,} bytes, and {size:,} in index.json: was it written and copied completely?"
        )
    names, encodings, sizes = (list(entry[f"column_{what}"]) for what in ("names", "encodings", "sizes"))
    if not len(names) == len(encodings) == len(sizes):
        raise ValueError(f"names, encodings and sizes of the columns of {path} are not of one length")
    if before is not None and (names, encodings, sizes) == (before.names, before.encodings, before.sizes):
        names, encodings, sizes = before.names, before.encodings, before.sizes
    samples = int(entry["samples"])
    return Shard(path, file.place, compression, samples, raw_size, file.version, names, encodings, sizes)
