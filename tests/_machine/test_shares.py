from __future__ import annotations

import gc

import pytest

from stoker._machine import shares
from stoker._machine.cpus import Cpus


@pytest.fixture(autouse=True)
def machine_of_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares.cpus, "cpus", lambda: Cpus(8, 8.0, "a test"))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


@pytest.mark.parametrize(("told", "ranks", "each"), [("4", 4, 2), ("3", 3, 2), ("16", 16, 1), ("0", 1, 8), ("x", 1, 8)])
def test_ranks_on_the_host_share_the_cpus(told: str, ranks: int, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
    assert shares.ranks() == ranks
    assert shares.for_this_rank() == each


def test_without_ranks_all_is_ours() -> None:
    assert shares.for_this_rank() == 8


def test_half_a_cpu_is_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares.cpus, "cpus", lambda: Cpus(1, 0.5, "quota of 0.5 CPUs"))
    assert shares.for_this_rank() == 1
    assert shares.claim(4, 1).number == 1


def test_the_second_takes_what_is_left_and_at_least_one() -> None:
    first = shares.claim(6, 8)
    second = shares.claim(8, 8)
    third = shares.claim(8, 8)
    assert [first.number, second.number, third.number] == [6, 2, 1]
    assert shares.claim(0, 8).number == 0
    first.release()
    first.release()
    assert shares.claim(8, 8).number == 5


def test_a_claim_that_is_garbage_is_none() -> None:
    shares.claim(8, 8)
    gc.collect()
    assert shares.taken() == 0
    assert shares.claim(8, 8).number == 8
