"""Rows of an SQL query as a stream."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.datasets.map import MapDataset
from stoker.datasets.stream import Stream, StreamIterator
from stoker.extend import State, resume
from stoker.sources.sql.query_rows import QueryRows
from stoker.sources.sql.row_query import RowQuery

PARTS = 32
"""Parts into which a stream with a key is cut, unless another number is asked for."""


class SQLStream(Stream[Any]):
    """Rows that a query of a database selects, in sequence, each as a dict by column name: for results that the memory
    cannot hold.

    The database gives the rows in portions of about 4 MB, so memory does not grow with their number. Each process opens
    a connection of its own, when it reads the first row; it ends with the iteration.

    With `key`, the rows are cut into parts, ranges of the key. Workers and ranks read parts of their own: every n-th.
    Within a part, rows come in ascending order of the key. The state holds the last key of each part that is begun, so
    a resumed stream reads on from there, whatever became of the rows before; it can be loaded with any number of
    workers. Each part is a query of its own: give the key an index, or the database sorts all rows for each. The parts
    are ranges without outer ends, so rows that are added later are read too; those that are added while a part is read
    may be missed, as the database decides. All ranks must see the same table when they make the stream, or be given the
    same keys as `parts`.

    Without `key`, one worker reads all rows, in the order of the query, and the others none. The state holds the number
    of rows, which are read again on resume; that they come in the same order is checked by the last of them. Give the
    query an ORDER BY of unique values. Ranks cannot share such a stream.

    A query that fails, or a connection that ends, raises its error at its place. The next request opens the connection
    again and continues behind the last row. If that fails too, the rest of the part is left out, and a note of the
    error says so.

    Args:
        query: as in `SQLDataset`. With `key`, it stands in the place of a table of other queries, so it needs no ORDER
            BY.
        url: as in `SQLDataset`. DuckDB and the drivers of SQLAlchemy run in an interpreter beside each worker.
        key: a column of the result whose values are unique and not NULL: numbers, texts, times or UUIDs. Rows with
            equal keys raise an error.
        parts: the number of parts; the database counts and numbers the rows once, when the stream is made. Or the keys
            at which the rows are cut, ascending: k of them make k + 1 parts, and the database is only asked whether a
            row has no key.
        parameters: as in `SQLDataset`.
        transform: a function of the row, whose result is the sample. Random numbers that it draws are the sample's own.

    Raises:
        FileNotFoundError: there is no database at the path.
        TypeError: `transform` cannot be called, or keys in `parts` are texts, whose order is the database's.
        ValueError: the URL cannot be read, or `parts` is less than 1, not ascending, or given without `key`.
        MissingExtraError: the driver is not installed.
        DatabaseConnectionError: the database cannot be opened or reached.
        QueryError: the database refuses the query; there is no column `key`; with `key`, a row has no key,
            or there are no rows to cut into parts.

    While iterating:
        DatabaseConnectionError: the connection has ended.
        QueryError: the database refuses the query, as when a table is gone; two rows have one key; or a query without
            `key` selects no rows.
        StateMismatchError: without `key`, the rows that are read again are others.
    """

    def __init__(
        self,
        query: str,
        url: str,
        *,
        key: str | None = None,
        parts: int | Sequence[Any] | None = None,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is a {type(transform).__name__}, expected a function of a row")
        if key is None and parts is not None:
            raise ValueError("parts cuts the rows by their key: name its column by key=")
        self.query = query
        self.key = key
        self._transform = transform
        self._rows = QueryRows(RowQuery(query, url, key, parameters), _checked(PARTS if parts is None else parts))

    @property
    def num_shards(self) -> int:
        """The number of parts. Without `key`, there is no limit: all shards but the first are empty."""
        return self._rows.num_shards

    @property
    def _filled_shards(self) -> int:
        return self._rows.filled_shards

    def shard(self, num_shards: int, index: int) -> SQLStream:
        """Returns every `num_shards`-th part, from part `index` on.

        Raises:
            ValueError: there are fewer parts than `num_shards`, or `index` is not a shard; or there is no key, and
                the shard is not for one of a loader's workers.
        """
        part = copy.copy(self)
        part._rows = self._rows.shard(num_shards, index)
        return part

    def _begin(self, state: State | None) -> StreamIterator[Any]:
        return resume(self._rows if self._transform is None else MapDataset(self._rows, self._transform), state)


def _checked(parts: int | Sequence[Any]) -> int | list[Any]:
    """Returns the number of parts, or the keys between them."""
    if isinstance(parts, int):
        if parts < 1:
            raise ValueError(f"parts is {parts}, expected at least 1")
        return parts
    cuts = list(parts)
    if any(isinstance(cut, str) for cut in cuts):
        raise TypeError("parts are texts, whose order is the database's: give their number, and it chooses the keys")
    if any(cut is None for cut in cuts) or any(before >= after for before, after in itertools.pairwise(cuts)):
        raise ValueError("the keys in parts do not ascend: each must be greater than the one before it")
    return cuts
