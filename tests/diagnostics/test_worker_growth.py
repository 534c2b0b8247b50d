"""Growth of workers: which processes they are, when they are in use, and the sentence."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stoker._core.machine import memory
from stoker.diagnostics import process_tree
from stoker.diagnostics.batch_making import MadeBatch
from stoker.diagnostics.measurements import EpochSpans, MeasuredLoader, Span
from stoker.diagnostics.process_tree import MemoryReading, ProcessHistory, ProcessMemory
from stoker.diagnostics.run_findings import WorkerGrowth, curve, rate_in_words, worker_growth, workers_of

MIB = 1 << 20
ABOUT = {"site": "a.py:4", "rank": None, "pid": 1, "num_workers": 2, "persistent_workers": True}


def used(epochs: int = 1, seconds: float = 60.0, pause: float = 0.0) -> MeasuredLoader:
    """A loader with ten batches a second, made by the processes 2 and 3."""
    loader = MeasuredLoader(dict(ABOUT))
    begun = 0.0
    for _ in range(epochs):
        spans = [Span(begun + n / 10, begun + (n + 1) / 10, 1, 0.01, 4) for n in range(int(10 * seconds))]
        loader.epochs.append(EpochSpans(begun, begun, spans))
        begun += seconds + pause
    loader.works = [[MadeBatch(0.5, 0.1, 0.1, 2), MadeBatch(0.5, 0.1, 0.1, 3), MadeBatch(0.7, 0.1, 0.1, 1)]]
    return loader


def history(pid: int, own: float, anonymous: float = 0.0, begin: float = 0.0, end: float = 60.0) -> ProcessHistory:
    """A process that grows by some MiB in a second."""
    readings = []
    for second in range(int(begin), int(end)):
        grown = [int(MIB * (100 + rate * (second - begin))) for rate in (own, anonymous)]
        readings.append(MemoryReading(float(second), grown[0], grown[1], 10_000 * MIB))
    return ProcessHistory(pid, readings)


def test_growth_of_all_workers_together() -> None:
    found = worker_growth(used(), [history(1, 9, 9), history(2, 2, 2), history(3, 2, 2), history(4, 9, 9)])
    assert found is not None and (found.workers, found.cause) == (2, "kept")
    assert found.rate == pytest.approx(4 * MIB, rel=0.01) and found.full == pytest.approx(2500, rel=0.01)
    assert found.text == (
        "The 2 workers of a.py:4 grow steadily: 4 MiB per second together, 152 MiB in 38 s. "
        "At this rate memory is full in 41.7 minutes."
    )
    assert "memory_budget=" in found.remedy and found.as_dict()["rate"] == found.rate


def test_pages_that_become_the_workers_own_are_copies() -> None:
    found = worker_growth(used(), [history(2, 2), history(3, 0)])
    assert found is not None and (found.workers, found.cause) == (1, "copied")
    assert found.text.startswith("The worker of a.py:4 grows steadily: 2 MiB per second, ")
    assert found.more == 0 and found.full is None and found.text.endswith("At most 0 MiB more can follow.")
    assert found.remedy.startswith("It copies memory") and "stoker.columns" in found.remedy


def test_copies_fill_memory_only_if_there_is_so_much_to_copy() -> None:
    workers = [history(2, 2), history(3, 2)]
    for one in workers:
        one.readings[:] = [reading._replace(anonymous=4000 * MIB, left=9000 * MIB) for reading in one.readings]
    found = worker_growth(used(), workers)
    assert found is not None and found.full is None and "At most 7.39 GiB more can follow." in found.text
    for one in workers:
        one.readings[:] = [reading._replace(left=1000 * MIB) for reading in one.readings]
    found = worker_growth(used(), workers)
    assert found is not None and found.full == pytest.approx(250, rel=0.01) and found.cause == "copied"


def test_one_of_several_workers_that_grows_is_no_finding() -> None:
    loader = used()
    loader.works[0].append(MadeBatch(0.5, 0.1, 0.1, 4))
    assert worker_growth(loader, [history(2, 2, 2), history(3, 0), history(4, 0)]) is None
    assert worker_growth(loader, []) is None


def test_workers_of_each_epoch_end_with_it() -> None:
    loader = used(epochs=2)
    loader.about["persistent_workers"] = False
    loader.works = [[MadeBatch(0.5, 0.1, 0.1, 2)], [MadeBatch(60.5, 0.1, 0.1, 3)]]
    found = worker_growth(loader, [history(2, 2, 2), history(3, 2, 2, 60, 120)])
    assert found is not None and found.workers == 1 and found.full is None
    assert found.text.endswith("It ends with each epoch, which frees it.")


def test_time_between_epochs_does_not_count() -> None:
    loader = used(epochs=2, seconds=20, pause=100)
    idle = [0, *range(20), *([20] * 100), *range(20, 40)]
    readings = [MemoryReading(float(n), MIB * (100 + 2 * size), 0, 0) for n, size in enumerate(idle)]
    assert worker_growth(loader, [ProcessHistory(2, readings), ProcessHistory(3, readings)]) is not None


def test_a_pid_that_was_used_again_is_another_process() -> None:
    loader = used()
    again = history(2, 2, begin=100, end=160)
    assert [one.readings[0].time for one in workers_of(loader, [history(2, 2), again])] == [1.0]


def test_late_is_not_said() -> None:
    slow = [history(pid, 0.005, 0.005, 0, 6000) for pid in (2, 3)]
    found = worker_growth(used(seconds=6000), slow)
    assert found is not None and found.full is None and found.text.endswith("in 66.6 minutes.")


def test_curve_is_the_sum_of_the_workers() -> None:
    found = worker_growth(used(), [history(2, 2), history(3, 2, end=50)])
    assert isinstance(found, WorkerGrowth)
    assert curve(found, [0.0, 10.2, 55.0, 70.0]) == [None, 240 * MIB, 210 * MIB, None]


@pytest.mark.parametrize(
    ("rate", "words"), [(3 * MIB, "3 MiB per second"), (MIB / 2, "30 MiB per minute"), (100, "0.343 MiB per hour")]
)
def test_rates_in_words(rate: float, words: str) -> None:
    assert rate_in_words(rate) == words


def test_memory_of_processes_is_kept_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    if not memory.shares(os.getpid()).proportional:
        pytest.skip("the kernel does not tell the memory of a process")
    monkeypatch.setattr(process_tree, "MOST", 16)
    known = ProcessMemory()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        for second in range(40):
            whole = known.read([os.getpid(), child.pid], float(second))
        child.communicate(b"\n")
    assert whole > MIB
    known.read([os.getpid()], 40.0)
    ended, own = known.histories
    assert ended.pid == child.pid and own.pid == os.getpid() and 8 <= len(own.readings) <= 17
    assert own.readings[-1].time == 40.0 and own.readings[-1].anonymous >= own.readings[-1].own > 0
    known.read([], 41.0)
    assert len(known.histories) == 2


def test_own_memory_leaves_shared_memory_out() -> None:
    """As batches are: pages of a file that only this process has written."""
    before = memory.shares(os.getpid())
    if not before.proportional:
        pytest.skip("the kernel does not tell the memory of a process")
    import mmap

    file = os.memfd_create("batch")
    os.ftruncate(file, 64 * MIB)
    with mmap.mmap(file, 64 * MIB) as shared:
        os.close(file)
        shared.write(b"1" * (64 * MIB))
        after = memory.shares(os.getpid())
    assert after.proportional - before.proportional > 32 * MIB
    assert after.own - before.own < 32 * MIB


def test_short_lived_processes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = memory.MemoryShares(1, 1, 1)
    monkeypatch.setattr(memory, "shares", lambda pid: shares)
    monkeypatch.setattr(process_tree, "ENDED", 4)
    known = ProcessMemory()
    known.read([1, 2], 0.0)
    known.read([1], 1.0)
    assert [one.pid for one in known.histories] == [1]
    for pid in range(10, 30):
        for second in range(10):
            known.read([pid], float(second))
    assert len(known.histories) <= 6
