"""`storage_of`: the store of a place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from stoker.sources.cached_storage import cached
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


def storage_of(
    places: str | Iterable[str],
    storage_options: Mapping[str, Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | None = None,
) -> Storage:
    """Returns the store from which a place, or each of several, can be read. Nothing is opened.

    Args:
        places: paths, and URLs of object stores or web servers.
        storage_options: of the object store, see `ObjectStorage`; ignored for local files.
        cache: a folder that keeps the data that is read, see `cached`; None for none.
        cache_size: bytes that the cache may take.

    Raises:
        MissingExtraError: obstore is not installed, and a place is a URL.
        TypeError, ValueError: `cache` without `cache_size`, or the other way round, or a size that is too small.
        OSError: the folder of the cache cannot be written.
    """
    places = [places] if isinstance(places, str) else places
    remote = {is_remote(place) for place in places}
    storage: Storage = LocalStorage()
    if True in remote:
        storage = LocalAndRemote(storage_options) if False in remote else ObjectStorage(storage_options)
    return cached(storage, cache, cache_size, name=str((storage_options or {}).get("endpoint", "")))
