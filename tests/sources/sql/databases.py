"""The same table in each kind of database."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

KINDS = ("sqlite", "postgresql", "duckdb", "sqlalchemy")
PLACEHOLDERS = {"sqlite": ":{}", "postgresql": "%({})s", "duckdb": "${}", "sqlalchemy": ":{}"}


class Items:
    """A table `items` of id, name, score and data, and statements about it.

    Attributes:
        kind: one of `KINDS`.
        url: of its database.
    """

    def __init__(self, kind: str, folder: Path, server: Any) -> None:
        self.kind = kind
        self._path = folder / f"ü b.{kind}"
        self._server = server
        self.url = {
            "sqlite": f"sqlite:///{self._path}",
            "postgresql": getattr(server, "url", ""),
            "duckdb": f"duckdb:///{self._path}",
            "sqlalchemy": f"sqlite+pysqlite:///{self._path}",
        }[kind]
        blob, real = ("BYTEA", "DOUBLE PRECISION") if kind == "postgresql" else ("BLOB", "DOUBLE")
        self.change("DROP TABLE IF EXISTS items")
        self.change(f"CREATE TABLE items (id BIGINT, name VARCHAR, score {real}, data {blob})")

    def change(self, statement: str, rows: Sequence[Sequence[Any]] = ()) -> None:
        """Runs a statement in a transaction of its own, for each of the rows whose values it has as `?`."""
        with contextlib.closing(self._connected()) as connection:
            cursor = connection.cursor()
            if self.kind == "postgresql":
                statement = statement.replace("?", "%s")
            if rows:
                cursor.executemany(statement, rows)
            else:
                cursor.execute(statement)
            connection.commit()

    def fill(self, count: int, start: int = 0) -> None:
        """Adds items: id, a name with a letter beyond ASCII, half of the id, one byte."""
        table = {
            "duckdb": f"range({start}, {start + count}) numbers(i)",
            "postgresql": f"generate_series({start}, {start + count - 1}) numbers(i)",
        }.get(self.kind)
        if table is not None and count > 100:  # row by row they take a millisecond for each
            byte = "unhex(format('{:02x}', i % 256))" if self.kind == "duckdb" else "set_byte('\\x00', 0, i % 256)"
            self.change(f"INSERT INTO items SELECT i, 'ü' || i, i / 2.0, {byte} FROM {table}")
            return
        rows = [(number, f"ü{number}", number / 2, bytes([number % 256])) for number in range(start, start + count)]
        self.change("INSERT INTO items VALUES (?, ?, ?, ?)", rows)

    def placeholder(self, name: str) -> str:
        return PLACEHOLDERS[self.kind].format(name)

    def _connected(self) -> Any:
        if self.kind == "postgresql":
            return pytest.importorskip("psycopg").connect(self.url)
        if self.kind == "duckdb":
            return pytest.importorskip("duckdb").connect(str(self._path)).cursor()
        return sqlite3.connect(self._path)
