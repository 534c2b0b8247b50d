"""Parquet files for tests, written by pyarrow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write_numbered(folder: Path, counts: list[int], group: int = 3) -> list[str]:
    """Files with so many rows each, numbered on, in row groups of `group` rows."""
    paths, begin = [], 0
    for place, count in enumerate(counts):
        numbers = range(begin, begin + count)
        table = arrow.table(
            {
                "number": arrow.array(numbers, arrow.int64()),
                "text": arrow.array([f"row {number}" for number in numbers], arrow.string()),
                "vector": arrow.array(
                    [[number / 2] * (number % 3) for number in numbers], arrow.list_(arrow.float32())
                ),
            }
        )
        paths.append(write(folder / f"f{place:03}.parquet", table, group))
        begin += count
    return paths


def write(path: Path, table: Any, group: int = 3, **options: Any) -> str:
    parquet.write_table(table, path, row_group_size=group, **options)
    return str(path)


def numbers_of(samples: Iterable[dict[str, Any]]) -> list[int]:
    return [sample["number"] for sample in samples]
