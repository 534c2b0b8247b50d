"""`storage_of`, the store of a place, and the files of a source with their store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stoker.sources.cached_storage import CachedStorage, cached
from stoker.sources.hub_store import HubStorage
from stoker.sources.object_store import ObjectStorage
from stoker.sources.places import Place, places_of
from stoker.sources.read_ahead import ahead
from stoker.sources.storage import File, LocalStorage, Storage, Version, opened, opened_all
from stoker.sources.urls import is_on_hub, is_remote, shown


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


# The files of a source, and the store they lie in.


_OF_INDEX = re.compile(r"(.+)\.(?:lines|jsonl|csv|records|frames)\.index(?:\.[0-9a-f]{8}\.partial)?", re.DOTALL)
"""The names of indexes, and of those that are being written."""


@dataclass(frozen=True)
class SourceFiles:
    """Files and their store. Picklable, with the options of the store, which are in no text of it."""

    places: list[str]
    storage: Storage

    @cached_property
    def names(self) -> list[str]:
        """The places for messages, without secrets."""
        return [shown(place) for place in self.places]

    def only(self, number: int) -> SourceFiles:
        """Returns one of the files."""
        return SourceFiles([self.places[number]], self.storage)

    def opened(self) -> Iterator[File]:
        """Yields all files, opened, in order."""
        return opened_all(self.storage, self.places)

    def in_sequence(self, number: int) -> File | str:
        """Returns a file to read from front to back; the path of a local file, which need not stay open."""
        place = self.places[number]
        if not is_remote(place) and not isinstance(self.storage, CachedStorage):
            return place
        return ahead(self.storage.open(place))


def source_files(
    files: Place | Iterable[Place],
    storage_options: Mapping[str, Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | None = None,
) -> SourceFiles:
    """Returns the files that places stand for, without indexes of others among them: `data/*` finds both.

    Raises:
        FileNotFoundError, ValueError, OSError: as `places_of` and `storage_of` say.
    """
    own = without_indexes(places_of(files, "files", storage_options))
    return SourceFiles(own, storage_of(own, storage_options, cache, cache_size))


def without_indexes(places: list[str]) -> list[str]:
    """Returns places without the indexes of others among them."""
    all_places = set(places)
    return [place for place in places if (match := _OF_INDEX.fullmatch(place)) is None or match[1] not in all_places]
