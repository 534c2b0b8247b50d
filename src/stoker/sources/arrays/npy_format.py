"""Headers of `.npy` files and of the members of `.npz` archives."""

from __future__ import annotations

import struct
import zipfile
import zlib
from typing import IO, Any

import numpy as np

from stoker.errors import ArrayFileError
from stoker.sources.arrays.stored import PLAIN, Found, StoredArray, checked

_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""The header before each member of a zip archive: its magic, and the lengths of the name and of the extra field."""
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error, ValueError)


def npy_arrays(file: IO[bytes], path: str, size: int) -> Found:
    """Returns the array of a `.npy` file.

    Raises:
        ArrayFileError: the file is none, is truncated, or holds Python objects.
    """
    try:
        stored = _header(file)
    except (ValueError, SyntaxError) as error:
        raise ArrayFileError(
            f"{path} ({size:,} bytes) has no header of a .npy file: {error}. Was it written by numpy.save, and "
            "copied completely?"
        ) from error
    return {PLAIN: checked(path, size, "", stored)}


def npz_arrays(file: IO[bytes], path: str, size: int) -> Found:
    """Returns the arrays of a `.npz` archive by name, in its order. Only members without compression can be mapped.

    Raises:
        ArrayFileError: the file is none, or is truncated.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            return {
                member.filename.removesuffix(".npy"): _member(file, archive, member, path, size) for member in members
            }
    except _DAMAGED as error:
        raise ArrayFileError(
            f"{path} ({size:,} bytes) cannot be read: {error}. Is it a .npz archive, and was it written and copied "
            "completely?"
        ) from error


def _member(
    file: IO[bytes], archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: str, size: int
) -> StoredArray | ArrayFileError:
    name = member.filename.removesuffix(".npy")
    try:
        with archive.open(member) as content:
            stored = _header(content)
        if member.compress_type == zipfile.ZIP_STORED:
            stored = stored._replace(begin=stored.begin + _begin_of(file, member))
        else:
            stored = stored._replace(member=member.filename)
        return checked(path, size, f" {name!r}", stored)
    except ArrayFileError as error:
        return error
    except (*_DAMAGED, SyntaxError) as error:
        return ArrayFileError(
            f"the array {name!r} of {path} ({size:,} bytes) cannot be read: {error}. Was the archive written and "
            "copied completely?"
        )


def decompressed(file: IO[bytes], path: str, stored: StoredArray) -> np.ndarray[Any, np.dtype[Any]]:
    """Returns a compressed array of a `.npz` archive, in memory.

    Raises:
        ArrayFileError: the member is damaged or truncated.
    """
    try:
        with zipfile.ZipFile(file) as archive, archive.open(stored.member) as content:
            array: np.ndarray[Any, np.dtype[Any]] = np.lib.format.read_array(content, allow_pickle=False)
    except (*_DAMAGED, KeyError) as error:
        raise ArrayFileError(
            f"the member {stored.member} of {path} cannot be decompressed: {error}. The file is damaged, or was "
            "changed since the dataset was made."
        ) from error
    array.setflags(write=False)
    return array


def _begin_of(file: IO[bytes], member: zipfile.ZipInfo) -> int:
    """Returns the place of a member's first byte in the archive."""
    file.seek(member.header_offset)
    magic, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if magic != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"no header of {member.filename} at byte {member.header_offset}")
    return member.header_offset + _LOCAL_HEADER.size + int(name) + int(extra)


def _header(file: IO[bytes]) -> StoredArray:
    """Reads the header of a `.npy` file from its start.

    Raises:
        ValueError, SyntaxError: there is no such header.
    """
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"version {version} of the format, which is for records with names outside of Latin-1")
    return StoredArray(dtype, tuple(shape), file.tell(), is_fortran and len(shape) > 1)
