"""`storage_of`: the store of a place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stoker.sources.object_store import ObjectStorage
from stoker.sources.storage import File, LocalStorage, Storage, Version, opened
from stoker.sources.urls import is_remote


class LocalAndRemote:
    """Files of this machine, by path, and objects of stores, by URL.

    Args:
        storage_options: see `ObjectStorage`.
    """

    def __init__(self, storage_options: Mapping[str, Any] | None) -> None:
        self._local = LocalStorage()
        self._remote = ObjectStorage(storage_options)

    def open(self, path: str) -> File:
        return self._of(path).open(path)

    def open_known(self, path: str, version: Version) -> File:
        return opened(self._of(path), path, version)

    def read(self, path: str, begin: int, length: int) -> bytes:
        return self._of(path).read(path, begin, length)

    def _of(self, path: str) -> Storage:
        return self._remote if is_remote(path) else self._local


def storage_of(places: str | Iterable[str], storage_options: Mapping[str, Any] | None = None) -> Storage:
    """Returns the store from which a place, or each of several, can be read. Nothing is opened.

    Args:
        places: paths, and URLs of object stores or web servers.
        storage_options: of the object store, see `ObjectStorage`; ignored for local files.

    Raises:
        MissingExtraError: obstore is not installed, and a place is a URL.
    """
    places = [places] if isinstance(places, str) else places
    remote = {is_remote(place) for place in places}
    if remote == {True, False}:
        return LocalAndRemote(storage_options)
    return ObjectStorage(storage_options) if True in remote else LocalStorage()
