"""The metadata of a Zarr folder, versions 2 and 3: read here, because the package zarr starts threads when it reads."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import numpy as np

from stoker.errors import ArrayFileError, FileChangedError
from stoker.sources.arrays.stored import PLAIN, FileContents, Found, StoredArray
from stoker.sources.storage import Storage
from stoker.sources.urls import scheme_of, shown

FILES = ("zarr.json", ".zarray", ".zgroup")
_OF_V3 = frozenset({
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
})  # fmt: skip


def metadata_file(path: str) -> str:
    """Returns the file that says what a Zarr folder holds."""
    for name in FILES:
        if os.path.exists(file := os.path.join(path, name)):
            return file
    raise ArrayFileError(f"the folder {path} is no Zarr array or group: it has none of {', '.join(FILES)}")


def version_of(metadata: str) -> int:
    """Returns the version of the format, 2 or 3, from the path of a metadata file."""
    return 3 if metadata.endswith("zarr.json") else 2


def changed(path: str) -> FileChangedError:
    """Returns the error of an array that is not the one that the dataset was made of."""
    return FileChangedError(
        f"{path} was changed since the dataset was made. Make the dataset anew, and give new data another name."
    )


def zarr_arrays(path: str) -> Found:
    """Returns the array of a folder, or all arrays of a group by their path in it, sorted.

    Raises:
        ArrayFileError: the folder is neither, or its metadata cannot be read.
    """
    if (stored := _array(path)) is not None:
        return {PLAIN: stored}
    return {os.path.relpath(folder, path): array for folder, array in _below(path)}


def zarr_in_store(place: str, storage: Storage) -> FileContents:
    """Returns the array of a folder in a store, or all arrays of a group whose metadata is consolidated."""
    name = shown(place)
    for file in FILES:
        with contextlib.suppress(FileNotFoundError):
            opened = storage.open(url_below(place, file))
            break
    else:
        raise ArrayFileError(f"{name} is no Zarr array or group: it has none of {', '.join(FILES)}")
    metadata = f"{name}/{file}"
    fields = parsed(metadata, opened.read(0, opened.version.size))
    stored = described(metadata, fields)
    arrays: Found = {PLAIN: stored} if stored is not None else _of_group(place, name, metadata, fields, storage)
    return FileContents(name, metadata, opened.version, {}, True, place, storage).holding(arrays)


def _of_group(place: str, name: str, metadata: str, fields: dict[str, Any], storage: Storage) -> Found:
    """Returns the arrays of a group: its folder cannot be listed."""
    try:
        if metadata.endswith(".zgroup"):
            file = storage.open(url_below(place, ".zmetadata"))
            entries = parsed(f"{name}/.zmetadata", file.read(0, file.version.size))["metadata"]
        else:
            entries = {f"{key}/zarr.json": entry for key, entry in fields["consolidated_metadata"]["metadata"].items()}
        names = sorted((entry for entry in entries if entry.endswith(FILES)), key=lambda entry: entry.split("/"))
        arrays = [(entry, _described_or_error(f"{name}/{entry}", entries[entry])) for entry in names]
    except (FileNotFoundError, KeyError, TypeError, AttributeError) as error:
        raise ArrayFileError(
            f"{name} is a Zarr group without consolidated metadata, so that its arrays are not known: name one, for "
            f"instance {name}/x, or write the metadata with zarr.consolidate_metadata."
        ) from error
    return {
        entry.rpartition("/")[0]: stored for entry, stored in arrays if stored is not None and not _is_number(stored)
    }


def _described_or_error(file: str, fields: Any) -> StoredArray | ArrayFileError | None:
    try:
        return described(file, fields)
    except ArrayFileError as error:
        return error


def _is_number(array: StoredArray | ArrayFileError) -> bool:
    """Returns whether an array of a group has no dimension: that is left out."""
    return isinstance(array, StoredArray) and not array.shape


def url_below(place: str, key: str) -> str:
    """Returns the URL of a file in a folder: below the path, in front of a signature."""
    if scheme_of(place) not in ("http", "https"):
        return f"{place.rstrip('/')}/{key}"
    url = urlsplit(place)
    return urlunsplit(url._replace(path=f"{url.path.rstrip('/')}/{quote(key)}"))


def _below(path: str) -> Iterator[tuple[str, StoredArray | ArrayFileError]]:
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        if entry.is_dir() and any(os.path.exists(os.path.join(entry.path, name)) for name in FILES):
            array: StoredArray | ArrayFileError | None
            try:
                array = _array(entry.path)
            except ArrayFileError as error:
                array = error
            if array is None:
                yield from _below(entry.path)
            elif not _is_number(array):
                yield entry.path, array


def _array(path: str) -> StoredArray | None:
    """Returns the array of a folder; None for a group."""
    file = metadata_file(path)
    with open(file, "rb") as opened:
        return described(file, parsed(file, opened.read()))


def parsed(file: str, data: bytes) -> dict[str, Any]:
    """Returns the contents of a metadata file.

    Raises:
        ArrayFileError: it holds something else.
    """
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise TypeError(f"it holds {type(fields).__name__}")
        return fields
    except (ValueError, TypeError) as error:
        raise _unreadable(file, error) from error


def described(file: str, fields: dict[str, Any]) -> StoredArray | None:
    """Returns the array that a metadata file describes; None for a group.

    Raises:
        ArrayFileError: it does not describe an array of numbers.
    """
    try:
        if file.endswith(".zgroup") or fields.get("node_type") == "group":
            return None
        shape = tuple(map(int, fields["shape"]))
        if file.endswith(".zarray"):
            if not isinstance(fields["dtype"], str):
                raise TypeError(f"its dtype is {fields['dtype']}, and only numbers are read")
            dtype, chunks = np.dtype(fields["dtype"]), fields["chunks"]
        else:
            dtype, chunks = _dtype_of_v3(fields["data_type"]), _chunks_of_v3(fields)
        if dtype.kind not in "biufc":
            raise TypeError(f"its dtype is {dtype}, and only numbers are read")
        return StoredArray(dtype, shape, chunk_rows=int(chunks[0]) if shape else 0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: str, error: Exception) -> ArrayFileError:
    return ArrayFileError(
        f"{file} does not describe a Zarr array that can be read: {error}. Was it written and copied completely?"
    )


def _dtype_of_v3(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or name not in _OF_V3:
        raise TypeError(f"its dtype is {name!r}, and only numbers that NumPy has are read")
    return np.dtype(name)


def _chunks_of_v3(fields: dict[str, Any]) -> Any:
    """Returns the shape of the chunks that are decompressed: in shards, of those inside."""
    for codec in fields.get("codecs", ()):
        if codec["name"] == "sharding_indexed":
            return codec["configuration"]["chunk_shape"]
    return fields["chunk_grid"]["configuration"]["chunk_shape"]
