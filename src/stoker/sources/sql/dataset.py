"""Rows of an SQL query as a dataset by index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.column import TextColumn
from stoker.datasets.combining import absolute
from stoker.errors import QueryError
from stoker.sources.sql.connection import connect, row_of
from stoker.sources.sql.find_database import database_of


class SQLDataset(Dataset[Any]):
    """Rows that a query of a database selects, by index, each as a dict by column name.

    The query runs once, when the dataset is made. Its rows lie encoded in two arrays, which all workers share, so
    workers hold no connection, and what happens to the database later changes nothing. Values are those that the driver
    gives, exactly. Rows keep the order of the query: without ORDER BY, the database decides it.

    Memory: 8 bytes for each row, 5 for an integer of 32 bits, 9 for a float, and some 2 bytes beside those of a text. A
    value of another type (`datetime`, `Decimal`, `UUID`, a list) takes 50 to 100 bytes. Beside the arrays, 4 MB of rows
    are in memory while the query is read. Thread safe, except `refresh`.

    Args:
        query: a statement that selects rows. It cannot change a database of SQLite, DuckDB or PostgreSQL; elsewhere
            nothing that it writes is committed.
        url: the database. It is opened for reading, and closed again.

            - `sqlite:///relative/path`, `sqlite:////absolute/path`.
            - `postgresql://user:password@host:port/database`; what is missing comes from the environment (`PGHOST`,
              `PGPASSWORD`, …) and from `~/.pgpass`. Needs `stoker[postgresql]` (psycopg).
            - `duckdb:///path`, or `duckdb:///` for queries of Parquet or CSV files. Needs `stoker[duckdb]`.
            - any URL of SQLAlchemy. Needs `stoker[sqlalchemy]` and the driver.

            DuckDB and the drivers of SQLAlchemy run in an interpreter of their own, because their threads would not
            survive a fork of this process.
        parameters: values that the database binds to placeholders in the query. SQLite: `?` (a sequence) or `:name` (a
            mapping); PostgreSQL: `%s` or `%(name)s`; DuckDB: `?` or `$name`; SQLAlchemy: `:name`.
        transform: a function of the row, whose result is the sample.

    Raises:
        FileNotFoundError: there is no database at the path.
        TypeError: `transform` cannot be called, or `parameters` are not named where names are needed.
        ValueError: the URL cannot be read.
        MissingExtraError: the driver is not installed.
        DatabaseConnectionError: the database cannot be opened or reached, or ends the connection.
        QueryError: the database refuses the query, or the query selects no rows, or two columns of one name.
    """

    stoker_protocol = True

    def __init__(
        self,
        query: str,
        url: str,
        *,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is a {type(transform).__name__}, expected a function of a row")
        self.query = query
        self._database = database_of(url)
        self._parameters = parameters
        self._transform = transform
        self.refresh()

    def refresh(self) -> None:
        """Runs the query again, and replaces the rows. Call it between epochs, in the process that made the dataset.

        The rows reach workers that start afterwards: with `persistent_workers=True`, running workers keep the old ones.

        Raises:
            FileNotFoundError, DatabaseConnectionError, QueryError: as for the class. The rows stay as they were.
        """
        buffer, lengths = bytearray(), [np.zeros(1, np.int64)]
        with closing(connect(self._database, self.query)) as connection:
            selection = connection.select(self.query, self._parameters, self.query)
            while len((some := selection.fetch_records()).lengths):
                buffer += some.data
                lengths.append(np.frombuffer(some.lengths, np.int64))
            selection.close()
        rows = TextColumn(np.frombuffer(buffer, np.uint8), np.cumsum(np.concatenate(lengths)), bytes, None)
        if not len(rows):
            raise QueryError(f"{self.query!r} selects no rows of {self._database.shown}")
        self._columns, self._rows = selection.columns, rows

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        """Returns the row at `index`; a negative index counts from the end."""
        rows, number = self._rows, absolute(index, len(self._rows))
        begin, end = rows.offsets[number : number + 2].tolist()
        row = dict(zip(self._columns, row_of(rows.buffer.data[begin:end]), strict=True))
        return row if self._transform is None else self._transform(row)

    def describe(self, index: int) -> str:
        """Returns the row's number, the query and the database."""
        return f"row {absolute(index, len(self))} of {self.query!r} in {self._database.shown}"
