"""A sample that ends its workers is found, named, and then treated like one that raised."""

from __future__ import annotations

import os
import select
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker import SkipSample, StalledError, WorkerDiedError
from tests.faults.runs import (
    BACKENDS,
    CALM,
    N,
    Once,
    Samples,
    crashes,
    fates,
    faults_in,
    indices,
    is_killed,
    loader,
    plain,
    raises,
    story,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::stoker.StokerWarning")]

PROCESSES = ["one worker", "two workers", "five workers", "clean workers"]


def dies_for(kind: type[Exception] = WorkerDiedError) -> Any:
    """What the serial backend is given in the place of a sample that kills: one that raises what stands for it."""

    def fault(index: Any) -> None:
        raise kind("a worker died")

    return fault


def hangs(index: Any) -> None:
    select.select([], [], [])


KILLERS = {5: crashes, 22: is_killed, 23: lambda index: os._exit(1)}


@pytest.mark.parametrize("backend", PROCESSES)
@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
def test_killing_sample_is_handled_as_a_raising_one(policy: str, backend: str, tmp_path: Path) -> None:
    """The batches, the counts and the lines are those of a run in which these samples raise instead."""

    def run(faults: Any, name: str, **settings: Any) -> Any:
        file = tmp_path / name
        made = loader(Samples(faults), on_error=policy, shuffle=True, quarantine=file, **settings)
        batches = story(made)
        for line in (lines := faults_in(file)):
            del line["kind"], line["exception"]
        return batches, fates(made), lines

    model = run(dict.fromkeys(KILLERS, dies_for()), "serial")
    assert run(KILLERS, "this", **BACKENDS[backend]) == model


@pytest.mark.parametrize("backend", PROCESSES)
def test_killing_sample_is_named_with_signal_and_stack(backend: str, tmp_path: Path) -> None:
    """With its index, what the dataset says of it, the signal, and where in the code it was."""
    file = tmp_path / "bad"
    events: list[Any] = []
    made = loader(Described(KILLERS), on_error="skip", quarantine=file, on_event=events.append, **BACKENDS[backend])
    assert [index for batch in story(made) for index in batch[0]] == [i for i in range(N) if i not in KILLERS]
    records = {record.index: record for record in stoker.quarantine(file).records}
    assert records.keys() == KILLERS.keys()
    assert all(record.kind == "death" and record.outcome == "skipped" for record in records.values())
    assert records[5].description == "photos/0005.jpg"
    assert "is killed by signal: Segmentation fault" in str(records[5].exception)
    assert "is killed by signal: Killed" in str(records[22].exception)
    assert "exited unexpectedly with exit code 1" in str(records[23].exception)
    stack = str(records[5].traceback)
    assert "crashes" in stack and "__getitem__" in stack
    blamed = [event for event in events if event.kind == "poison_sample"]
    assert len(blamed) == 3 and any("batch 1, sample 5" in event.message for event in blamed)


@pytest.mark.parametrize("backend", PROCESSES)
def test_killing_sample_raises_torchs_message_by_default(backend: str) -> None:
    words = (
        r"^DataLoader worker \(pid\(s\) \d+\) exited .*DataLoader worker \(pid \d+\) is killed by signal: Killed\..*"
        r"\nRaised in DataLoader worker process \d, at sample 5\.$"
    )
    with pytest.raises(RuntimeError, match=words):
        list(loader(Samples({5: is_killed}), **BACKENDS[backend]))


class Described(Samples):
    stoker_protocol = True

    def describe(self, index: int) -> str:
        return f"photos/{index:04}.jpg"


def closes_all(index: Any) -> None:
    """As a library that makes itself a daemon."""
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    hangs(index)


@pytest.mark.parametrize("backend", PROCESSES)
def test_sample_that_closes_all_descriptors_is_found(backend: str) -> None:
    made = loader(Samples({5: closes_all}), on_error="skip", **BACKENDS[backend])
    assert [index for batch in story(made) for index in batch[0]] == [index for index in range(N) if index != 5]
    events = made.report().events
    assert "helper_death" not in events and "has closed its connection" in events["poison_sample"][-1].message


def resets_handlers(index: Any) -> None:
    """The sample is slow enough for the loader to ask for its stack."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    select.select([], [], [], 0.5)


def test_worker_without_signal_handler_survives_stack_queries() -> None:
    made = loader(Samples({5: resets_handlers}), stall_warning=0.05, **BACKENDS["two workers"])
    assert indices(story(made)) == CALM
    events = made.report().events
    assert "death" not in events and "cannot be asked" in events["stall"][0].message


@pytest.mark.parametrize("backend", PROCESSES)
def test_error_of_a_killing_sample_comes_in_its_place(backend: str) -> None:
    iterator = iter(loader(Described({5: crashes}), **BACKENDS[backend]))
    assert plain(next(iterator))[0] == [0, 1, 2, 3]
    with pytest.raises(WorkerDiedError, match=r"at sample 5 \(photos/0005.jpg\)") as caught:
        next(iterator)
    story = str(caught.value)
    assert "is killed by signal: Segmentation fault" in story and "on_error='skip'" in story
    assert "crashes" in story  # the function in which it was
    assert plain(next(iterator))[0] == [8, 9, 10, 11]


@pytest.mark.parametrize("backend", ["one worker", "two workers"])
def test_replacement_that_kills_is_found(backend: str) -> None:
    """All but one of a batch: those that are tried in a killer's place are passed over when it was they who killed."""
    killers = dict.fromkeys((4, 5, 6), crashes)

    def run(faults: Any, **settings: Any) -> list[Any]:
        return [batch[0] for batch in story(loader(Samples(faults), on_error="replace", **settings))]

    assert run(killers, **BACKENDS[backend]) == run(dict.fromkeys(killers, dies_for()))
    assert run(killers, **BACKENDS[backend])[1] == [7, 7, 7, 7]


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_deaths_of_bad_samples_are_no_restarts(policy: str) -> None:
    """As many as the error budget allows, though each ends two workers."""
    killers = dict.fromkeys(range(0, N, 6), crashes)
    made = loader(Samples(killers), on_error=policy, max_restarts=1, **BACKENDS["one worker"])
    story(made)
    counts = fates(made)
    assert counts["quarantined"] + counts["replaced"] == len(killers) and counts["not_requested"] == 0


def test_samples_that_hang_are_no_restarts() -> None:
    hanging = dict.fromkeys(range(0, N, 8), hangs)
    settings: dict[str, Any] = {"stall_warning": 0.3, "stall_action": "restart", "max_restarts": 4}
    made = loader(Samples(hanging), on_error="skip", **settings, **BACKENDS["two workers"])
    assert [index for batch in story(made) for index in batch[0]] == [i for i in range(N) if i not in hanging]
    assert fates(made)["quarantined"] == 6
    assert list(made.report().epoch.faults) == ["StalledError"]


def test_a_sample_that_hangs_is_raised_in_its_place() -> None:
    settings: dict[str, Any] = {"stall_warning": 0.3, "stall_action": "restart", **BACKENDS["two workers"]}
    iterator = iter(loader(Samples({5: hangs}), **settings))
    next(iterator)
    with pytest.raises(StalledError, match="at sample 5") as caught:
        next(iterator)
    assert "in hangs" in str(caught.value)
    assert plain(next(iterator))[0] == [8, 9, 10, 11]


class AtOnce(Samples):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
def test_killing_sample_of_a_batched_fetch_is_found(policy: str) -> None:
    """Its first death has no place, but those that follow have: then samples are asked for one by one."""

    def run(faults: Any, **settings: Any) -> list[Any]:
        return [
            batch if isinstance(batch, type) else batch[0]
            for batch in story(loader(AtOnce(faults), on_error=policy, **settings))
        ]

    assert run({5: crashes}, **BACKENDS["two workers"]) == run({5: dies_for()})


def test_killing_sample_is_found_without_batching() -> None:
    made = loader(Samples({5: crashes}), batch_size=None, on_error="skip", **BACKENDS["two workers"])
    assert [sample[0] for sample in story(made)] == [index for index in range(N) if index != 5]


def test_callable_policy_gets_the_killing_sample(tmp_path: Path) -> None:
    path = tmp_path / "asked"

    def policy(record: Any) -> str:
        with path.open("a") as file:
            file.write(f"{record.kind} {record.index} {type(record.exception).__name__}\n")
        assert "crashes" in record.traceback
        return "skip"

    story(loader(Samples({5: crashes}), on_error=policy, **BACKENDS["two workers"]))
    assert path.read_text().splitlines() == ["death 5 WorkerDiedError"]


@pytest.mark.parametrize("backend", ["one worker", "two workers", "five workers"])
def test_each_line_is_written_once_despite_deaths(backend: str, tmp_path: Path) -> None:
    """Bad samples and killers in one unit, workers that are killed by chance, and the zygote as well."""
    file = tmp_path / "bad"
    faults = {
        **dict.fromkeys((4, 5, 9, 20, 40), raises(OSError)),
        6: Once(tmp_path / "6", is_killed),
        7: crashes,
        10: raises(SkipSample),
        11: Once(tmp_path / "11", crashes),
        42: Once(tmp_path / "42", lambda index: os.kill(os.getppid(), signal.SIGKILL)),
    }
    made = loader(Samples(faults), on_error="skip", quarantine=file, max_restarts=9, **BACKENDS[backend])
    batches = story(made)
    bad = [4, 5, 7, 9, 10, 20, 40]
    assert [index for batch in batches for index in batch[0]] == [index for index in range(N) if index not in bad]
    assert [record.index for record in stoker.quarantine(file).records] == bad
    assert len(file.read_text().splitlines()) == len(bad)
    counts = fates(made)
    assert (counts["delivered"], counts["quarantined"], counts["skipped"]) == (N - 7, 6, 1)
    assert {"death", "poison_sample", "helper_death"} <= made.report().event_counts.keys()


def test_killing_samples_give_one_warning(tmp_path: Path) -> None:
    killers = dict.fromkeys((5, 22, 31), crashes)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        story(loader(Samples(killers), on_error="skip", **BACKENDS["two workers"]))
    kinds = [str(warning.message).partition("sample 5")[0][:10] for warning in told]
    assert len(told) == 3, kinds  # a death, a blame, an error
