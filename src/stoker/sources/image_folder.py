"""`ImageFolder`: images in class folders, as torchvision's class of that name, without a Python object for each."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.column import Array, NumberColumn
from stoker.datasets.columnar import of_columns
from stoker.errors import EmptyFolderError
from stoker.sources import listing as listings
from stoker.sources import read_image
from stoker.sources.listing import ListedFolder, counts_of, list_folders, names_of, scan
from stoker.sources.path_column import Paths
from stoker.sources.urls import check_local

_log = logging.getLogger("stoker")

_SMALL = 10_000
"""Files up to which a listing is not worth a file in the user's cache folder: it takes some hundredths of a second."""


class ImageFolder(Dataset[tuple[Any, Any]]):
    """Images in class folders, with torchvision's arguments, attributes and order: sample k is `(image, class index)`.

        photos/cat/001.jpg
        photos/cat/2024/july/17.png
        photos/dog/001.jpg

        dataset = stoker.ImageFolder("photos", transform=my_transform)

    Classes are the folders in `root`, sorted; the files in and below each are sorted by folder and then by name, as
    torchvision sorts them. Paths and labels lie in arrays, some 30 bytes for each sample, which all workers share, on
    any Python and with any start method. Samples draw no random numbers, unless `transform` does.

    A listing of more than 10,000 files is kept in `$XDG_CACHE_HOME/stoker/listings` (`~/.cache` without that variable).
    The next start lists only folders whose times have changed since.

    Immutable, and thus safe in threads, as long as `transform` is. `samples`, `targets`, `imgs` and the functions may
    be set; `dataset[index]` reads `samples`, as in torchvision.

    Args:
        root: the folder that holds the class folders.
        transform: takes the image that `loader` returns, and returns another; runs in the worker. A transform of
            `stoker.images` takes the path instead, unless `loader` is given, and decodes only what it needs.
        target_transform: takes the index of the class.
        loader: takes a path and returns an image. The default returns Pillow's, of mode RGB, and closes the file.
        is_valid_file: takes a path and returns whether the file is an image. None accepts torchvision's extensions in
            upper and lower case. With a function, the listing is not cached.
        allow_empty: whether a class folder may be without images.
        cache: whether the listing is cached; or the file that it is cached in, however small it is.
        decode_device: "cuda" has JPEGs decoded by the GPU of `DataLoader(device=)`, so that only their bytes are
            copied there: see the guide on GPUs. `transform` is then a crop, a resize or a flip of `stoker.images`, or a
            `Compose` of them. Needs the extra `decode` (TorchCodec). None decodes in the worker.

    Attributes:
        classes: names of the classes, sorted.
        class_to_idx: from the name of a class to its index.
        samples: pairs (path, class index), as a sequence that equals a list of them and reads an array.
        imgs: the same object as `samples`.
        targets: the class indices, as such a sequence; `numpy.asarray(targets)` takes no time.

    Raises:
        MissingFolderError, NotAFolderError, UnreadableFolderError, FolderError: a folder cannot be listed.
        EmptyFolderError: `root` holds no folder, or a class no image. All of these are `OSError`s, and
            `FileNotFoundError`s if torchvision raises that.
        ImageArgumentError, MissingExtraError: `decode_device` is not possible with these arguments, or here.

    `dataset[index]` raises `IndexError` for an index that is out of range, and else what `loader` and the transforms
    raise, with a note that names the file. A loader's `on_error=` applies.
    """

    stoker_protocol = True
    decode_device: str | None = None  # pickles of former versions have none

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loader: Callable[[str], Any] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        *,
        cache: bool | str | os.PathLike[str] = True,
        decode_device: Any = None,
    ) -> None:
        self.root = os.path.expanduser(root) if isinstance(root, str) else root
        folder = os.path.expanduser(os.fspath(root))
        check_local(folder, "image folders", "Or name the files: ImageFiles takes their URLs.")
        self.transform = transform
        self.target_transform = target_transform
        self.loader: Callable[[Any], Any] = read_image.read_rgb if loader is None else loader
        if decode_device is not None:
            self.decode_device = read_image.encoding().checked_device(decode_device, transform, loader is not None)
        self.extensions = read_image.EXTENSIONS if is_valid_file is None else None
        self.classes, self.class_to_idx = self.find_classes(folder)
        tops = sorted(self.class_to_idx)
        if is_valid_file is None:
            chosen = type(self).find_classes is not ImageFolder.find_classes
            listed = _cached(folder, tops, chosen, cache)
        elif isinstance(cache, bool):
            listed = list_folders(folder, tops, is_valid_file).folders
        else:
            raise ValueError(
                f"cache={os.fspath(cache)!r} with is_valid_file: what a function accepts cannot be cached. Leave one "
                "of them out."
            )
        if not allow_empty:
            _check_classes(folder, listed, tops, self.extensions)
        counts = counts_of(listed)
        paths = Paths.of([os.path.join(folder, each.path, "") for each in listed], counts, names_of(listed))
        labels = _labels(listed, counts, self.class_to_idx)
        self.samples: Sequence[tuple[str, int]] = of_columns(paths, labels)
        self.imgs = self.samples
        self.targets: Sequence[int] = of_columns(labels)

    def find_classes(self, directory: str | os.PathLike[str]) -> tuple[list[str], dict[str, int]]:
        """Returns the names of the classes and their indices. A subclass may choose some of the folders, or others.

        Raises:
            EmptyFolderError: `directory` holds no folder.
        """
        directory = os.fspath(directory)
        classes = sorted(entry.name for entry in scan(directory) if entry.is_dir())
        if not classes:
            raise EmptyFolderError(
                errno.ENOENT,
                "no class folder in it: an image folder holds a folder for each class. stoker.ImageFiles takes a list "
                "of files",
                directory,
            )
        return classes, {name: index for index, name in enumerate(classes)}

    def __len__(self) -> int:
        """Returns the number of images."""
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Returns the image at `index`, which may be negative, and its class index, both after their transforms."""
        path, target = self.samples[index]
        with read_image.named(index, path):
            image = read_image.image_of(path, self.transform, self.loader, self.decode_device)
            if self.target_transform is not None:
                target = self.target_transform(target)
        return image, target

    def describe(self, index: int) -> str:
        """Returns the path of a sample, for messages about it."""
        return self.samples[index][0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} images of {len(self.classes):,} classes in {self.root}>"


def _cached(root: str, tops: list[str], chosen: bool, cache: bool | str | os.PathLike[str]) -> list[ListedFolder]:
    """Returns the folders below a root, from a cached listing as far as they are unchanged.

    Args:
        chosen: whether a subclass has chosen them, so that the listing is one of these classes alone.
        cache: the argument of `ImageFolder`.
    """
    if cache is False:
        return list_folders(root, tops, read_image.has_extension).folders
    key: listings.Key = {"root": os.path.realpath(root), "extensions": list(read_image.EXTENSIONS)}
    if chosen:
        key["classes"] = tops
    path = listings.place_of(key) if cache is True else Path(cache)
    listing = list_folders(root, tops, read_image.has_extension, listings.load(path, key))
    if listing.changed and not (cache is True and counts_of(listing.folders).sum() <= _SMALL):
        try:
            listings.save(path, key, listing.folders)
        except OSError as error:
            if cache is not True:
                raise
            _log.info("the listing of %s cannot be cached in %s, so the next start lists anew: %s", root, path, error)
    return listing.folders


def _labels(folders: Sequence[ListedFolder], counts: Array, class_to_idx: Mapping[str, int]) -> NumberColumn:
    of_folders = np.array([class_to_idx[_top(folder)] for folder in folders], np.int64)
    return NumberColumn(np.repeat(of_folders, counts), int, None)


def _check_classes(
    root: str, folders: Sequence[ListedFolder], tops: Iterable[str], extensions: Sequence[str] | None
) -> None:
    """Raises EmptyFolderError if a class has no file."""
    folder_names = {_top(folder) for folder in folders if folder.files}
    empty = [top for top in tops if top not in folder_names]
    if not empty:
        return
    wanted = "no file that is_valid_file accepts" if extensions is None else f"no file with {', '.join(extensions)}"
    few = ", ".join(empty[:10]) + (f" and {len(empty) - 10:,} more" if len(empty) > 10 else "")
    raise EmptyFolderError(
        errno.ENOENT, f"{wanted} in the class folders {few}: remove these, or pass allow_empty=True", root
    )


def _top(folder: ListedFolder) -> str:
    return folder.path.partition(os.sep)[0]
