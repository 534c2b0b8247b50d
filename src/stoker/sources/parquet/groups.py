"""The row groups of Parquet files, numbered on over all files, and their decoded form."""

from __future__ import annotations

import difflib
import io
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from stoker.errors import FileChangedError, MissingColumnError, MissingExtraError, ParquetFileError, SchemaMismatchError
from stoker.sources.parquet.decoded_files import DecodedFiles
from stoker.sources.parquet.values import DecodedGroup, Partitions, SampleOrigin, check_equal
from stoker.sources.per_process import MOST_OPEN, PerProcess
from stoker.sources.places import Place, places_and_folders
from stoker.sources.read_ahead import RangedFile, held
from stoker.sources.storage import File, Version, opened_all
from stoker.sources.storage import opened as opened_file
from stoker.sources.storage_of import storage_of
from stoker.sources.urls import shown

CACHED_BYTES = 256 << 20
"""Decoded row groups that a process keeps, in bytes: four groups of 64 MiB, so that a shuffle within some groups
decodes each once; eight workers then hold 2 GiB. The latest group is kept whatever its size."""

MOST_MAPPED = 256
"""Files of decoded row groups that a process keeps mapped, with what reads their rows."""

_FOOTER = 64 << 10
"""Bytes at the end of a file that pyarrow reads first."""


class RowGroups:
    """Row groups of several files with the same columns. Their footers are read when the object is made.

    Each process opens files when it first needs them, at most `MOST_OPEN` at once, and caches the row groups that it
    decoded last, in `CACHED_BYTES`. A pickle carries neither. Thread safe. Reading starts no thread.

    Arguments and errors are those of `ParquetDataset`.

    Attributes:
        columns: the names of the columns, in the order of a sample.
        sizes: the number of rows of each row group.
        ends: the number of rows in each row group and all before it.
        first_groups: the number of the first row group of each file.
    """

    def __init__(
        self,
        files: Place | Iterable[Place],
        columns: Sequence[str] | None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
        decoded_cache: str | os.PathLike[str] | None = None,
        partitioning: str | None = None,
    ) -> None:
        if partitioning not in ("hive", None):
            raise ValueError(f'partitioning is {partitioning!r}, expected "hive" or None')
        if isinstance(columns, str):
            raise TypeError(f"columns is a text, {columns!r}, expected a list of names: [{columns!r}]")
        if columns is not None and not columns:
            raise ValueError("columns is an empty list: name at least one column, or leave it out to read all")
        self._process: PerProcess[_OpenFiles] = PerProcess(_OpenFiles)
        self._decoded_files = None if decoded_cache is None else DecodedFiles(decoded_cache)
        self._places, folders = places_and_folders(files, "Parquet files", storage_options)
        self._storage = storage_of(self._places, storage_options, cache, cache_size)
        self.files = [shown(path) for path in self._places]
        self.sizes: list[int] = []
        self.first_groups: list[int] = []
        self._versions: list[Version] = []
        no_folders: list[list[str]] = [[] for _ in folders]
        self._partitions = Partitions(_pyarrow()[0], self.files, folders if partitioning else no_folders)
        self._in_folders: list[str] = []  # the columns that only folders have
        first: dict[str, Any] = {}
        for path, file in zip(self.files, opened_all(self._storage, self._places, _FOOTER), strict=True):
            opened = _OpenFile(path, file)
            schema = opened.schema()
            if not self._versions:
                self._in_folders = [name for name in self._partitions.names if name not in schema.names]
                self.columns: list[str] = _chosen(columns, schema.names + self._in_folders, path)
                self._in_folders = [name for name in self._in_folders if name in self.columns]
                self._in_files: list[str] = [name for name in self.columns if name not in self._in_folders]
                first = {name: schema.field(name).type for name in self._in_files}
            _check_schema(first, self.files[0], schema, path, is_whole=columns is None)
            self._versions.append(opened.file.version)
            self.first_groups.append(len(self.sizes))
            footer = opened.footer
            self.sizes += [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        self.ends = list(accumulate(self.sizes))
        if not self.ends or not self.ends[-1]:
            raise ValueError(f"there is no row in {len(self.files)} Parquet files: {self.files[:3]}")

    def place(self, number: int) -> tuple[int, int]:
        """Returns the file of a row group, and the number of the group in it."""
        file = bisect_right(self.first_groups, number) - 1  # the last one: files before it may have no row groups
        return file, number - self.first_groups[file]

    def origin(self, number: int, row: int) -> SampleOrigin:
        """Returns the file of a row of a row group, and the number of the row in the file."""
        first = self.first_groups[self.place(number)[0]]
        return SampleOrigin(self.files[self.place(number)[0]], row + sum(self.sizes[first:number]))

    def decoded(self, number: int) -> DecodedGroup:
        """Returns a row group from the cache of this process, or decodes it.

        Raises: as `read`.
        """
        process = self._process.get()
        group = process.groups.get(number)
        if group is None:
            group = self.read(number) if self._decoded_files is None else self._shared(number, self._decoded_files)
            process.keep(number, group)
        elif number != process.latest:
            process.groups.pop(number, None)  # to the end: the first are dropped first
            process.groups[number] = group
        process.latest = number
        return group

    def read(self, number: int) -> DecodedGroup:
        """Returns a row group, decoded anew.

        Raises:
            FileChangedError: the file was changed since its footer was read.
            ParquetFileError: the file is damaged.
            SchemaMismatchError: a column is a partition too, with another value.
        """
        return self._decoded(number, self._table(number))

    def _shared(self, number: int, files: DecodedFiles) -> DecodedGroup:
        """Returns a row group from its file of decoded columns, which is written first if there is none."""
        arrow, _ = _pyarrow()
        place, group = self.place(number)
        path = files.path(self.files[place], self._versions[place], self._in_files, group)
        table = files.find(arrow, path)
        if table is None:
            decoded = self._table(number)
            table = files.find(arrow, path) if files.add(arrow, path, decoded) else None
            if table is None:
                return self._decoded(number, decoded)
        return self._decoded(number, table, is_mapped=True)

    def _decoded(self, number: int, table: Any, is_mapped: bool = False) -> DecodedGroup:
        file = self.place(number)[0]
        arrow, _ = _pyarrow()
        check_equal(arrow, table, self._partitions.texts[file], self.files[file])
        constants = self._partitions.values(file, self._in_folders)
        return DecodedGroup(arrow, table, self.columns, partial(self.origin, number), is_mapped, constants)

    def _table(self, number: int) -> Any:
        """Returns a row group as an Arrow table, decoded anew."""
        place, group = self.place(number)
        path = self.files[place]
        process = self._process.get()
        opened = process.files.get(self._places[place])
        if opened is None:
            file = opened_file(self._storage, self._places[place], self._versions[place])
            if file.version != self._versions[place]:
                raise FileChangedError(
                    f"{path} was changed since the dataset was made: it has {file.version.size:,} bytes, and had "
                    f"{self._versions[place].size:,}. Make the dataset anew, and give new data another name."
                )
            opened = _OpenFile(path, file)
            for oldest in list(process.files)[: max(0, len(process.files) - MOST_OPEN + 1)]:
                process.files.pop(oldest, None)  # closed when the last reader drops it
            process.files[self._places[place]] = opened
        return opened.read(group, self._in_files)


class _OpenFiles:
    """What a process holds: open files by path, decoded row groups by number, those used last at the end."""

    def __init__(self) -> None:
        self.files: dict[str, _OpenFile] = {}
        self.groups: dict[int, DecodedGroup] = {}
        self.latest = -1

    def keep(self, number: int, group: DecodedGroup) -> None:
        """Adds a group, and drops the first ones while all together are too large, or too many are mapped."""
        entries = list(self.groups.items())
        if group.is_mapped:
            mapped = [oldest for oldest, other in entries if other.is_mapped]
            for oldest in mapped[: max(0, len(mapped) - MOST_MAPPED + 1)]:
                self.groups.pop(oldest, None)
        room = CACHED_BYTES - group.nbytes - sum(other.nbytes for _, other in entries)
        for oldest, other in entries:
            if room >= 0:
                break
            self.groups.pop(oldest, None)
            room += other.nbytes
        self.groups[number] = group


class _OpenFile:
    """A Parquet file whose footer was read. Thread safe: each use has a position of its own."""

    def __init__(self, path: str, file: File) -> None:
        self.path = path
        self.file = file
        self.footer: Any = None
        self.footer = self._opened("its footer cannot be read").metadata

    def schema(self) -> Any:
        """Returns the Arrow schema."""
        return self._opened("its footer cannot be read").schema_arrow

    def read(self, group: int, columns: list[str]) -> Any:
        """Returns a row group of the file, as an Arrow table."""
        arrow, _ = _pyarrow()
        problem = f"row group {group} cannot be read"
        opened = self._opened(problem, self._held(group, columns))
        try:
            table = opened.read_row_group(group, columns=columns, use_threads=False)  # a fork loses threads
            promised = self.footer.row_group(group).num_rows
            if len(table) == promised:
                return table
            raise OSError(f"it has {len(table):,} rows, and the footer promises {promised:,}")
        except arrow.ArrowMemoryError:
            raise
        except (OSError, arrow.ArrowException) as error:
            raise self._damaged(problem, error) from error

    def _held(self, group: int, columns: list[str]) -> File:
        """Returns the file; if it is remote, with the chunks of these columns, which are read at once."""
        if not isinstance(self.file, RangedFile):
            return self.file
        footer, chosen, ranges = self.footer.row_group(group), set(columns), []
        for number in range(footer.num_columns):
            chunk = footer.column(number)
            if chunk.path_in_schema.partition(".")[0] in chosen or chunk.path_in_schema in chosen:
                begin = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
                ranges.append((begin, min(begin + chunk.total_compressed_size, self.file.version.size)))
        return held(self.file, ranges)

    def _opened(self, problem: str, file: File | None = None) -> Any:
        arrow, parquet = _pyarrow()
        try:
            return parquet.ParquetFile(_Position(file or self.file), metadata=self.footer, pre_buffer=False)
        except (OSError, UnicodeDecodeError, arrow.ArrowException) as error:  # a name may be no UTF-8
            raise self._damaged(problem, error) from error

    def _damaged(self, problem: str, error: Exception) -> ParquetFileError:
        size = self.file.version.size
        return ParquetFileError(
            f"{self.path} ({size:,} bytes): {problem}: {error}. Is it a Parquet file, and was it written and copied "
            "completely?"
        )


class _Position(io.RawIOBase):
    """A file with a position, as pyarrow reads it. Closing it leaves the file open."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.version.size}[whence]
        self._position = begin + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self._position, size if size >= 0 else self._file.version.size - self._position)
        self._position += len(data)
        return data


def _pyarrow() -> tuple[Any, Any]:
    """Returns the modules `pyarrow` and `pyarrow.parquet`."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError(
            "Parquet files are read by pyarrow, which is not installed: pip install 'stoker[parquet]'"
        ) from error
    return pyarrow, parquet


def _chosen(columns: Sequence[str] | None, names: list[str], path: str) -> list[str]:
    for name in columns or ():
        if name not in names:
            raise _missing(name, names, path)
    chosen = list(names if columns is None else dict.fromkeys(columns))
    twice = [name for name in chosen if names.count(name) > 1]
    if twice:
        raise ParquetFileError(f"{path} has {names.count(twice[0])} columns of the name {twice[0]!r}: write it anew")
    return chosen


def _missing(name: str, names: list[str], path: str) -> MissingColumnError:
    close = difflib.get_close_matches(str(name), names)
    hint = (
        f"did you mean {' or '.join(map(repr, close))}?" if close else f"its columns are {', '.join(map(repr, names))}"
    )
    return MissingColumnError(f"{path} has no column {name!r}: {hint}")


def _check_schema(first: dict[str, Any], first_path: str, schema: Any, path: str, is_whole: bool) -> None:
    """Compares the columns of a file with those of the first one: also their number, if `is_whole`."""
    arrow, _ = _pyarrow()
    more = [name for name in schema.names if name not in first] if is_whole else []
    if more:
        raise SchemaMismatchError(
            f"{path} has a column {more[0]!r}, which {first_path} does not have. Name the columns that all files have: "
            "columns=[...]"
        )
    for name, kind in first.items():
        if name not in schema.names:
            raise SchemaMismatchError(
                f"{path} has no column {name!r}, which {first_path} has (columns of the former: "
                f"{', '.join(map(repr, schema.names))}). Name the columns that all files have: columns=[...]"
            )
        actual = schema.field(name).type
        if not actual.equals(kind) and not arrow.types.is_null(actual) and not arrow.types.is_null(kind):
            raise SchemaMismatchError(
                f"the column {name!r} is of type {actual} in {path}, and of type {kind} in {first_path}: write the "
                "files with one schema, or leave the column out by columns="
            )
