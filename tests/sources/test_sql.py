"""SQLDataset: rows of a query, bound parameters, refresh, errors."""

import contextlib
import sqlite3

import pytest

from stoker import SQLDataset
from stoker.errors import QueryError
from stoker.testing.datasets import DatasetSuite

ALL = "SELECT id, name, score, data FROM items ORDER BY id"


def change(path, statement, rows=((),)):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.executemany(statement, rows)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a b.db"
    change(path, "CREATE TABLE items (id INTEGER, name TEXT, score REAL, data BLOB)")
    rows = [(i, f"ü{i}", i / 2, bytes([i])) for i in range(39)] + [(39, None, None, None)]
    change(path, "INSERT INTO items VALUES (?, ?, ?, ?)", rows)
    return path


class TestSQLDataset(DatasetSuite):
    @pytest.fixture
    def make(self, path):
        return lambda: SQLDataset(ALL, f"sqlite:///{path}")


def test_rows_are_dicts_by_column(path):
    rows = SQLDataset(ALL, f"sqlite:///{path}")
    assert rows[3] == {"id": 3, "name": "ü3", "score": 1.5, "data": b"\x03"}
    assert rows[-1] == {"id": 39, "name": None, "score": None, "data": None}


def test_parameters_are_bound_not_formatted(path):
    attack = "x'; DROP TABLE items; --"
    change(path, "INSERT INTO items VALUES (40, ?, 0, x'')", [(attack,)])
    for query, given in (("= ?", [attack]), ("= :name", {"name": attack})):
        rows = SQLDataset(f"SELECT id FROM items WHERE name {query}", f"sqlite:///{path}", parameters=given)
        assert [row["id"] for row in rows] == [40]


def test_refresh_reads_new_rows(path):
    rows = SQLDataset(ALL, f"sqlite:///{path}", transform=lambda row: row["id"])
    assert rows[39] == 39
    change(path, "INSERT INTO items VALUES (99, 'new', 0, x'')")
    assert len(rows) == 40
    rows.refresh()
    assert (len(rows), rows[40]) == (41, 99)


def test_failed_refresh_keeps_the_rows(path):
    rows = SQLDataset(ALL, f"sqlite:///{path}")
    change(path, "DROP TABLE items")
    with pytest.raises(QueryError, match=r"SELECT id.*no such table"):
        rows.refresh()
    assert rows[5]["id"] == 5


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT colour FROM items", "no such column"),
        ("SELECT id FROM items WHERE id < 0", "selects no rows"),
        ("SELECT id, id FROM items", "two columns of one name"),
        ("DELETE FROM items", "readonly"),
    ],
)
def test_bad_queries_are_named(path, query, message):
    with pytest.raises(QueryError, match=message) as caught:
        SQLDataset(query, f"sqlite:///{path}")
    assert query in str(caught.value)


def test_other_schemes_are_refused_without_credentials():
    with pytest.raises(ValueError, match="'postgresql'") as caught:
        SQLDataset("SELECT 1", "postgresql://user:secret@host/db")
    assert "secret" not in str(caught.value)


def test_a_missing_database_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.db"):
        SQLDataset("SELECT 1", f"sqlite:///{tmp_path}/none.db")
