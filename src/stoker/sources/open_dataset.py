"""`open_dataset`: the dataset that fits what lies at a place, by the names of the files."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from stoker._core.first_use import HOMES
from stoker.datasets.chain import ConcatDataset
from stoker.errors import TargetError
from stoker.sources.hub_store import PinnedRepositories
from stoker.sources.places import Place, places_of
from stoker.sources.read_image import EXTENSIONS as IMAGES
from stoker.sources.storage_of import remote_storage, without_indexes
from stoker.sources.urls import GLOB, STORES, hub_place, is_on_hub, is_remote, parsed, scheme_of, shown


class FileKind(NamedTuple):
    """A kind of data.

    Attributes:
        name: for people.
        extensions: of its files.
        dataset: the public class that reads it by index.
        stream: the class that reads it in sequence; None if there is none.
        is_single: whether a dataset is of one file or folder.
    """

    name: str
    extensions: tuple[str, ...]
    dataset: str
    stream: str | None = None
    is_single: bool = False


ZARR = FileKind("Zarr", (".zarr",), "ArrayDataset")
LMDB = FileKind("LMDB", (".lmdb", ".mdb"), "LMDBDataset", is_single=True)
SQLITE = FileKind("SQLite", (".db", ".sqlite", ".sqlite3"), "SQLDataset", "SQLStream", is_single=True)
IMAGE = FileKind("image", IMAGES, "ImageFiles")
IMAGE_FOLDER = FileKind("image folder", (), "ImageFolder", is_single=True)
MDS = FileKind("MDS", (), "MDSDataset", is_single=True)
KINDS = (
    FileKind("tar", (".tar",), "TarDataset", "TarStream"),
    FileKind("Parquet", (".parquet", ".pq"), "ParquetDataset", "ParquetStream"),
    FileKind("CSV", (".csv", ".tsv", ".tab"), "CSVDataset", "CSVStream"),
    FileKind("JSON Lines", (".jsonl", ".ndjson"), "JSONLinesDataset", "JSONLinesStream"),
    FileKind("text", (".txt", ".text"), "TextLineDataset", "TextLineStream"),
    FileKind("TFRecord", (".tfrecord", ".tfrecords"), "TFRecordDataset", "TFRecordStream"),
    FileKind("HDF5", (".h5", ".hdf5", ".hdf"), "HDF5Dataset", is_single=True),
    FileKind("NumPy", (".npy",), "ArrayDataset"),
    FileKind("NumPy archive", (".npz",), "ArrayDataset"),
    FileKind("safetensors", (".safetensors",), "ArrayDataset"),
    FileKind("audio", (".wav", ".flac", ".ogg", ".mp3"), "AudioClips"),
    FileKind("video", (".mp4", ".mkv", ".mov", ".avi", ".webm"), "VideoClips"),
    *(ZARR, LMDB, SQLITE, IMAGE),
)
_BY_EXTENSION = {extension: kind for kind in KINDS for extension in kind.extensions}
_COMPRESSED = (".gz", ".zst", ".zstd")
_NUMBER = re.compile(r"-\d+-of-\d+$")
"""What TensorFlow appends to the names of shards."""
_BESIDE = (".md", ".json", ".yaml", ".yml", ".crc", ".index")
"""Files that describe a folder of data. Those whose names begin with a dot or an underscore count as such too."""
_LISTED = 3
"""Names of each kind that a message lists."""


@dataclass(frozen=True)
class PlaceContents:
    """Data of one kind at a place.

    Attributes:
        place: as given.
        kind: of the data.
        places: the files, or the one folder.
    """

    place: Any
    kind: FileKind
    places: list[str]

    def open(self, *, stream: bool = False, **kwargs: Any) -> Any:
        """Returns the dataset or stream.

        Args: as of `open_dataset`.

        Raises: as `open_dataset`.
        """
        name = self.kind.stream if stream else self.kind.dataset
        if name is None:
            raise TargetError(
                f"{shown(self.places[0])} is of the kind {self.kind.name}, which {self.kind.dataset} reads by index "
                "alone: leave out stream=True"
            )
        make = getattr(importlib.import_module(HOMES[name]), name)
        if self.kind is SQLITE:
            return _joined([_of_sqlite(make, path, **kwargs) for path in self.places])
        if self.kind.is_single:
            return _joined([make(path, **kwargs) for path in self.places])
        if self.kind.name == "CSV" and all(extension_of(path) != ".csv" for path in self.places):
            kwargs = {"delimiter": "\t", **kwargs}
        return make(self.place if self._has_partitions() else self.places, **kwargs)

    def _has_partitions(self) -> bool:
        """Returns whether the class needs the pattern, from which folders count as columns."""
        return self.kind.name == "Parquet" and not _is_folder(self.place)


def open_dataset(place: Place | Iterable[Place], *, stream: bool = False, **kwargs: Any) -> Any:
    """Returns the dataset that fits what lies at a place: the class follows from the names of the files.

        open_dataset("s3://bucket/*.parquet", columns=["image", "label"])   # a ParquetDataset
        open_dataset("train-{000..127}.tar", stream=True)                   # a TarStream
        open_dataset("photos/")                                             # an ImageFolder

    It opens tar shards, Parquet, CSV (`.tsv` with tabs), JSON Lines, text, TFRecord, HDF5, `.npy`, `.npz`, safetensors,
    Zarr, LMDB, MDS, SQLite, images, audio and video. A folder counts as the files in it; class folders with images are
    an `ImageFolder`. In a folder, never in a pattern, names that begin with a dot or an underscore are passed over, and
    `.md`, `.json`, `.yaml` and `.index` files beside the data. Of kinds that a class reads one file at a time (HDF5,
    LMDB, SQLite), several files are a `ConcatDataset`. No file is opened to find its kind.

    Args:
        place: a path, a folder, a glob or brace pattern, a URL of an object store or the Hugging Face Hub, or a list.
        stream: whether the data is read in sequence, by the class for that.
        **kwargs: arguments of the class, such as `transform=` or `storage_options=`. SQLite files take `query=`, which
            may be left out if they have one table; video files need `frames=`.

    Raises:
        TargetError: files of several kinds lie there, or of an unknown one, or none: the message lists what does. Or
            `stream=True` for a kind that is read by index alone.
        FileNotFoundError: the place leads to no file.
        Exception: what the class raises.
    """
    return contents_of(place, kwargs.get("storage_options")).open(stream=stream, **kwargs)


def contents_of(place: Place | Iterable[Place], storage_options: Mapping[str, Any] | None = None) -> PlaceContents:
    """Returns what lies at a place. Stores and folders are listed, and nothing is opened.

    Args: as of `open_dataset`.

    Raises:
        TargetError, FileNotFoundError: as `open_dataset`.
        ValueError, OSError: the place is a folder in a pattern, or cannot be listed.
    """
    if isinstance(place, (str, os.PathLike)):
        if _is_folder(place):
            return _of_folder(os.fspath(place), storage_options)
    else:
        place = list(place)
    try:
        places = places_of(place, "files", storage_options, may_be_folders=True)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}{_neighbours(place, storage_options)}") from error
    return _of_files(place, places)


def extension_of(place: str) -> str:
    """Returns the extension of a file, in lower case: of a compressed one that of its contents."""
    stem, extension = os.path.splitext(_NUMBER.sub("", shown(place).rstrip("/").rpartition("/")[2].lower()))
    return (os.path.splitext(stem)[1] if extension in _COMPRESSED else "") or extension


def _is_folder(place: Any) -> bool:
    """Returns whether a place is a folder; of a URL without a pattern, whether its name is that of no file."""
    if not isinstance(place, (str, os.PathLike)):
        return False
    text = os.fspath(place)
    if not is_remote(text):
        return os.path.isdir(text)
    if STORES[scheme_of(text)] == "http" or not {*GLOB, "{"}.isdisjoint(text) or _BY_EXTENSION.get(extension_of(text)):
        return False
    return text.endswith("/") or not extension_of(text)


def _of_folder(folder: str, storage_options: Mapping[str, Any] | None) -> PlaceContents:
    names, folders = _of_store(folder, storage_options) if is_remote(folder) else _of_disk(folder)
    if "data.mdb" in names and not is_remote(folder):
        return PlaceContents(folder, LMDB, [folder])
    if "index.json" in names and any(".mds" in name for name in names):
        return PlaceContents(folder, MDS, [folder])
    if ZARR.extensions[0] == extension_of(folder) or {".zarray", ".zgroup", "zarr.json"} & {*names}:
        return PlaceContents(folder, ZARR, [folder])
    own = [name for name in names if name[0] not in "._" and not name.endswith(_BESIDE)]
    if folders and all(_BY_EXTENSION.get(extension_of(name)) is IMAGE for name in own) and not is_remote(folder):
        return PlaceContents(folder, IMAGE_FOLDER, [folder])
    if folders or not own:
        listed = ", ".join([*(f"the folder {name}" for name in folders[:_LISTED]), *own[:_LISTED]]) or "nothing"
        raise TargetError(
            f"{shown(folder)} is no folder of data of one kind. It holds {listed}: name the files by a pattern, such "
            f"as {shown(folder).rstrip('/')}/**/*.parquet"
        )
    return _of_files(folder, [os.path.join(folder, name) for name in own])


def _neighbours(place: Any, storage_options: Mapping[str, Any] | None) -> str:
    """Returns a sentence on the folder of a file that is not there; nothing if there is no such folder either."""
    folder = os.path.dirname(place) if isinstance(place, (str, os.PathLike)) else ""
    with contextlib.suppress(OSError, ValueError):
        names, folders = _of_store(folder, storage_options) if is_remote(folder) else _of_disk(folder or ".")
        listed = [*(f"the folder {name}" for name in folders[:_LISTED]), *names[:_LISTED]]
        return f". {shown(folder) or 'This folder'} holds {', '.join(listed) or 'nothing'}"
    return ""


def _of_disk(folder: str) -> tuple[list[str], list[str]]:
    with os.scandir(folder) as entries:
        listed = sorted((entry.name, entry.is_dir()) for entry in entries)
    zarr = [name for name, is_folder in listed if is_folder and extension_of(name) in ZARR.extensions]
    folders = [name for name, is_folder in listed if is_folder and name[0] not in "._" and name not in zarr]
    return [name for name, is_folder in listed if not is_folder or name in zarr], folders


def _of_store(folder: str, storage_options: Mapping[str, Any] | None) -> tuple[list[str], list[str]]:
    root = folder.rstrip("/") + "/"
    if is_on_hub(root):
        root = PinnedRepositories(storage_options).pinned(root)
    above = hub_place(root).path if is_on_hub(root) else parsed(root).key
    keys = [key.removeprefix(above) for key in remote_storage(root, storage_options).names(root)]
    folders = {key.partition("/")[0] for key in keys if "/" in key}
    return [key for key in keys if key and "/" not in key], sorted(name for name in folders if name[0] not in "._")


def _of_files(place: Any, places: list[str]) -> PlaceContents:
    given = {*places}
    own = [path for path in without_indexes(places) if path.removesuffix(".index") not in given - {path}]
    kinds: dict[FileKind | None, list[str]] = {}
    for path in own:
        kinds.setdefault(_BY_EXTENSION.get(extension_of(path)), []).append(path)
    (kind, files), *others = kinds.items()
    if kind is not None and not others:
        return PlaceContents(place, kind, files)
    listed = "; ".join(
        f"{len(files):,} of {'an unknown kind' if kind is None else kind.name}"
        f" ({', '.join(os.path.basename(shown(path)) for path in files[:_LISTED])}{', ...' * (len(files) > _LISTED)})"
        for kind, files in kinds.items()
    )
    what = shown(os.fspath(place)) if isinstance(place, (str, os.PathLike)) else "the list of files"
    if others:
        raise TargetError(
            f"{what} holds files of several kinds: {listed}. Name those of one kind, by a pattern such as *.parquet"
        )
    known = ", ".join(sorted(_BY_EXTENSION))
    raise TargetError(
        f"{what}: nothing is known to open {extension_of(files[0]) or 'a file without an extension'} ({listed}). Known "
        f"are {known}. Rename the files, or call the class that reads them"
    )


def _joined(datasets: list[Any]) -> Any:
    return datasets[0] if len(datasets) == 1 else ConcatDataset(datasets)


def _of_sqlite(make: Any, path: str, query: str | None = None, **kwargs: Any) -> Any:
    return make(the_table(path) if query is None else query, "sqlite:///" + quote(os.path.abspath(path)), **kwargs)


def the_table(path: str) -> str:
    """Returns the query of all rows of the only table in an SQLite file.

    Raises:
        TargetError: it has none, or several, or cannot be read.
    """
    query = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    try:
        with closing(sqlite3.connect(Path(path).resolve().as_uri() + "?mode=ro", uri=True)) as database:
            tables = [name for (name,) in database.execute(query)]
    except sqlite3.Error as error:
        raise TargetError(f"{path} cannot be read ({error}): is it an SQLite database?") from error
    if len(tables) != 1:
        raise TargetError(
            f"{path} holds {', '.join(tables) or 'no tables'}: name the rows by a query, such as "
            f"'SELECT * FROM {tables[0] if tables else 'rows'}'"
        )
    return 'SELECT * FROM "{}"'.format(tables[0].replace('"', '""'))
