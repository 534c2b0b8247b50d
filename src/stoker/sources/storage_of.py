"""`storage_of`: the store of a place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from stoker.sources.cached_storage import cached
from stoker.sources.hub_place import is_on_hub
from stoker.sources.hub_store import HubStorage
from stoker.sources.object_store import ObjectStorage
from stoker.sources.storage import File, LocalStorage, Storage, Version, opened
from stoker.sources.urls import is_remote


class LocalAndRemote:
    """Files of this machine, by path, and objects of stores, by URL.

    Args:
        storages: one for each kind of place.
    """

    def __init__(self, storages: Mapping[str, Storage]) -> None:
        self._storages = storages

    def open(self, path: str) -> File:
        return self._of(path).open(path)

    def open_known(self, path: str, version: Version) -> File:
        return opened(self._of(path), path, version)

    def read(self, path: str, begin: int, length: int) -> bytes:
        return self._of(path).read(path, begin, length)

    def _of(self, path: str) -> Storage:
        return self._storages[_kind(path)]


def _kind(place: str) -> str:
    if is_on_hub(place):
        return "hub"
    return "remote" if is_remote(place) else "local"


def remote_storage(place: str, storage_options: Mapping[str, Any] | None) -> ObjectStorage:
    """Returns the store from which a URL can be read."""
    return HubStorage(storage_options) if is_on_hub(place) else ObjectStorage(storage_options)


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
        MissingExtraError: obstore, or for the Hub huggingface_hub, is not installed, and a place is a URL.
        TypeError, ValueError: `cache` without `cache_size`, or the other way round, or a size that is too small; or a
            token is for two kinds of stores.
        OSError: the folder of the cache cannot be written.
    """
    places = [places] if isinstance(places, str) else places
    examples = {_kind(place): place for place in places}
    if {"hub", "remote"} <= set(examples) and "token" in (storage_options or {}):
        raise ValueError(
            "storage_options has a token, and places lie both on the Hugging Face Hub and in other stores: it would be "
            "sent to both. Pass the Hub's token as HF_TOKEN, or that of the other store as session_token."
        )
    storages: dict[str, Storage] = {
        kind: LocalStorage() if kind == "local" else remote_storage(place, storage_options)
        for kind, place in examples.items()
    }
    storage: Storage = LocalAndRemote(storages) if len(storages) > 1 else next(iter(storages.values()), LocalStorage())
    return cached(storage, cache, cache_size, name=str((storage_options or {}).get("endpoint", "")))
