"""The rows of a decoded row group as dicts of Python scalars, texts, bytes and NumPy arrays."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote
from uuid import UUID

import numpy as np

from stoker.datasets.column import Array
from stoker.errors import ParquetValueError, SchemaMismatchError

Read = Callable[[int], Any]
"""Returns the value of a row."""
_VALUES: dict[str, Callable[[Any], Any]] = {"arrow.uuid": lambda data: UUID(bytes=data), "arrow.bool8": bool}
"""Functions of the stored value, by the name of an extension type."""


class DecodedGroup:
    """The columns of a row group in memory. Immutable, thread safe.

    Args:
        table: the row group, an Arrow table.
        columns: the names of the columns, in the order of a sample.
        origin: returns the file of a row, and its number there.
        is_mapped: whether the table lies in a mapped file.
        constants: the columns that have one value, and are not in the table.

    Attributes:
        nbytes: of the buffers of all columns; 0 of those of a mapped file.
    """

    def __init__(
        self,
        arrow: Any,
        table: Any,
        columns: list[str],
        origin: Callable[[int], SampleOrigin],
        is_mapped: bool = False,
        constants: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.nbytes: int = 0 if is_mapped else table.get_total_buffer_size()
        self.is_mapped = is_mapped
        self._origin = origin
        self._errors = (ValueError, OverflowError, IndexError, arrow.ArrowException)
        self._reads = [
            (name, _constant(constants[name]) if name in constants else _of_chunks(arrow, table.column(name).chunks))
            for name in columns
        ]

    def row(self, row: int) -> dict[str, Any]:
        """Returns the row as a dict by column; its arrays are copies."""
        name = ""
        try:
            return {(name := each): read(row) for each, read in self._reads}
        except self._errors as error:
            file, place = self._origin(row)
            raise ParquetValueError(
                f"{name!r} in row {place:,} of {file} cannot be read: {error}. A date is out of the range of Python's, "
                "a text is not UTF-8, or the file is damaged: leave the column out by columns=, or write the file anew."
            ) from error


def _constant(value: Any) -> Read:
    return lambda row: value


def _of_chunks(arrow: Any, chunks: list[Any]) -> Read:
    if len(chunks) == 1:
        return reader_of(arrow, chunks[0])
    reads = [reader_of(arrow, chunk) for chunk in chunks]
    ends = list(accumulate(map(len, chunks)))

    def read(row: int) -> Any:
        place = bisect_right(ends, row)
        return reads[place](row - (ends[place - 1] if place else 0))

    return read


def reader_of(arrow: Any, array: Any) -> Read:
    """Returns a function that returns the value of a row of an Arrow array.

    Numbers and booleans become Python scalars; lists of them arrays, of the dtype of the column, if no element is null;
    other lists, lists; structs, dicts; dictionary columns, their values. Times in nanoseconds, which Python's
    `datetime` cannot hold, become NumPy scalars; UUIDs `uuid.UUID`. A null is None.
    """
    types, kind = arrow.types, array.type
    if isinstance(kind, arrow.BaseExtensionType):
        return _of_extension(arrow, array)
    if types.is_dictionary(kind):
        indices, values = reader_of(arrow, array.indices), reader_of(arrow, array.dictionary)
        return lambda row: None if (index := indices(row)) is None else values(index)
    if types.is_struct(kind):
        fields = [(kind.field(place).name, reader_of(arrow, array.field(place))) for place in range(kind.num_fields)]
        return _unless_null(array, lambda row: {name: read(row) for name, read in fields})
    if types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        return _of_lists(arrow, array)
    if _is_number(arrow, kind) and not array.null_count:
        item: Read = array.to_numpy(zero_copy_only=False).item
        return item
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return _of_texts(arrow, array)
    if (types.is_timestamp(kind) or types.is_duration(kind)) and kind.unit == "ns":
        moments = array.to_numpy(zero_copy_only=False)
        return _unless_null(array, lambda row: moments[row])
    return lambda row: array[row].as_py()


def _of_texts(arrow: Any, array: Any) -> Read:
    """Reads texts and bytes from Arrow's buffers: a third of the time of its scalars."""
    types, kind = arrow.types, array.type
    is_text = types.is_string(kind) or types.is_large_string(kind)
    is_large = types.is_large_string(kind) or types.is_large_binary(kind)
    _, offsets, data = array.buffers()
    if not len(array) or offsets is None or data is None:
        return lambda row: array[row].as_py()
    wide = np.dtype(np.int64 if is_large else np.int32)
    start = np.frombuffer(offsets, wide, len(array) + 1, array.offset * wide.itemsize).data
    texts = memoryview(data)
    if is_text:
        return _unless_null(array, lambda row: str(texts[start[row] : start[row + 1]], "utf-8"))
    return _unless_null(array, lambda row: bytes(texts[start[row] : start[row + 1]]))


def _of_lists(arrow: Any, array: Any) -> Read:
    rows = _block(arrow, array) if arrow.types.is_fixed_size_list(array.type) else None
    if rows is not None and rows[1] is None:
        arrays = rows[0]
        return lambda row: arrays[row].copy()
    start = _starts(arrow, array)
    element = reader_of(arrow, array.values)
    block = _block(arrow, array.values)

    def as_list(row: int) -> Any:
        return [element(place) for place in range(start(row), start(row + 1))]

    if block is None:
        return _unless_null(array, as_list)
    values, whole = block

    def as_array(row: int) -> Any:
        begin, end = start(row), start(row + 1)
        return values[begin:end].copy() if whole is None or whole[begin:end].all() else as_list(row)

    return _unless_null(array, as_array)


def _starts(arrow: Any, array: Any) -> Read:
    """Returns a function that returns the place in `array.values` at which the list of a row begins."""
    if not arrow.types.is_fixed_size_list(array.type):
        starts: Read = array.offsets.to_numpy().item
        return starts
    first, size = array.offset, array.type.list_size
    return lambda row: (first + row) * size


def _of_extension(arrow: Any, array: Any) -> Read:
    read, kind = reader_of(arrow, array.storage), array.type
    if (value := _VALUES.get(kind.extension_name)) is not None:
        return lambda row: None if (stored := read(row)) is None else value(stored)
    if not isinstance(kind, arrow.FixedShapeTensorType):
        return read
    order = kind.permutation or range(len(kind.shape))
    # the shape is that of the storage; the permutation leads from it to the axes of the value
    return _unless_null(array, lambda row: read(row).reshape(kind.shape).transpose(order))


def _unless_null(array: Any, read: Read) -> Read:
    valid = _valid(array)
    return read if valid is None else lambda row: read(row) if valid[row] else None


def _valid(array: Any) -> Array | None:
    """Returns whether each value is not null; None if none is."""
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


def _block(arrow: Any, array: Any) -> tuple[Array, Array | None] | None:
    """Returns the values of an array of numbers, or of fixed-size lists of numbers, as one NumPy array.

    With it, whether each row is without a null; None if all are. Values that are null are any number. Returns None for
    an array of another type: that depends on the type alone, so that all row groups have samples of the same kind.
    """
    kind = array.type
    if _is_number(arrow, kind):
        whole = _valid(array)
        if whole is not None:  # to_numpy would make them NaN, and integers floats
            array = arrow.Array.from_buffers(kind, len(array), [None, array.buffers()[1]], offset=array.offset)
        return array.to_numpy(zero_copy_only=False), whole
    inner = _block(arrow, array.values) if arrow.types.is_fixed_size_list(kind) else None
    if inner is None:
        return None
    size, rows = kind.list_size, len(array)
    part = slice(array.offset * size, (array.offset + rows) * size)
    values, whole = inner
    values = values[part].reshape(rows, size, *values.shape[1:])
    valid = _valid(array)
    if whole is not None:
        elements: Array = np.logical_and.reduce(whole[part].reshape(rows, size), axis=1)
        valid = elements if valid is None else elements & valid
    return values, valid


def _is_number(arrow: Any, kind: Any) -> bool:
    types = arrow.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


# Hive partitions: columns whose values stand in the names of folders, `label=3/part-0.parquet`.


_NULL = "__HIVE_DEFAULT_PARTITION__"

Texts = dict[str, str | None]
"""The text of each partition in a file's path; None for the default partition."""


class Partitions:
    """The partitions of files. Names and texts are percent-decoded. The type of a partition is the one that
    `pyarrow.dataset(partitioning="hive")` gives it: int32 if all its texts are such numbers, else string. It is None in
    a file whose path does not have it. If a path has it twice, the first one counts.

    Args:
        files: names of the files, for messages.
        folders: the names of the folders above each file that may be partitions.

    Raises:
        ValueError: the name of a folder, percent-decoded, is no UTF-8.

    Attributes:
        names: of the partitions, in the order in which the paths have them.
    """

    def __init__(self, arrow: Any, files: list[str], folders: list[list[str]]) -> None:
        known: dict[tuple[str, ...], Texts] = {}
        values: dict[str, set[str]] = {}
        self.texts: list[Texts] = []
        for file, names in zip(files, folders, strict=True):
            key = tuple(name for name in names if "=" in name)
            if key not in known:
                pairs = [_parsed(name, file) for name in key]
                known[key] = dict(reversed(pairs))
                for name, text in pairs:
                    values.setdefault(name, set()).update([] if text is None else [text])
            self.texts.append(known[key])
        self.names = list(values)
        self._values = {name: _typed(arrow, texts) for name, texts in values.items()}

    def values(self, file: int, names: list[str]) -> dict[str, Any]:
        """Returns the values of these partitions in a file."""
        texts = self.texts[file]
        return {name: self._values[name].get(texts.get(name)) for name in names}


def _parsed(folder: str, file: str) -> tuple[str, str | None]:
    name, _, text = folder.partition("=")
    try:
        name, text = unquote(name, errors="strict"), unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file}: the folder {folder!r} looks like a partition, but its percent-encoded name is no UTF-8. Rename "
            "it, or pass partitioning=None to read no partitions"
        ) from error
    return name, None if text == _NULL else text


def _typed(arrow: Any, texts: set[str]) -> dict[str | None, Any]:
    """Returns the value of each text of a partition."""
    try:
        return {text: arrow.scalar(text, arrow.string()).cast(arrow.int32()).as_py() for text in texts}
    except arrow.ArrowInvalid:
        return {text: text for text in texts}


def check_equal(arrow: Any, table: Any, texts: Texts, path: str) -> None:
    """Checks that the columns of a row group that are partitions too have the value of the partition.

    Args:
        table: the row group, an Arrow table.
    """
    for name in texts.keys() & set(table.column_names):
        column, text = table.column(name), texts[name]
        kind = column.type.value_type if arrow.types.is_dictionary(column.type) else column.type
        try:
            expected = None if text is None else arrow.scalar(text, arrow.string()).cast(kind).as_py()
            others = [value for value in column.unique().to_pylist() if value != expected]
        except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
            others = column[:1].to_pylist()
        if others:
            raise SchemaMismatchError(
                f"{path} has a column {name!r} of its own, with the value {others[0]!r}, and its folder says "
                f"{name}={_NULL if text is None else text}. Rename the folder, write the file without the column, or "
                "pass partitioning=None to read the file's"
            )


class SampleOrigin(NamedTuple):
    """The place that a sample was read from.

    Attributes:
        file: its path or URL, as in the dataset's `files`.
        row: its row in the file, counted from 0.
    """

    file: str
    row: int


class _Transforming(threading.local):
    find: Callable[[], SampleOrigin] | None = None


_current = _Transforming()


def sample_origin() -> SampleOrigin | None:
    """Returns the file and the row of the sample that the `transform=` running in this thread was given.

    `ParquetDataset` and `ParquetStream` tell it. None outside of their transforms, and in threads that a transform has
    started.
    """
    return None if _current.find is None else _current.find()


def transformed(transform: Callable[[Any], Any], sample: Any, find: Callable[[], SampleOrigin]) -> Any:
    """Returns the result of a transform, which can ask for the origin of its sample.

    Args:
        find: returns the origin. It is called only if the transform asks for it, or raises.

    Raises: what the transform raises, with a note that names the origin.
    """
    before, _current.find = _current.find, find
    try:
        return transform(sample)
    except Exception as error:
        origin = find()
        note = f"raised by the transform of row {origin.row} of {origin.file}"
        if note not in vars(error).get("__notes__", ()):  # a class may raise one instance many times
            error.add_note(note)
        raise
    finally:
        _current.find = before
