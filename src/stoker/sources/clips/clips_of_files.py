"""Clips of files by index: the base of the datasets of audio and video."""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.columnar import columns
from stoker.datasets.combining import absolute
from stoker.errors import FileChangedError, LabelCountError
from stoker.sources.clips.cut import Cut
from stoker.sources.places import Place, places_of
from stoker.sources.source_files import without_indexes
from stoker.sources.storage import LocalFile

_UNKNOWN = (-1, -1)
"""The version of a file that could not be read when the dataset was made."""


class ClipsOfFiles(Dataset[Any]):
    """Clips of files by index: the base of the public classes, which define `_count` and `_read`.

    Args:
        files: places of files.
        labels: one for each file, or None.
        cut: how a file is cut into clips.
        transform: a function of the sample.
    """

    stoker_protocol = True

    def __init__(
        self, files: Place | Iterable[Place], labels: Any, cut: Cut, transform: Callable[[dict[str, Any]], Any] | None
    ) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is a {type(transform).__name__}, expected a function of a sample")
        paths = without_indexes(places_of(files, "files", only_local=True))
        self.files = columns(paths)
        self.labels = labels if labels is None or hasattr(labels, "__getitem__") else columns(labels)
        if isinstance(self.labels, list | tuple):
            self.labels = columns(self.labels)
        if self.labels is not None and len(self.labels) != len(paths):
            raise LabelCountError(
                f"{len(paths):,} files and {len(self.labels):,} labels: each file needs one label, in the same order"
            )
        self._cut = cut
        self._transform = transform
        self._ends: np.ndarray[Any, np.dtype[np.int64]] | None = None
        self._versions: np.ndarray[Any, np.dtype[np.int64]] | None = None
        if not cut.is_one_of_each_file:
            versions, counts = zip(*map(self._counted, paths), strict=True)
            self._versions = np.array(versions, np.int64)
            self._ends = np.cumsum(counts, dtype=np.int64)

    def _count(self, path: str) -> int:
        """Returns the number of consecutive clips of a file.

        Raises:
            OSError: the file cannot be read.
        """
        raise NotImplementedError

    def _read(self, path: str, number: int) -> dict[str, Any]:
        """Returns a clip of a file, without its path and label."""
        raise NotImplementedError

    def _counted(self, path: str) -> tuple[tuple[int, int], int]:
        """Returns the version of a file, and its number of clips. A file that cannot be read is a sample, which raises
        the error: a loader's `on_error=` applies to it.
        """
        version = _UNKNOWN
        try:
            version = _version_of(path)
            return version, max(1, self._count(path))
        except OSError:
            return version, 1

    @property
    def clip_counts(self) -> list[int]:
        """The number of clips of each file: the argument of `RowGroupSampler`, which shuffles file by file."""
        if self._ends is None:
            return [1] * len(self.files)
        counts: list[int] = np.diff(self._ends, prepend=0).tolist()
        return counts

    def __len__(self) -> int:
        """Returns the number of clips of all files."""
        return len(self.files) if self._ends is None else int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        """Returns the clip at `index`; a negative index counts from the end."""
        file, number = self._place(index)
        path: str = self.files[file]
        if self._versions is not None:
            self._check_version(path, file)
        sample = self._read(path, number)
        sample["path"] = path
        if self.labels is not None:
            sample["label"] = self.labels[file]
        return sample if self._transform is None else self._transform(sample)

    def describe(self, index: int) -> str:
        """Returns the file of the sample at `index`, and its seconds in it."""
        file, number = self._place(index)
        what = f"sample {absolute(index, len(self))}: "
        if self._cut.seconds is None:
            return what + self.files[file]
        if self._cut.random:
            return f"{what}{self._cut.seconds:g} seconds from a random place of {self.files[file]}"
        assert self._cut.hop is not None
        start = number * self._cut.hop
        return f"{what}seconds {start:g} to {start + self._cut.seconds:g} of {self.files[file]}"

    def _place(self, index: int) -> tuple[int, int]:
        """Returns the file of a sample, and the number of its clip in it."""
        number = absolute(index, len(self))
        if self._ends is None:
            return number, 0
        file = bisect.bisect_right(self._ends.data, number)
        return file, number - (int(self._ends[file - 1]) if file else 0)

    def _check_version(self, path: str, file: int) -> None:
        assert self._versions is not None
        made_of, found = tuple(self._versions[file].tolist()), _version_of(path)
        if made_of not in (_UNKNOWN, found):
            raise FileChangedError(
                f"{path} was changed since the dataset was made: it has {found[0]:,} bytes, and had {made_of[0]:,}. "
                "Make the dataset anew, and give new data another name."
            )


def _version_of(path: str) -> tuple[int, int]:
    version = LocalFile(os.fspath(path)).version
    return version.size, version.mtime_ns
