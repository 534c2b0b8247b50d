"""Records in the bytes of a TFRecord file: length, its checksum, data, its checksum.

A record is the length of its data (uint64, little-endian), the masked CRC-32C of these 8 bytes (uint32), the data, and
the masked CRC-32C of the data.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from stoker.errors import FileChangedError, MissingExtraError, RecordError, ShardError
from stoker.sources.index_file import Integers, index_place, load_index, save_index
from stoker.sources.read_ahead import ahead
from stoker.sources.storage import File, Storage
from stoker.sources.urls import shown

HEAD, TAIL = 12, 4
"""Bytes before and behind the data of a record."""
_FORMAT = "stoker tfrecord 1"
_WINDOW = 1 << 18
"""Bytes read at once while records are small."""
_MASK = 0xA282EAD8

Checksum = Callable[[bytes], int]


def checksum() -> Checksum:
    """Returns the function that gives the CRC-32C of bytes."""
    try:
        import google_crc32c
    except ImportError as error:
        raise MissingExtraError(
            f"checksums of TFRecord files need google-crc32c, which cannot be imported ({error}): install the extra "
            "stoker[tfrecord], or pass check=False to read without them."
        ) from error
    function: Any = google_crc32c.value
    return function  # type: ignore[no-any-return]


def length_of(head: bytes, path: str, begin: int, crc: Checksum | None) -> int:
    """Returns the number of bytes of data of the record that begins with `head`, 12 bytes."""
    if len(head) < HEAD:
        raise ShardError(f"{path} ends within the record at byte {begin}: was it written and copied completely?")
    length, check = struct.unpack("<QI", head)
    if crc is not None and _masked(crc(head[:8])) != check:
        raise ShardError(
            f"{path}, byte {begin}: the checksum of a record's length is wrong. The file is damaged, compressed in "
            "another way than gzip, or no TFRecord file"
        )
    return int(length)


def data_of(rest: bytes, length: int, path: str, begin: int, crc: Checksum | None) -> bytes:
    """Returns the data of a record of which `rest` is what follows its head."""
    if len(rest) < length + TAIL:
        raise ShardError(f"{path} ends within the record at byte {begin}: was it written and copied completely?")
    data = rest[:length]
    if crc is not None and _masked(crc(data)) != int.from_bytes(rest[length : length + TAIL], "little"):
        raise ShardError(f"{path}: the checksum of the record at byte {begin} is wrong: its data is damaged")
    return data


def record_offsets(path: str, file: File, storage: Storage, crc: Checksum | None) -> Integers:
    """Returns the byte at which each record begins, and the size of the file: n + 1 times int64.

    They are kept in a file beside it, `file.tfrecord.records.index`, and made anew when the file has changed. The
    index of a remote file lies in the user's cache folder.

    Args:
        file: the file itself, open.
        crc: the function for checksums; None not to check.

    Raises:
        ShardError: the file is truncated or damaged.
    """
    index_path, name = index_place(path, ".records.index"), shown(path)
    identity = {"format": _FORMAT, **file.version._asdict()}
    index = load_index(index_path, identity)
    if index is not None and len(index) == 1:
        return index[0]
    offsets = scanned(ahead(file), name, crc)
    if storage.open(path).version != file.version:
        raise FileChangedError(f"{name} was written to while it was indexed: index it when it is complete")
    save_index(index_path, identity, [offsets])
    return offsets


def scanned(file: File, path: str, crc: Checksum | None) -> Integers:
    """Returns the offsets of the records, found by reading the heads of all."""
    size = file.version.size
    offsets: list[int] = []
    begin, window, at = 0, b"", 0
    length = 0
    while begin < size:
        if begin + HEAD > at + len(window):
            window, at = file.read(begin, HEAD if length > _WINDOW else _WINDOW), begin
        length = length_of(window[begin - at : begin - at + HEAD], path, begin, crc)
        if begin + HEAD + length + TAIL > size:
            raise ShardError(f"{path} ends within the record at byte {begin}: was it written and copied completely?")
        offsets.append(begin)
        begin += HEAD + length + TAIL
    return np.array([*offsets, size], np.int64)


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


# The features of a `tf.train.Example`, read from its bytes without TensorFlow or protobuf.
#
# A message is a sequence of fields: a number and a wire type in one varint, and the value. Of an Example, field 1
# holds the features; each of them is a pair of a name and a list of bytes, of floats or of integers.


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
        """Returns the features by name: lists of bytes, arrays of float32 or int64, or single values."""
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
    features: dict[str, Any] = {}
    for number, kind, value in _fields(data):
        if number == 1 and kind == _BYTES:
            for inner, inner_kind, entry in _fields(value):
                if inner == 1 and inner_kind == _BYTES:
                    name, values = _entry(entry)
                    features[name] = values
        elif number == 2 and kind == _BYTES:
            raise ValueError("it is a SequenceExample")
    return features


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
    values: Any = []
    for number, kind, value in _fields(data):
        if kind == _BYTES and number in (1, 2, 3):
            values = (_byte_list, _float_list, _integer_list)[number - 1](value)
    return values


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
    """Yields number, wire type and value of each field of a message."""
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
