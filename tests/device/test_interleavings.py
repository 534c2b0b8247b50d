"""Programs at random on a device that makes mistakes of order visible: no byte is wrong, and each mistake is found."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from tests.device import explorer

CASES = 800
LONG = 100_000


@pytest.mark.parametrize("part", range(2))
def test_programs_at_random(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    first = part * CASES // 2
    assert explorer.explore(range(first, first + CASES // 2), monkeypatch) == []


@pytest.mark.parametrize("mistake", [*explorer.MISTAKES, *explorer.OF_DEVICE])
def test_mistake_is_found(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    assert explorer.explore(range(CASES), monkeypatch, mistake, until_found=True)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_many_programs_at_random(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    first = CASES + part * LONG // 10
    assert explorer.explore(range(first, first + LONG // 10), monkeypatch) == []
