"""What workers will still take for samples, as far as it shows."""

from __future__ import annotations

from stoker._engine.process.growth import Growth


def test_who_has_shown_what_it_needs_will_need_it_again() -> None:
    now = {0: 100, 1: 40, 2: 10}
    growth = Growth(now.__getitem__)
    assert growth.to_come([0, 1, 2]) == 0  # nobody has shown anything
    growth.showed(0, 90)
    assert growth.to_come([1]) == 50  # like the largest that has
    growth.showed(1, 60)
    assert growth.to_come([0, 1]) == 20  # the first has it already
    now[0] = 30
    assert growth.to_come([0, 1, 2]) == 60 + 20 + 80
    assert growth.to_come([]) == 0


def test_the_latest_counts() -> None:
    growth = Growth(lambda worker: 10)
    growth.showed(0, 90)
    growth.showed(0, 30)
    assert growth.to_come([0]) == 20
