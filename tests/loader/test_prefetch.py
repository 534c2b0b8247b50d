"""How many units are under way; with whole loaders in test_shared_batches.py."""

from __future__ import annotations

import pytest

from stoker.loader.unit_queue import Prefetch


@pytest.mark.parametrize(
    ("under_way", "ready", "room"),
    [(0, 0, True), (8, 0, False), (7, 0, True), (7, 7, False), (5, 5, False), (4, 4, True), (9, 0, False)],
)
def test_several_units_are_planned_only_while_all_are_ready(under_way: int, ready: int, room: bool) -> None:
    assert Prefetch.has_room(8, under_way, ready) is room
