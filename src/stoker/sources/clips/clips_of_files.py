"""Clips of files by index: the base of the datasets of audio and video, and how a file is cut into clips."""

from __future__ import annotations

import bisect
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.columnar import columns
from stoker.datasets.combining import absolute
from stoker.errors import FileChangedError, LabelCountError, MediaFileError
from stoker.sources.clips.clip_file import ClipFile
from stoker.sources.places import Place
from stoker.sources.storage import Version
from stoker.sources.storage_of import source_files
from stoker.sources.urls import hub_fingerprint

_UNKNOWN = Version(-1, -1)
"""The version of a file that could not be read when the dataset was made."""


class ClipsOfFiles(Dataset[Any]):
    """Clips of files by index: the base of the public classes, which define `_count` and `_read`.

    Args:
        labels: one for each file, or None.
        cache: a folder that keeps the data that is read; None for none.
        cache_size: bytes that the cache may take.
    """

    stoker_protocol = True

    def __init__(
        self,
        files: Place | Iterable[Place],
        labels: Any,
        cut: Cut,
        transform: Callable[[dict[str, Any]], Any] | None,
        storage_options: Mapping[str, Any] | None,
        cache: str | os.PathLike[str] | None,
        cache_size: int | None,
    ) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is a {type(transform).__name__}, expected a function of a sample")
        source = source_files(files, storage_options, cache, cache_size)
        self.files = columns(source.names)
        self._places = self.files if source.names == source.places else columns(source.places)
        self._storage = source.storage
        self.labels = labels if labels is None or hasattr(labels, "__getitem__") else columns(labels)
        if isinstance(self.labels, list | tuple):
            self.labels = columns(self.labels)
        if self.labels is not None and len(self.labels) != len(self.files):
            raise LabelCountError(
                f"{len(self.files):,} files and {len(self.labels):,} labels: each file needs one label, in the same "
                "order"
            )
        self._cut = cut
        self._transform = transform
        self._ends: np.ndarray[Any, np.dtype[np.int64]] | None = None
        self._versions: Any = None
        if not cut.is_one_of_each_file:
            versions, counts = zip(*map(self._counted, range(len(self.files))), strict=True)
            self._versions = columns([tuple(version) for version in versions])
            self._ends = np.cumsum(counts, dtype=np.int64)

    def _count(self, file: ClipFile) -> int:
        """Returns the number of consecutive clips of a file."""
        raise NotImplementedError

    def _read(self, file: ClipFile, number: int) -> dict[str, Any]:
        """Returns a clip of a file, without its path and label."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str | None:
        """The commits of files on the Hugging Face Hub, with which a state is compared; None for other places."""
        return hub_fingerprint(list(self.files))

    def _file(self, number: int) -> ClipFile:
        return ClipFile(self._places[number], self.files[number], self._storage)

    def _counted(self, number: int) -> tuple[Version, int]:
        """Returns the version of a file, and its number of clips. A file that cannot be read is a sample, which raises
        the error: a loader's `on_error=` applies to it.

        Raises:
            OSError: a store failed: another time the file may have more clips.
        """
        version, file = _UNKNOWN, self._file(number)
        try:
            version = file.version()
            return version, max(1, self._count(file._replace(known=version)))
        except OSError as error:
            if not file.is_local and not isinstance(error, FileNotFoundError | MediaFileError):
                raise
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
        place, number = self._place(index)
        file = self._file(place)
        if self._versions is not None:
            file = self._of_known_version(file, place)
        sample = self._read(file, number)
        sample["path"] = file.name
        if self.labels is not None:
            sample["label"] = self.labels[place]
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

    def _of_known_version(self, file: ClipFile, place: int) -> ClipFile:
        """Returns a file that has to have the version of which clips were counted: reads from a store check it."""
        made_of = Version(*self._versions[place])
        if made_of == _UNKNOWN:
            return file
        if file.is_local and (version := file.version()) != made_of:
            raise FileChangedError(
                f"{file.name} was changed since the dataset was made: it has {version.size:,} bytes, and had "
                f"{made_of.size:,}. Make the dataset anew, and give new data another name."
            )
        return file._replace(known=made_of)


@dataclass(frozen=True)
class Cut:
    """Where the clips of a file begin, and how long they are.

    Lengths of files and clips are in ticks of the file: frames of audio, or the time base of a video.

    Attributes:
        seconds: the length of a clip; None for the whole file.
        hop: seconds from one clip to the next.
        random: whether a file has one clip, at a random place.
        pads: whether a file that is shorter than a clip, and the rest at the end of a file, are clips too.
    """

    seconds: float | None
    hop: float | None
    random: bool
    pads: bool

    @classmethod
    def checked(cls, seconds: Any, hop: Any, random: bool, short: str) -> Cut:
        """Returns the cut of a user's arguments.

        Raises:
            ValueError: a length is not positive, `hop` is given where there are no consecutive clips, or `short` is
                unknown.
        """
        for name, value in (("seconds", seconds), ("hop", hop)):
            if value is None:
                continue
            if isinstance(value, bool) or not hasattr(value, "__float__"):
                raise TypeError(f"{name} is {value!r}, expected a number of seconds")
            if not 0 < float(value) < math.inf:
                raise ValueError(f"{name} is {value!r}, expected a positive number of seconds")
        if hop is not None and (seconds is None or random):
            raise ValueError("hop is given, but there is one clip of each file: hop needs seconds, and random=False")
        if short not in ("raise", "pad"):
            raise ValueError(f'short is {short!r}, expected "raise" or "pad"')
        seconds = None if seconds is None else float(seconds)
        return cls(seconds, seconds if hop is None else float(hop), bool(random), short == "pad")

    @property
    def is_one_of_each_file(self) -> bool:
        """Whether each file has one clip, whatever its length."""
        return self.seconds is None or self.random

    def length(self, total: int, rate: float) -> int:
        """Returns the length of a clip of a file, in ticks: at least 1.

        Args:
            total: the length of the file, in ticks.
            rate: ticks in a second.
        """
        return total if self.seconds is None else max(1, round(self.seconds * rate))

    def start(self, number: int, rate: float) -> int:
        """Returns where a clip begins, in ticks, counted from the begin of the file."""
        return 0 if self.hop is None else round(number * self.hop * rate)

    def count(self, total: int, rate: float, slack: float = 0) -> int:
        """Returns the number of consecutive clips of a file; 0 if it is too short for one.

        Args:
            slack: ticks by which the last clip may go beyond the end.
        """
        assert self.hop is not None
        length = self.length(total, rate)
        count = max(0, int((total + slack - length + 0.5) / (self.hop * rate)) + 2)  # a start is rounded
        while count and self.start(count - 1, rate) + length > total + slack:
            count -= 1
        if self.pads and (not count or self.start(count - 1, rate) + length < total - slack):
            count += self.start(count, rate) < total
        return count
