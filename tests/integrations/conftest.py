"""`installed`: Stoker's engine under torch's class for one test. The tests of this folder need torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import stoker


@pytest.fixture
def installed() -> Iterator[stoker.Installation]:
    with stoker.install(images=False) as installation:
        yield installation
