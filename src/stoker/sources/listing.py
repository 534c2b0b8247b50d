"""Lists the files in folders, and lists only those folders again that have changed since.

A folder is unchanged if its inode, its time of modification and its time of change are the same. The system sets the
latter whenever a file is added, removed or renamed, and no program can set it back.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stoker.datasets.column import Array
from stoker.errors import FolderError, MissingFolderError, NotAFolderError, UnreadableFolderError
from stoker.sources.path_column import decoded, encoded

Stamp = tuple[int, int, int]
"""Inode, time of modification and time of change of a folder, the times in ns."""

UNSURE: Stamp = (0, 0, 0)
"""The stamp of a folder that is listed again in any case."""

_GRAIN = 2_000_000_000
"""Nanoseconds within which two changes of a folder may get the same time: 2 s in the coarsest file system."""

_QUIET, _EACH = 1.0, 0.1
"""Seconds until the progress line appears, and between two of its texts."""

Accept = Callable[[str], bool]
"""Returns whether a file is to be listed, by its path."""


class ListedFolder(NamedTuple):
    """A folder, and the files in it that were accepted.

    Attributes:
        path: below the root.
        stamp: its state when it was listed.
        names: names of the files as UTF-8, in the order of Python's texts, each with a 0 behind it.
    """

    path: str
    stamp: Stamp
    files: int
    names: bytes | memoryview


class Listing(NamedTuple):
    """All folders below a root, in the order of their paths, class by class."""

    folders: list[ListedFolder]
    changed: bool
    """Whether some folder was not taken from an earlier listing."""


def list_folders(root: str, tops: Iterable[str], accept: Accept, earlier: Iterable[ListedFolder] = ()) -> Listing:
    """Lists the files in and below some folders. Links to folders are followed.

    Args:
        root: path of the folder that holds them.
        tops: their names, in the order of the listing. A name that leads to no folder is left out.
        earlier: an earlier listing with the same `accept`: its unchanged folders are taken as they are.

    Raises:
        FolderError: a folder cannot be listed, or holds itself by a link.
    """
    known = {folder.path: folder for folder in earlier}
    children = _children(known)
    trusted_before = time.time_ns() - _GRAIN
    result = Listing([], False)
    changed = False
    with ProgressLine(root) as progress:
        for top in tops:
            if not os.path.isdir(os.path.join(root, top)):
                continue
            listing = []
            for folder, anew in _walk(root, top, accept, known, children, trusted_before):
                listing.append(folder)
                changed = changed or anew
                progress.add(folder.files)
            result.folders.extend(sorted(listing, key=lambda folder: folder.path))
    return result._replace(changed=changed or len(known) != len(result.folders))


def scan(path: str) -> list[os.DirEntry[str]]:
    """Returns the entries of a folder.

    Raises:
        FolderError: it cannot be listed.
    """
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError as error:
        raise refusal(path, error) from error


def refusal(path: str, error: OSError) -> FolderError:
    """Returns the error of a folder that cannot be listed."""
    kind, cure = FolderError, f"{error.strerror}: the system refused to list it"
    if isinstance(error, FileNotFoundError):
        kind, cure = MissingFolderError, "there is no such folder: check the path, and whether its disk is mounted"
    elif isinstance(error, NotADirectoryError):
        kind, cure = NotAFolderError, "this is a file; an image folder holds a folder for each class"
    elif isinstance(error, PermissionError):
        kind, cure = UnreadableFolderError, f"user {os.geteuid()} may not list it: chmod u+rx, or run as its owner"
    return kind(error.errno, cure, path)


def _walk(
    root: str,
    top: str,
    accept: Accept,
    known: Mapping[str, ListedFolder],
    children: Mapping[str, list[str]],
    trusted_before: int,
) -> Iterator[tuple[ListedFolder, bool]]:
    """Yields a folder and those below it, each with whether it was listed anew."""
    waiting: list[tuple[str, dict[tuple[int, int], str]]] = [(top, {})]
    while waiting:
        path, above = waiting.pop()
        full = os.path.join(root, path)
        try:
            status = os.stat(full)
        except OSError as error:
            raise refusal(full, error) from error
        identity = status.st_dev, status.st_ino
        if identity in above:
            raise FolderError(
                errno.ELOOP,
                f"this is a link to {above[identity]}, which holds it, so that the listing would not end: remove the "
                "link",
                full,
            )
        stamp = status.st_ino, status.st_mtime_ns, status.st_ctime_ns
        folder = known.get(path)
        below = children.get(path, [])
        anew = folder is None or folder.stamp != stamp or not _are_folders(root, below)
        if anew:
            sure = 0 < max(status.st_mtime_ns, status.st_ctime_ns) < trusted_before
            folder, below = _listed(root, path, stamp if sure else UNSURE, accept)
        assert folder is not None
        yield folder, anew
        waiting += ((each, {**above, identity: full}) for each in below)


def _listed(root: str, path: str, stamp: Stamp, accept: Accept) -> tuple[ListedFolder, list[str]]:
    """Returns a folder as it is now, and the paths of the folders in it."""
    full = os.path.join(root, path)
    files, below = [], []
    for entry in scan(full):
        try:
            is_folder = entry.is_dir()
        except OSError:  # a link that leads nowhere: reading the file says why
            is_folder = False
        if is_folder:
            below.append(os.path.join(path, entry.name))
        elif accept(entry.path):
            files.append(entry.name)
    files.sort()
    return ListedFolder(path, stamp, len(files), encoded("\0".join([*files, ""]))), below


def _are_folders(root: str, paths: Iterable[str]) -> bool:
    """Returns whether all of these are still folders: the target of a link may go, and the link stays."""
    return all(os.path.isdir(os.path.join(root, path)) for path in paths)


def _children(known: Mapping[str, ListedFolder]) -> dict[str, list[str]]:
    children: dict[str, list[str]] = {}
    for path in known:
        children.setdefault(os.path.dirname(path), []).append(path)
    return children


class ProgressLine:
    """A line on standard error, while it is a terminal, of a listing that takes longer than a second."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._files = self._folders = 0
        self._next = time.monotonic() + _QUIET
        self._shown = False

    def add(self, files: int) -> None:
        """Counts a folder with this number of files."""
        self._files += files
        self._folders += 1
        if (now := time.monotonic()) >= self._next and sys.stderr is not None and sys.stderr.isatty():
            self._next = now + _EACH
            self._shown = True
            text = f"{self._root}: {self._files:,} files in {self._folders:,} folders"
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def counts_of(folders: Iterable[ListedFolder]) -> Array:
    """Returns the number of files in each folder."""
    return np.array([folder.files for folder in folders], np.int64)


def names_of(folders: Iterable[ListedFolder]) -> bytes:
    """Returns the names of the files of all folders."""
    return b"".join(folder.names for folder in folders)


# A listing of folders in a file, so that the next start lists only folders that have changed. It is written whole and
# then renamed, and has a checksum; a damaged file, or one of another version or listing, is written anew.


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
    """Writes a listing, whole or not at all. Several processes may do so at once: one of their files stays."""
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
