"""The change follows from what was measured: a table of situations, with what may be said and what may not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stoker.diagnostics.batch_making import BatchMaking
from stoker.diagnostics.measurements import LoaderSummary
from stoker.diagnostics.verdict import cause_and_change

ABOUT = {"site": "train.py:8", "rank": None, "num_workers": 2, "persistent_workers": False, "prefetch_factor": 2}
BATCHES, SPENT, CPUS = 100, 10.0, 4


def situation(
    workers: int,
    waited: float,
    made: tuple[float, float] | None,
    busy: float,
    others: float | None = 0.0,
    longest: float = 1.2,
    slowest: float = 0.0,
    collated: float | None = 0.0,
    long_waits: float = 0.1,
    sampled: float = 0.0,
    size: int = 0,
    far: int | None = None,
    **about: Any,
) -> LoaderSummary:
    """A run of 100 batches in 10 s on 4 CPUs.

    Args:
        workers: of the loader.
        waited: share of the time that the loop waited.
        made: seconds to make a batch, and the share of them on a CPU.
        busy: share of the CPUs that the program used.
        others: share that other programs used; None if the system does not tell.
        longest: the slowest batch by the median.
        slowest: seconds of it.
        collated: seconds of a batch in its collation.
        long_waits, sampled: shares of the waiting.
        size: bytes of a batch.
        far: batches of two other machines, which have 10 workers; None without such workers.
    """
    elsewhere = {name: {"batches": (far or 0) // 2, "bytes": (far or 0) * 5_000_000} for name in "ab"} if far else {}
    about |= {} if far is None else {"remote_workers": 10}
    return LoaderSummary(
        {**ABOUT, "num_workers": workers, **about}, made=1, epochs=1, batches=BATCHES, samples=3200, spent=SPENT,
        waited=SPENT * waited, first=0.1, steady=SPENT - 0.1, steady_waited=SPENT * waited - 0.1,
        cpu=busy * SPENT * CPUS, peak=0,
        making=None if made is None else BatchMaking(made[0], made[0] * made[1], longest, 0.05, 0.0, slowest, collated),
        machine=None if others is None else busy + others, others=others or 0.0,
        sampled=sampled * SPENT * waited, long_waits=long_waits * SPENT * waited, size=size,
        machines={"machines": elsewhere, "batches": BATCHES, "seconds": SPENT} if far else {},
    )  # fmt: skip


COMPUTES, SLEEPS, BETWEEN = 0.97, 0.05, 0.6
DISK = "a disk, a network or a lock"
EITHER = "for a CPU or for a disk or a network"

SITUATIONS = {
    "workers compute, CPUs idle": (
        situation(2, 0.6, (0.19, COMPUTES), 0.5),
        ["Pass num_workers=4: 2 of 4 CPUs make batches"],
        ["disk", "cannot help"],
    ),
    "all CPUs compute samples": (
        situation(4, 0.6, (0.38, COMPUTES), 0.95),
        [
            "Make samples cheaper (a faster decoder, smaller files, a cache), or add CPUs (of other machines too: ",
            "95% of the 4 CPUs are in use, so more workers cannot help",
        ],
        ["disk", "the rest", "num_workers="],
    ),
    "more workers than CPUs share them": (
        situation(16, 0.6, (1.5, 0.23), 0.97),
        ["Pass num_workers=4: 16 workers share 4 CPUs, and 97% of these are in use"],
        ["disk", "add CPUs"],
    ),
    "more threads than CPUs share them": (
        situation(16, 0.6, (12.0, 0.03), 0.97, threads_per_worker=8),
        ["Pass num_workers=4 and leave out threads_per_worker: 16 workers with 8 threads each share 4 CPUs"],
        ["disk", "add CPUs"],
    ),
    "a worker for each CPU, which are nearly in use": (
        situation(4, 0.6, (0.38, COMPUTES), 0.8),
        ["Make samples cheaper", "samples compute 97% of their time", "4 workers for 4 CPUs"],
        ["disk", "num_workers="],
    ),
    "all CPUs are for the step, samples compute": (
        situation(2, 0.3, (0.15, COMPUTES), 0.95),
        ["add CPUs", "38% of that is for batches, the rest for the loop's steps"],
        ["disk"],
    ),
    "all CPUs are for the step, samples wait": (
        situation(2, 0.3, (0.19, SLEEPS), 0.95),
        ["Try num_workers=3", EITHER, "cannot be told while 95% of the CPUs are in use"],
        ["cannot help", DISK],
    ),
    "samples sleep, CPUs idle": (
        situation(4, 0.8, (0.39, SLEEPS), 0.06),
        ["Pass num_workers=8: samples wait 95% of their time", DISK, "6% of the CPUs", "threads_per_worker=8"],
        ["cheaper"],
    ),
    "samples sleep in threads already": (
        situation(4, 0.8, (2.9, SLEEPS), 0.06, threads_per_worker=8),
        ["Pass num_workers=8", DISK],
        ["threads_per_worker"],
    ),
    "samples are awaited": (
        situation(4, 0.8, (2.9, SLEEPS), 0.06, awaited=16),
        ["Pass num_workers=8: samples wait", DISK, "concurrency=32 does it in 4 processes"],
        ["threads_per_worker"],
    ),
    "samples sleep, few workers": (
        situation(1, 0.5, (0.099, SLEEPS), 0.06),
        ["Pass num_workers=2", DISK, "in 1 process."],
        ["processes"],
    ),
    "samples wait, CPUs in use by four fifths": (
        situation(4, 0.8, (0.39, 0.4), 0.81),
        ["Try num_workers=8", EITHER, "81% of the CPUs"],
        [DISK, "Pass"],
    ),
    "samples wait a part, a worker for each CPU": (
        situation(4, 0.8, (0.39, BETWEEN), 0.55),
        ["Try num_workers=8", "samples wait 40% of their time", EITHER],
        [DISK, "Pass"],
    ),
    "other programs have the CPUs": (
        situation(4, 0.6, (0.38, 0.4), 0.4, others=0.58),
        ["Make samples cheaper", "Other programs use 58% of the CPUs: measure again while nothing else runs."],
        ["disk", "num_workers="],
    ),
    "other programs have the CPUs, no workers": (
        situation(0, 0.6, (0.06, 0.5), 0.15, others=0.8),
        ["Pass num_workers=2", "Other programs use 80% of the CPUs"],
        ["disk"],
    ),
    "one worker, and the loop is as fast": (
        situation(1, 0.3, (0.095, COMPUTES), 0.4),
        ["Pass num_workers=2: 1 of 4 CPUs"],
        ["disk"],
    ),
    "workers idle behind one slow batch": (
        situation(4, 0.4, (0.1, COMPUTES), 0.3, longest=12.0, slowest=1.2, long_waits=0.9),
        ["Pass prefetch_factor=6:", "takes 1.2 s, 12 times as long", "stoker profile lists the slowest samples"],
        ["disk", "num_workers"],
    ),
    "a batch too slow for any prefetching": (
        situation(4, 0.4, (0.1, COMPUTES), 0.3, longest=12.0, slowest=1.2, long_waits=0.9, prefetch_factor=25),
        ["Make the slowest samples cheaper, which stoker profile lists"],
        ["prefetch_factor"],
    ),
    "a slow sampler": (
        situation(2, 0.8, (0.001, COMPUTES), 0.3, sampled=0.9, sampler="Weighted"),
        ["Make the sampler quicker: Weighted takes 2.2 ms for each index, 90% of the waiting"],
        ["bytes", "num_workers", "cheaper"],
    ),
    "slow collation, all CPUs": (
        situation(4, 0.6, (0.38, COMPUTES), 0.95, collated=0.3),
        ["Make collation cheaper (79% of the time to make a batch is in collate_fn", "or add CPUs"],
        ["decoder"],
    ),
    "the slow stage is not known": (
        situation(4, 0.6, (0.38, COMPUTES), 0.95, collated=None),
        ["Make samples cheaper (stoker profile names the slow stage)"],
        ["decoder"],
    ),
    "large batches": (
        situation(4, 0.4, (0.1, COMPUTES), 0.95, size=96 << 20),
        ["smaller in bytes", "a batch has 96 MiB, workers make batches 25% of their time"],
        ["decoder", "num_workers"],
    ),
    "samples compute beside other programs": (
        situation(2, 0.6, (0.19, 0.6), 0.3, others=0.6),
        ["Pass num_workers=4: 2 of 4 CPUs", "Other programs use 60% of the CPUs: measure again"],
        ["disk"],
    ),
    "samples sleep beside other programs": (
        situation(4, 0.8, (0.39, SLEEPS), 0.11, others=0.75),
        ["Pass num_workers=8: samples wait 95%", DISK, "Other programs use 75% of the CPUs: measure again"],
        ["cheaper"],
    ),
    "workers idle, batches are alike": (
        situation(4, 0.4, (0.1, SLEEPS), 0.1),
        ["smaller in bytes", "25% of their time", "stoker profile measures"],
        ["disk", "num_workers"],
    ),
    "workers idle, and batches are small": (
        situation(4, 0.4, (0.1, SLEEPS), 0.1, size=1000),
        ["Run stoker profile", "25% of their time"],
        ["bytes", "num_workers"],
    ),
    "cheap batches in workers": (
        situation(2, 0.4, (0.0001, COMPUTES), 0.3),
        ["larger batches, or pass num_workers=0", "0.1 ms to make"],
        ["disk"],
    ),
    "making is not known, CPUs idle": (
        situation(4, 0.8, None, 0.1, others=None),
        ["Pass num_workers=8: 10% of the CPUs", "for a disk or a network"],
        ["cheaper"],
    ),
    "making is not known, CPUs in use by four fifths": (
        situation(4, 0.8, None, 0.81, others=None),
        ["Try num_workers=8: 81%", "stoker profile"],
        ["Pass"],
    ),
    "all CPUs compute samples, and other machines help": (
        situation(4, 0.6, (0.95, COMPUTES), 0.95, far=60),
        ["Try stoker.Ray(num_workers=20): 60 of 100 batches came from 2 other machines, 0.48 Gbit/s", "95%"],
        ["cheaper", "disk"],
    ),
    "other machines alone": (
        situation(0, 0.6, None, 0.1, far=100),
        ["Pass num_workers=4, as 10% of the CPUs here are in use: none of them makes batches"],
        ["made in the training loop", "stoker.Ray"],
    ),
    "other machines alone, beside other programs": (
        situation(0, 0.6, None, 0.1, others=0.85, far=100),
        ["Pass num_workers=4, as 95% of the CPUs here", "Other programs use 85% of the CPUs: measure again"],
        ["made in the training loop", "stoker.Ray"],
    ),
    "other machines alone, and the step takes all CPUs": (
        situation(0, 0.6, None, 0.95, far=100),
        ["Try stoker.Ray(num_workers=20): 100 of 100 batches"],
        ["made in the training loop"],
    ),
    "other machines, CPUs here idle": (
        situation(2, 0.6, (0.38, COMPUTES), 0.5, far=50),
        ["Pass num_workers=4: 2 of 4 CPUs make batches"],
        ["stoker.Ray"],
    ),
    "other machines, samples wait": (
        situation(4, 0.8, (0.78, SLEEPS), 0.06, far=50),
        ["Pass num_workers=8: samples wait 95% of their time", DISK],
        ["stoker.Ray"],
    ),
    "other machines alone, started for each epoch": (
        replace(situation(0, 0.6, None, 0.1, far=100), epochs=5, first=3.0, steady_waited=0.1),
        ["Pass persistent_workers=True: the first batch of an epoch comes after 3 s"],
        ["first sample"],
    ),
    "other machines, of which none has come": (
        situation(4, 0.6, (0.38, COMPUTES), 0.95, far=0),
        ["Pass persistent_workers=True: no batch came from another machine"],
        ["stoker.Ray"],
    ),
    "no workers, all CPUs in use": (
        situation(0, 0.6, (0.06, 3.9), 0.97),
        ["Make samples cheaper", "97% of the 4 CPUs are in use, so workers cannot help much"],
        ["num_workers="],
    ),
    "no workers, a little to gain": (
        situation(0, 0.15, (0.015, 1.0), 0.25),
        ["Pass num_workers=1"],
        ["cheap"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SITUATIONS)
def test_change_is_of_what_was_measured(name: str) -> None:
    known, said, unsaid = SITUATIONS[name]
    _, change = cause_and_change(known, CPUS)
    assert all(words in change for words in said), change
    assert not any(words in change for words in unsaid), change


def test_one_cpu_suffices_for_samples_that_sleep() -> None:
    sleeps = situation(0, 0.8, (0.08, SLEEPS), 0.01)
    assert cause_and_change(sleeps, 1)[1].startswith("Pass num_workers=2:")
    computes = replace(sleeps, making=BatchMaking(0.08, 0.08, 1.0, 0.0))
    assert cause_and_change(computes, 1)[1].startswith("There is one CPU")


def test_quota_counts_as_it_is() -> None:
    """All of a quota of 1.5 CPUs is 75 % of 2."""
    known = situation(2, 0.6, (0.19, 0.7), 1.47 / CPUS)
    assert "98% of the 2 CPUs are in use" in cause_and_change(known, 2, quota=1.5)[1]


def test_first_batches_are_late_by_start_or_own_time() -> None:
    late = replace(situation(4, 0.4, (0.3, COMPUTES), 0.3), epochs=4, first=1.0, steady_waited=0.3)
    start = replace(late, making=BatchMaking(0.3, 0.3, 1.2, start=0.9))
    assert "and 4 workers take 0.9 s of it to start" in cause_and_change(start, CPUS)[1]
    assert "Longer epochs help" in cause_and_change(late, CPUS)[1]


def test_first_batches_are_the_cause_whoever_else_runs() -> None:
    """Nine tenths of the waiting, though the loop waits for other batches too, and other programs have the CPUs."""
    known = replace(situation(2, 0.9, (0.3, 0.5), 0.3, others=0.7), epochs=10, first=0.9, steady=2.0, steady_waited=0.8)
    known = replace(known, making=BatchMaking(0.3, 0.15, 1.2, start=0.75))
    cause, change = cause_and_change(known, CPUS)
    assert cause == "first batches" and change.startswith("Pass persistent_workers=True: the first batch")
    assert "measure again" not in change


def test_loader_made_in_each_epoch_is_to_be_made_once() -> None:
    about = {**ABOUT, "made_at": "train.py:6"}
    known = replace(
        situation(2, 0.6, (0.1, COMPUTES), 0.3), about=about, made=10, epochs=10, first=0.7, steady_waited=2
    )
    cause, change = cause_and_change(known, CPUS)
    assert cause == "loader made anew"
    assert change.startswith("Make the loader once, before the loop, with persistent_workers=True: it is made 10 times")
    assert "at train.py:6" in change
    assert cause_and_change(replace(known, made=2), CPUS)[0] != cause, "training and evaluation"


def test_first_sample_of_a_worker_that_reads_an_index() -> None:
    known = replace(situation(2, 0.6, (0.1, 0.05), 0.1), epochs=5, first=1.2, steady_waited=0.3)
    known = replace(known, making=BatchMaking(0.1, 0.01, 2.0, start=0.05, first=1.1, slowest=0.08))
    cause, change = cause_and_change(known, CPUS)
    assert cause == "first batches" and change.startswith("Pass persistent_workers=True")
    assert "a worker's first batch takes 1.1 s, and a later one 40 ms" in change
    assert cause_and_change(replace(known, epochs=1), CPUS)[1].startswith("Read once, in __init__")
