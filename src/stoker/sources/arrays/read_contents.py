"""The arrays of a file, by its format."""

from __future__ import annotations

import os

from stoker.errors import ArrayFileError
from stoker.sources.arrays.npy_format import npy_arrays, npz_arrays
from stoker.sources.arrays.raw_rows import RawRows, raw_arrays
from stoker.sources.arrays.safetensors_header import safetensors_arrays
from stoker.sources.arrays.stored import FileContents
from stoker.sources.arrays.zarr_metadata import metadata_file, zarr_arrays
from stoker.sources.storage import LocalFile

_READERS = {".npy": npy_arrays, ".npz": npz_arrays, ".safetensors": safetensors_arrays}


def contents_of(path: str, raw: RawRows | None) -> FileContents:
    """Returns the contents of a file; its format follows from its name, and a folder is Zarr.

    Args:
        path: of the file or folder.
        raw: the rows of a file without a header; None if there is no such file.

    Raises:
        ArrayFileError: the file is empty, truncated, damaged, or of no known format.
        OSError: it cannot be read.
        ValueError: the file has a header, and `raw` was given.
    """
    is_zarr = os.path.isdir(path)
    reader = _READERS.get(os.path.splitext(path)[1].lower())
    if raw is not None and (is_zarr or reader is not None):
        raise ValueError(
            f"{path} says itself what it holds: dtype=, shape= and offset= are for raw files. Leave them out"
        )
    if is_zarr:
        versioned = metadata_file(path)
        return FileContents(path, versioned, LocalFile(versioned).version, zarr_arrays(path), True)
    version = LocalFile(path).version
    if not version.size:
        raise ArrayFileError(f"{path} is empty: it has 0 bytes. Was it written completely?")
    if reader is not None:
        return FileContents(path, path, version, reader(path, version.size))
    if raw is None:
        raise ArrayFileError(
            f"the format of {path} is unknown: the name ends in none of {', '.join(_READERS)}, and it is no folder of "
            "Zarr. For a raw file of numbers pass dtype=, and shape= of a row."
        )
    return FileContents(path, path, version, raw_arrays(path, version.size, raw))
