"""Hive partitions: columns whose values stand in the names of folders, `label=3/part-0.parquet`."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from stoker.errors import SchemaMismatchError

_NULL = "__HIVE_DEFAULT_PARTITION__"

Texts = dict[str, str | None]
"""The text of each partition in a file's path; None for the default partition."""


class Partitions:
    """The partitions of files. Names and texts are percent-decoded. The type of a partition is the one that
    `pyarrow.dataset(partitioning="hive")` gives it: int32 if all its texts are such numbers, else string. It is None in
    a file whose path does not have it. If a path has it twice, the first one counts.

    Args:
        arrow: the module `pyarrow`.
        files: names of the files, for messages.
        folders: the names of the folders above each file that may be partitions.

    Raises:
        ValueError: the name of a folder, percent-decoded, is no UTF-8.

    Attributes:
        names: of the partitions, in the order in which the paths have them.
        texts: of each file.
    """

    def __init__(self, arrow: Any, files: list[str], folders: list[list[str]]) -> None:
        known: dict[tuple[str, ...], Texts] = {}
        found: dict[str, set[str]] = {}
        self.texts: list[Texts] = []
        for file, names in zip(files, folders, strict=True):
            key = tuple(name for name in names if "=" in name)
            if key not in known:
                pairs = [_parsed(name, file) for name in key]
                known[key] = dict(reversed(pairs))
                for name, text in pairs:
                    found.setdefault(name, set()).update([] if text is None else [text])
            self.texts.append(known[key])
        self.names = list(found)
        self._values = {name: _typed(arrow, texts) for name, texts in found.items()}

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
        arrow: the module `pyarrow`.
        table: the row group, an Arrow table.
        texts: of the partitions.
        path: of the file, for messages.

    Raises:
        SchemaMismatchError: a column has another value.
    """
    for name in texts.keys() & set(table.column_names):
        column, text = table.column(name), texts[name]
        kind = column.type.value_type if arrow.types.is_dictionary(column.type) else column.type
        try:
            expected = None if text is None else arrow.scalar(text, arrow.string()).cast(kind).as_py()
            found = [value for value in column.unique().to_pylist() if value != expected]
        except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
            found = column[:1].to_pylist()
        if found:
            raise SchemaMismatchError(
                f"{path} has a column {name!r} of its own, with the value {found[0]!r}, and its folder says "
                f"{name}={_NULL if text is None else text}. Rename the folder, write the file without the column, or "
                "pass partitioning=None to read the file's"
            )
