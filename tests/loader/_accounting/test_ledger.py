"""What became of each sample: every sample that an epoch planned is counted once."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.events import FaultRecord, WorkerDied
from stoker.loader._accounting.ledger import KEPT, Ledger, class_of, on_one_line, plain

FATES = ("delivered", "replaced", "skipped", "quarantined", "raised", "not_requested")


def fault(**changes: Any) -> FaultRecord:
    made = {
        "kind": "exception",
        "outcome": "skipped",
        "place": 0,
        "position": 0,
        "index": 0,
        "description": None,
        "exception": "OSError: image file is truncated",
        "traceback": "",
        "worker": 0,
        "replacement": None,
        "time": 1.0,
    }
    return FaultRecord(**{**made, **changes})


def fates(counts: Any) -> dict[str, int | None]:
    return {fate: getattr(counts, fate) for fate in FATES if getattr(counts, fate) != 0}


def test_ledger_counts_each_fate_of_a_sample() -> None:
    ledger = Ledger()
    ledger.begin(ledger, 0, 100)
    faults = [
        fault(),
        fault(kind="death"),
        fault(kind="stall"),
        fault(kind="skip"),
        fault(kind="skip", outcome="replaced"),
        fault(outcome="replaced"),
        fault(outcome="replaced"),
    ]
    ledger.epoch.add_delivered(16, faults)  # 20 were planned
    assert fates(ledger.epoch) == {"delivered": 13, "replaced": 3, "quarantined": 3, "skipped": 1, "not_requested": 80}
    ledger.epoch.add_raised(20, [fault(outcome="raised"), fault()])
    expected = {"delivered": 13, "replaced": 3, "quarantined": 3, "skipped": 1, "raised": 20, "not_requested": 60}
    assert fates(ledger.epoch) == expected
    assert ledger.epoch.batches == 1


def test_a_batch_of_which_nothing_is_left_is_none() -> None:
    ledger = Ledger()
    ledger.begin(ledger, 0, 2)
    ledger.epoch.add_delivered(0, [fault(), fault(kind="skip")])
    assert fates(ledger.epoch) == {"quarantined": 1, "skipped": 1}
    assert ledger.epoch.batches == 0


def test_an_epoch_without_a_known_length() -> None:
    ledger = Ledger()
    ledger.begin(ledger, 0, 10)
    ledger.begin(ledger, 1, None)
    ledger.epoch.add_delivered(4, [])
    ledger.begin(ledger, 2, 5)
    assert ledger.total.planned is ledger.total.not_requested is None
    assert ledger.epoch.not_requested == 5
    assert ledger.total.delivered == 4


def test_a_length_that_was_too_small() -> None:
    ledger = Ledger()
    ledger.begin(ledger, 0, 3)
    ledger.epoch.add_delivered(4, [])
    assert ledger.epoch.not_requested == 0


class Owner:
    """Who counts."""


def test_each_counts_into_its_own_epoch() -> None:
    ledger, first, second = Ledger(), Owner(), Owner()
    of_first, of_second = ledger.begin(first, 0, 10), ledger.begin(second, 1, 10)
    for counts in (of_first, of_second, of_first):
        counts.add_delivered(3, [])
    assert (of_first.delivered, of_second.delivered) == (6, 3) and ledger.epoch is of_second
    assert (ledger.total.delivered, ledger.total.planned, ledger.epochs) == (9, 20, 2)
    again = ledger.begin(first, 2, 10)
    of_second.add_raised(4, [fault()])
    again.add_delivered(1, [])
    assert (ledger.total.delivered, ledger.total.raised, ledger.total.planned) == (10, 4, 30)
    assert ledger.total.faults["OSError"].count == 1


def test_finished_iterators_are_counted_and_not_kept() -> None:
    ledger = Ledger()
    for number in range(5):
        ledger.begin(Owner(), number, 10).add_delivered(2, [])
    assert (ledger.total.delivered, ledger.total.planned) == (10, 50)
    assert len(ledger._open) == 1


def test_before_the_first_epoch() -> None:
    ledger = Ledger()
    assert (ledger.epoch_number, ledger.epochs) == (None, 0)
    assert fates(ledger.epoch) == {"not_requested": None}


FAULTS = st.sampled_from(
    [("exception", "skipped"), ("death", "skipped"), ("skip", "skipped"), ("stall", "replaced"), ("skip", "replaced")]
)
BATCH = st.tuples(st.booleans(), st.lists(st.none() | FAULTS, max_size=6))
EPOCHS = st.lists(st.tuples(st.lists(BATCH, max_size=6), st.integers(0, 6)), max_size=4)


@given(EPOCHS)
def test_the_sum_is_what_was_planned(epochs: list[tuple[list[tuple[bool, list[Any]]], int]]) -> None:
    """Epochs of batches, each raised or delivered; each sample fetched, or of a kind and with an outcome. Some stop."""
    ledger, of_all = Ledger(), dict.fromkeys((*FATES, "batches"), 0)
    for number, (batches, wanted) in enumerate(epochs):
        expected = dict.fromkeys((*FATES, "batches"), 0)
        planned = sum(len(samples) for _, samples in batches)
        ledger.begin(ledger, number, planned)
        for is_raised, samples in batches[:wanted]:
            faults = [fault(kind=bad[0], outcome=bad[1]) for bad in samples if bad]
            if is_raised:
                ledger.epoch.add_raised(len(samples), faults)
                expected["raised"] += len(samples)
                continue
            left_out = [bad[0] for bad in samples if bad and bad[1] == "skipped"]
            ledger.epoch.add_delivered(len(samples) - len(left_out), faults)
            expected["delivered"] += samples.count(None)
            expected["replaced"] += len(faults) - len(left_out)
            expected["skipped"] += left_out.count("skip")
            expected["quarantined"] += len(left_out) - left_out.count("skip")
            expected["batches"] += len(samples) > len(left_out)
        expected["not_requested"] = sum(len(samples) for _, samples in batches[wanted:])
        assert {name: getattr(ledger.epoch, name) for name in expected} == expected
        assert sum(getattr(ledger.epoch, fate) for fate in FATES) == planned == ledger.epoch.planned
        of_all = {name: of_all[name] + count for name, count in expected.items()}
    assert {name: getattr(ledger.total, name) for name in of_all} == of_all
    assert sum(getattr(ledger.total, fate) for fate in FATES) == ledger.total.planned
    assert ledger.epochs == len(epochs)


def test_ledger_measures_waiting_and_total_time() -> None:
    ledger = Ledger()
    for number in range(2):
        ledger.begin(ledger, number, None, asked=10.0)
        for batch in range(3):
            ledger.epoch.waited += 0.5
            ledger.epoch.until = 10.0 + 2.0 * (batch + 1)
    assert (ledger.epoch.waited, ledger.epoch.spent) == (1.5, 6.0)
    assert (ledger.total.waited, ledger.total.spent) == (3.0, 12.0)


def test_waiting_time_never_exceeds_the_epochs_time() -> None:
    """A wait began before another iterator began the epoch."""
    ledger = Ledger()
    ledger.begin(ledger, 0, None, asked=10.0)
    ledger.epoch.waited, ledger.epoch.until = 2.0, 11.5
    assert ledger.epoch.waited == ledger.epoch.spent == ledger.total.spent == 2.0


def test_faults_by_class() -> None:
    ledger = Ledger()
    ledger.begin(ledger, 0, None)
    ledger.epoch.add_delivered(1, [fault(index=1, exception="OSError: 1"), fault(index=2, exception="KeyError: 2")])
    ledger.begin(ledger, 1, None)
    ledger.epoch.add_raised(1, [fault(index=3, exception="OSError: 3")])
    ledger.epoch.add_delivered(1, [fault(index=4, kind="skip", exception="too dark: 4")])
    found = {name: (like.count, like.first.index) for name, like in ledger.epoch.faults.items()}
    assert found == {"OSError": (1, 3), "SkipSample": (1, 4)}
    found = {name: (like.count, like.first.index) for name, like in ledger.total.faults.items()}
    assert found == {"OSError": (2, 1), "KeyError": (1, 2), "SkipSample": (1, 4)}


def test_ledger_keeps_a_bounded_number_of_faults() -> None:
    """A loader may live for weeks, and what is bad be bad in each of its epochs."""
    ledger = Ledger()
    ledger.begin(ledger, 0, None)
    for number in range(10 * KEPT):
        ledger.epoch.add_delivered(1, [fault(exception=f"Error{number}: no"), fault()])
        ledger.event(WorkerDied(message="died", time=number))
    assert len(ledger.total.faults) == KEPT + 1
    assert sum(like.count for like in ledger.total.faults.values()) == 20 * KEPT
    deaths = ledger.events["death"]
    assert (deaths.count, len(deaths.latest), deaths.latest[-1].time) == (10 * KEPT, KEPT, 10 * KEPT - 1)


def test_a_copy_stays_as_it_is() -> None:
    ledger = Ledger()
    ledger.begin(ledger, 0, 5)
    ledger.epoch.add_delivered(1, [fault()])
    before = ledger.epoch.copy()
    ledger.epoch.add_delivered(1, [fault()])
    assert before.delivered == before.faults["OSError"].count == 1
    assert ledger.epoch.delivered == ledger.epoch.faults["OSError"].count == 2


def test_ledger_can_be_pickled() -> None:
    ledger = Ledger()
    ledger.begin(ledger, 3, 5)
    ledger.epoch.add_delivered(1, [fault()])
    ledger.event(WorkerDied(message="died"))
    again = pickle.loads(pickle.dumps(ledger))
    assert (again.epoch, again.total, again.events) == (ledger.epoch, ledger.total, ledger.events)


@pytest.mark.parametrize(
    ("kind", "exception", "name"),
    [
        ("exception", "OSError: no: file", "OSError"),
        ("exception", "KeyError", "KeyError"),
        ("skip", "too dark: 5", "SkipSample"),
        ("death", "WorkerDiedError: killed", "WorkerDiedError"),
        ("stall", "", "stall"),
        ("stall", None, "stall"),
    ],
)
def test_the_name_of_a_class(kind: str, exception: str | None, name: str) -> None:
    assert class_of(fault(kind=kind, exception=exception)) == name


@pytest.mark.parametrize(
    ("exception", "shown"),
    [
        ("OSError: a\n  b", ": OSError: a b"),
        ("", ""),
        (None, ""),
        ("x" * 200, f": {'x' * 99}…"),
        (
            "WorkerDiedError: DataLoader worker (pid(s) 7) exited unexpectedly: DataLoader worker (pid 7) is killed by "
            "signal: Killed.",
            ": is killed by signal: Killed.",
        ),
    ],
)
def test_a_text_on_one_line(exception: str | None, shown: str) -> None:
    assert on_one_line(fault(exception=exception)) == shown


@pytest.mark.parametrize(
    ("index", "shown"), [(3, 3), (np.uint8(3), 3), ("a", "a"), (None, None), ((1, 2), "(1, 2)"), (0.5, "0.5")]
)
def test_a_plain_index(index: Any, shown: Any) -> None:
    found = plain(fault(index=index, replacement=index, time=0.5))
    assert found["index"] == found["replacement"] == shown
    assert type(found["index"]) is type(shown)
    assert found["time"] == "1970-01-01T00:00:00.500000+00:00"


def test_an_index_that_refuses() -> None:
    class Refuses:
        def __index__(self) -> int:
            raise ValueError

        def __repr__(self) -> str:
            return "Refuses"

    assert plain(fault(index=Refuses()))["index"] == "Refuses"
