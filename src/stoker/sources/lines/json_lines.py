"""The values of JSON Lines files, by index and as a stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stoker.sources.lines.by_index import IndexedRecords, RecordDataset
from stoker.sources.lines.opened_text import Cutting, check_encoding
from stoker.sources.lines.parsing import JSONParser
from stoker.sources.lines.streaming import RecordStream, UntransformedRecords
from stoker.sources.lines.text_lines import checked_transform
from stoker.sources.places import Place
from stoker.sources.storage_of import source_files

_CUTTING = Cutting(skips_blank=True, skips_spaces=True)


class JSONLinesDataset(RecordDataset):
    """Values of JSON Lines files, by index: one line, one JSON value. `JSONLinesStream` reads in sequence.

    A sample is what `json.loads` makes of the line: mostly a dict of Python scalars, `str`, lists and dicts. Lines that
    are empty or hold spaces alone are left out. Index (`file.jsonl.jsonl.index`), memory, processes and threads are as
    in `TextLineDataset`.

    Args:
        files: a path, a glob pattern, a brace pattern, a URL of an object store or a web server, or a list of these,
            not compressed.
        columns: keys to keep of each object, in the order of the sample. None for the whole value of any kind.
        encoding: of the text, as in `TextLineDataset`.
        errors: the handling of undecodable bytes, as in `open`.
        transform: a function of the value, whose result is the sample.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError: a path or pattern leads to no file.
        ValueError: there are no files, no values or no columns, or the encoding cannot be used.
        CompressedFileError: a file is compressed with gzip or zstd.
        FileChangedError: a file was written to while it was indexed.
        RecordError: a file is one JSON array, or one value over several lines.
        TypeError: `columns` is a single text, or `transform` cannot be called.

    Attributes:
        files: the paths of the files, in order.

    At each access:
        IndexError: the index is out of range.
        RecordError: the line is not JSON, or, with `columns`, no object with these keys. The message names the file,
            the line and its byte.
        UnicodeDecodeError: the line is not in the encoding.
        FileChangedError: the file was changed since the dataset was made.
    """

    def __init__(
        self,
        files: Place | Iterable[Place],
        *,
        columns: Sequence[str] | None = None,
        encoding: str = "utf-8",
        errors: str = "strict",
        transform: Callable[[Any], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        checked_transform(transform)
        encoding = check_encoding(encoding, errors)
        parser = JSONParser(encoding, errors, checked_columns(columns))
        records = IndexedRecords(
            source_files(files, storage_options, cache, cache_size), _CUTTING, encoding, "JSONLinesStream", parser
        )
        super().__init__(records, parser, 0, transform)


class JSONLinesStream(RecordStream):
    """Values of JSON Lines files, one file after another: one line, one JSON value. Plain, gzip or zstd.

    A sample is as in `JSONLinesDataset`. State, files, workers and damaged files are as in `TextLineStream`. After a
    line that is not JSON, the iterator continues with the next line.

    Args:
        files: a path, a glob pattern, a brace pattern, a URL of an object store or a web server, or a list of these.
            Each worker reads its own.
        columns: as in `JSONLinesDataset`.
        encoding: of the text, as in `TextLineStream`.
        errors: the handling of undecodable bytes, as in `open`.
        transform: a function of the value, whose result is the sample. Random numbers that it draws are the sample's
            own.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError: a path or pattern leads to no file.
        ValueError: there are no files or no columns, or the encoding cannot be used.
        MissingExtraError: a file is compressed with zstd, and `backports.zstd` is not installed (`stoker[zstd]`).
        TypeError: `columns` is a single text, or `transform` cannot be called.

    Attributes:
        files: the paths of the files, in order.

    While iterating:
        RecordError, UnicodeDecodeError: as in `JSONLinesDataset`.
        OSError: a file is damaged (gzip, zstd), deleted, or has changed while being read.
    """

    def __init__(
        self,
        files: Place | Iterable[Place],
        *,
        columns: Sequence[str] | None = None,
        encoding: str = "utf-8",
        errors: str = "strict",
        transform: Callable[[Any], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        checked_transform(transform)
        encoding = check_encoding(encoding, errors)
        parser = JSONParser(encoding, errors, checked_columns(columns))
        super().__init__(
            UntransformedRecords(source_files(files, storage_options, cache, cache_size), _CUTTING, parser, encoding),
            transform,
        )


def checked_columns(columns: Sequence[str] | None) -> list[str] | None:
    """Returns the names of columns, each once."""
    if isinstance(columns, str):
        raise TypeError(f"columns is a text, {columns!r}, expected a list of names: [{columns!r}]")
    if columns is not None and not columns:
        raise ValueError("columns is an empty list: name at least one, or leave it out to read all")
    return None if columns is None else list(dict.fromkeys(columns))
