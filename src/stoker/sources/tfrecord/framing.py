"""Records in the bytes of a TFRecord file: length, its checksum, data, its checksum.

A record is the length of its data (uint64, little-endian), the masked CRC-32C of these 8 bytes (uint32), the data, and
the masked CRC-32C of the data.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from stoker.errors import FileChangedError, MissingExtraError, ShardError
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
    """Returns the function that gives the CRC-32C of bytes.

    Raises:
        MissingExtraError: its package is not installed.
    """
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
    """Returns the number of bytes of data of the record that begins with `head`, 12 bytes.

    Raises:
        ShardError: the head is cut off, or its checksum is another.
    """
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
    """Returns the data of a record of which `rest` is what follows its head.

    Raises:
        ShardError: the record is cut off, or the checksum of the data is another.
    """
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
        path: of the file.
        file: the file itself, open.
        storage: of the file.
        crc: the function for checksums; None not to check.

    Raises:
        ShardError: the file is truncated or damaged.
        FileChangedError: it was written to meanwhile.
        OSError: it cannot be read.
    """
    index_path, name = index_place(path, ".records.index"), shown(path)
    identity = {"format": _FORMAT, **file.version._asdict()}
    found = load_index(index_path, identity)
    if found is not None and len(found) == 1:
        return found[0]
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
