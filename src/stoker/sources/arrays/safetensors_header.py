"""The header of a safetensors file: eight bytes of length, JSON, then the tensors without a gap."""

from __future__ import annotations

import importlib.util
import json
from typing import IO, Any

import numpy as np

from stoker.errors import ArrayFileError, MissingExtraError
from stoker.sources.arrays.stored import Found, StoredArray, checked

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
