"""A listing of folders in a file, so that the next start lists only folders that have changed.

The file is written whole and then renamed; it ends with nothing that the header does not state, and a checksum covers
its contents. A file that is damaged, of another version or of another listing is written anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker.sources.listing import ListedFolder, counts_of, names_of
from stoker.sources.path_column import decoded, encoded

_FORMAT = b"stoker listing 1\n"
_log = logging.getLogger("stoker")

Key = dict[str, Any]
"""Plain values that identify a listing."""


def place_of(key: Key) -> Path:
    """Returns the file of a listing in the user's cache folder: `$XDG_CACHE_HOME`, or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    digest = hashlib.sha256(json.dumps(key).encode("utf-8", "surrogatepass")).hexdigest()
    return Path(base) / "stoker" / "listings" / f"{digest[:32]}.listing"


def load(path: Path, key: Key) -> list[ListedFolder]:
    """Returns the folders of the listing in a file; none if there is no such file, or another listing in it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        _log.info("the cached listing %s cannot be read, so folders are listed again: %s", path, error)
        return []
    try:
        return _unpacked(data, key)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        _log.info("the cached listing %s is not used, and is written anew: %s", path, error)
        return []


def save(path: Path, key: Key, folders: Sequence[ListedFolder]) -> None:
    """Writes a listing, whole or not at all. Several processes may do so at once: one of their files stays.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.writelines(_packed(key, folders))
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise


def _packed(key: Key, folders: Sequence[ListedFolder]) -> list[bytes]:
    paths = encoded("\0".join([*(folder.path for folder in folders), ""]) if folders else "")
    stamps = np.array([folder.stamp for folder in folders], np.uint64).reshape(-1, 3)
    sizes = np.array([len(folder.names) for folder in folders], np.int64)
    parts = [paths, stamps.tobytes(), counts_of(folders).tobytes(), sizes.tobytes(), names_of(folders)]
    header = {**key, "sizes": list(map(len, parts)), "checksum": _checksum(parts)}
    return [_FORMAT, json.dumps(header).encode() + b"\n", *parts]


def _unpacked(data: bytes, key: Key) -> list[ListedFolder]:
    """Returns the folders in a file's contents.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: the contents are damaged, or those of another listing.
    """
    if not data.startswith(_FORMAT):
        raise ValueError("it does not begin as a listing of this version does")
    end = data.index(b"\n", len(_FORMAT)) + 1
    header = json.loads(data[len(_FORMAT) : end])
    if {name: header[name] for name in key} != key:
        raise ValueError("it is the listing of another folder")
    view, parts = memoryview(data), []
    for size in header["sizes"]:
        parts.append(view[end : end + size])
        end += size
    if end != len(data) or _checksum(parts) != header["checksum"]:
        raise ValueError("its checksum is wrong: the file is damaged")
    paths, stamps, counts, sizes, names = parts
    ends = np.cumsum(np.frombuffer(sizes, np.int64)).tolist()
    rows = zip(
        decoded(paths).split("\0")[:-1],
        np.frombuffer(stamps, np.uint64).reshape(-1, 3).tolist(),
        np.frombuffer(counts, np.int64).tolist(),
        [0, *ends],
        ends,
        strict=False,
    )
    return [
        ListedFolder(path, (stamp[0], stamp[1], stamp[2]), files, names[start:stop])
        for path, stamp, files, start, stop in rows
    ]


def _checksum(parts: Sequence[bytes | memoryview]) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
