"""What `loader.report()` says of a ledger."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.events import (
    Event,
    FaultRecord,
    HelperDied,
    SampleFailed,
    SampleSkipped,
    WorkerDied,
    WorkerRetired,
    WorkerStalled,
)
from stoker.loader._accounting.ledger import Ledger
from stoker.loader._accounting.report import Report

NOON = time.mktime((2026, 3, 4, 12, 0, 0, 0, 0, -1))


def fault(**changes: Any) -> FaultRecord:
    made = {
        "kind": "exception",
        "outcome": "skipped",
        "place": 0,
        "position": 0,
        "index": 517,
        "description": "train/b.jpg",
        "exception": "OSError: image file\nis truncated",
        "traceback": "",
        "worker": 0,
        "replacement": None,
        "time": NOON,
    }
    return FaultRecord(**{**made, **changes})


class OfALaterVersion(Event):
    kind = "of_a_later_version"


def rows(report: Report) -> dict[str, str]:
    """By name; those that go on are joined."""
    found: dict[str, str] = {}
    name = ""
    for line in str(report).split("\n\n")[0].splitlines():
        head, _, text = line.partition("  ")
        name = head or name
        found[name] = f"{found[name]}\n{text.strip()}" if name in found else text.strip()
    return found


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.begin(ledger, 0, 50_000)
    return ledger


def test_nothing_has_begun() -> None:
    assert str(Report.of(Ledger())).splitlines() == [
        "epoch                  none has begun",
        "delivered              0",
        "replaced               0",
        "left out (SkipSample)  0",
        "left out (errors)      0",
        "raised                 0",
        "not requested          unknown",
    ]


def test_report_shows_counts(ledger: Ledger) -> None:
    ledger.epoch.add_delivered(40_000, [fault()] * 3 + [fault(outcome="replaced")] * 10)
    ledger.epoch.add_raised(5, [])
    ledger.epoch.add_delivered(9, [fault(kind="skip")])
    found = rows(Report.of(ledger))
    assert list(found) == [
        *("epoch", "delivered", "replaced", "left out (SkipSample)", "left out (errors)", "raised"),
        *("not requested", "faults"),
    ]
    assert found["epoch"] == "0: 50,000 samples; batches delivered: 2"
    assert found["delivered"] == "39,999 (80.00%)"
    assert found["replaced"] == "10 (0.02%)"
    assert found["left out (SkipSample)"] == "1 (0.00%)"
    assert found["left out (errors)"] == "3 (0.01%)"
    assert found["raised"] == "5 (0.01%)"
    assert found["not requested"] == "9,982 (19.96%)"


def test_counts_of_all_epochs(ledger: Ledger) -> None:
    ledger.epoch.add_delivered(50_000, [])
    ledger.begin(ledger, 1, 50_000)
    ledger.epoch.add_delivered(1000, [])
    found = rows(Report.of(ledger))
    assert found["epoch"] == "1: 50,000 samples; batches delivered: 1; in brackets, all 2 epochs"
    assert found["delivered"] == "1,000 (2.00%)  [51,000]"
    assert found["left out (SkipSample)"] == "0  [0]"


def test_an_epoch_without_a_known_length() -> None:
    ledger = Ledger()
    ledger.begin(ledger, 0, None)
    ledger.epoch.add_delivered(3, [fault()])
    found = rows(Report.of(ledger))
    assert found["epoch"] == "0: samples, number unknown; batches delivered: 1"
    assert found["delivered"] == "3 (75.00%)"
    assert found["not requested"] == "unknown"


def test_faults_by_class_the_most_first(ledger: Ledger) -> None:
    for number in range(7):
        ledger.epoch.add_delivered(1, [fault(exception=f"Error{number}: no", description=None)] * (number + 1))
    assert rows(Report.of(ledger))["faults"].splitlines() == [
        "7 Error6, first sample 517 at 2026-03-04 12:00:00: Error6: no",
        "6 Error5, first sample 517 at 2026-03-04 12:00:00: Error5: no",
        "5 Error4, first sample 517 at 2026-03-04 12:00:00: Error4: no",
        "4 Error3, first sample 517 at 2026-03-04 12:00:00: Error3: no",
        "6 of other classes",
    ]


def test_report_shows_a_fault(ledger: Ledger) -> None:
    ledger.epoch.add_delivered(1, [fault()])
    expected = "1 OSError, first sample 517 (train/b.jpg) at 2026-03-04 12:00:00: OSError: image file is truncated"
    assert rows(Report.of(ledger))["faults"] == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_that_is_no_samples(workers: int) -> None:
    """A collator's costs a batch, and is no more secret than a sample's."""

    def collate_fn(samples: list[int]) -> int:
        if 4 in samples:
            raise ValueError("these do not go together")
        return len(samples)

    loader = stoker.DataLoader(list(range(12)), 4, collate_fn=collate_fn, num_workers=workers)
    batches = iter(loader)
    assert next(batches) == 4
    with pytest.raises(ValueError, match="do not go together"):
        next(batches)
    assert list(batches) == [4]
    report = loader.report()
    assert rows(report)["faults"].startswith("1 ValueError, first batch 1 at ")
    assert ": ValueError: these do not go together" in rows(report)["faults"]
    first = report.as_dict()["total"]["faults"]["ValueError"]["first"]
    assert (first["batch"], first["index"], first["worker"]) == (1, None, 0)
    assert "in collate_fn" in first["traceback"]


def test_a_fault_of_a_stream(ledger: Ledger) -> None:
    ledger.epoch.add_raised(1, [fault(index=None, description=None)])
    assert "OSError, first at 2026" in rows(Report.of(ledger))["faults"]


def test_report_shows_events(ledger: Ledger) -> None:
    for number in range(6):
        ledger.event(WorkerDied(message="died", time=NOON + number, worker=number % 2))
    ledger.event(HelperDied(message="died", time=NOON))
    ledger.event(WorkerRetired(message="grew", time=NOON, worker=3))
    ledger.event(WorkerStalled(message="stalls", time=NOON, worker=1, batch=7, unit=7, mark=0, seconds=60.0))
    ledger.event(SampleFailed(message="counted with the samples", time=NOON, fault=fault()))
    ledger.event(SampleSkipped(message="counted with the samples", time=NOON, fault=fault(kind="skip")))
    ledger.event(OfALaterVersion(message="?", time=NOON))
    found = rows(Report.of(ledger))
    at = "at 2026-03-04 12:00:0"
    assert found["deaths"] == f"6: the latest worker 0 {at}2, worker 1 {at}3, worker 0 {at}4, worker 1 {at}5"
    assert found["helper's deaths"] == f"1: {at}0"
    assert found["retired"] == f"1: worker 3 {at}0"
    assert found["stalls"] == f"1: worker 1 {at}0"
    assert found["of a later version"] == f"1: {at}0"
    assert not {"error", "errors", "skip"} & set(found)


def test_report_shows_the_share_of_waiting(ledger: Ledger) -> None:
    ledger.epoch.waited, ledger.epoch.until = 2.5, 1000.0
    assert rows(Report.of(ledger))["waiting"] == "2.5 s of 1,000.0 s (0.2%) were spent waiting for a batch"


def test_report_shows_memory(ledger: Ledger) -> None:
    found = rows(Report.of(ledger, {"arena": 3 * 2**30 // 2, "workers": 5 * 2**20, "lent": 2048, "held": 7}))
    assert found["memory"] == "arena 1.5 GiB, workers 5.0 MiB, lent 2.0 KiB, held 7 bytes"


def test_stacks_stand_below(ledger: Ledger) -> None:
    text = str(Report.of(ledger, stacks="worker 0:\n  File ..."))
    assert text.endswith("\n\nworker 0:\n  File ...")


def test_report_is_a_snapshot(ledger: Ledger) -> None:
    ledger.epoch.add_delivered(1, [fault()])
    ledger.event(WorkerDied(message="died", time=NOON))
    memory = {"arena": 1}
    report = Report.of(ledger, memory)
    before = str(report), report.as_dict()
    ledger.epoch.add_delivered(1, [fault()])
    ledger.event(WorkerDied(message="died"))
    memory["arena"] = 2
    assert (str(report), report.as_dict()) == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.stacks = "x"  # type: ignore[misc]


def test_report_as_dict_has_plain_values(ledger: Ledger) -> None:
    ledger.epoch.add_delivered(3, [fault(index=np.int64(3), time=0.0)])
    ledger.event(WorkerDied(message="died", time=0.0, worker=1, batch=2, unit=4, code=-9, index=3))
    ledger.epoch.waited, ledger.epoch.until = 0.5, 2.0
    found = Report.of(ledger, {"arena": 5}, "stacks").as_dict()
    assert json.loads(json.dumps(found)) == found
    epoch = found["epoch"]
    assert epoch["faults"]["OSError"]["count"] == 1
    assert epoch["faults"]["OSError"]["first"]["index"] == 3
    assert epoch["faults"]["OSError"]["first"]["time"] == "1970-01-01T00:00:00.000000+00:00"
    assert found["total"] == epoch
    del epoch["faults"]
    assert epoch == {
        "planned": 50_000,
        "delivered": 3,
        "replaced": 0,
        "skipped": 0,
        "quarantined": 1,
        "raised": 0,
        "not_requested": 49_996,
        "batches": 1,
        "waited": 0.5,
        "spent": 2.0,
    }
    event = {"time": "1970-01-01T00:00:00.000000+00:00", "message": "died", "worker": 1, "batch": 2}
    details = {"unit": 4, "mark": -1, "code": -9, "stalled": False, "index": 3, "ends": False}
    assert found["events"] == {"death": {"count": 1, "latest": [{**event, "details": details}]}}
    assert (found["epoch_number"], found["epochs"]) == (0, 1)
    assert (found["memory"], found["stacks"]) == ({"arena": 5}, "stacks")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers() | st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(ANYTHING, st.text())
def test_report_prints_any_state(anything: Any, exception: str) -> None:
    ledger = Ledger()
    ledger.begin(ledger, 0, None)
    ledger.epoch.add_delivered(1, [fault(index=anything, exception=exception, description=exception)])
    ledger.event(WorkerDied(message=exception, time=NOON, index=anything))
    report = Report.of(ledger)
    assert str(report)
    json.dumps(report.as_dict())


def test_report_covers_two_iterators_at_once() -> None:
    """Each counts into an epoch of its own; the newest is shown, and the total has both."""
    loader = stoker.DataLoader(range(12), batch_size=4, output="numpy", seed=1)
    first, second = iter(loader), iter(loader)
    for iterator in (first, second, first, first):
        next(iterator)
    report = loader.report()
    assert (report.epoch_number, report.epoch.planned, report.epoch.delivered) == (1, 12, 4)
    assert (report.total.planned, report.total.delivered, report.total.not_requested) == (24, 16, 8)
    list(second)
    assert loader.report().epoch.delivered == 12 and loader.report().total.delivered == 24
    for _ in zip(loader, loader, strict=True):
        pass
    report = loader.report()
    assert (report.epoch.delivered, report.total.delivered, report.epochs) == (12, 48, 4)


@pytest.mark.parametrize("limit", [{"batch_size": 4}, {"max_tokens": 12}], ids=str)
def test_batches_that_a_sampler_returns_by_number_are_counted(limit: dict[str, int]) -> None:
    def loader() -> stoker.DataLoader[Any]:
        sampler = stoker.BucketBatchSampler([1, 2, 3, 4, 1, 2, 3, 4, 1, 2], **limit)
        return stoker.DataLoader(range(10), batch_sampler=sampler, output="numpy", seed=1)

    first = loader()
    given = len(next(iter(first)))
    counts = first.report().epoch
    assert (counts.planned, counts.delivered, counts.not_requested) == (10, given, 10 - given)
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    assert sum(map(len, resumed)) == 10 - given
    counts = resumed.report().epoch
    assert (counts.planned, counts.delivered, counts.not_requested) == (10 - given, 10 - given, 0)


@pytest.mark.parametrize("number", [2, 60])
def test_many_machines_are_summed_up(number: int) -> None:
    machines = {f"host{one}": {"batches": 2 + one, "bytes": (2 + one) << 20} for one in range(number)}
    report = dataclasses.replace(Report.of(Ledger()), machines=machines)
    lines = [line for line in str(report).splitlines() if "host" in line or "machines" in line]
    if number == 2:
        assert [line[-42:] for line in lines] == [
            f"host{one}: {2 + one} batches, {2 + one}.0 MiB over the network" for one in (1, 0)
        ]
    else:
        assert lines[0].endswith("60 other machines: 1,890 batches, 1.8 GiB over the network")
        assert "the most by host59: 61 batches" in lines[1] and "the fewest by host0: 2 batches" in lines[2]
    assert report.as_dict()["machines"] == machines
