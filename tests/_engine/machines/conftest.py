"""A bridge that is played, for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests._engine.machines.played import Played


@pytest.fixture
def played() -> Iterator[Played]:
    made = Played()
    yield made
    made.close_all()
