"""Opens HDF5 files, with errors that say why one cannot be opened."""

from __future__ import annotations

import os
from typing import Any

from stoker.errors import HDF5Error, MissingExtraError, StokerError
from stoker.sources.storage import File, FileObject


def opened(path: str, chunk_cache: int, contents: File | None = None) -> Any:
    """Returns an `h5py.File`, open for reading.

    Args:
        path: of the file.
        chunk_cache: decompressed chunks that the library keeps for each key, in bytes.
        contents: a file in a store, whose name for messages `path` is then. The `h5py.File` has to be closed before
            the interpreter ends, else the library asks it for bytes then, and the process crashes.

    Raises:
        FileNotFoundError: there is no such file.
        StokerError: the store cannot be reached.
        HDF5Error: it cannot be opened.
    """
    try:
        file = path if contents is None else FileObject(contents)
        return h5py_module().File(file, "r", rdcc_nbytes=chunk_cache, rdcc_nslots=10_007)
    except OSError as error:
        if isinstance(error, StokerError) or (contents is not None and type(error) is not OSError):
            raise  # of the store
        size, message = os.path.getsize(path) if contents is None else contents.version.size, str(error)
        if "unable to lock" in message:
            raise HDF5Error(
                f"{path} cannot be opened: {message}. A program has it open for writing, or the file system has no "
                "locks. Close it there, read a copy, or, if nothing writes to it, set HDF5_USE_FILE_LOCKING=FALSE in "
                "the environment."
            ) from error
        if "already open for" in message or "consistency flags" in message:
            raise HDF5Error(
                f"{path} cannot be opened: {message}. A program writes to it (SWMR), or ended without closing it. "
                "Close it there or read a copy; if no program has it open, run `h5clear -s` on it. Files that grow are "
                "not read."
            ) from error
        raise HDF5Error(
            f"{path} ({size:,} bytes) cannot be opened: {message}. Is it an HDF5 file, and was it written and copied "
            "completely?"
        ) from error


def h5py_module() -> Any:
    """Returns the package h5py."""
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError(
            f"HDF5Dataset needs h5py, which cannot be imported ({error}): install the extra stoker[hdf5]."
        ) from error
    return h5py
