"""What workers will still take for samples, as far as it shows."""

from __future__ import annotations

from stoker._engine.process.headroom import Headroom


def test_who_has_shown_what_it_needs_will_need_it_again() -> None:
    now = {0: 100, 1: 40, 2: 10}
    headroom = Headroom(now.__getitem__)
    assert headroom.to_come([0, 1, 2]) == 0  # nobody has shown anything
    headroom.showed(0, 90)
    assert headroom.to_come([1]) == 50  # like the largest that has
    headroom.showed(1, 60)
    assert headroom.to_come([0, 1]) == 20  # the first has it already
    now[0] = 30
    assert headroom.to_come([0, 1, 2]) == 60 + 20 + 80
    assert headroom.to_come([]) == 0


def test_the_latest_counts() -> None:
    headroom = Headroom(lambda worker: 10)
    headroom.showed(0, 90)
    headroom.showed(0, 30)
    assert headroom.to_come([0]) == 20
