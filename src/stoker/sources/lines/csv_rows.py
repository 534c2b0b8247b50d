"""The rows of CSV files, by index and as a stream."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stoker.errors import RecordError, SchemaMismatchError, StokerWarning
from stoker.sources.lines.by_index import IndexedRecords, RecordDataset
from stoker.sources.lines.json_lines import checked_columns
from stoker.sources.lines.opened_text import Cutting, check_encoding, one_byte
from stoker.sources.lines.parsing import Convert, CSVParser, FieldParser, functions_of, missing_column
from stoker.sources.lines.streaming import RecordStream, UntransformedRecords
from stoker.sources.lines.text_lines import checked_transform
from stoker.sources.places import Place
from stoker.sources.storage_of import SourceFiles, source_files


class CSVDataset(RecordDataset):
    """Rows of CSV files, by index: with a length, a true shuffle, exact resume. `CSVStream` reads in sequence.

    A sample is a dict by column name. Every value is `str`, unless `types` names another type for its column: types are
    never guessed from the values. Rows are parsed as by Python's csv module, of fields of any length; a field in quotes
    may hold line ends. Empty lines are left out.

    An index of the rows is made once and kept beside each file (`file.csv.csv.index`); in a folder that cannot be
    written, it lives in memory. Memory, processes and threads are as in `TextLineDataset`.

    Args:
        files: a path, a glob pattern, a brace pattern, a URL of an object store or a web server, or a list of these,
            not compressed.
        columns: the names of the columns to keep, in the order of the sample. None for all.
        types: by column, `int`, `float`, `bool` (true, false, yes, no, 1, 0), or a function of `str`; one alone is of
            all columns. An empty field is no number: a function can say what it means.
        names: of all columns, for files without a header. None if the first row of each file holds the names.
        delimiter: between fields, one ASCII character: "\\t" for TSV.
        quote: around fields that hold delimiters, line ends or quotes (doubled), one ASCII character; None if quotes
            are characters like others.
        encoding: of the text, as in `TextLineDataset`.
        errors: the handling of undecodable bytes, as in `open`.
        transform: a function of the dict, whose result is the sample.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError: a path or pattern leads to no file.
        RecordError: a file has no header, two columns of one name that is read, or a header although `names` are
            given.
        SchemaMismatchError: two files have different columns.
        MissingColumnError: there is no such column.
        ValueError: there are no files, rows or columns, or encoding, delimiter or quote cannot be used.
        CompressedFileError: a file is compressed with gzip or zstd.
        FileChangedError: a file was written to while it was indexed.
        TypeError: `columns` or `names` is a single text, or a type or `transform` cannot be called.

    Attributes:
        files: the paths of the files, in order.
        columns: the names of the columns of a sample.

    At each access:
        IndexError: the index is out of range.
        RecordError: the row has more or fewer fields than the header, a quote that is not closed, or a value that its
            type refuses. The message names the file, the line and its byte.
        UnicodeDecodeError: the row is not in the encoding.
        FileChangedError: the file was changed since the dataset was made.
    """

    def __init__(
        self,
        files: Place | Iterable[Place],
        *,
        columns: Sequence[str] | None = None,
        types: Mapping[str, Convert] | Convert | None = None,
        names: Sequence[str] | None = None,
        delimiter: str = ",",
        quote: str | None = '"',
        encoding: str = "utf-8",
        errors: str = "strict",
        transform: Callable[[dict[str, Any]], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        checked_transform(transform)
        encoding, cutting = _rules(encoding, errors, delimiter, quote)
        source = source_files(files, storage_options, cache, cache_size)
        records = IndexedRecords(source, cutting, encoding, "CSVStream")
        header = _header_of(source, cutting, encoding, errors, names, columns)
        parser = _parser(encoding, errors, cutting, header, columns, types)
        self.columns = parser.columns
        super().__init__(records, parser, 1 if names is None else 0, transform)


class CSVStream(RecordStream):
    """Rows of CSV files, one file after another. Plain, gzip or zstd.

    A sample is as in `CSVDataset`. State, files, workers and damaged files are as in `TextLineStream`. After a row that
    cannot be parsed, the iterator continues with the next row; after a quote that is not closed, there is none.

    Args:
        files: a path, a glob pattern, a brace pattern, a URL of an object store or a web server, or a list of these.
            Each worker reads its own.
        columns: as in `CSVDataset`, like the following.
        types: of columns.
        names: of all columns, for files without a header.
        delimiter: between fields.
        quote: around fields.
        encoding: of the text.
        errors: the handling of undecodable bytes.
        transform: a function of the dict, whose result is the sample. Random numbers that it draws are the sample's
            own.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError: a path or pattern leads to no file.
        RecordError: a file has no header, two columns of one name that is read, or a header although `names` are
            given.
        SchemaMismatchError: two files have different columns.
        MissingColumnError: there is no such column.
        ValueError: there are no files or columns, or encoding, delimiter or quote cannot be used.
        OSError: a file cannot be read; the first row of each is read when the stream is made.
        MissingExtraError: a file is compressed with zstd, and `backports.zstd` is not installed (`stoker[zstd]`).
        TypeError: `columns` or `names` is a single text, or a type or `transform` cannot be called.

    Attributes:
        files: the paths of the files, in order.
        columns: the names of the columns of a sample.

    While iterating:
        RecordError, UnicodeDecodeError: as in `CSVDataset`.
        OSError: a file is damaged (gzip, zstd), deleted, or has changed while being read.
    """

    def __init__(
        self,
        files: Place | Iterable[Place],
        *,
        columns: Sequence[str] | None = None,
        types: Mapping[str, Convert] | Convert | None = None,
        names: Sequence[str] | None = None,
        delimiter: str = ",",
        quote: str | None = '"',
        encoding: str = "utf-8",
        errors: str = "strict",
        transform: Callable[[dict[str, Any]], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        checked_transform(transform)
        encoding, cutting = _rules(encoding, errors, delimiter, quote)
        source = source_files(files, storage_options, cache, cache_size)
        header = _header_of(source, cutting, encoding, errors, names, columns)
        parser = _parser(encoding, errors, cutting, header, columns, types)
        self.columns = parser.columns
        first = 1 if names is None else 0
        super().__init__(UntransformedRecords(source, cutting, parser, encoding, first), transform)


def _rules(encoding: str, errors: str, delimiter: str, quote: str | None) -> tuple[str, Cutting]:
    """Returns the encoding of a record, and how a file is cut into records."""
    encoding = check_encoding(encoding, errors)
    if delimiter == quote:
        raise ValueError(f"delimiter and quote are both {quote!r}")
    byte = b"" if quote is None else one_byte(quote, "quote", encoding)
    return encoding, Cutting(True, one_byte(delimiter, "delimiter", encoding), byte)


def _header_of(
    files: SourceFiles,
    cutting: Cutting,
    encoding: str,
    errors: str,
    names: Sequence[str] | None,
    columns: Sequence[str] | None,
) -> list[str]:
    """Returns the names of the columns of all files. Those of `columns`, if there are such, are in it once at most."""
    if isinstance(names, str):
        raise TypeError(f"names is a text, {names!r}, expected a list of names")
    fields = FieldParser(encoding, errors, cutting)
    header: list[str] | None = None if names is None else list(names)
    if header is not None:
        _check_names(header, "names")
    for number, path in enumerate(files.names):
        first = _first_row(path, UntransformedRecords(files.only(number), cutting, fields, encoding), names is None)
        if names is not None:
            if first == header:
                raise RecordError(f"the first row of {path} holds the names themselves: leave out names=, or the row")
            continue
        if first is None:
            raise RecordError(f"{path} has no header: it is empty. Leave it out, or pass names= for files without one")
        if header is None:
            header = first
            _check_names(header, f"the header of {path}", checked_columns(columns))
            _check_delimiter(header, path)
        elif first != header:
            raise SchemaMismatchError(
                f"{path} has the columns {first}, but {files.names[0]} has {header}. Pass files of the same columns, "
                "or names= if the first row is data"
            )
    assert header is not None
    return header


def _first_row(path: str, rows: UntransformedRecords, is_header: bool) -> list[str] | None:
    """Returns the fields of the first row; None if there is none, or if it is data that cannot be read."""
    try:
        return next(iter(rows), None)
    except (ValueError, OSError) as error:
        if not is_header:
            return None  # it is raised in its place, for its sample
        if isinstance(error, ValueError):
            raise RecordError(f"the first row of {path} should name the columns: {error}") from error
        raise


def _check_names(names: list[str], where: str, wanted: list[str] | None = None) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1 and (wanted is None or name in wanted)})
    if repeated or not names:
        what = f"names the column {repeated[0]!r} twice" if repeated else "names no column"
        raise RecordError(
            f"{where} {what}: {names}. A sample is a dict, so each column needs a name of its own. Change the first "
            "row, or leave such columns out by columns=[...]"
        )


def _check_delimiter(header: list[str], path: str) -> None:
    """Warns of a header of one column that looks like several."""
    delimiters = [character for character in (";", "\t") if len(header) == 1 and character in header[0]]
    if delimiters:
        warnings.warn(
            f"the header of {path} is one column, {header[0]!r:.200}. If it names several, "
            f"pass delimiter={delimiters[0]!r}",
            StokerWarning,
            stacklevel=4,
        )


def _parser(
    encoding: str,
    errors: str,
    cutting: Cutting,
    header: list[str],
    columns: Sequence[str] | None,
    types: Mapping[str, Convert] | Convert | None,
) -> CSVParser:
    wanted = checked_columns(columns) or header
    if missing := [name for name in wanted if name not in header]:
        raise missing_column(missing[0], header, "columns names")
    return CSVParser(encoding, errors, cutting, header, wanted, functions_of(types, header))
