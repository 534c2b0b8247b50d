"""Shards for tests, written by the standard library."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_shard(path: Path, members: Iterable[tuple[str, bytes]], format: int = tarfile.USTAR_FORMAT) -> str:
    with tarfile.open(path, "w", format=format) as shard:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            shard.addfile(member, io.BytesIO(data))
    return str(path)


def numbered(numbers: Iterable[int], size: int = 10) -> list[tuple[str, bytes]]:
    """Members of a sample for each number: its text, and `size` bytes."""
    return [
        member
        for number in numbers
        for member in ((f"{number:05}.txt", str(number).encode()), (f"{number:05}.bin", bytes([number % 251]) * size))
    ]


def write_numbered(folder: Path, counts: list[int], size: int = 10) -> list[str]:
    """Shards with so many samples each, numbered on."""
    paths, begin = [], 0
    for place, count in enumerate(counts):
        paths.append(write_shard(folder / f"s{place:03}.tar", numbered(range(begin, begin + count), size)))
        begin += count
    return paths


def numbers_of(samples: Iterable[dict[str, Any]]) -> list[int]:
    return [int(sample["txt"]) for sample in samples]
