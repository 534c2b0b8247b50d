"""The features of a `tf.train.Example`, read from its bytes without TensorFlow or protobuf.

A message is a sequence of fields: a number and a wire type in one varint, and the value. Of an Example, field 1 holds
the features; each of them is a pair of a name and a list of bytes, of floats or of integers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stoker.errors import RecordError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FEW = 16
"""Bytes of packed integers up to which a loop is faster than NumPy."""


class ExampleDecoder:
    """Makes a dict of the bytes of an Example.

    Args:
        columns: the features to keep, in the order of the sample; None for all, in the order of the record.
        scalars: features of exactly one value, which is the sample's entry in place of a list.
    """

    def __init__(self, columns: Sequence[str] | None, scalars: Sequence[str]) -> None:
        self._columns = columns
        self._scalars = scalars

    def __call__(self, data: bytes) -> dict[str, Any]:
        """Returns the features by name: lists of bytes, arrays of float32 or int64, or single values.

        Raises:
            RecordError: the bytes are no Example, a feature is missing, or a scalar has not exactly one value.
        """
        try:
            features = _features(data)
        except (ValueError, IndexError, struct.error) as error:
            raise RecordError(f"no tf.train.Example ({error}). Pass decode=False for its bytes") from error
        if self._columns is not None:
            if missing := [name for name in self._columns if name not in features]:
                raise RecordError(f"an Example without the feature {missing[0]!r}; it has {', '.join(features)}")
            features = {name: features[name] for name in self._columns}
        for name in self._scalars:
            values = features.get(name, ())
            if len(values) != 1:
                raise RecordError(f"the feature {name!r} has {len(values)} values, and scalars names it: expected 1")
            features[name] = values[0] if isinstance(values, list) else values[0].item()
        return features


def _features(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, kind, value in _fields(data):
        if number == 1 and kind == _BYTES:
            for inner, inner_kind, entry in _fields(value):
                if inner == 1 and inner_kind == _BYTES:
                    name, values = _entry(entry)
                    found[name] = values
        elif number == 2 and kind == _BYTES:
            raise ValueError("it is a SequenceExample")
    return found


def _entry(data: bytes) -> tuple[str, Any]:
    """Returns the name and the values of a feature."""
    name, values = "", []
    for number, kind, value in _fields(data):
        if kind == _BYTES and number == 1:
            name = value.decode()
        elif kind == _BYTES and number == 2:
            values = _values(value)
    return name, values


def _values(data: bytes) -> Any:
    found: Any = []
    for number, kind, value in _fields(data):
        if kind == _BYTES and number in (1, 2, 3):
            found = (_byte_list, _float_list, _integer_list)[number - 1](value)
    return found


def _byte_list(data: bytes) -> list[bytes]:
    return [value for number, kind, value in _fields(data) if number == 1 and kind == _BYTES]


def _float_list(data: bytes) -> Any:
    parts = [value for number, kind, value in _fields(data) if number == 1 and kind in (_BYTES, _FIXED32)]
    return np.frombuffer(b"".join(parts), "<f4").astype(np.float32)


def _integer_list(data: bytes) -> Any:
    parts = []
    for number, kind, value in _fields(data):
        if number == 1 and kind == _BYTES:
            parts.append(_packed_integers(value))
        elif number == 1 and kind == _VARINT:
            parts.append(np.array([value], np.uint64))
    joined = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint64), *parts])
    return joined.view(np.int64)


def _packed_integers(data: bytes) -> Any:
    """Returns varints that follow each other, as uint64."""
    if len(data) <= _FEW:
        values, place = [], 0
        while place < len(data):
            value, place = _varint(data, place)
            values.append(value)
        return np.array(values, np.uint64)
    array = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(array < 128)
    if not len(ends) or ends[-1] != len(array) - 1:
        raise ValueError("an integer is cut off")
    begins = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - begins + 1
    if lengths.max() > 10:
        raise ValueError("an integer has more than 64 bits")
    shifts = (7 * (np.arange(len(array)) - np.repeat(begins, lengths))).astype(np.uint64)
    return np.bitwise_or.reduceat((array & 127).astype(np.uint64) << shifts, begins)


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yields number, wire type and value of each field of a message.

    Raises:
        ValueError: the message is cut off or damaged.
    """
    place, size = 0, len(data)
    while place < size:
        tag, place = _varint(data, place)
        kind = tag & 7
        value: Any
        if kind == _BYTES:
            length, place = _varint(data, place)
            end = place + length
            value = data[place:end]
        elif kind == _VARINT:
            value, end = _varint(data, place)
        elif kind in (_FIXED32, _FIXED64):
            end = place + (4 if kind == _FIXED32 else 8)
            value = data[place:end]
        else:
            raise ValueError(f"a field of wire type {kind} at byte {place}")
        if end > size:
            raise ValueError(f"a field at byte {place} of {size} is cut off")
        yield tag >> 3, kind, value
        place = end


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Returns the integer at a place, and the place behind it."""
    byte = data[place]
    if byte < 128:
        return byte, place + 1
    value, shift = byte & 127, 7
    while True:
        place += 1
        byte = data[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
        shift += 7
        if shift > 63:
            raise ValueError(f"an integer at byte {place} has more than 64 bits")
