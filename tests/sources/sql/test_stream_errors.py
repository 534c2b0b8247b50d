"""SQLStream: errors of queries, rows, servers and states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker import DataLoader, SQLStream
from stoker.errors import DatabaseConnectionError, QueryError, StateFormatError, StateMismatchError, StokerWarning
from tests.sources.sql.databases import Items

ALL = "SELECT id, name, score, data FROM items"
in_process = pytest.mark.parametrize("kind", ["sqlite", "postgresql"], indirect=True)


def ids(rows: Any) -> list[int]:
    return [row["id"] for row in rows]


@in_process
@pytest.mark.parametrize(
    ("query", "key", "message"),
    [
        ("SELECT colour FROM items", "id", "refuses .*colour"),
        ("SELECT id FROM items", "name", "selects no column 'name'"),
        ("SELECT id FROM items WHERE id < 0", "id", "selects no rows"),
        ("SELECT id, name FROM items", "name", r"1 of the 40 rows .* NULL as key 'name'"),
        ("SELECT id, id FROM items", None, "two columns of one name"),
        ("SELEKT 1", None, "SELEKT"),
    ],
)
def test_bad_queries_are_named(items: Items, query: str, key: str | None, message: str) -> None:
    with pytest.raises(QueryError, match=f"(?s){message}") as caught:
        SQLStream(query, items.url, key=key)
    assert query in str(caught.value)


@in_process
def test_rows_without_a_key_are_an_error_for_given_cuts_too(items: Items) -> None:
    with pytest.raises(QueryError, match="NULL as key 'name'"):
        SQLStream(ALL, items.url, key="name", parts=[])


def test_a_query_without_rows_and_key_is_named(items: Items) -> None:
    with pytest.raises(QueryError, match="selects no rows"):
        next(iter(SQLStream(ALL + " WHERE id < 0", items.url)))


def test_equal_keys_are_an_error_also_at_a_state(items: Items) -> None:
    items.change("INSERT INTO items VALUES (7, 'again', 0, NULL)")
    stream = SQLStream(ALL, items.url, key="id", parts=2)
    iterator = iter(stream)
    assert ids(next(iterator) for _ in range(8)) == list(range(8))
    twin = SQLStream(ALL, items.url, key="id", parts=2)
    twin.load_state_dict(stream.state_dict())
    for rest in (iterator, iter(twin)):
        with pytest.raises(QueryError, match=r"'id' = 7, as in the row before: a key must be unique"):
            next(rest)
        assert ids(rest) == list(range(8, 40))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "duckdb"], indirect=True)
def test_a_table_that_vanishes_is_an_error_and_the_stream_ends(items: Items) -> None:
    stream = SQLStream(ALL, items.url, key="id", parts=3)
    iterator = iter(stream)
    given = ids(next(iterator) for _ in range(2))
    if items.kind == "duckdb":
        iterator = iter(stream)  # it lets nobody write while it is read
        given = []
    else:
        given += ids(next(iterator) for _ in range(11))  # one of the second part
    del stream
    if items.kind == "duckdb":
        items.change("DROP TABLE items")
    else:
        _drop(items, iterator)
    found, errors = _all(iterator)
    assert given + found == sorted(given + found) and len(given + found) < 40
    assert errors and all(isinstance(error, QueryError) for error in errors) and "items" in str(errors[0])
    assert len(errors) <= 6 and "is left out" in errors[-1].__notes__[0]


def _drop(items: Items, iterator: Any) -> None:
    """Drops the table behind an open query, which would keep it: its connection is ended first."""
    iterator._leave()
    items.change("DROP TABLE items")


def test_a_server_that_restarts_loses_no_row(server: Any, tmp_path: Path) -> None:
    items = Items("postgresql", tmp_path, server)
    items.fill(20_000)
    iterator = iter(SQLStream(ALL, items.url, key="id", parts=2))
    given = ids(next(iterator) for _ in range(7))
    server.stop()
    try:
        found: list[int] = []
        with pytest.raises(DatabaseConnectionError, match="has ended the connection") as caught:
            while True:
                found.append(next(iterator)["id"])
    finally:
        server.start()
    assert isinstance(caught.value, ConnectionError)
    assert given + found + ids(iterator) == list(range(20_000))


def test_a_server_that_stays_away_ends_the_epoch_with_errors(server: Any, tmp_path: Path) -> None:
    items = Items("postgresql", tmp_path, server)
    items.fill(5_000)
    stream = SQLStream(ALL, items.url, key="id", parts=3)
    iterator = iter(stream)
    next(iterator)
    server.stop()
    try:
        _, errors = _all(iterator)
        with (
            DataLoader(stream, batch_size=8, num_workers=1, collate_fn=list) as loader,
            pytest.raises(DatabaseConnectionError, match="cannot be reached"),
        ):
            next(iter(loader))
    finally:
        server.start()
    assert {type(error) for error in errors} == {DatabaseConnectionError} and len(errors) == 6


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_an_unreadable_row_does_not_take_those_before_it(items: Items) -> None:
    items.change("UPDATE items SET name = CAST(x'ff' AS TEXT) WHERE id = 20")
    found, errors = _all(iter(SQLStream(ALL, items.url, key="id", parts=2)))
    assert found[:20] == list(range(20)) and errors and "is left out" in errors[-1].__notes__[0]


def test_errors_of_a_transform_are_skipped_one_by_one(items: Items) -> None:
    stream = SQLStream(ALL, items.url, key="id", transform=lambda row: row["id"] + 0 * (1 // (row["id"] % 5)))
    with (
        DataLoader(stream, batch_size=4, num_workers=2, on_error="skip", collate_fn=list) as loader,
        pytest.warns(StokerWarning, match="ZeroDivisionError"),
    ):
        found = sorted(number for batch in loader for number in batch)
    assert found == [number for number in range(40) if number % 5]


def test_states_of_strangers_are_refused(items: Items) -> None:
    stream = SQLStream(ALL, items.url, key="id", parts=4)
    next(iter(stream))
    state = stream.state_dict()
    fewer = SQLStream(ALL, items.url, key="id", parts=3)
    fewer.load_state_dict(state)
    with pytest.raises(StateMismatchError, match="of 4 shards, but there are 3"):
        iter(fewer)
    for begun in ([[0, ["a", 1]]], [[0, 3]], [[0, [{"UUID": "x"}]]]):
        state["shards"]["0/1"]["begun"] = begun
        stream.load_state_dict(state)
        with pytest.raises(StateFormatError):
            iter(stream)


def test_arguments_are_checked(items: Items) -> None:
    for options, error, message in (
        ({"transform": 1}, TypeError, "transform"),
        ({"parts": 3}, ValueError, "key="),
        ({"key": "id", "parts": 0}, ValueError, "at least 1"),
        ({"key": "id", "parts": [3, 2]}, ValueError, "ascend"),
        ({"key": "name", "parts": ["a"]}, TypeError, "texts"),
    ):
        with pytest.raises(error, match=message):
            SQLStream(ALL, items.url, **options)  # type: ignore[arg-type]


def _all(iterator: Iterator[Any]) -> tuple[list[int], list[Any]]:
    found: list[int] = []
    errors: list[Any] = []
    while True:
        try:
            found.append(next(iterator)["id"])
        except StopIteration:
            return found, errors
        except Exception as error:
            errors.append(error)
