"""Databases with items."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sources.sql import postgresql_server
from tests.sources.sql.databases import Items


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    """A PostgreSQL server."""
    pytest.importorskip("psycopg")
    if not postgresql_server.is_installed():
        pytest.skip("there is no PostgreSQL server: apt-get install postgresql")
    running = postgresql_server.PostgreSQLServer()
    yield running
    running.remove()


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of database; a test without parameters of its own takes SQLite."""
    return str(getattr(request, "param", "sqlite"))


@pytest.fixture
def items(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Items:
    """A table of 40 items, the last of which has nothing but its id."""
    if kind in ("duckdb", "sqlalchemy"):
        pytest.importorskip(kind)
    table = Items(kind, tmp_path, request.getfixturevalue("server") if kind == "postgresql" else None)
    table.fill(39)
    table.change("INSERT INTO items VALUES (39, NULL, NULL, NULL)")
    return table
