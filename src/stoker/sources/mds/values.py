"""Values of an MDS sample, from the bytes of each column's encoding.

A sample is the sizes of its columns of variable size (uint32 each), and the bytes of all columns, one after the other.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

from stoker.errors import RecordError

Value = Callable[[bytes], Any]

_DTYPES = {
    **{8: "uint8", 16: "uint16", 32: "uint32", 64: "uint64"},
    **{9: "int8", 17: "int16", 33: "int32", 65: "int64"},
    **{18: "float16", 34: "float32", 66: "float64"},
}
"""The dtypes of arrays, by the byte that stands for each."""
_SIZES = ("<u1", "<u2", "<u4", "<u8")
"""The dtypes of shapes of arrays."""


class SampleLayout:
    """The columns of a shard's samples.

    Args:
        names: of all columns.
        encodings: of all columns, as texts.
        sizes: of all columns in bytes; None where each sample states it.
        columns: the columns to decode, in the order of the sample.
    """

    def __init__(self, names: list[str], encodings: list[str], sizes: list[int | None], columns: list[str]) -> None:
        self._sizes = sizes
        self._stated = sum(not size for size in sizes)
        self._columns = columns
        self._wanted = [(name, names.index(name), value_of(encodings[names.index(name)])) for name in columns]

    def __call__(self, data: bytes) -> dict[str, Any]:
        """Returns a sample by column.

        Raises:
            RecordError: the bytes do not fit the columns, or a value does not fit its encoding.
        """
        place = 4 * self._stated
        stated = iter(np.frombuffer(data[:place], "<u4").tolist())
        begins = [place]
        try:
            for size in self._sizes:
                place += size or next(stated)
                begins.append(place)
        except StopIteration:
            place = -1
        if place != len(data):
            raise RecordError(f"{len(data)} bytes do not fit the sizes of its {len(self._sizes)} columns")
        sample = {}
        for name, number, value in self._wanted:
            try:
                sample[name] = value(data[begins[number] : begins[number + 1]])
            except (ValueError, IndexError, KeyError, ArithmeticError, RecursionError) as error:
                raise RecordError(f"the column {name!r} does not fit its encoding: {error!r}") from error
        return sample


def value_of(encoding: str) -> Value:
    """Returns the function that makes a value of a column's bytes.

    Images, pickles and encodings that are not known stay `bytes`: a transform decodes them.
    """
    kind, _, rest = encoding.partition(":")
    if kind == "ndarray":
        dtype, _, shape = rest.partition(":")
        sizes = tuple(map(int, shape.split(","))) if shape else None
        return functools.partial(_array, np.dtype(dtype).newbyteorder("<") if dtype else None, sizes)
    if kind in _DTYPES.values():
        return functools.partial(_scalar, np.dtype(kind).newbyteorder("<"))
    return _VALUES.get(kind, bytes)


def _scalar(dtype: Any, data: bytes) -> Any:
    return np.frombuffer(data, dtype, 1)[0]


def _array(dtype: Any, shape: tuple[int, ...] | None, data: bytes) -> Any:
    place = 0
    if dtype is None:
        dtype = np.dtype(_DTYPES[data[0]]).newbyteorder("<")
        place = 1
    if shape is None:
        dimensions, size = data[place] >> 2, np.dtype(_SIZES[data[place] & 3])
        shape = tuple(np.frombuffer(data, size, dimensions, place + 1).tolist())
        place += 1 + dimensions * size.itemsize
    if len(data) - place != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(data) - place} bytes for an array of {shape}")
    return np.frombuffer(data, dtype, offset=place).reshape(shape).astype(dtype.newbyteorder("="))


def _integer(data: bytes) -> int:
    return int(_scalar(np.dtype("<i8"), data))


def _text(data: bytes) -> str:
    return data.decode()


def _of_text(kind: Callable[[str], Any], data: bytes) -> Any:
    return kind(data.decode())


_VALUES: dict[str, Value] = {
    "int": _integer,
    "str": _text,
    "str_int": functools.partial(_of_text, int),
    "str_float": functools.partial(_of_text, float),
    "str_decimal": functools.partial(_of_text, Decimal),
    "json": json.loads,
}
