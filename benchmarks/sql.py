"""How long does it take to have the rows of an SQL result, and with how much memory?

Rows of an integer, a text and a float from SQLite, and from PostgreSQL where `--postgresql` names a database in which
the table `stoker_benchmark` may be made. By index: `SQLDataset` beside a list of tuples (`fetchall`) and a pandas
DataFrame; what counts is the time until all rows are there, and by how much the process has grown. In sequence:
`SQLStream` in one process, without workers, beside a bare loop that makes dicts of the rows of a cursor, and, from
PostgreSQL, of those of ADBC's Arrow batches.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import method
import rivals
from method import Case, Figures, Goal

READY, READ, MEMORY = "seconds until all rows are there", "seconds to read all rows", "MB of the process, grown by"
QUERY = "SELECT id, name, score FROM stoker_benchmark"
CREATE = "CREATE TABLE stoker_benchmark ({} PRIMARY KEY, name TEXT, score DOUBLE PRECISION)"


def cases(options: argparse.Namespace) -> list[Case]:
    rows = 20_000 if options.quick else options.rows
    path = options.data.absolute() / f"{rows}.sqlite"
    urls = {"SQLite": f"sqlite:///{path}"} | ({"PostgreSQL": options.postgresql} if options.postgresql else {})
    found = []
    for database, url in urls.items():
        for store, names, goal in (
            ("by index", ("stoker", "list of tuples", "pandas"), Goal(MEMORY, against="list of tuples", at_most=1)),
            ("in sequence", ("stoker", "bare cursor", "ADBC"), Goal(MEMORY, at_most=50)),
        ):
            if database == "SQLite":
                names = tuple(name for name in names if name != "ADBC")
            runs = {rival: {"rival": rival, "store": store, "url": url, "rows": rows} for rival in names}
            found.append(Case(f"{database}, {rows:,} rows {store}", runs, [goal]))
    return found


def measure(rival: str, store: str, url: str, rows: int) -> Figures:
    fill(url, rows)
    return by_index(rival, url, rows) if store == "by index" else in_sequence(rival, url, rows)


def by_index(rival: str, url: str, rows: int) -> Figures:
    import stoker

    if rival == "pandas":
        try:
            import pandas
        except ImportError:
            return dict.fromkeys((READY, MEMORY), rivals.NOT_INSTALLED)
    stoker.SQLDataset("SELECT 1 AS one", url)  # imports
    query = f"{QUERY} ORDER BY id"
    with connection_to(url) as connection:
        before, began = method.memory_of_all(), time.perf_counter()
        if rival == "stoker":
            found: Any = stoker.SQLDataset(query, url)
        elif rival == "pandas":
            cursor = connection.cursor()
            cursor.execute(query)
            found = pandas.DataFrame(cursor.fetchall(), columns=[column[0] for column in cursor.description])
        else:
            cursor = connection.cursor()
            cursor.execute(query)
            found = cursor.fetchall()
            del cursor
        took = time.perf_counter() - began
    grown = method.memory_of_all() - before
    assert len(found) == rows
    return {READY: took, MEMORY: grown / 1e6}


def in_sequence(rival: str, url: str, rows: int) -> Figures:
    import stoker

    if rival == "ADBC":
        try:
            import adbc_driver_postgresql.dbapi
            import pyarrow  # noqa: F401
        except ImportError:
            return dict.fromkeys((READ, MEMORY), rivals.NOT_INSTALLED)
        adbc_driver_postgresql.dbapi.connect(url).close()
    stoker.SQLDataset("SELECT 1 AS one", url)  # imports
    before, began = method.memory_of_all(), time.perf_counter()
    most = count = 0
    rows_of = {"stoker": stream, "bare cursor": bare, "ADBC": adbc}[rival]
    for _ in rows_of(url):
        count += 1
        if count % 100_000 == 0:
            most = max(most, method.memory_of_all())
    took = time.perf_counter() - began
    assert count == rows
    return {READ: took, MEMORY: (max(most, method.memory_of_all()) - before) / 1e6}


def stream(url: str) -> Iterator[dict[str, Any]]:
    import stoker

    return iter(stoker.SQLStream(QUERY, url, key="id"))


def adbc(url: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of Arrow batches, which ADBC reads by COPY."""
    import adbc_driver_postgresql.dbapi

    with adbc_driver_postgresql.dbapi.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(f"{QUERY} ORDER BY id")
        for batch in cursor.fetch_record_batch():
            yield from batch.to_pylist()


def bare(url: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a cursor; PostgreSQL's is one of the server, so that memory is bounded too."""
    with connection_to(url) as connection:
        cursor = connection.cursor() if url.startswith("sqlite") else connection.cursor("bare")
        cursor.execute(f"{QUERY} ORDER BY id")
        while rows := cursor.fetchmany(8192):
            for row in rows:
                yield dict(zip(("id", "name", "score"), row, strict=True))
        cursor.close()


@contextlib.contextmanager
def connection_to(url: str) -> Iterator[Any]:
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"))
    else:
        import psycopg

        connection = psycopg.connect(url)
    try:
        yield connection
    finally:
        connection.close()


def fill(url: str, rows: int) -> None:
    """Makes the table, unless it is there with as many rows."""
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    with connection_to(url) as connection:
        with contextlib.suppress(Exception):
            if connection.execute("SELECT COUNT(*) FROM stoker_benchmark").fetchone()[0] == rows:
                return
        connection.rollback()
        connection.execute("DROP TABLE IF EXISTS stoker_benchmark")
        connection.execute(CREATE.format("id INTEGER"))
        values = ((number, f"name {number}", number / 3) for number in range(rows))
        if url.startswith("sqlite"):
            connection.executemany("INSERT INTO stoker_benchmark VALUES (?, ?, ?)", values)
        else:
            with connection.cursor().copy("COPY stoker_benchmark FROM STDIN") as copy:
                for value in values:
                    copy.write_row(value)
        connection.commit()


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=3)
    arguments.add_argument("--data", type=Path, default=Path("build/sql"), help="folder of the SQLite file, made once")
    arguments.add_argument("--rows", type=int, default=10_000_000)
    arguments.add_argument("--postgresql", help="URL of a database for the table stoker_benchmark")
    method.main(arguments, cases, measure)
