"""TFRecord files written after the format's description, with a checksum and varints of their own."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

WRITTEN_BY_TFRECORD = zlib.decompress(
    base64.b85decode(
        "c-m8DWB`M0{?BJ~Enwo}<6_N8OiIlWVwGa%Vr1qL=3-9GO%mb};^N`}Dzj%`Sg@aqi;E>MKQC2?Ns57MA0roYW=gTpHb$w<j9eQS8UMooV*?a8"
        "tYI3wqFf?eteLrq>8V28T%26&4F46f3R2U##JE_?^NWD~;^pGzVoc;>t13UdEhkN5^B)OmNQf~=@y-+GlH?MHg&3a{4;R-@xE&Aj_EiA@Pw1O4"
    )
)
"""Two records that `TFRecordWriter` of the package tfrecord 1.14.6 has written with protobuf."""


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(features: dict[str, Any], packed: bool = True) -> bytes:
    """An Example; lists of integers, floats or bytes."""
    entries = b""
    for name, values in features.items():
        kind = {int: 3, float: 2, bytes: 1}[type(values[0])] if values else 3
        if kind == 1:
            inner = b"".join(field(1, value) for value in values)
        elif kind == 2:
            each = [struct.pack("<f", value) for value in values]
            inner = field(1, b"".join(each)) if packed else b"".join(b"\x0d" + value for value in each)
        else:
            each = [varint(value) for value in values]
            inner = field(1, b"".join(each)) if packed else b"".join(b"\x08" + value for value in each)
        entries += field(1, field(1, name.encode()) + field(2, field(kind, inner)))
    return field(1, entries)


def written(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(b"".join(map(framed, records)))
    return path
