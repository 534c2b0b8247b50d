"""The rows of Parquet files as a dataset by index."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from stoker.datasets.base import Dataset
from stoker.datasets.combining import absolute
from stoker.sources.parquet.groups import RowGroups
from stoker.sources.parquet.values import transformed
from stoker.sources.places import Place
from stoker.sources.urls import hub_fingerprint


class ParquetDataset(Dataset[Any]):
    """Rows of Parquet files by index: with a length, a true shuffle, exact resume. Needs `stoker[parquet]` (pyarrow).

    A sample is a dict by column name: Python scalars, `str`, `bytes`. A list of numbers is a NumPy array of the dtype
    of the column (of fixed-size lists in lists, of several dimensions), or a list if an element is null. Other lists
    are lists, structs dicts; dictionary columns give their values; a null is None. Times in nanoseconds are NumPy
    scalars. Rows come in the order of the files and, in a file, as they were written.

    Folders of the form `label=3` below the fixed part of a pattern (`data/**/*.parquet`), or above a file in a list,
    are Hive partitions: columns behind those of the files, with the value that `pyarrow.dataset(partitioning="hive")`
    gives them, an `int`, a `str`, or None. A column that the files have too is the files', and must be equal.

    Only the footers are read when the dataset is made. A row is read with its whole row group, of which only the given
    columns are read and decoded. Each process keeps the groups it used last, up to 256 MiB, and at least one. Reading
    group by group is fast therefore; a complete shuffle of more than that decodes a group for almost every row: see
    `RowGroupSampler`, or `decoded_cache=`.

    Each process opens files when it first needs them, at most 64 at once; none is open when the dataset is made.
    Reading starts no threads, so workers may be forked at any time. Thread safe.

    Args:
        files: a path, a glob pattern (`*.parquet`), a brace pattern (`part-{000..127}.parquet`), a URL of an object
            store or a web server, or a list of these.
        columns: names of the columns to read, in the order of the sample; None for all, in the order of the first file.
        transform: a function of the dict, whose result is the sample. In it, `stoker.sample_origin()` is the file and
            the row.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.
        decoded_cache: a folder of the local disk in which decoded row groups are kept, without compression, as files
            that all processes of the machine map: each group is decoded once on a machine, and a complete shuffle reads
            rows from the page cache. It grows to the size of the decoded columns; nothing in it is removed, and it may
            be deleted when no dataset uses it.
        partitioning: "hive" to read Hive partitions; None to leave them out.

    Raises:
        FileNotFoundError: a path or pattern leads to no file.
        TypeError: `columns` is a single text, or `transform` cannot be called.
        ValueError: there are no files, no columns, or no rows; or `partitioning` is another value.
        MissingExtraError: pyarrow is not installed.
        ParquetFileError: a file is truncated, damaged, or no Parquet file.
        MissingColumnError: there is no such column.
        SchemaMismatchError: two files have different columns, or types of them.
        OSError: the folder of `decoded_cache` cannot be written.

    Attributes:
        files: the paths of the files, in order.
        columns: the names of the columns.

    At each access:
        IndexError: the index is out of range.
        FileChangedError: the file was changed since the dataset was made.
        ParquetFileError: the row group is damaged, or has other rows than the footer promises.
        ParquetValueError: a value has no equivalent: a date out of the range of Python's, a text that is not UTF-8.
        SchemaMismatchError: the files have a column that is a partition too, with another value.
    """

    stoker_protocol = True
    prefer_whole_batches = True  # the next row is in the same row group

    def __init__(
        self,
        files: Place | Iterable[Place],
        *,
        columns: Sequence[str] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
        decoded_cache: str | os.PathLike[str] | None = None,
        partitioning: Literal["hive"] | None = "hive",
    ) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is a {type(transform).__name__}, expected a function of a row")
        self._groups = RowGroups(files, columns, storage_options, cache, cache_size, decoded_cache, partitioning)
        self._transform = transform
        self.files = self._groups.files
        self.columns = self._groups.columns

    @property
    def row_group_sizes(self) -> list[int]:
        """The number of rows of each row group, of all files in order: the argument of `RowGroupSampler`."""
        return list(self._groups.sizes)

    @property
    def fingerprint(self) -> str | None:
        """The commits of files on the Hugging Face Hub, with which a state is compared; None for other places."""
        return hub_fingerprint(self.files)

    def __len__(self) -> int:
        """Returns the number of rows."""
        return self._groups.ends[-1]

    def __getitem__(self, index: int) -> Any:
        """Returns the row at `index`; a negative index counts from the end."""
        group, row = self._place(absolute(index, len(self)))
        sample = self._groups.decoded(group).row(row)
        if self._transform is None:
            return sample
        return transformed(self._transform, sample, lambda: self._groups.origin(group, row))

    def describe(self, index: int) -> str:
        """Returns the file, row group and row, counted from 0, of the sample at `index`."""
        number = absolute(index, len(self))
        group, row = self._place(number)
        file, group_of_file = self._groups.place(group)
        return f"sample {number}: {self.files[file]}, row group {group_of_file}, row {row}"

    def _place(self, number: int) -> tuple[int, int]:
        """Returns the row group of a row, and the row in the group."""
        ends = self._groups.ends
        group = bisect_right(ends, number)
        return group, number - (ends[group - 1] if group else 0)
