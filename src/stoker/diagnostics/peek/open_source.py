"""Opens a source by its name: `module:object`, a folder, or files by their extension."""

from __future__ import annotations

import contextlib
import csv
import glob
import importlib
import itertools
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from stoker._core.first_use import HOMES
from stoker.diagnostics.target import find
from stoker.errors import TargetError
from stoker.sources.places import places_of

Looked = tuple[Any, Any]
"""The index of a sample, or its number in a stream, and the sample; an exception that it raised in its place."""


@dataclass(frozen=True)
class OpenedSource:
    """A source that is open.

    Attributes:
        name: as given.
        kind: the class or format that opened it, for people.
        count: number of samples; None if only reading all of them would tell.
        dataset: by index; None for a stream.
        stream: returns an iterator over the samples of a stream.
    """

    name: str
    kind: str
    count: int | None
    dataset: Any = None
    stream: Callable[[], Iterator[Any]] | None = None

    def look(self, first: int, most: int) -> list[Looked]:
        """Returns the first samples, and others at equal distances: `most` in all; of a stream the first ones.

        What `dataset[index]` raises takes the place of the sample. A stream that raises ends there.
        """
        if self.stream is not None:
            return list(_read(self.stream(), most))
        return [(index, _sample(self.dataset, index)) for index in spread(self.count or 0, first, most)]


def spread(count: int, first: int, most: int) -> list[int]:
    """Returns the first indices, and others at equal distances over all."""
    if count <= most:
        return list(range(count))
    first = min(first, most // 2)
    rest = np.linspace(count - 1, first, most - first).astype(np.int64).tolist()
    return sorted({*range(first), *rest})


def _sample(dataset: Any, index: int) -> Any:
    try:
        return dataset[index]
    except Exception as error:
        return error


def _read(samples: Iterator[Any], most: int) -> Iterator[Looked]:
    for number in itertools.count():
        if number == most:
            return
        try:
            yield number, next(samples)
        except StopIteration:
            return
        except Exception as error:
            yield number, error
            return


IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def open_source(name: str, query: str | None = None) -> OpenedSource:
    """Returns an open source.

    Args:
        name: `module:object`, a folder, a file, or a glob or brace pattern of files.
        query: selects the rows of an SQLite database.

    Raises:
        TargetError: there is no such thing, or nothing tells how to open it.
        MissingExtraError: the package that reads it is not installed.
        Exception: what the dataset of such files raises.
    """
    if os.path.isdir(name):
        return _folder(name)
    module, colon, _ = name.partition(":")
    if colon and not os.path.exists(name) and "/" not in module.replace(".py", "") and "://" not in name:
        return _target(name)
    files = _files(name)
    extension = _extension(files[0])
    if extension in IMAGES:
        return _by_index(name, _counted(files, "image"), _stoker("ImageFiles")(files))
    if extension not in OPENERS:
        if extension == ".py":
            raise TargetError(f"{name} is a program: name a dataset, or a function that makes one, as {name}:object")
        known = ", ".join(sorted({*OPENERS, ".jpg", ".png"}))
        raise TargetError(
            f"{name}: nothing is known to open {extension or 'a file without an extension'} (known are {known}). Name "
            "a dataset of your own as module:object"
        )
    return OPENERS[extension](name, files, query)


def _stoker(name: str) -> Any:
    """Returns a public class of Stoker's, whose module is imported only if it is needed."""
    return getattr(importlib.import_module(HOMES[name]), name)


def _by_index(name: str, kind: str, dataset: Any) -> OpenedSource:
    return OpenedSource(name, kind, len(dataset), dataset)


def _target(name: str) -> OpenedSource:
    dataset = find(name).dataset
    kind = type(dataset).__name__
    has_index = hasattr(dataset, "__getitem__") and not isinstance(dataset, _stoker("IterableDataset"))
    if has_index and hasattr(dataset, "__len__"):
        return _by_index(name, kind, dataset)
    count = None
    with contextlib.suppress(TypeError, NotImplementedError):
        count = len(dataset)
    return OpenedSource(name, f"{kind}, a stream", count, stream=lambda: iter(dataset))


def _files(name: str) -> list[str]:
    try:
        return places_of(name, "files", only_local=True)
    except (FileNotFoundError, ValueError) as error:
        folder = os.path.dirname(name) or "."
        names = os.listdir(folder) if os.path.isdir(folder) else []
        near = get_close_matches(os.path.basename(name), names, 1)
        hint = f": did you mean {os.path.join(os.path.dirname(name), near[0])}?" if near else ""
        raise TargetError(f"there is no file, no folder and no module:object {name!r}{hint}") from error


def _extension(path: str) -> str:
    """Returns the extension; of a gzip file that of the text in it, if it is known."""
    stem, extension = os.path.splitext(path.lower())
    inner = os.path.splitext(stem)[1]
    return inner if extension == ".gz" and inner in (".jsonl", ".ndjson", ".txt") else extension


def _folder(name: str) -> OpenedSource:
    """Opens a folder: an LMDB database, shards of one kind, or images with or without folders of classes."""
    if os.path.exists(os.path.join(name, "data.mdb")):
        return _lmdb(name, [name], None)
    for extension in (".tar", ".parquet", ".npy", ".csv", ".jsonl", ".txt"):
        files = sorted(glob.glob(os.path.join(glob.escape(name), f"*{extension}")))
        if files:
            return OPENERS[extension](name, files, None)
    with os.scandir(name) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    if any(entry.is_dir() for entry in listed):
        found = _stoker("ImageFolder")(name)
        return _by_index(name, f"a folder of images of {len(found.classes):,} classes", found)
    images = [entry.path for entry in listed if _extension(entry.name) in IMAGES]
    if images:
        return _by_index(name, "a folder of images without classes", _stoker("ImageFiles")(images))
    holds = ", ".join(entry.name for entry in listed[:5]) or "nothing"
    raise TargetError(f"{name} holds no images, no shards and no database. It holds {holds}")


def _counted(files: list[str], what: str) -> str:
    return f"{len(files):,} {what} files" if len(files) > 1 else f"{'an' if what[0] in 'aeiou' else 'a'} {what} file"


def _tar(name: str, files: list[str], query: str | None) -> OpenedSource:
    return _by_index(name, _counted(files, "tar"), _stoker("TarDataset")(files))


def _parquet(name: str, files: list[str], query: str | None) -> OpenedSource:
    return _by_index(name, _counted(files, "Parquet"), _stoker("ParquetDataset")(files))


def _lmdb(name: str, files: list[str], query: str | None) -> OpenedSource:
    return _by_index(name, "an LMDB database", _stoker("LMDBDataset")(files[0]))


def _hdf5(name: str, files: list[str], query: str | None) -> OpenedSource:
    return _by_index(name, "an HDF5 file", _stoker("HDF5Dataset")(files[0]))


def _npy(name: str, files: list[str], query: str | None) -> OpenedSource:
    array = np.load(files[0], mmap_mode="r", allow_pickle=False)
    if array.ndim == 0:
        raise TargetError(f"{files[0]} holds a single number, and no samples")
    return _by_index(name, "a NumPy file", array)


def _sqlite(name: str, files: list[str], query: str | None) -> OpenedSource:
    uri = Path(files[0]).resolve().as_uri() + "?mode=ro"

    def rows(text: str) -> Iterator[dict[str, Any]]:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            cursor = database.execute(text)
            columns = [column[0] for column in cursor.description or ()]
            for row in cursor:
                yield dict(zip(columns, row, strict=True))

    try:
        if query is None:
            found = [row["name"] for row in rows("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
            tables = [table for table in found if not table.startswith("sqlite_")]
            if len(tables) != 1:
                raise TargetError(
                    f"{files[0]} holds {', '.join(tables) or 'no tables'}: name the rows, such as "
                    f"--query 'SELECT * FROM {tables[0] if tables else 'rows'}'"
                )
            query = 'SELECT * FROM "{}"'.format(tables[0].replace('"', '""'))
        chosen = query.strip().rstrip(";")
        (counted,) = rows(f"SELECT count(*) AS count FROM ({chosen})")
    except sqlite3.Error as error:
        raise TargetError(
            f"{files[0]} cannot be read ({error}): is it an SQLite database, and the query right?"
        ) from error
    return OpenedSource(name, f"an SQLite database: {chosen}", counted["count"], stream=lambda: rows(chosen))


def _csv(name: str, files: list[str], query: str | None) -> OpenedSource:
    delimiter = "\t" if _extension(files[0]) in (".tsv", ".tab") else ","

    def rows() -> Iterator[Any]:
        for path in files:
            with open(path, newline="", encoding="utf-8-sig") as file:
                for row in csv.DictReader(file, delimiter=delimiter):
                    yield {column: _number(value) for column, value in row.items()}

    def count() -> int:
        found = 0
        for path in files:
            with open(path, newline="", encoding="utf-8-sig") as file:
                found += max(0, sum(1 for row in csv.reader(file, delimiter=delimiter) if row) - 1)
        return found

    return OpenedSource(name, _counted(files, "CSV"), count(), stream=rows)


def _number(text: Any) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except (TypeError, ValueError):
            continue
    return text


def _lines(files: list[str]) -> Iterator[str]:
    return iter(_stoker("TextLineStream")(files))


def _text(name: str, files: list[str], query: str | None) -> OpenedSource:
    return OpenedSource(name, _counted(files, "text"), sum(1 for _ in _lines(files)), stream=lambda: _lines(files))


def _json_lines(name: str, files: list[str], query: str | None) -> OpenedSource:
    def rows() -> Iterator[Any]:
        return (json.loads(line) for line in _lines(files) if line.strip())

    count = sum(1 for line in _lines(files) if line.strip())
    return OpenedSource(name, _counted(files, "JSON Lines"), count, stream=rows)


Opener = Callable[[str, list[str], str | None], OpenedSource]

OPENERS: dict[str, Opener] = dict(
    itertools.chain.from_iterable(
        zip(extensions, itertools.repeat(opener), strict=False)
        for extensions, opener in (
            ((".tar",), _tar),
            ((".parquet", ".pq"), _parquet),
            ((".lmdb", ".mdb"), _lmdb),
            ((".h5", ".hdf5", ".hdf"), _hdf5),
            ((".npy",), _npy),
            ((".db", ".sqlite", ".sqlite3"), _sqlite),
            ((".csv", ".tsv", ".tab"), _csv),
            ((".txt", ".text", ".gz"), _text),
            ((".jsonl", ".ndjson"), _json_lines),
        )
    )
)
"""The function that opens files of an extension."""
