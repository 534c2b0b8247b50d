"""SQLStream: rows in parts of a key, states, errors in mid-epoch."""

from __future__ import annotations

import functools
import os
import pickle
import random
import select
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from stoker import DataLoader, MapDataset, SQLStream
from stoker.errors import StateMismatchError, StokerWarning
from stoker.testing.datasets import DatasetSuite
from stoker.testing.streams import StreamSuite
from tests.sources.sql.databases import KINDS, Items

ALL = "SELECT id, name, score, data FROM items"
each_database = pytest.mark.parametrize("kind", KINDS, indirect=True)
in_process = pytest.mark.parametrize("kind", ["sqlite", "postgresql"], indirect=True)


def ids(rows: Any) -> list[int]:
    return [row["id"] for row in rows]


@pytest.mark.parametrize(
    "kind", ["sqlite", "postgresql", pytest.param("duckdb", marks=pytest.mark.long)], indirect=True
)
class TestSQLStream(DatasetSuite):
    births = ("fork", "spawn")

    @pytest.fixture
    def make(self, items: Items) -> Any:
        items.change("DELETE FROM items WHERE id > 13")
        return lambda: SQLStream(ALL, items.url, key="id", parts=3)

    def delete(self, dataset: SQLStream) -> str | None:
        database = dataset._rows._query.database
        if not hasattr(database, "_path") and "/" not in database.shown[:1]:
            return None
        os.unlink(database.shown)
        return database.shown


class TestSQLStreamWithoutKey(DatasetSuite):
    @pytest.fixture
    def make(self, items: Items) -> Any:
        return lambda: SQLStream(ALL + " ORDER BY id", items.url)


@pytest.mark.parametrize(
    ("kind", "form"),
    [("sqlite", "3 parts"), ("sqlite", "transformed"), ("sqlite", "parameters"), ("postgresql", "parameters")],
    indirect=["kind"],
)
class TestResumedSQLStream(StreamSuite):
    @pytest.fixture
    def make(self, items: Items, form: str) -> Any:
        items.change("DELETE FROM items WHERE id > 7")
        options: dict[str, Any] = {"parts": 3}
        query = ALL
        if form == "transformed":
            options = {"parts": [2, 5], "transform": str}
        if form == "parameters":
            query += f" WHERE id < {items.placeholder('most')} AND name LIKE {items.placeholder('pattern')}"
            options["parameters"] = {"most": 6, "pattern": "ü%"}
        return lambda: SQLStream(query, items.url, key="id", **options)


class TestResumedSQLStreamWithoutKey(StreamSuite):
    @pytest.fixture
    def make(self, items: Items) -> Any:
        items.change("DELETE FROM items WHERE id > 9")
        return lambda: SQLStream(ALL + " ORDER BY id", items.url)

    def test_shards_are_resumable_and_complete(self, make: Any) -> None:
        """There is no number of shards; `test_without_key_one_worker_reads_all` is about them."""


@each_database
def test_rows_are_dicts_and_come_by_key(items: Items) -> None:
    stream = SQLStream(ALL + " ORDER BY score DESC  -- a comment", items.url, key="id", parts=4)
    rows = list(stream)
    assert ids(rows) == list(range(40)) and stream.num_shards == 4
    assert rows[3] == {"id": 3, "name": "ü3", "score": 1.5, "data": b"\x03"}
    assert rows[39] == {"id": 39, "name": None, "score": None, "data": None}
    assert ids(stream) == list(range(40))


@in_process
@pytest.mark.parametrize("shares", [1, 3, 7])
def test_shares_hold_each_row_once(items: Items, shares: int) -> None:
    stream = SQLStream(ALL, items.url, key="id", parts=7)
    parts = [ids(stream.shard(shares, index)) for index in range(shares)]
    assert all(part == sorted(part) for part in parts)
    assert sorted(number for part in parts for number in part) == list(range(40))
    assert max(map(len, parts)) - min(map(len, parts)) <= 7
    ranks = [ids(stream.shard(2, rank).shard(2, worker)) for rank in range(2) for worker in range(2)]
    assert sorted(number for part in ranks for number in part) == list(range(40))


@in_process
def test_keys_of_texts_and_other_types(items: Items) -> None:
    items.change("DELETE FROM items WHERE id = 39")
    stream = SQLStream(ALL, items.url, key="name", parts=5)
    names = [row["name"] for row in stream]
    assert sorted(names) == sorted(f"ü{number}" for number in range(39))
    iterator = iter(stream)
    given = [next(iterator)["name"] for _ in range(11)]
    again = SQLStream(ALL, items.url, key="name", parts=5)
    again.load_state_dict(stream.state_dict())
    assert given + [row["name"] for row in again] == names


def test_keys_of_postgresqls_own_types(server: Any) -> None:
    url, psycopg = server.url, pytest.importorskip("psycopg")
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE IF EXISTS moments")
        connection.execute("CREATE TABLE moments (id uuid, moment timestamptz, number numeric)")
        for number in range(20):
            row = (uuid.UUID(int=number * 7 % 20), f"2026-01-{number + 1} 00:00+02", f"{number}.50")
            connection.execute("INSERT INTO moments VALUES (%s, %s, %s)", row)
    for key in ("id", "moment", "number"):
        make = functools.partial(SQLStream, "SELECT * FROM moments", url, key=key, parts=3)
        whole = [row[key] for row in make()]
        assert len(whole) == 20 and whole == sorted(whole)
        stream = make()
        iterator = iter(stream)
        given = [next(iterator)[key] for _ in range(9)]
        again = make()
        again.load_state_dict(stream.state_dict())
        assert given + [row[key] for row in again] == whole


@in_process
def test_parameters_stand_beside_the_bounds(items: Items) -> None:
    attack = "x'; DROP TABLE items; --"
    items.change("INSERT INTO items VALUES (40, ?, 0, NULL)", [(attack,)])
    named = f"{ALL} WHERE name = {items.placeholder('name')} OR id < {items.placeholder('most')}"
    mark = "?" if items.kind == "sqlite" else "%s"
    for query, parameters in (
        (named, {"name": attack, "most": 5}),
        (f"{ALL} WHERE name = {mark} OR id < {mark}", [attack, 5]),
    ):
        assert ids(SQLStream(query, items.url, key="id", parts=3, parameters=parameters)) == [0, 1, 2, 3, 4, 40]
    assert ids(SQLStream(f"{ALL} WHERE name LIKE 'ü3%'", items.url, key="id", parts=2))[0] == 3


@pytest.mark.parametrize("workers", [1, 2])
@in_process
def test_state_is_loaded_with_other_workers(items: Items, workers: int) -> None:
    def loader(number: int) -> Any:
        stream = SQLStream(ALL, items.url, key="id", parts=5)
        return DataLoader(stream, batch_size=4, num_workers=number, seed=1, collate_fn=list)

    with loader(workers) as first:
        batches = iter(first)
        given = [number for _ in range(4) for number in ids(next(batches))]
        state = first.state_dict()
    assert items.url not in str(state)
    with loader(3 - workers) as second:
        second.load_state_dict(state)
        rest = [number for batch in second for number in ids(batch)]
    assert sorted(given + rest) == list(range(40))


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("duckdb", marks=pytest.mark.long)], indirect=True)
@pytest.mark.parametrize("birth", ["fork", "spawn"])
def test_without_key_one_worker_reads_all(items: Items, birth: str) -> None:
    stream = SQLStream(ALL + " ORDER BY id DESC", items.url)
    options: dict[str, Any] = {"batch_size": 8, "collate_fn": list, "multiprocessing_context": birth}
    for dataset in (stream, MapDataset(stream, dict)):
        with DataLoader(dataset, num_workers=2, **options) as loader:
            assert [number for batch in loader for number in ids(batch)] == list(reversed(range(40)))
    with pytest.raises(ValueError, match=r"among 2 ranks.*key="):
        stream.shard(2, 0)


def test_random_transforms_repeat_with_the_seed(items: Items) -> None:
    def drawn(workers: int) -> list[Any]:
        stream = SQLStream(ALL, items.url, key="id", transform=lambda row: (row["id"], random.random()))
        with DataLoader(stream, batch_size=40, num_workers=workers, seed=4, collate_fn=list) as loader:
            return [pair for batch in loader for pair in batch]

    assert drawn(0) == drawn(1)


def test_a_table_that_grows_is_read_whole_by_old_states_too(items: Items) -> None:
    stream = SQLStream(f"{ALL};", items.url, key="id", parts=4)
    items.fill(20, start=40)
    assert ids(stream) == list(range(60))
    iterator = iter(stream.shard(2, 1))
    given = ids(next(iterator) for _ in range(3))
    state = iterator.state_dict()
    del iterator  # an open query would keep the table locked
    items.fill(100, start=60)
    again = SQLStream(ALL, items.url, key="id", parts=4)  # cut elsewhere
    part = again.shard(2, 1)
    part.load_state_dict(state)
    assert given + ids(part) == [*range(10, 20), *range(30, 160)]


def test_a_row_that_vanished_at_the_state_is_not_missed(items: Items) -> None:
    stream = SQLStream(ALL, items.url, key="id", parts=1)
    iterator = iter(stream)
    assert ids(next(iterator) for _ in range(5)) == [0, 1, 2, 3, 4]
    state = stream.state_dict()
    del iterator, stream  # an open query would keep the table locked
    items.change("DELETE FROM items WHERE id = 4")
    again = SQLStream(ALL, items.url, key="id", parts=1)
    again.load_state_dict(state)
    assert ids(again) == list(range(5, 40))


def test_rows_in_another_order_are_noticed(items: Items) -> None:
    stream = SQLStream(ALL + " ORDER BY id", items.url)
    iterator = iter(stream)
    for _ in range(5):
        next(iterator)
    other = SQLStream(ALL + " ORDER BY id DESC", items.url)
    other.load_state_dict(stream.state_dict())
    with pytest.raises(StateMismatchError, match=r"row 5 of .* is another"):
        next(iter(other))


# processes


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "duckdb"], indirect=True)
def test_a_forked_child_reads_on_over_a_connection_of_its_own(items: Items) -> None:
    items.fill(3_000, start=40)
    iterator = iter(SQLStream(ALL, items.url, key="id", parts=3))
    given = ids(next(iterator) for _ in range(5))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(sum(ids(iterator))).encode())
            del iterator
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as file:
        from_child = int(file.read())
    rest = ids(iterator)
    assert given + rest == list(range(3_040)) and from_child == sum(rest)


@each_database
def test_an_abandoned_iterator_leaves_nothing(items: Items) -> None:
    stream = SQLStream(ALL, items.url, key="id")
    iterator = iter(stream)
    next(iterator)
    assert pickle.loads(pickle.dumps(stream)).key == "id"
    del iterator, stream  # the fixture looks for processes and descriptors


def test_a_killed_process_takes_its_interpreter_along(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    items = Items("duckdb", tmp_path, None)
    items.fill(50_000)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            iterator = iter(SQLStream(ALL, items.url, key="id", parts=1))
            next(iterator)
            os.write(writer, str(iterator._connection._process.pid).encode())  # type: ignore[attr-defined]
            signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as file:
        interpreter = int(os.read(file.fileno(), 100))
        ended = os.pidfd_open(interpreter)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert select.select([ended], [], [], 60)[0], "the interpreter runs on"
        os.close(ended)


def test_a_worker_that_dies_loses_no_row(server: Any, tmp_path: Path) -> None:
    items = Items("postgresql", tmp_path, server)
    items.fill(300)

    def fatal(row: dict[str, Any]) -> int:
        if row["id"] == 170 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return int(row["id"])

    stream = SQLStream(ALL, items.url, key="id", parts=4, transform=fatal)
    with (
        DataLoader(stream, batch_size=8, num_workers=2, collate_fn=list) as loader,
        pytest.warns(StokerWarning, match="worker"),
    ):
        found = sorted(number for batch in loader for number in batch)
    assert found == list(range(300))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, indirect=True)
@pytest.mark.parametrize("key", ["id", None])
def test_memory_of_a_million_rows_is_bounded(items: Items, key: str | None) -> None:
    items.fill(1_000_000, start=40)
    if items.kind != "duckdb":
        items.change("CREATE INDEX items_by_id ON items (id)")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            stream = SQLStream(ALL + ("" if key else " ORDER BY id"), items.url, key=key, parts=8 if key else None)
            iterator = iter(stream)
            next(iterator)
            before = _resident()
            count = 1 + sum(1 for _ in iterator)
            os.write(writer, f"{count} {_resident() - before}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as file:
        count, grown = map(int, file.read().split())
    assert count == 1_000_040
    assert grown < 30_000, "kB"


def _resident() -> int:
    """The largest resident memory so far, in kB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
