"""The short path of workers: units and batches of an epoch that needs no more than samples, collation and order."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import select
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._engine.backend import NOT_PLAIN
from stoker._engine.transport.rows import MisfitError
from stoker.loader._epoch import runs
from stoker.loader._job.job import LoaderJob
from stoker.loader._job.work import Work
from stoker.loader._random import sample_seeding
from stoker.loader.unit_queue import UnitQueue

LENGTH, SIZE = 240, 2
LATE = 150
"""A sample that is made when both ends of the path are in use."""

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have one CPU


SEEN = memoryview(mmap.mmap(-1, 8 * (LENGTH + 1))).cast("q")
"""How often each sample was asked for, and behind it the units of the short path, by all processes."""


class Taken:
    """The numbers of units and of batches that took the short path."""

    batches = 0

    @property
    def units(self) -> int:
        return SEEN[LENGTH]


@pytest.fixture(autouse=True, params=["thread", "process"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sample_seeding, "_PROBES", 20)
    monkeypatch.setattr(sample_seeding, "_DEAR", 1e9)
    monkeypatch.setitem(BY_WORKERS, "worker_method", request.param)
    return str(request.param)


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    monkeypatch.setattr(runs, "FORCED", 4)
    SEEN[:] = memoryview(bytes(SEEN.nbytes)).cast("q")
    counts, run_short, within_runs = Taken(), LoaderJob._run_short, UnitQueue.within_runs

    def counted(job: LoaderJob, *arguments: Any) -> Any:
        batch = run_short(job, *arguments)
        SEEN[LENGTH] += batch is not NOT_PLAIN
        return batch

    def counting(units: UnitQueue, *arguments: Any) -> Any:
        path = within_runs(units, *arguments)

        def next_batch(asked: float) -> Any:
            batch = path(asked)
            counts.batches += batch is not NOT_PLAIN
            return batch

        return None if path is None else next_batch

    monkeypatch.setattr(LoaderJob, "_run_short", counted)
    monkeypatch.setattr(UnitQueue, "within_runs", counting)
    return counts


class Samples(stoker.Dataset[Any]):
    """Each sample is its index and a number, as `late` gives it from the sample `LATE` on."""

    def __init__(self, late: Callable[[int], float] = float) -> None:
        self.late = late

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[int, float]:
        SEEN[index] += 1
        return index, self.late(index) if index >= LATE else float(index)


class WholeBatches(Samples):
    def __getitems__(self, indices: list[int]) -> list[tuple[int, float]]:
        return [self[index] for index in indices]


def loader_of(dataset: Any, **arguments: Any) -> stoker.DataLoader[Any]:
    options = {"num_workers": 2, "output": "numpy", "seed": 3, **arguments}
    by_workers = BY_WORKERS if options["num_workers"] else {}
    return stoker.DataLoader(dataset, **{"batch_size": SIZE, **by_workers, **options})


BY_WORKERS: dict[str, Any] = {}


def asked() -> list[int]:
    """Returns the samples that were asked for, in order of their numbers."""
    return [index for index in range(LENGTH) for _ in range(SEEN[index])]


def plain(batches: Any) -> list[Any]:
    return [[np.asarray(part).tolist() for part in batch] for batch in batches]


def in_process(dataset: Any, **arguments: Any) -> list[Any]:
    return plain(loader_of(dataset, **arguments, num_workers=0))


@pytest.mark.parametrize("kind", [Samples, WholeBatches])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_and_counts_are_those_of_other_paths(kind: Any, shuffle: bool, taken: Taken) -> None:
    loader = loader_of(kind(), shuffle=shuffle)
    assert plain(loader) == in_process(kind(), shuffle=shuffle)
    assert taken.units > LENGTH // SIZE // 2 and taken.batches > LENGTH // SIZE // 3
    counts = loader.report().epoch
    assert (counts.delivered, counts.batches) == (LENGTH, LENGTH // SIZE)


def test_single_samples_are_those_of_other_paths(taken: Taken) -> None:
    assert plain(loader_of(Samples(), batch_size=None)) == in_process(Samples(), batch_size=None)
    assert taken.units and taken.batches


def test_states_are_those_behind_the_batches(taken: Taken) -> None:
    loader = loader_of(Samples(), shuffle=True)
    whole, states = [], []
    for batch in loader:
        whole += plain([batch])
        states.append(loader.state_dict())
    assert taken.batches
    for place in (0, 61, 62, 63, 64, 100, len(whole) - 1):
        again = loader_of(Samples(), shuffle=True)
        again.load_state_dict(states[place])
        assert plain(again) == whole[place + 1 :]


def test_late_draws_are_those_of_other_paths(taken: Taken) -> None:
    """They are seeded by position, also of the sample that draws first."""
    dataset = Samples(lambda index: stoker.sample_rng().random_generator.random())
    assert plain(loader_of(dataset)) == in_process(dataset)
    assert taken.units and taken.batches


def test_draws_behind_a_unit_that_passes_the_path_by(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of units, and units with known faults, leave the place of their own samples behind."""
    whole = LoaderJob.run

    def run(job: LoaderJob, unit: Any, /, *arguments: Any, **named: Any) -> Any:
        work = Work(*unit)
        if work.position == LATE:
            with contextlib.suppress(MisfitError):
                whole(job, work._replace(position=0, indices=[0, 1]), None, (), (1, 2))
        return whole(job, unit, *arguments, **named)

    dataset = Samples(lambda index: stoker.sample_rng().random_generator.random())
    expected = in_process(dataset)
    monkeypatch.setattr(LoaderJob, "run", run)
    assert plain(loader_of(dataset)) == expected and taken.units


def _refused(index: int, ends: int | None = None) -> float:
    raise (stoker.SkipSample if index == LATE + 1 else SystemExit if index == ends else ValueError)(f"no {index}")


def test_late_errors_come_at_their_batches(taken: Taken, method: str) -> None:
    """No sample is asked for twice, and an error names its sample."""
    ends = LATE + 40 if method == "thread" else None  # a process would end
    dataset = Samples(lambda index: float(index) if index % 10 else _refused(index, ends))
    iterator = iter(loader_of(dataset))
    outcomes = []
    while (outcome := _next(iterator)) is not None:
        outcomes.append(outcome)
    bad = {index // SIZE: index for index in range(LATE, LENGTH, 10)}
    assert len(outcomes) == LENGTH // SIZE and asked() == sorted({*range(LENGTH)} - {b + 1 for b in bad.values()})
    for place, outcome in enumerate(outcomes):
        if place in bad:
            assert f"at sample {bad[place]}" in outcome
        else:
            assert outcome[0].tolist() == [2 * place, 2 * place + 1]
    assert taken.units and taken.batches


def _next(iterator: Iterator[Any]) -> Any:
    try:
        return next(iterator, None)
    except (ValueError, stoker.errors.WorkerDiedError) as error:
        return str(error)


def test_a_late_sample_may_leave_itself_out(taken: Taken) -> None:
    dataset = Samples(lambda index: float(index) if index != LATE + 1 else _refused(index))
    loader = loader_of(dataset)
    found = [index for batch in loader for index in batch[0].tolist()]
    assert found == [index for index in range(LENGTH) if index != LATE + 1] and taken.units
    assert loader.report().epoch.delivered == LENGTH - 1 and asked() == [*range(LENGTH)]


def test_late_samples_of_another_kind_are_collated(taken: Taken) -> None:
    dataset = Samples(lambda index: np.full(3, index, np.float32))  # type: ignore[arg-type,return-value]
    batches = plain(loader_of(dataset))
    assert batches == in_process(dataset) and taken.units


def test_an_event_names_the_sample_that_stalls() -> None:
    """In a thread nothing is written for each sample; the place is read from the path."""
    told = []
    reader, writer = os.pipe()

    def heard(event: Any) -> None:
        if event.index == LATE + 1:  # on a busy machine others may take as long
            told.append(event)
            os.write(writer, b".")

    def waits(index: int) -> float:
        if index == LATE + 1:
            assert select.select([reader], [], [], 60)[0]
        return float(index)

    loader = loader_of(Samples(waits), stall_warning=0.2, on_event=heard)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the event says the same
        assert len(list(loader)) == LENGTH // SIZE
    assert (told[0].index, told[0].batch, told[0].mark) == (LATE + 1, LATE // SIZE, 1)
    os.close(reader)
    os.close(writer)


def test_an_iterator_leaves_no_dataset_behind(taken: Taken) -> None:
    """It ends without a collection of garbage."""
    loader = loader_of(Samples())
    iterator = iter(loader)
    for _ in range(100):
        next(iterator)
    dataset = weakref.ref(loader.dataset)
    gc.disable()
    try:
        iterator.close()
        del loader, iterator
        assert dataset() is None and taken.units
    finally:
        gc.enable()


def test_epochs_of_persistent_threads_begin_again(taken: Taken) -> None:
    loader = loader_of(Samples(), shuffle=True, persistent_workers=True)
    single = loader_of(Samples(), shuffle=True, num_workers=0)
    for _ in range(2):
        assert plain(loader) == plain(single)
    for number, batch in enumerate(loader):
        assert batch[0].shape == (SIZE,)
        if number == 70:
            break
    for batch, expected in zip(loader, (list(single), list(single))[1], strict=True):
        assert plain([batch]) == plain([expected])
    loader.close()
    assert taken.units and taken.batches


@pytest.mark.parametrize("arguments", [{"in_order": False}, {"on_error": "skip"}, {"seeding": "worker"}])
def test_other_epochs_take_the_long_path(arguments: dict[str, Any], taken: Taken) -> None:
    assert sorted(plain(loader_of(Samples(), **arguments))) == in_process(Samples())
    assert taken.batches == 0 or taken.units == 0
