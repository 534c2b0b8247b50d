"""SQLDataset: rows of a query in each database, bound parameters, refresh, errors."""

from __future__ import annotations

import datetime
import decimal
import os
import pickle
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from stoker import DataLoader, SQLDataset
from stoker.errors import DatabaseConnectionError, MissingExtraError, QueryError
from stoker.sources.sql.database import DuckDBDatabase
from stoker.testing.datasets import DatasetSuite
from tests.sources.sql.databases import KINDS, Items

ALL = "SELECT id, name, score, data FROM items ORDER BY id"
each_database = pytest.mark.parametrize("kind", KINDS, indirect=True)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"], indirect=True)
class TestSQLDataset(DatasetSuite):
    @pytest.fixture
    def make(self, items: Items) -> Any:
        return lambda: SQLDataset(ALL, items.url)


@each_database
def test_rows_are_dicts_by_column(items: Items) -> None:
    rows = SQLDataset(ALL, items.url)
    assert rows[3] == {"id": 3, "name": "ü3", "score": 1.5, "data": b"\x03"}
    assert rows[-1] == {"id": 39, "name": None, "score": None, "data": None}
    assert [row["id"] for row in rows] == list(range(40))


@each_database
def test_parameters_are_bound_not_formatted(items: Items) -> None:
    attack = "x'; DROP TABLE items; --"
    items.change("INSERT INTO items VALUES (40, ?, 0, NULL)", [(attack,)])
    given: list[tuple[str, Any]] = [(items.placeholder("name"), {"name": attack})]
    if items.kind != "sqlalchemy":
        given.append(("%s" if items.kind == "postgresql" else "?", [attack]))
    for placeholder, parameters in given:
        rows = SQLDataset(f"SELECT id FROM items WHERE name = {placeholder}", items.url, parameters=parameters)
        assert [row["id"] for row in rows] == [40]
    assert len(SQLDataset(ALL, items.url)) == 41


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"], indirect=True)
def test_refresh_reads_new_rows_or_keeps_the_old_ones(items: Items) -> None:
    rows = SQLDataset(ALL, items.url, transform=lambda row: row["id"])
    items.change("INSERT INTO items VALUES (99, 'new', 0, NULL)")
    assert len(rows) == 40
    rows.refresh()
    assert (len(rows), rows[40]) == (41, 99)
    items.change("DROP TABLE items")
    with pytest.raises(QueryError, match=r"(?s)refuses .*SELECT id.*items"):
        rows.refresh()
    assert (len(rows), rows[5]) == (41, 5)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT colour FROM items", "colour"),
        ("SELECT id FROM items WHERE id < 0", "selects no rows"),
        ("SELECT id, id FROM items", "two columns of one name"),
        ("SELEKT id FROM items", "SELEKT"),
        ("SELECT id FROM items WHERE id = {}", "refuses"),
    ],
)
def test_bad_queries_are_named(items: Items, query: str, message: str) -> None:
    query = query.format(items.placeholder("missing"))
    with pytest.raises(QueryError, match=message) as caught:
        SQLDataset(query, items.url, parameters={"other": 1} if "missing" in query else None)
    assert query in str(caught.value)


@pytest.mark.parametrize("kind", ["duckdb", "sqlalchemy"], indirect=True)
def test_a_query_that_is_refused_is_named(items: Items) -> None:
    with pytest.raises(QueryError, match="colour"):
        SQLDataset("SELECT colour FROM items", items.url)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "duckdb"], indirect=True)
def test_queries_cannot_write(items: Items) -> None:
    for query in ("DELETE FROM items", "DROP TABLE items", "INSERT INTO items VALUES (7, '', 0, NULL)"):
        with pytest.raises(QueryError):
            SQLDataset(query, items.url)
    if items.kind == "postgresql":
        with pytest.raises(QueryError, match="read-only"):
            SQLDataset("SELECT id FROM items; DROP TABLE items", items.url)
        with pytest.raises(QueryError):
            SQLDataset("WITH gone AS (DELETE FROM items RETURNING id) SELECT id FROM gone", items.url)
    assert len(SQLDataset(ALL, items.url)) == 40


@pytest.mark.parametrize("kind", ["postgresql"], indirect=True)
def test_postgresqls_values_come_exactly(items: Items) -> None:
    query = """SELECT true AS yes, 1763668414462081127.1429 AS number, DATE '2026-02-03' AS day,
        TIMESTAMPTZ '2026-02-03 04:05:06.789+02' AS moment, TIMESTAMP '2026-02-03 04:05:06' AS local,
        'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid AS id, ARRAY[1, 2, NULL] AS list,
        '{"a": [1, null]}'::jsonb AS json,
        '%' AS percent, 7::smallint AS small, INTERVAL '1 day' AS span, NULL::text AS nothing"""
    row = SQLDataset(query, items.url)[0]
    assert row["moment"].utcoffset() is not None
    assert row["moment"] == datetime.datetime(2026, 2, 3, 2, 5, 6, 789000, tzinfo=datetime.UTC)
    del row["moment"]
    expected = {
        "yes": True,
        "number": decimal.Decimal("1763668414462081127.1429"),
        "day": datetime.date(2026, 2, 3),
        "local": datetime.datetime(2026, 2, 3, 4, 5, 6),
        "id": uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        "list": [1, 2, None],
        "json": {"a": [1, None]},
        "percent": "%",
        "small": 7,
        "span": datetime.timedelta(days=1),
        "nothing": None,
    }
    assert row == expected
    assert {name: type(value) for name, value in row.items()} == {name: type(value) for name, value in expected.items()}


@pytest.mark.parametrize("kind", ["duckdb"], indirect=True)
def test_duckdbs_values_come_exactly(items: Items) -> None:
    query = """SELECT true AS yes, 1.25::DECIMAL(9, 2) AS number, TIMESTAMP '2026-02-03 04:05:06' AS moment,
        'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::UUID AS id, [1, NULL] AS list, {'a': 1} AS struct"""
    row = SQLDataset(query, items.url)[0]
    assert row == {
        "yes": True,
        "number": decimal.Decimal("1.25"),
        "moment": datetime.datetime(2026, 2, 3, 4, 5, 6),
        "id": uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        "list": [1, None],
        "struct": {"a": 1},
    }
    assert type(row["yes"]) is bool and type(row["number"]) is decimal.Decimal


def test_duckdb_reads_other_files_without_a_database(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    (tmp_path / "rows.csv").write_text("id,name\n1,a\n2,b\n")
    rows = SQLDataset(f"SELECT * FROM '{tmp_path}/rows.csv' ORDER BY id", "duckdb:///")
    assert list(rows) == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


@each_database
def test_no_thread_and_no_process_is_left(items: Items) -> None:
    before = (threading.active_count(), os.listdir("/proc/self/task"), os.listdir("/proc/self/fd"))
    rows = SQLDataset(ALL, items.url)
    assert len(rows) == 40
    assert before == (threading.active_count(), os.listdir("/proc/self/task"), os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "duckdb"], indirect=True)
def test_rows_of_large_values_and_many_rows_come_in_order(items: Items) -> None:
    items.change("DELETE FROM items")
    many = [(number, "x" * (300_000 if number in (3, 120) else 3), 0.5, None) for number in range(200)]
    items.change("INSERT INTO items VALUES (?, ?, ?, ?)", many)
    rows = SQLDataset("SELECT id, name FROM items ORDER BY id", items.url)
    assert [(row["id"], len(row["name"])) for row in rows] == [(row[0], len(row[1])) for row in many]


def test_epoch_over_postgresql_rows_is_complete(server: Any, tmp_path: Path) -> None:
    items = Items("postgresql", tmp_path, server)
    items.fill(200)
    dataset = SQLDataset("SELECT id, name FROM items", items.url)
    for birth in ("fork", "spawn"):
        options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": birth, "collate_fn": list}
        with DataLoader(dataset, batch_size=16, shuffle=True, seed=3, **options) as loader:
            rows = [row for batch in loader for row in batch]
        assert sorted(row["id"] for row in rows) == list(range(200))
        assert all(row["name"] == f"ü{row['id']}" for row in rows)


# places and secrets


def secrets_of(dataset: Any) -> str:
    return repr(dataset) + repr(vars(dataset)) + dataset.describe(0)


def test_password_is_used_and_never_shown(server: Any) -> None:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS locked")
        connection.execute(f"CREATE ROLE locked LOGIN PASSWORD '{server.password}'")
    form = f"postgresql://locked:{{}}@/postgres?host={server.folder}"
    dataset = SQLDataset("SELECT 1 AS one", form.format("s3cret%2Fpass%40word"))
    assert dataset[0] == {"one": 1}
    assert "s3cret" not in secrets_of(dataset)
    assert pickle.loads(pickle.dumps(dataset))[0] == {"one": 1}
    with pytest.raises(DatabaseConnectionError, match="authentication failed") as caught:
        SQLDataset("SELECT 1", form.format("s3cret-wrong"))
    assert "s3cret" not in _everything(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cret/x@nowhere.invalid:port/db",
        "postgresql://user:12/s3cret@host/db",
        "postgresql://user@host/db?passwort=s3cret",
        "nonsense+driver://user:s3cret@host/db",
        "mysql+pymysql://user:s3cret@ho st:x/db",
        "s3cret",
    ],
)
def test_urls_that_cannot_be_read_are_refused_without_secrets(url: str) -> None:
    for package in ("psycopg", "sqlalchemy"):
        pytest.importorskip(package)
    with pytest.raises((ValueError, DatabaseConnectionError)) as caught:
        SQLDataset("SELECT 1", url)
    assert "s3cret" not in _everything(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql://user:s3cret@127.0.0.1:1/db?password=s3cret2", "mysql+pymysql://user:s3cret@127.0.0.1:1/db"]
)
def test_servers_that_are_not_there_are_named_without_secrets(url: str) -> None:
    for package in ("psycopg", "sqlalchemy", "pymysql"):
        pytest.importorskip(package)
    with pytest.raises(DatabaseConnectionError, match=r"127\.0\.0\.1:1/db cannot be reached") as caught:
        SQLDataset("SELECT 1", url)
    assert "s3cret" not in _everything(caught.value)
    assert isinstance(caught.value, ConnectionError)


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_a_missing_database_is_named(tmp_path: Path, scheme: str) -> None:
    if scheme == "duckdb":
        pytest.importorskip("duckdb")
    with pytest.raises(FileNotFoundError, match=r"none\.db"):
        SQLDataset("SELECT 1", f"{scheme}:///{tmp_path}/none.db")


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    (tmp_path / "notes.db").write_text("no database" * 1000)
    with pytest.raises(DatabaseConnectionError, match=r"notes\.db cannot be reached.*a DuckDB file"):
        SQLDataset("SELECT 1", f"duckdb:///{tmp_path}/notes.db")
    with pytest.raises(QueryError, match=r"notes\.db refuses .*not a database"):
        SQLDataset("SELECT * FROM items", f"sqlite:///{tmp_path}/notes.db")


@pytest.mark.parametrize(
    ("url", "package"), [("postgresql://h/d", "psycopg"), ("duckdb:///", "duckdb"), ("mysql://h/d", "sqlalchemy")]
)
def test_a_missing_driver_names_its_extra(url: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(DuckDBDatabase, "wants_clean_interpreter", False)
    extra = "postgresql" if package == "psycopg" else package
    with pytest.raises(MissingExtraError, match=rf"stoker\[{extra}\]"):
        SQLDataset("SELECT 1", url)


def test_positions_are_refused_where_names_are_needed(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    items = Items("sqlalchemy", tmp_path, None)
    with pytest.raises(TypeError, match="expected a dict"):
        SQLDataset("SELECT ? AS one", items.url, parameters=[1])


def _everything(error: BaseException | None) -> str:
    """The text of an error and of those before it."""
    text = ""
    while error is not None:
        text += f"{error} {error!r} "
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return text
