from __future__ import annotations

import gc

import pytest

from stoker._core.machine import cpus
from stoker._core.machine.cpus import Cpus


@pytest.fixture(autouse=True)
def machine_of_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "cpus", lambda: Cpus(8, 8.0, "a test"))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


@pytest.mark.parametrize(("told", "ranks", "each"), [("4", 4, 2), ("3", 3, 2), ("16", 16, 1), ("0", 1, 8), ("x", 1, 8)])
def test_ranks_on_the_host_share_the_cpus(told: str, ranks: int, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
    assert cpus.ranks() == ranks
    assert cpus.for_this_rank() == each


def test_all_cpus_belong_to_a_single_rank() -> None:
    assert cpus.for_this_rank() == 8


def test_half_a_cpu_is_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "cpus", lambda: Cpus(1, 0.5, "quota of 0.5 CPUs"))
    assert cpus.for_this_rank() == 1
    assert cpus.claim(4, 1).number == 1


def test_second_loader_gets_the_remaining_cpus_or_one() -> None:
    first = cpus.claim(6, 8)
    second = cpus.claim(8, 8)
    third = cpus.claim(8, 8)
    assert [first.number, second.number, third.number] == [6, 2, 1]
    assert cpus.claim(0, 8).number == 0
    first.release()
    first.release()
    assert cpus.claim(8, 8).number == 5


def test_a_claim_that_is_garbage_is_none() -> None:
    cpus.claim(8, 8)
    gc.collect()
    assert cpus.taken() == 0
    assert cpus.claim(8, 8).number == 8
