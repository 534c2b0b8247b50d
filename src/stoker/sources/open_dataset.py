"""`open_dataset`: the dataset that fits the files at a place, by their names."""

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
from urllib.parse import quote, unquote, urlsplit

from stoker._core.first_use import HOMES
from stoker.datasets.chain import ChainDataset, ConcatDataset
from stoker.errors import TargetError
from stoker.sources.hub_store import PinnedRepositories
from stoker.sources.places import Place, places_of
from stoker.sources.read_image import EXTENSIONS as IMAGES
from stoker.sources.storage_of import remote_storage, without_indexes
from stoker.sources.urls import GLOB, STORES, check_local, hub_place, is_on_hub, is_remote, parsed, scheme_of, shown


class FileKind(NamedTuple):
    """A kind of data.

    Attributes:
        dataset: the public class that reads it by index.
        stream: the class that reads it in sequence; None if there is none.
        is_single: whether a dataset is of one file or folder.
    """

    name: str
    extensions: tuple[str, ...]
    dataset: str
    stream: str | None = None
    is_single: bool = False


CSV = FileKind("CSV", (".csv", ".tsv", ".tab"), "CSVDataset", "CSVStream")
PARQUET = FileKind("Parquet", (".parquet", ".pq"), "ParquetDataset", "ParquetStream")
ZARR = FileKind("Zarr", (".zarr",), "ArrayDataset")
LMDB = FileKind("LMDB", (".lmdb", ".mdb"), "LMDBDataset", is_single=True)
SQLITE = FileKind("SQLite", (".db", ".sqlite", ".sqlite3"), "SQLDataset", "SQLStream", is_single=True)
IMAGE = FileKind("image", IMAGES, "ImageFiles")
IMAGE_FOLDER = FileKind("image folder", (), "ImageFolder", is_single=True)
MDS = FileKind("MDS", (), "MDSDataset", is_single=True)
KINDS = (
    FileKind("tar", (".tar",), "TarDataset", "TarStream"),
    *(PARQUET, CSV),
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
"""The suffix that TensorFlow gives the names of shards."""
_BESIDE = (".md", ".json", ".yaml", ".yml", ".crc", ".index")
"""Files that describe a folder of data. Those whose names begin with a dot or an underscore count as such too."""
_HIDDEN = (".", "_")
_COMPANIONS = (".index", "-lock", "-wal", "-shm", "-journal")
"""What is appended to the name of a file for that of one beside it: an index, or what LMDB and SQLite write."""
_LISTED = 3
"""Names of each kind that a message lists."""


@dataclass(frozen=True)
class PlaceContents:
    """Data of one kind at a place.

    Attributes:
        place: as given, with the home folder for `~`.
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
            return _joined([_of_sqlite(make, path, **kwargs) for path in self.places], stream)
        if self.kind.is_single:
            return _joined([make(path, **kwargs) for path in self.places], stream)
        if self.kind is CSV and "delimiter" not in kwargs:
            tabs = [path for path in self.places if extension_of(path) != ".csv"]
            if 0 < len(tabs) < len(self.places):
                raise TargetError(
                    f"{len(tabs):,} of {len(self.places):,} files have tabs by their names, such as {shown(tabs[0])}, "
                    "and the others commas: pass delimiter=, or open each kind by itself"
                )
            kwargs = {"delimiter": "\t", **kwargs} if tabs else kwargs
        return make(self.place if self._has_partitions() else self.places, **kwargs)

    def _has_partitions(self) -> bool:
        """Returns whether the class needs the pattern, from which folders count as columns."""
        return self.kind is PARQUET and not _is_folder(self.place)


def open_dataset(place: Place | Iterable[Place], *, stream: bool = False, **kwargs: Any) -> Any:
    """Returns the dataset that fits the files at a place: the class follows from the names of the files.

        open_dataset("s3://bucket/*.parquet", columns=["image", "label"])   # a ParquetDataset
        open_dataset("train-{000..127}.tar", stream=True)                   # a TarStream
        open_dataset("photos/")                                             # an ImageFolder

    It opens tar shards, Parquet, CSV (`.tsv` with tabs), JSON Lines, text, TFRecord, HDF5, `.npy`, `.npz`, safetensors,
    Zarr, LMDB, MDS, SQLite, images, audio and video. A folder counts as the files in it; class folders with images are
    an `ImageFolder`, and folders such as `year=2024` with Parquet files alone a `ParquetDataset`. In a folder, never in
    a pattern, names that begin with a dot or an underscore are passed over, and `.md`, `.json`, `.yaml` and `.index`
    files beside the data. Of kinds that a class reads one file at a time (HDF5, LMDB, SQLite), several files are a
    `ConcatDataset`, or with `stream=True` a `ChainDataset`. No file is opened to find its kind.

    Args:
        place: a path, a folder, a glob or brace pattern, a URL of an object store or the Hugging Face Hub, or a list.
        stream: whether the data is read in sequence, by the class for that.
        **kwargs: arguments of the class, such as `transform=` or `storage_options=`. SQLite files take `query=`, which
            may be left out if they have one table; video files need `frames=`.

    Raises:
        TargetError: files of several kinds lie there, or of an unknown one, or none: the message lists them. Or
            `stream=True` for a kind that is read by index alone.
        FileNotFoundError: the place leads to no file.
        Exception: any that the class raises.
    """
    return contents_of(place, kwargs.get("storage_options")).open(stream=stream, **kwargs)


def contents_of(place: Place | Iterable[Place], storage_options: Mapping[str, Any] | None = None) -> PlaceContents:
    """Returns the files at a place. Stores and folders are listed, and nothing is opened.

    Args: as of `open_dataset`.

    Raises:
        TargetError, FileNotFoundError: as `open_dataset`.
        ValueError, OSError: the place is a folder in a pattern, or cannot be listed.
    """
    if isinstance(place, (str, os.PathLike)):
        place = _expanded(place)
        one: Any = place
    else:
        place = [_expanded(each) for each in place]
        one = place[0] if len(place) == 1 else None
    if _is_folder(one):
        return _of_folder(one, storage_options)
    try:
        places = places_of(place, "files", storage_options, may_be_folders=True)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}{_neighbours(place, storage_options)}") from None
    return _of_files(place, places)


def extension_of(place: str) -> str:
    """Returns the extension of a file, in lower case: of a compressed one that of its contents."""
    stem, extension = os.path.splitext(_NUMBER.sub("", shown(place).rstrip("/").rpartition("/")[2].lower()))
    return (os.path.splitext(stem)[1] if extension in _COMPRESSED else "") or extension


def _expanded(place: Place) -> str:
    """Returns a place with the home folder for `~`, and the path of a folder for its URL of scheme file."""
    text = os.path.expanduser(os.fspath(place))
    if scheme_of(text) == "file" and urlsplit(text).netloc in ("", "localhost"):
        path = unquote(urlsplit(text).path)
        return path if os.path.isdir(path) else text
    return text


def _is_folder(place: Any) -> bool:
    """Returns whether a place is a folder; of a URL without a pattern, whether its name is that of no known file."""
    if not isinstance(place, (str, os.PathLike)):
        return False
    text = os.fspath(place)
    if not is_remote(text):
        return os.path.isdir(text)
    if STORES[scheme_of(text)] == "http" or not {*GLOB, "{"}.isdisjoint(text):
        return False
    return text.endswith("/") or extension_of(text) not in _BY_EXTENSION


def _of_folder(folder: str, storage_options: Mapping[str, Any] | None) -> PlaceContents:
    if extension_of(folder) in ZARR.extensions:
        return PlaceContents(folder, ZARR, [folder.rstrip("/")])
    names, all_folders = _of_store(folder, storage_options) if is_remote(folder) else _of_disk(folder)
    if is_remote(folder) and not (names or all_folders or folder.endswith("/")) and extension_of(folder):
        return _of_files(folder, [folder])
    if "data.mdb" in names and not is_remote(folder):
        return PlaceContents(folder, LMDB, [folder])
    if "index.json" in names and any(".mds" in name for name in names):
        return PlaceContents(folder, MDS, [folder])
    if {".zarray", ".zgroup", "zarr.json"} & {*names}:
        return PlaceContents(folder, ZARR, [folder.rstrip("/")])
    own = [name for name in names if not _is_beside(name)]
    folders = [name for name in all_folders if not name.startswith(_HIDDEN)]
    if own and not folders:
        return _of_files(folder, [os.path.join(folder, name) for name in own])
    if folders and not own:
        if all("=" in name for name in folders) and (found := _of_partitions(folder, storage_options)):
            return found
        if not is_remote(folder) and _are_classes([os.path.join(folder, name) for name in folders]):
            return PlaceContents(folder, IMAGE_FOLDER, [folder])
    pattern = f"*{os.path.splitext(own[0])[1]}" if own else "**/*.parquet"
    raise TargetError(
        f"{shown(folder)} is no folder of data of one kind. It holds {_words(own or names, folders or all_folders)}: "
        f"name the files by a pattern, such as {shown(folder).rstrip('/')}/{pattern}"
    )


def _is_beside(name: str) -> bool:
    """Returns whether a file of a folder is passed over."""
    return name.startswith(_HIDDEN) or name.endswith(_BESIDE)


def _are_classes(folders: list[str]) -> bool:
    """Returns whether one of the folders holds an image, or all are empty. Folders in them are not searched, so that
    `train` and `test` with classes in them do not count as classes.
    """
    are_empty = True
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                are_empty = False
                if _BY_EXTENSION.get(extension_of(entry.name)) is IMAGE and not entry.is_dir():
                    return True
    return are_empty


def _of_partitions(folder: str, storage_options: Mapping[str, Any] | None) -> PlaceContents | None:
    """Returns the Parquet files in Hive partitions; None if there are other files too, or none."""
    if not {*GLOB, "{"}.isdisjoint(folder):
        return None
    root = folder.rstrip("/") + "/"
    if is_on_hub(root):
        root = PinnedRepositories(storage_options).pinned(root)
    below = [
        path.removeprefix(root).split("/")
        for path in places_of(root + "**/*", "files", storage_options, may_be_folders=True)
        if is_remote(path) or not os.path.isdir(path)
    ]
    parents = {tuple(path[:depth]) for path in below for depth in range(1, len(path))}
    own = [
        (path[:-1], path[-1])
        for path in below
        if not (_is_beside(path[-1]) or any(each.startswith(_HIDDEN) for each in path[:-1]) or tuple(path) in parents)
    ]
    forms = {(len(folders), os.path.splitext(name)[1]) for folders, name in own}
    if len(forms) != 1 or not all("=" in each for folders, _ in own for each in folders):
        return None
    ((depth, extension),) = forms
    pattern = root + "*=*/" * depth + "*" + extension
    files = places_of(pattern, "files", storage_options) if extension in PARQUET.extensions else []
    return PlaceContents(pattern, PARQUET, files) if len(files) == len(own) else None


def _words(names: list[str], folders: list[str]) -> str:
    """Returns the first names of a folder for a message."""
    names, folders = (sorted(each, key=lambda name: name.startswith(_HIDDEN))[:_LISTED] for each in (names, folders))
    return ", ".join([*(f"the folder {name}" for name in folders), *names]) or "nothing"


def _neighbours(place: Any, storage_options: Mapping[str, Any] | None) -> str:
    """Returns a sentence on the folder of an object that is not there; nothing if there is no such folder either."""
    folder = os.path.dirname(place) if isinstance(place, (str, os.PathLike)) else ""
    with contextlib.suppress(OSError, ValueError):
        if is_remote(folder):
            return f". {shown(folder)} holds {_words(*_of_store(folder, storage_options))}"
    return ""


def _of_disk(folder: str) -> tuple[list[str], list[str]]:
    with os.scandir(folder) as entries:
        listed = sorted((entry.name, entry.is_dir()) for entry in entries)
    zarr = [name for name, is_folder in listed if is_folder and extension_of(name) in ZARR.extensions]
    folders = [name for name, is_folder in listed if is_folder and name not in zarr]
    return [name for name, is_folder in listed if not is_folder or name in zarr], folders


def _of_store(folder: str, storage_options: Mapping[str, Any] | None) -> tuple[list[str], list[str]]:
    root = folder.rstrip("/") + "/"
    if is_on_hub(root):
        root = PinnedRepositories(storage_options).pinned(root)
    above = hub_place(root).path if is_on_hub(root) else parsed(root).key
    keys = [
        key.removeprefix(above)
        for key in remote_storage(root, storage_options).names(root)
        if key.startswith(above)  # the folder itself may be an object, whose name is listed without its slash
    ]
    folders = {key.partition("/")[0] for key in keys if "/" in key}
    return [key for key in keys if key and "/" not in key and key not in folders], sorted(folders)


def _of_files(place: Any, places: list[str]) -> PlaceContents:
    given = {*places}
    own = [
        path
        for path in without_indexes(places)
        if not any(path.endswith(end) and path.removesuffix(end) in given for end in _COMPANIONS)
    ]
    kinds: dict[FileKind | None, list[str]] = {}
    for path in own:
        kinds.setdefault(_BY_EXTENSION.get(extension_of(path)), []).append(path)
    (kind, files), *others = kinds.items()
    if kind is not None and not others:
        if kind is SQLITE:
            for path in files:
                check_local(path, "SQLite databases")
        return PlaceContents(place, kind, files)
    listed = "; ".join(
        f"{len(files):,} of {'an unknown kind' if kind is None else kind.name}"
        f" ({', '.join(os.path.basename(shown(path)) for path in files[:_LISTED])}{', ...' * (len(files) > _LISTED)})"
        for kind, files in kinds.items()
    )
    what = shown(os.fspath(place)) if isinstance(place, (str, os.PathLike)) else "the list of files"
    if others:
        extension = next(extension_of(files[0]) for kind, files in kinds.items() if kind is not None)
        raise TargetError(
            f"{what} holds files of several kinds: {listed}. Name those of one kind, by a pattern such as *{extension}"
        )
    known = ", ".join(sorted(_BY_EXTENSION))
    raise TargetError(
        f"{what}: nothing is known to open {extension_of(files[0]) or 'a file without an extension'} ({listed}). Known "
        f"are {known}. Rename the files, or call the class that reads them"
    )


def _joined(datasets: list[Any], stream: bool) -> Any:
    if len(datasets) == 1:
        return datasets[0]
    return ChainDataset(datasets) if stream else ConcatDataset(datasets)


def _of_sqlite(make: Any, path: str, query: str | None = None, **kwargs: Any) -> Any:
    return make(the_table(path) if query is None else query, "sqlite:///" + quote(os.path.abspath(path)), **kwargs)


def the_table(path: str) -> str:
    """Returns the query of all rows of the only table in an SQLite file."""
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
