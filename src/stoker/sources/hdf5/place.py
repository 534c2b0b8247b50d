"""Where an HDF5 file lies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stoker.sources.source_files import source_files
from stoker.sources.storage import File, LocalFile, Version, opened
from stoker.sources.urls import check_local, is_remote, shown


class HDF5Place:
    """A file of this machine, which the library opens by its path, or a file that is read through a store.

    Picklable, with the options of the store.

    Args:
        path: of the file, or its URL.
        storage_options: of the store.
        cache: a folder that keeps the data that is read; None for none. With it a local file is read through a store.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError, ValueError, OSError: as `source_files` says; or a pattern leads to several files.

    Attributes:
        name: of the file, for messages.
        is_remote: whether it is read through a store.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None,
        cache: str | os.PathLike[str] | None,
        cache_size: int | None,
    ) -> None:
        self._place = os.fspath(path)
        is_url = is_remote(self._place) and not os.path.exists(self._place)
        self.is_remote = is_url or cache is not None or cache_size is not None
        if self.is_remote:
            files = source_files(self._place, storage_options, cache, cache_size)
            if len(files.places) > 1:
                raise ValueError(f"{shown(self._place)} leads to {len(files.places)} files: make a dataset of each one")
            self._place, self._storage = files.places[0], files.storage
        else:
            check_local(self._place, "HDF5 files")
        self.name = shown(self._place)

    def opened(self, version: Version | None) -> tuple[Version, File | None]:
        """Returns the version of the file, and the file if it is read through a store.

        Args:
            version: which it had; None if that is not known. A file that has another one now may be found when it is
                read.

        Raises:
            OSError: there is no such file, or it cannot be read.
        """
        if not self.is_remote:
            return LocalFile(self._place).version, None
        file = opened(self._storage, self._place, version)
        return file.version, file
