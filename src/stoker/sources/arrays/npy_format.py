"""Headers of array files: `.npy`, members of `.npz`, safetensors; and files of numbers without a header."""

from __future__ import annotations

import importlib.util
import json
import math
import operator
import struct
import zipfile
import zlib
from typing import IO, Any, NamedTuple

import numpy as np

from stoker.errors import ArrayFileError, MissingExtraError
from stoker.sources.arrays.stored import PLAIN, Found, StoredArray, checked

_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""The header before each member of a zip archive: its magic, and the lengths of the name and of the extra field."""
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error, ValueError)


def npy_arrays(file: IO[bytes], path: str, size: int) -> Found:
    """Returns the array of a `.npy` file."""
    try:
        stored = _header(file)
    except (ValueError, SyntaxError) as error:
        raise ArrayFileError(
            f"{path} ({size:,} bytes) has no header of a .npy file: {error}. Was it written by numpy.save, and "
            "copied completely?"
        ) from error
    return {PLAIN: checked(path, size, "", stored)}


def npz_arrays(file: IO[bytes], path: str, size: int) -> Found:
    """Returns the arrays of a `.npz` archive by name, in its order. Only members without compression can be mapped."""
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
    """Returns a compressed array of a `.npz` archive, in memory."""
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


# The header of a safetensors file: eight bytes of length, JSON, then the tensors without a gap.


_LONGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""
_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
_OF_TORCH = {
    "BF16": ("<u2", "bfloat16"),
    "F8_E4M3": ("u1", "float8_e4m3fn"),
    "F8_E5M2": ("u1", "float8_e5m2"),
    "F8_E8M0": ("u1", "float8_e8m0fnu"),
}
"""Dtypes that NumPy lacks: the integers of their size, and torch's name."""


def safetensors_arrays(file: IO[bytes], path: str, size: int) -> Found:
    """Returns the tensors of a safetensors file that have a dimension, by name, in the order of its header.

    Raises:
        ArrayFileError: the file is none, or is truncated.
    """
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= length <= min(size - 8, _LONGEST_HEADER):
        raise _none(path, size, f"its first eight bytes say that the header has {length:,} bytes")
    text = file.read(length)
    arrays: Found = {}
    end = 8 + length
    try:
        for name, entry in json.loads(text).items():
            if name != "__metadata__":
                begin, stop = entry["data_offsets"]
                end = max(end, 8 + length + stop)
                if entry["dtype"] not in _DTYPES and entry["dtype"] not in _OF_TORCH:
                    arrays[name] = _unknown(entry["dtype"], path, name)
                    continue
                dtype, torch_dtype = _dtype_of(entry["dtype"])
                stored = StoredArray(dtype, tuple(entry["shape"]), 8 + length + begin, torch_dtype=torch_dtype)
                if stored.end != 8 + length + stop or min((begin, *stored.shape)) < 0:
                    raise _none(path, size, f"the bytes {begin:,} to {stop:,} of {name!r} do not fit its shape")
                if stored.shape:
                    arrays[name] = checked(path, size, f" {name!r}", stored)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _none(path, size, f"its header cannot be read: {error!r}") from error
    if end > size:
        raise _none(path, size, f"its tensors end at byte {end:,}")
    return arrays


def check_torch(path: str, name: str, stored: StoredArray) -> None:
    """Raises MissingExtraError if a tensor can only be read with torch, and torch is not installed."""
    if stored.torch_dtype and importlib.util.find_spec("torch") is None:
        raise MissingExtraError(
            f"the tensor {name!r} of {path} is {stored.torch_dtype}, which NumPy lacks: install the extra "
            "stoker[torch], or leave it out by keys=."
        )


def _dtype_of(code: str) -> tuple[np.dtype[Any], str]:
    bits, torch_dtype = _OF_TORCH.get(code) or (_DTYPES[code], "")
    return np.dtype(bits), torch_dtype


def _unknown(code: Any, path: str, name: str) -> ArrayFileError:
    return ArrayFileError(f"the tensor {name!r} of {path} is of dtype {code!r}, which is not known here")


def _none(path: str, size: int, why: str) -> ArrayFileError:
    return ArrayFileError(
        f"{path} ({size:,} bytes) is no complete safetensors file: {why}. Was it written and copied completely?"
    )


class RawRows(NamedTuple):
    """The contents of a file without a header.

    Attributes:
        offset: the number of bytes before the first row.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


def raw_rows(dtype: Any, shape: Any, offset: Any) -> RawRows | None:
    """Returns the arguments of a dataset as the description of its raw files; None if there is no dtype."""
    if dtype is None:
        if shape is not None or offset:
            raise ValueError("shape= and offset= describe raw files, and need dtype=: the dtype of their numbers")
        return None
    kind = np.dtype(dtype)
    sizes = (shape,) if hasattr(shape, "__index__") else () if shape is None else tuple(shape)
    row = RawRows(kind, tuple(map(operator.index, sizes)), operator.index(offset))
    if kind.hasobject:
        raise TypeError(f"dtype is {kind}: Python objects have no raw form")
    if min((*row.shape, row.offset)) < 0 or not math.prod(row.shape) * kind.itemsize:
        raise ValueError(f"shape is {row.shape} and offset {row.offset}: a row needs at least one byte, an offset none")
    return row


def raw_arrays(path: str, size: int, row: RawRows) -> dict[str, StoredArray]:
    """Returns the array of a raw file."""
    of_row = math.prod(row.shape) * row.dtype.itemsize
    rows, rest = divmod(size - row.offset, of_row)
    if rest or rows < 0:
        raise ArrayFileError(
            f"{path} has {size:,} bytes; {row.offset:,} before the first row and {of_row:,} for each row ({row.dtype} "
            f"of shape {row.shape}) do not add up to that. Is the dtype, the shape or the offset another, or is the "
            "file truncated?"
        )
    return {PLAIN: StoredArray(row.dtype, (rows, *row.shape), row.offset)}
