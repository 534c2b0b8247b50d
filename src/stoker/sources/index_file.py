"""Columns of int64 in a file beside the data, or in the user's cache folder, which name the version of the data.

The file holds a line of JSON, padded with spaces to a multiple of 64 bytes, and the columns, little-endian, one after
the other. The line holds what identifies the index, the lengths of the columns, and a checksum of them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import secrets
from typing import Any
from zlib import crc32

import numpy as np

from stoker.sources.urls import is_remote, shown

_ALIGNED = 64
_CANNOT_WRITE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}
_CANNOT_WRITE |= {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.EISDIR}
"""The folder or the name does not take a file."""
_log = logging.getLogger("stoker")

Integers = np.ndarray[Any, np.dtype[np.int64]]


def index_place(path: str, suffix: str, folder: str | os.PathLike[str] | None = None) -> str:
    """Returns the file of this machine in which the index of another one lies, or would.

    Args:
        path: of the file that is indexed, or its URL.
        folder: of indexes; None for the file's own folder, or the user's cache folder if the file is remote.
    """
    if folder is None and not is_remote(path):
        return path + suffix
    if folder is None:
        folder = index_cache()
    place = shown(path) if is_remote(path) else os.path.abspath(path)
    digest = hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    return os.path.join(folder, f"{place.rpartition('/')[2]}.{digest}{suffix}")


def index_cache() -> str:
    """Returns the user's cache folder for indexes that cannot lie beside their files."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "stoker", "indexes")


def save_index(path: str, identity: dict[str, Any], columns: list[Integers]) -> bool:
    """Writes an index to a file, whole or not at all. Where the folder cannot be written, none is written.

    Args:
        path: of the file. Its folder is created if there is none.
        identity: plain values that identify the data and the way in which it was indexed.

    Returns:
        Whether it was written.

    Raises:
        OSError: it cannot be written for another reason; no partial file is left.
    """
    data = b"".join(column.astype("<i8").tobytes() for column in columns)
    line = json.dumps(identity | {"columns": list(map(len, columns)), "check": crc32(data)})
    line += " " * (-(len(line) + 1) % _ALIGNED) + "\n"
    partial = f"{path}.{secrets.token_hex(4)}.partial"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(partial, "xb") as file:
            file.write(line.encode())
            file.write(data)
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        if not isinstance(error, OSError) or error.errno not in _CANNOT_WRITE:
            raise
        _log.info("the index %s cannot be written: it lives in memory, and is made anew the next time", path)
        return False
    return True


def load_index(path: str, identity: dict[str, Any]) -> list[Integers] | None:
    """Returns the columns in a file, or None if there is no whole index of this identity in it."""
    try:
        with open(path, "rb") as file:
            head = json.loads(file.readline())
            if {name: head[name] for name in identity} != identity:
                return None
            lengths, data = list(map(int, head["columns"])), file.read()
        if len(data) != 8 * sum(lengths) or crc32(data) != head["check"]:
            raise ValueError("it is not whole")
        column = np.frombuffer(data, "<i8").astype(np.int64, copy=False)
        return np.split(column, np.cumsum(lengths)[:-1])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.info("the index %s is not used, and is made anew: %s", path, error)
        return None
