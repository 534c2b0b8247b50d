"""`ImageFiles`: images from a list of files, or from a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.column import Array, NumberColumn, TextColumn
from stoker.datasets.columnar import Columns, columns, of_columns, stores_of
from stoker.errors import LabelCountError
from stoker.sources import read_image, tables
from stoker.sources.cached_storage import CachedStorage, cached
from stoker.sources.hub_store import PinnedRepositories
from stoker.sources.object_store import ObjectStorage
from stoker.sources.storage_of import remote_storage
from stoker.sources.urls import hub_fingerprint, is_on_hub, is_remote, shown

Path = str | os.PathLike[str]
Self = TypeVar("Self", bound="ImageFiles")


class ImageFiles(Dataset[Any]):
    """Images from a list of files: sample k is `(image, label)`, or the image alone if there are no labels.

        ImageFiles(sorted(glob("photos/*.jpg")))
        ImageFiles(["a.jpg", "b.jpg"], ["cat", "dog"])              # class names: labels are their indices
        ImageFiles(paths, key_points)                               # an array (images, points, 2)
        ImageFiles.from_csv("train.csv", image="file", label="class", root="photos")

    The order is that of the list; a file may occur several times. Paths, contents and labels lie in arrays that all
    workers share, on any Python and with any start method. No file is looked at before its sample is read. Samples draw
    no random numbers, unless `transform` does. Immutable, and thus safe in threads, as long as `transform` is.

    Args:
        images: paths or URLs (`s3://bucket/a.jpg`, `https://…`, `hf://…`) of files, or their contents as `bytes`.
            Contents are held in memory. `loader` takes the contents of a file that a URL names.
        labels: one for each image: names of classes, numbers, or arrays of one shape; or any object with `__len__` and
            `__getitem__`, which is kept as it is. None for images alone.
        transform: takes the image that `loader` returns, and returns another; runs in the worker.
        target_transform: takes the label.
        loader: takes a path, or the contents of a file, and returns an image. The default returns Pillow's, of mode
            RGB, and closes the file.
        root: a folder, or a URL of one, that relative paths start from.
        classes: names of the classes in the order of their indices. None takes the sorted names that occur.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.
        decode_device: "cuda" has JPEGs decoded by the GPU of `DataLoader(device=)`, as that of `ImageFolder`.

    Attributes:
        classes: names of the classes; empty if labels are no names.
        class_to_idx: from the name of a class to its index.
        images: the paths or contents, as a sequence.
        targets: the labels, names of classes as indices, as a sequence; None if there are none.
        fingerprint: the commits of files on the Hugging Face Hub, with which a state is compared; None for others.
        samples: pairs (image, target) as a sequence; None if there are no labels, or they are of several parts or an
            object of your own.

    Raises:
        LabelCountError: the numbers of images and labels differ.
        ValueError: a label is not among `classes`, or labels are of different types or shapes.
        TypeError: images are neither paths nor `bytes`, or labels are of a type that arrays do not hold.
        ImageArgumentError, MissingExtraError: `decode_device` is not possible with these arguments, or here.

    `dataset[index]` raises `IndexError` for an index that is out of range, and else what `loader` and the transforms
    raise, with a note that names the file. A loader's `on_error=` applies.
    """

    stoker_protocol = True
    decode_device: str | None = None  # pickles of former versions have none

    def __init__(
        self,
        images: Iterable[Path] | Iterable[bytes] | TextColumn,
        labels: Any = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loader: Callable[[Any], Any] | None = None,
        *,
        root: Path | None = None,
        classes: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
        decode_device: Any = None,
    ) -> None:
        self.transform = transform
        self.target_transform = target_transform
        self.loader: Callable[[Any], Any] = read_image.read_rgb if loader is None else loader
        if decode_device is not None:
            self.decode_device = read_image.encoding().checked_device(decode_device, transform, loader is not None)
        self.root = None if root is None else os.path.expanduser(os.fspath(root))
        self._storage_options = storage_options
        self._storages: dict[bool, ObjectStorage | CachedStorage] = {}
        self._cache = cache, cache_size
        hub = PinnedRepositories(storage_options)
        if self.root is not None and is_on_hub(self.root):
            self.root = hub.pinned(self.root)
        images_column = _images(images, hub)
        self.fingerprint = hub_fingerprint(hub.roots)
        self.images: Sequence[Any] = of_columns(images_column)
        self.classes: list[str] = []
        self.targets: Any = None
        self.samples: Sequence[tuple[Any, Any]] | None = None
        if labels is not None:
            self.targets, self.classes = _targets(labels, classes)
            _check_count(len(self.images), len(self.targets))
            if isinstance(self.targets, Columns) and len(parts := stores_of(self.targets)) == 1:
                self.samples = of_columns(images_column, *parts)
        elif classes is not None:
            raise ValueError("ImageFiles(classes=...) names the classes of labels, and there are no labels")
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}

    @classmethod
    def from_csv(
        cls: type[Self], path: Path, *, image: str, label: str | None = None, root: Path | None = None, **options: Any
    ) -> Self:
        """Returns the images that a CSV file with a header lists, in its order.

        Args:
            path: of a UTF-8 text.
            image: name of the column of paths.
            label: name of the column of labels: whole numbers if all are, else numbers if all are, else names of
                classes.
            root: the folder that the paths start from. None for the folder of the CSV file.
            **options: other arguments of `ImageFiles`.

        Raises:
            ValueError: the file has no such column, or a row has fewer fields than the header; with its line.
            OSError: the file cannot be read.
        """
        images, labels = tables.read_csv(path, image, label)
        root = os.path.dirname(os.path.abspath(path)) if root is None else root
        return cls(images, labels, root=root, **options)

    @classmethod
    def from_parquet(
        cls: type[Self], path: Path, *, image: str, label: str | None = None, root: Path | None = None, **options: Any
    ) -> Self:
        """Returns the images of a Parquet file, in its order. Needs the extra `stoker[parquet]`.

        Args:
            path: of a file.
            image: name of the column: paths, the contents of files, or structs of both as Hugging Face writes them.
            label: name of the column of labels: integers, numbers or texts.
            root: the folder that the paths start from. None for the folder of the Parquet file.
            **options: other arguments of `ImageFiles`.

        Raises:
            ValueError: the file has no such column, a value in it is null, or its type is another.
            MissingExtraError: pyarrow is not installed.
            OSError: the file cannot be read, or is no Parquet file (`ValueError` for some).
        """
        images, labels = tables.read_parquet(path, image, label)
        root = os.path.dirname(os.path.abspath(path)) if root is None else root
        return cls(images, labels, root=root, **options)

    @classmethod
    def from_sqlite(cls: type[Self], path: Path, query: str, *, root: Path | None = None, **options: Any) -> Self:
        """Returns the images of an SQLite database, in the order of a query.

            ImageFiles.from_sqlite("samples.sqlite", "SELECT file_path, label_id FROM samples")

        The database is opened for reading alone, and closed at the end.

        Args:
            path: of the database.
            query: selects one column, the paths or the contents of files, or two: these and the labels.
            root: the folder that the paths start from. None for the folder of the database.
            **options: other arguments of `ImageFiles`.

        Raises:
            ValueError: the query selects no column or more than two, or a value is NULL.
            FileNotFoundError: there is no such file.
            sqlite3.Error: the database, or the query, is wrong.
        """
        images, labels = tables.read_sqlite(path, query)
        root = os.path.dirname(os.path.abspath(path)) if root is None else root
        return cls(images, labels, root=root, **options)

    def __len__(self) -> int:
        """Returns the number of images."""
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        """Returns the image at `index`, which may be negative, and its label if there are labels, transformed."""
        source = self._source(index)
        with read_image.named(index, source):
            data = self._contents(source) if isinstance(source, str) and is_remote(source) else source
            image = read_image.image_of(data, self.transform, self.loader, self.decode_device)
            if self.targets is None:
                return image
            target = self.targets[index]
            if self.target_transform is not None:
                target = self.target_transform(target)
        return image, target

    def describe(self, index: int) -> str:
        """Returns the path of a sample, or the size of its contents, for messages about it."""
        source = self._source(index)
        return shown(source) if isinstance(source, str) else f"{len(source):,} bytes"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} images>"

    def _contents(self, url: str) -> bytes:
        is_hub = is_on_hub(url)
        storage = self._storages.get(is_hub)
        if storage is None:
            storage = self._storages[is_hub] = _remote(url, self._storage_options, *self._cache)
        return storage.read_whole(url)

    def _source(self, index: int) -> Any:
        source = self.images[index]
        if self.root is None or not isinstance(source, str) or is_remote(source):
            return source
        return os.path.join(self.root, source)


def _remote(
    url: str, storage_options: Mapping[str, Any] | None, cache: str | os.PathLike[str] | None, cache_size: int | None
) -> ObjectStorage | CachedStorage:
    storage = remote_storage(url, storage_options)
    cached_storage = cached(storage, cache, cache_size, name=str((storage_options or {}).get("endpoint", "")))
    return cached_storage if isinstance(cached_storage, CachedStorage) else storage


def _images(images: Iterable[Any] | TextColumn, hub: PinnedRepositories) -> TextColumn:
    """Returns a column of paths or contents."""
    if isinstance(images, TextColumn):
        return images
    if isinstance(images, (str, bytes, os.PathLike)):
        raise TypeError(
            f"ImageFiles(images): images are a {type(images).__name__}, expected a list of paths. For a folder of "
            "class folders there is stoker.ImageFolder."
        )
    paths = (os.fspath(each) if isinstance(each, os.PathLike) else each for each in images)
    image_paths = columns(hub.pinned(each) if isinstance(each, str) and is_on_hub(each) else each for each in paths)
    column = stores_of(image_paths)[0] if len(image_paths) else None
    if len(image_paths) == 0:
        return TextColumn(np.empty(0, np.uint8), np.zeros(1, np.int64), str, None)
    if not isinstance(column, TextColumn) or column.mask is not None:
        raise TypeError(
            f"ImageFiles(images): images hold {image_paths[0]!r}, expected paths, or the contents of files (bytes)"
        )
    return column


def _targets(labels: Any, classes: Sequence[str] | None) -> tuple[Any, list[str]]:
    """Returns the labels as a sequence, and the names of classes."""
    names = list(classes or ())
    if isinstance(labels, (TextColumn, NumberColumn)):
        column: Any = labels
    elif isinstance(labels, np.ndarray) or hasattr(labels, "numpy"):
        column = _array_column(np.array(labels))  # a copy: the caller may go on with the array
    elif isinstance(labels, (list, tuple, Columns)) or not hasattr(labels, "__getitem__"):
        targets = columns(labels)
        if len(stores_of(targets)) != 1:
            return targets, names  # tuples or dicts of numbers: targets of several parts
        column = stores_of(targets)[0]
    else:
        return labels, names
    if isinstance(column, TextColumn) and column.kind is str:
        return _as_classes(column, classes)
    if names and isinstance(column, NumberColumn) and column.array.dtype.kind in "iu" and len(column):
        low, high = int(column.array.min()), int(column.array.max())
        if low < 0 or high >= len(names):
            raise ValueError(f"ImageFiles(labels, classes): labels from {low} to {high}, and {len(names):,} classes")
    return of_columns(column), names


def _array_column(array: Array) -> NumberColumn:
    if array.ndim > 1:
        return NumberColumn(array, np.ndarray, None)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"ImageFiles(labels): an array of {array.dtype}, expected numbers; give names as a list")
    return NumberColumn(array, array.dtype.type, None)


def _as_classes(names: TextColumn, classes: Sequence[str] | None) -> tuple[Any, list[str]]:
    values = of_columns(names)
    known = sorted(set(values)) if classes is None else list(classes)
    index = {name: place for place, name in enumerate(known)}
    try:
        numbers = np.fromiter((index[name] for name in values), np.int64, len(values))
    except KeyError as error:
        raise ValueError(
            f"ImageFiles(labels, classes): the label {error.args[0]!r} is not one of the {len(known):,} classes "
            f"{', '.join(map(repr, known[:5]))}{', …' if len(known) > 5 else ''}"
        ) from None
    return of_columns(NumberColumn(numbers, int, None)), known


def _check_count(images: int, labels: int) -> None:
    if images != labels:
        raise LabelCountError(f"{images:,} images and {labels:,} labels: each image needs one label, in the same order")
