"""The files of a source, and the store they lie in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stoker.sources.cached_storage import CachedStorage
from stoker.sources.places import Place, places_of
from stoker.sources.read_ahead import ahead
from stoker.sources.storage import File, LocalStorage, Storage, opened_all
from stoker.sources.storage_of import storage_of
from stoker.sources.urls import is_remote, shown

_OF_INDEX = re.compile(r"(.+)\.(?:lines|jsonl|csv|records|frames)\.index(?:\.[0-9a-f]{8}\.partial)?", re.DOTALL)
"""The names of indexes, and of those that are being written."""


@dataclass(frozen=True)
class SourceFiles:
    """Files and their store. Picklable, with the options of the store, which are in no text of it.

    Attributes:
        places: paths and URLs.
        storage: from which they are read.
    """

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
        """Yields all files, opened, in order.

        Raises:
            OSError: one cannot be read.
        """
        return opened_all(self.storage, self.places)

    def in_sequence(self, number: int) -> File | str:
        """Returns a file to read from front to back; the path of a local file, which need not stay open.

        Raises:
            OSError: it cannot be read.
        """
        place = self.places[number]
        if not is_remote(place) and not isinstance(self.storage, CachedStorage):
            return place
        return ahead(self.storage.open(place))


def local_files(paths: list[str]) -> SourceFiles:
    """Returns files of this machine."""
    return SourceFiles(paths, LocalStorage())


def source_files(
    files: Place | Iterable[Place],
    storage_options: Mapping[str, Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | None = None,
) -> SourceFiles:
    """Returns the files that places stand for, without indexes of others among them: `data/*` finds both.

    Args:
        files: as `places_of` takes them.
        storage_options: of object stores, see `ObjectStorage`.
        cache: a folder that keeps the data that is read; None for none.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError, ValueError, OSError: as `places_of` and `storage_of` say.
    """
    own = without_indexes(places_of(files, "files", storage_options))
    return SourceFiles(own, storage_of(own, storage_options, cache, cache_size))


def without_indexes(places: list[str]) -> list[str]:
    """Returns places without the indexes of others among them."""
    given = set(places)
    return [place for place in places if (match := _OF_INDEX.fullmatch(place)) is None or match[1] not in given]
