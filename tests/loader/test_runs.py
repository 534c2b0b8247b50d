"""Batches that workers make in runs are those of single batches, with their places, errors and events."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._engine.fork.trainer import ProcessBackend
from stoker.loader import unit_queue
from stoker.loader._epoch import runs

FORK = "fork" in multiprocessing.get_all_start_methods()
LENGTH, SIZE = 60, 2
METHODS: dict[str, dict[str, Any]] = {
    "thread": {"worker_method": "thread"},
    "fork": {"multiprocessing_context": "fork"},
}

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have one CPU


@pytest.fixture(autouse=True)
def in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "FORCED", 4)


@pytest.fixture(
    params=["thread", pytest.param("fork", marks=pytest.mark.skipif(not FORK, reason="this platform does not fork"))]
)
def method(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {**METHODS[request.param], "num_workers": 2, "output": "numpy", "batch_size": SIZE}


class Drawn(stoker.Dataset[Any]):
    """Its samples draw a number."""

    def __init__(self, bad: frozenset[int] = frozenset()) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise ValueError(f"sample {index}")
        return index, stoker.sample_rng().random_generator.random()


def plain(batch: Any) -> Any:
    return [part.tolist() for part in batch]


def in_process(dataset: Any = None, **arguments: Any) -> list[Any]:
    loader = stoker.DataLoader(dataset or Drawn(), SIZE, shuffle=True, seed=3, output="numpy", **arguments)
    return [plain(batch) for batch in loader]


def test_state_at_every_batch_of_a_run(method: dict[str, Any]) -> None:
    whole = in_process()
    loader = stoker.DataLoader(Drawn(), shuffle=True, seed=3, **method)
    states = []
    for batch, expected in zip(loader, whole, strict=True):
        assert plain(batch) == expected
        states.append(loader.state_dict())
    for place in (0, 5, 6, len(whole) - 1):
        again = stoker.DataLoader(Drawn(), shuffle=True, seed=3, **method)
        again.load_state_dict(states[place])
        assert [plain(batch) for batch in again] == whole[place + 1 :]


def test_torchs_random_sampler_is_read_ahead(method: dict[str, Any]) -> None:
    """It has drawn its seed when its pass begins: order and states are those of torch's loader."""
    torch = pytest.importorskip("torch")

    def batches(states: list[Any], **arguments: Any) -> list[Any]:
        torch.manual_seed(7)
        loader = stoker.DataLoader(Drawn(), sampler=torch.utils.data.RandomSampler(Drawn()), **arguments)
        found = []
        for batch in loader:
            found.append(batch[0].tolist())
            states.append(loader.state_dict())
        return found

    states: list[Any] = []
    whole = batches(states, **method)
    assert whole == batches([], batch_size=SIZE, output="numpy")
    loader = stoker.DataLoader(Drawn(), sampler=torch.utils.data.RandomSampler(Drawn()), **method)
    loader.load_state_dict(states[5])
    assert [batch[0].tolist() for batch in loader] == whole[6:]


class Fed(Drawn):
    """A sample comes when the loop has written a byte, which it does for each batch that it has received."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def __getitem__(self, index: int) -> Any:
        assert os.read(self.pipe, 1)
        return index


def test_a_sample_may_wait_for_the_batch_before_it(method: dict[str, Any]) -> None:
    reads, writes = os.pipe()
    try:
        loader = stoker.DataLoader(Fed(reads), **{**method, "num_workers": 1})
        os.write(writes, b"x" * SIZE)
        for number, batch in enumerate(loader):
            assert batch.tolist() == [SIZE * number, SIZE * number + 1]
            os.write(writes, b"x" * SIZE)
        assert number == LENGTH // SIZE - 1
    finally:
        os.close(reads)
        os.close(writes)


def test_break_within_a_run_and_another_epoch(method: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Drawn(), shuffle=True, seed=3, persistent_workers=True, **method)
    for batch in loader:
        first = plain(batch)
        break
    rest = [plain(batch) for batch in loader]
    assert len(rest) == LENGTH // SIZE and first in in_process() and rest != in_process()
    loader.close()


def test_all_batches_come_without_order(method: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Drawn(), shuffle=True, seed=3, in_order=False, **method)
    assert sorted(plain(batch) for batch in loader) == sorted(in_process())


def test_errors_are_raised_at_their_batches(method: dict[str, Any]) -> None:
    iterator = iter(stoker.DataLoader(Drawn(frozenset({9, 20, 21})), **method))
    outcomes: list[Any] = []
    while (outcome := _next(iterator)) is not None:
        outcomes.append(outcome)
    places = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, str)]
    assert len(outcomes) == LENGTH // SIZE and places == [4, 10]
    assert "sample 9" in outcomes[4] and "at sample 20" in outcomes[10]


def _next(iterator: Any) -> Any:
    try:
        return next(iterator, None)
    except ValueError as error:
        return str(error)


def test_left_out_samples_are_counted_and_reported(method: dict[str, Any]) -> None:
    events: list[Any] = []
    dataset = Drawn(frozenset({9, 20, 21}))
    loader = stoker.DataLoader(dataset, on_error="skip", max_error_rate=None, on_event=events.append, **method)
    with pytest.warns(stoker.errors.StokerWarning, match="sample 9 of batch 4 failed"):
        batches = list(loader)
    assert [index for batch in batches for index in batch[0].tolist()] == [
        index for index in range(LENGTH) if index not in dataset.bad
    ]
    assert [event.batch for event in events] == [4, 10, 10]
    counts = loader.report().epoch
    assert (counts.quarantined, counts.delivered, counts.batches) == (3, LENGTH - 3, LENGTH // SIZE - 1)


def test_profile_measures_each_batch_of_a_run(method: dict[str, Any]) -> None:
    batches: list[Any] = []
    loader = stoker.DataLoader(Drawn(), shuffle=True, seed=3, **method)
    result = loader.profile(step=lambda batch: batches.append(plain(batch)))
    assert batches == in_process() and (result.batches, result.samples) == (LENGTH // SIZE, LENGTH)
    assert result.stages["fetch"].count == LENGTH // SIZE and result.each.count == LENGTH


def test_automatic_workers_make_the_same_batches(method: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Drawn(), shuffle=True, seed=3, **{**method, "num_workers": "auto"})
    assert [plain(batch) for batch in loader] == in_process()
    counts = loader.report().epoch
    assert (counts.delivered, counts.batches) == (LENGTH, LENGTH // SIZE)


def test_kept_batches_keep_their_contents(method: dict[str, Any]) -> None:
    """Each batch of a run has a slot of its own, which is written again once the batch is not kept."""
    loader = stoker.DataLoader(Wide(), **method)
    kept = [batch for number, batch in enumerate(loader) if number % 3 == 0]
    for _ in loader:
        pass
    for place, batch in enumerate(kept):
        first = place * 3 * SIZE
        assert batch[:, 0].tolist() == [first, first + 1] and (batch == batch[:, :1]).all()


class Wide(stoker.Dataset[Any]):
    """Samples of 64 kB and more, so that their batches lie in a slot."""

    def __init__(self, grows: bool = False) -> None:
        self.grows = grows

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        width = 16384 * (1 + index // SIZE % 7) if self.grows else 16384
        return np.full(width, index, np.float32)


def test_batches_that_grow_find_room(method: dict[str, Any]) -> None:
    for place, batch in enumerate(stoker.DataLoader(Wide(grows=True), **method)):
        assert batch.shape == (SIZE, 16384 * (1 + place % 7))
        assert batch[:, 0].tolist() == [place * SIZE, place * SIZE + 1] and (batch == batch[:, :1]).all()


@pytest.mark.skipif(not FORK, reason="this platform does not fork")
@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_units_are_single_once_memory_was_short(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget holds three batches, and none of its loaders has runs by itself."""
    monkeypatch.setattr(unit_queue, "longest", lambda options: 4)
    sent: list[int] = []
    submit_run = ProcessBackend.submit_run

    def counted(backend: ProcessBackend, unit: int, works: Sequence[object]) -> None:
        sent.append(len(works))
        submit_run(backend, unit, works)

    monkeypatch.setattr(ProcessBackend, "submit_run", counted)
    loader = stoker.DataLoader(
        Wide(), SIZE, num_workers=1, multiprocessing_context=start, memory_budget=3 * SIZE * 70_000, output="numpy"
    )
    kept: list[Any] = []
    for place, batch in enumerate(loader):
        assert batch[:, 0].tolist() == [place * SIZE, place * SIZE + 1]
        kept = [*kept[-1:], batch]
    assert place == LENGTH // SIZE - 1 and 0 < sum(sent) < LENGTH // SIZE


def test_rest_of_a_slow_run_is_made_next(method: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker._engine.thread.EARLY", 0.0)
    loader = stoker.DataLoader(Drawn(), shuffle=True, seed=3, **method)
    assert [plain(batch) for batch in loader] == in_process()


def test_one_worker_makes_all_samples_in_order(method: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind a run that is answered in parts: a dataset may remember its last call."""
    monkeypatch.setattr("stoker._engine.thread.EARLY", 0.0)
    loader = stoker.DataLoader(Counted(), **{**method, "num_workers": 1})
    assert [call for batch in loader for call in batch.tolist()] == list(range(LENGTH))


class Counted(stoker.Dataset[int]):
    """A sample is the number of samples before it."""

    def __init__(self) -> None:
        self.calls = 0

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        return self.calls - 1


@pytest.mark.skipif(not FORK, reason="this platform does not fork")
def test_a_run_is_made_again_after_a_death(tmp_path: Path) -> None:
    events: list[Any] = []
    arguments = {**METHODS["fork"], "num_workers": 2, "output": "numpy", "on_event": events.append}
    loader = stoker.DataLoader(Deadly(tmp_path / "died"), SIZE, shuffle=True, seed=3, **arguments)
    with pytest.warns(stoker.errors.StokerWarning, match="made again"):
        batches = [plain(batch) for batch in loader]
    assert batches == in_process()
    (death,) = events
    (place,) = [place for place, batch in enumerate(batches) if 17 in batch[0]]
    assert death.kind == "death" and death.batch == place and death.index == 17


class Deadly(Drawn):
    """A sample kills its first worker."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def __getitem__(self, index: int) -> Any:
        if index == 17 and not self.path.exists():
            self.path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_given_prefetch_factor_bounds_the_batches_ahead() -> None:
    """Of runs too: 2 for each of 2 workers, beside the one that the user has."""
    asked: list[int] = []
    seen = threading.Event()

    class Asked(Drawn):
        def __getitem__(self, index: int) -> Any:
            asked.append(index)
            if len(asked) >= 4 * SIZE:
                seen.set()
            return index

    loader = stoker.DataLoader(Asked(), SIZE, num_workers=2, worker_method="thread", prefetch_factor=2)
    iterator = iter(loader)
    next(iterator)
    assert seen.wait(60)
    assert max(asked) < 5 * SIZE + SIZE
    iterator.close()
