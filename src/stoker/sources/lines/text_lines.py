"""The lines of text files, by index and as a stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stoker.sources.lines.by_index import IndexedRecords, RecordDataset
from stoker.sources.lines.opened_text import Cutting, check_encoding
from stoker.sources.lines.parsing import TextParser
from stoker.sources.lines.streaming import RecordStream, UntransformedRecords
from stoker.sources.places import Place
from stoker.sources.storage_of import source_files


class TextLineDataset(RecordDataset):
    """Lines of text files, by index: with a length, a true shuffle, exact resume. `TextLineStream` reads in sequence.

    A sample is a `str` without its line end (`\\n` or `\\r\\n`); empty lines are samples. A mark of UTF-8 at the begin
    of a file belongs to no line.

    An index of the lines is made once and kept beside each file (`file.txt.lines.index`); in a folder that cannot be
    written, it lives in memory. It is made anew when the file has changed. Memory: 8 bytes for each line, in an array
    that workers share. Each process opens files when it first needs them, at most 64 at once; none is open when the
    dataset is made. Thread safe.

    Args:
        files: a path, a glob pattern (`*.txt`), a brace pattern (`part-{000..127}.txt`), a URL of an object store or a
            web server, or a list of these. They must not be compressed.
        encoding: of the text; in it, byte 10 must end a line, as in all but UTF-16 and UTF-32.
        errors: the handling of undecodable bytes, as in `open`: "strict", "replace", "ignore", ….
        transform: a function of the line, whose result is the sample.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError: a path or pattern leads to no file.
        ValueError: there are no files or no lines, the encoding is unknown, or its text cannot be cut at line ends.
        CompressedFileError: a file is compressed with gzip or zstd.
        FileChangedError: a file was written to while it was indexed.
        RecordError: the lines of a file end in `\\r` alone.
        TypeError: `transform` cannot be called.

    Attributes:
        files: the paths of the files, in order.

    At each access:
        IndexError: the index is out of range.
        UnicodeDecodeError: the line is not in the encoding. The message names the file, the line and its byte.
        FileChangedError: the file was changed since the dataset was made.
    """

    def __init__(
        self,
        files: Place | Iterable[Place],
        encoding: str = "utf-8",
        errors: str = "strict",
        *,
        transform: Callable[[str], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        checked_transform(transform)
        encoding = check_encoding(encoding, errors)
        parser = TextParser(encoding, errors)
        records = IndexedRecords(
            source_files(files, storage_options, cache, cache_size), Cutting(), encoding, "TextLineStream", parser
        )
        super().__init__(records, parser, 0, transform)


class TextLineStream(RecordStream):
    """The lines of text files, one file after another, without line ends (`\\n` or `\\r\\n`); empty lines are included.

    A gzip or zstd file is recognized by its first bytes, whatever its name. The state is a byte position in the text: a
    plain file is read from there, a compressed file is decompressed again up to there (about 500 MB of text per
    second). The state holds numbers of files, not their names, so files may be moved; it can be loaded with any number
    of workers.

    No file stays open between two lines: dropped iterators, or ten thousand of them side by side, hold no descriptors,
    and a fork shares none. A line that cannot be decoded, or a file that cannot be read further, raises an error at its
    place; the iterator continues with the next line or the next file.

    Args:
        files: a path, a glob pattern, a brace pattern, a URL of an object store or a web server, or a list of these.
            Each worker reads its own files (`shard`), under torch's loader too.
        encoding: of the text; in it, byte 10 must end a line, as in all but UTF-16 and UTF-32.
        errors: the handling of undecodable bytes, as in `open`: "strict", "replace", "ignore", ….
        transform: a function of the line, whose result is the sample. Random numbers that it draws are the sample's
            own.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError: a path or pattern leads to no file; all are checked at once.
        ValueError: there are no files, the encoding is unknown, or its text cannot be cut at line ends.
        MissingExtraError: a file is compressed with zstd, and `backports.zstd` is not installed (`stoker[zstd]`).
        TypeError: `transform` cannot be called.

    Attributes:
        files: the paths of the files, in order.

    While iterating:
        UnicodeDecodeError: a line is not in the encoding. The message names the file, the line and its byte.
        RecordError: the lines of a file end in `\\r` alone.
        OSError: a file is damaged (gzip, zstd), deleted, or has changed while being read.
    """

    def __init__(
        self,
        files: Place | Iterable[Place],
        encoding: str = "utf-8",
        errors: str = "strict",
        *,
        transform: Callable[[str], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        checked_transform(transform)
        encoding = check_encoding(encoding, errors)
        parser = TextParser(encoding, errors)
        super().__init__(
            UntransformedRecords(source_files(files, storage_options, cache, cache_size), Cutting(), parser, encoding),
            transform,
        )


def checked_transform(transform: Any) -> None:
    """Checks that a transform is a function or None."""
    if transform is not None and not callable(transform):
        raise TypeError(f"transform is a {type(transform).__name__}, expected a function of the sample")
