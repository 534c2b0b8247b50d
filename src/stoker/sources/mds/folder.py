"""Where an MDS folder lies, and which of its files are there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stoker.sources.places import places_of
from stoker.sources.storage import LocalStorage, Version, opened_all
from stoker.sources.storage_of import storage_of
from stoker.sources.urls import check_local, is_remote, scheme_of, shown

INDEX = "index.json"


class FoundFile(NamedTuple):
    """A file of a folder that is there.

    Attributes:
        name: of the file in the folder.
        place: its path or URL.
        version: of the file.
    """

    name: str
    place: str
    version: Version


class MDSFolder:
    """A folder of this machine, or one whose files are read by URL.

    Args:
        folder: its path or URL.
        storage_options: of object stores, see `ObjectStorage`.
        cache: a folder that keeps the data that is read; None for none.
        cache_size: bytes that the cache may take.

    Raises:
        ValueError: a URL of a scheme that cannot be read, or a pattern leads to several folders.
        OSError: the store cannot be reached, or the folder of the cache cannot be written.

    Attributes:
        path: of the folder; of a URL, without secrets.
        index: the place of index.json.
        storage: from which the files are read.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None,
        cache: str | os.PathLike[str] | None,
        cache_size: int | None,
    ) -> None:
        place = os.fspath(folder)
        if scheme_of(place) == "file" and not os.path.exists(place):
            (place,) = places_of(place, "folders", may_be_folders=True)
        self._is_remote = is_remote(place) and not os.path.exists(place)
        if self._is_remote:
            found = places_of(_joined(place, INDEX), "folders of MDS", storage_options)
            if len(found) > 1:
                raise ValueError(f"{shown(place)} leads to {len(found)} folders: make a dataset of each one")
            self.index = found[0]
            self.path = shown(self.index).removesuffix("/" + INDEX)
        else:
            check_local(place, "folders of MDS")
            self.index, self.path = os.path.join(place, INDEX), place
        self.storage = storage_of(self.index, storage_options, cache, cache_size)

    def read_index(self) -> bytes:
        """Returns the contents of index.json.

        Raises:
            FileNotFoundError: there is none.
            OSError: it cannot be read.
        """
        try:
            file = (self.storage if self._is_remote else LocalStorage()).open(self.index)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"there is no {shown(self.index)}: a folder of MDS has one, each split in a folder of its own"
            ) from None
        return file.read(0, file.version.size)

    def place_of(self, name: str) -> str:
        """Returns the path or the URL of a file of the folder."""
        if not self._is_remote:
            return os.path.join(self.path, name)
        path, mark, query = _split(self.index)
        return path.removesuffix(INDEX) + name + mark + query

    def found(self, names: Sequence[Sequence[str]]) -> list[FoundFile | None]:
        """Returns, for each list of names, the first file that is there; None if none is.

        A store is asked for many files at once, for all by the same place in their lists, and for those that are
        missing one by one.

        Raises:
            OSError: the store cannot be asked.
        """
        if not self._is_remote:
            return [next((file for name in each if (file := self._local(name)) is not None), None) for each in names]
        chosen = [each[0] for each in names]
        several = next((each for each in names if len(each) > 1), None)
        if several is not None and (first := self._first(several)) is not None and first.name == several[-1]:
            chosen = [each[-1] for each in names]
        try:
            places = [self.place_of(name) for name in chosen]
            files = opened_all(self.storage, places)
            return [
                FoundFile(name, place, file.version) for name, place, file in zip(chosen, places, files, strict=True)
            ]
        except (FileNotFoundError, PermissionError):
            return [self._first(each) for each in names]

    def _local(self, name: str) -> FoundFile | None:
        place = self.place_of(name)
        if not os.path.isfile(place):
            return None
        status = os.stat(place)
        return FoundFile(name, place, Version(status.st_size, status.st_mtime_ns))

    def _first(self, names: Sequence[str]) -> FoundFile | None:
        for name in names:
            place = self.place_of(name)
            try:
                return FoundFile(name, place, self.storage.open(place).version)
            except FileNotFoundError:
                pass
            except PermissionError:  # S3's answer for missing objects, to those who may not list
                if name == names[-1]:
                    raise
        return None


def _joined(place: str, name: str) -> str:
    """Returns the URL of a file in a folder."""
    path, mark, query = _split(place)
    return f"{path.rstrip('/')}/{name}{mark}{query}"


def _split(place: str) -> tuple[str, str, str]:
    """Returns a URL up to its query, the question mark, and the query, which signs requests to web servers."""
    return place.partition("?") if scheme_of(place).startswith("http") else (place, "", "")
