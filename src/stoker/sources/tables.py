"""Columns of images and labels from tables: CSV, Parquet, SQLite."""

from __future__ import annotations

import csv
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from stoker.datasets.column import Array, Builder, NumberColumn, TextColumn
from stoker.errors import MissingExtraError

AnyPath = str | os.PathLike[str]
Read = tuple[TextColumn, NumberColumn | TextColumn | None]
"""The columns of images and of labels."""

_ROWS = 8192
"""Rows read at once."""


def read_csv(path: AnyPath, image: str, label: str | None) -> Read:
    """Returns two columns of a CSV file; labels as numbers if all of them are."""
    wanted = [image] if label is None else [image, label]
    builders = [Builder(f"column {name!r} of {os.fspath(path)}") for name in wanted]
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        places = [_place(name, header, path) for name in wanted]
        for rows in _chunks(reader):
            for row in rows:
                if len(row) <= max(places):
                    raise ValueError(
                        f"{os.fspath(path)} before line {reader.line_num + 1}: the row {row!r} has {len(row)} fields, "
                        f"and the header {len(header)}"
                    )
            for builder, place in zip(builders, places, strict=True):
                builder.extend([row[place] for row in rows])
    columns = [_as_texts(builder.build()) for builder in builders]
    return columns[0], (_numbers_if_all(columns[1]) if label is not None else None)


def read_parquet(path: AnyPath, image: str, label: str | None) -> Read:
    """Returns two columns of a Parquet file."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError(
            "Parquet files are read by pyarrow, which is not installed: install it (the extra stoker[parquet])"
        ) from error
    wanted = [image] if label is None else [image, label]
    with parquet.ParquetFile(path) as file:
        for name in wanted:
            _place(name, file.schema_arrow.names, path)
        table = file.read(columns=wanted, use_threads=False)  # no thread in the trainer's process
    where = os.fspath(path)
    images = _texts_of(arrow, table.column(image), f"column {image!r} of {where}")
    return images, None if label is None else _labels_of(arrow, table.column(label), f"column {label!r} of {where}")


def read_sqlite(path: AnyPath, query: str) -> Read:
    """Returns the one or two columns that a query selects."""
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file} leads to no file, so no table can be read")
    with closing(sqlite3.connect(file.resolve().as_uri() + "?mode=ro", uri=True)) as database:
        cursor = database.execute(query)
        names = [column[0] for column in cursor.description or ()]
        if not 1 <= len(names) <= 2:
            raise ValueError(f"the query of {file} selects {len(names)} columns, expected images, or images and labels")
        builders = [Builder(f"column {name!r} of {file}") for name in names]
        for rows in _chunks(cursor):
            for place, builder in enumerate(builders):
                values = [row[place] for row in rows]
                if None in values:
                    raise ValueError(f"column {names[place]!r} of {file} is NULL in row {rows[values.index(None)]!r}")
                builder.extend(values)
    columns = [builder.build() for builder in builders]
    return _as_texts(columns[0]), columns[1] if len(columns) == 2 else None


def _chunks(rows: Any) -> Iterator[list[Any]]:
    """Yields lists of rows."""
    chunk = []
    for row in rows:
        if row:  # of a CSV file, an empty line
            chunk.append(row)
        if len(chunk) == _ROWS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _place(name: str, names: list[str], path: AnyPath) -> int:
    if name not in names:
        raise ValueError(f"{os.fspath(path)} has no column {name!r}; its columns are {', '.join(map(repr, names))}")
    return names.index(name)


def _as_texts(column: NumberColumn | TextColumn) -> TextColumn:
    if isinstance(column, TextColumn):
        return column
    if len(column) == 0:
        return TextColumn(np.empty(0, np.uint8), np.zeros(1, np.int64), str, None)
    raise TypeError(f"a column of images holds {column.kind.__name__}s, expected paths, or contents of files (bytes)")


def _numbers_if_all(column: TextColumn) -> NumberColumn | TextColumn:
    """Returns a column of texts as integers or as numbers, if each text is one."""
    values = column.take(np.arange(len(column)))
    for kind, dtype in ((int, np.int64), (float, np.float64)):
        try:
            if any("_" in value for value in values):
                break  # Python reads "0_1" as a number
            return NumberColumn(np.fromiter(map(kind, values), dtype, len(values)), kind, None)
        except (ValueError, OverflowError):
            continue
    return column


def _texts_of(arrow: Any, column: Any, name: str) -> TextColumn:
    """Returns a column of Arrow's as texts or bytes, without a Python object for each."""
    _refuse_nulls(column, name)
    if arrow.types.is_struct(column.type):
        fields = {column.type.field(place).name for place in range(column.type.num_fields)}
        if "bytes" not in fields:
            raise ValueError(f"{name} holds structs of {sorted(fields)}, and none of them is 'bytes'")
        kind_of_field = column.type.field("bytes").type
        field = arrow.chunked_array([chunk.field("bytes") for chunk in column.chunks], kind_of_field)
        return _texts_of(arrow, field, f"the field 'bytes' of {name}")
    kind: type
    if arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type):
        kind, wide = str, arrow.large_string()
    elif arrow.types.is_binary(column.type) or arrow.types.is_large_binary(column.type):
        kind, wide = bytes, arrow.large_binary()
    else:
        raise ValueError(f"{name} is of type {column.type}, expected string (paths) or binary (contents of files)")
    whole = _whole(arrow, column.cast(wide))
    if len(whole) == 0:
        return TextColumn(np.empty(0, np.uint8), np.zeros(1, np.int64), kind, None)
    _, offsets, data = whole.buffers()
    starts = np.frombuffer(offsets, np.int64)[whole.offset : whole.offset + len(whole) + 1]
    buffer = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return TextColumn(buffer[starts[0] : starts[-1]].copy(), starts - starts[0], kind, None)


def _labels_of(arrow: Any, column: Any, name: str) -> NumberColumn | TextColumn:
    _refuse_nulls(column, name)
    if arrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type):
        return _texts_of(arrow, column, name)
    kinds: dict[str, tuple[type, Any]] = {"b": (bool, np.bool_), "i": (int, np.int64), "f": (float, np.float64)}
    array: Array = column.to_numpy()
    kind, dtype = kinds.get(array.dtype.kind.replace("u", "i"), (None, None))
    if kind is None:
        raise ValueError(f"{name} is of type {column.type}, expected numbers or texts")
    if array.dtype == np.uint64 and len(array) and int(array.max()) >= 1 << 63:
        raise ValueError(f"{name} holds {array.max()}, which is no 64-bit integer with a sign")
    return NumberColumn(array.astype(dtype), kind, None)


def _whole(arrow: Any, column: Any) -> Any:
    return arrow.concat_arrays(column.chunks) if column.num_chunks else arrow.array([], column.type)


def _refuse_nulls(column: Any, name: str) -> None:
    if column.null_count:
        raise ValueError(f"{name} has {column.null_count:,} null values of {len(column):,}")
