"""The metadata of a Zarr folder, versions 2 and 3: read here, because the package zarr starts threads when it reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker.errors import ArrayFileError
from stoker.sources.arrays.stored import PLAIN, StoredArray

_FILES = ("zarr.json", ".zarray", ".zgroup")
_OF_V3 = frozenset({
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
})  # fmt: skip


def metadata_file(path: str) -> str:
    """Returns the file that says what a Zarr folder holds.

    Raises:
        ArrayFileError: there is none.
    """
    for name in _FILES:
        if os.path.exists(found := os.path.join(path, name)):
            return found
    raise ArrayFileError(f"the folder {path} is no Zarr array or group: it has none of {', '.join(_FILES)}")


def version_of(metadata: str) -> int:
    """Returns the version of the format, 2 or 3, from the path of a metadata file."""
    return 3 if metadata.endswith("zarr.json") else 2


def zarr_arrays(path: str) -> dict[str, StoredArray]:
    """Returns the array of a folder, or all arrays of a group by their path in it, sorted.

    Raises:
        ArrayFileError: the folder is neither, or its metadata cannot be read.
    """
    if (stored := _array(path)) is not None:
        return {PLAIN: stored}
    return {os.path.relpath(folder, path): stored for folder, stored in _below(path)}


def _below(path: str) -> Iterator[tuple[str, StoredArray]]:
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        if entry.is_dir() and any(os.path.exists(os.path.join(entry.path, name)) for name in _FILES):
            stored = _array(entry.path)
            if stored is None:
                yield from _below(entry.path)
            elif stored.shape:
                yield entry.path, stored


def _array(path: str) -> StoredArray | None:
    """Returns the array of a folder; None for a group."""
    file = metadata_file(path)
    try:
        with open(file, "rb") as opened:
            held: dict[str, Any] = json.load(opened)
        if file.endswith(".zgroup") or held.get("node_type") == "group":
            return None
        shape = tuple(map(int, held["shape"]))
        if file.endswith(".zarray"):
            dtype, chunks = np.dtype(held["dtype"]), held["chunks"]
        else:
            dtype, chunks = _dtype_of_v3(held["data_type"]), _chunks_of_v3(held)
        if dtype.kind not in "biufc":
            raise TypeError(f"its dtype is {dtype}, and only numbers are read")
        return StoredArray(dtype, shape, chunk_rows=int(chunks[0]) if shape else 0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ArrayFileError(
            f"{file} does not describe a Zarr array that can be read: {error}. Was it written and copied completely?"
        ) from error


def _dtype_of_v3(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or name not in _OF_V3:
        raise TypeError(f"its dtype is {name!r}, and only numbers that NumPy has are read")
    return np.dtype(name)


def _chunks_of_v3(held: dict[str, Any]) -> Any:
    """Returns the shape of the chunks that are decompressed: in shards, of those inside."""
    for codec in held.get("codecs", ()):
        if codec["name"] == "sharding_indexed":
            return codec["configuration"]["chunk_shape"]
    return held["chunk_grid"]["configuration"]["chunk_shape"]
