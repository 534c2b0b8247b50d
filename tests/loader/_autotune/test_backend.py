"""A backend that goes from workers to the trainer: whose turn it is, and when the workers may end."""

from __future__ import annotations

from typing import Any

import pytest

from stoker._core.machine import cpus
from stoker._engine.backend import Answer, Backend, Capabilities
from stoker.loader._autotune.backend import AutotuneBackend
from stoker.loader._autotune.policy import Choice, Trial


class Workers(Backend):
    """Answers when and in which order the test wants."""

    capabilities = Capabilities()

    def __init__(self) -> None:
        self.units: dict[int, tuple[Any, int | None, int]] = {}
        self.first: list[int] = []  # answered before the others
        self.closed = False
        self.grows: list[int] = []

    def grow(self, workers: int) -> None:
        self.grows.append(workers)

    @property
    def workers_there(self) -> int:
        return max(self.grows, default=2)

    def submit(self, unit: int, work: Any, worker: int | None, rows: int = 0) -> None:
        self.units[unit] = (work, worker, rows)

    def receive(self, timeout: float | None) -> Answer:
        assert self.units, "nobody would ever answer"
        unit = self.first.pop(0) if self.first else min(self.units)
        return Answer(unit, "batch", self.units.pop(unit)[0], 0)

    def open(self, answer: Answer) -> Any:
        assert not self.closed
        return "far", answer.value

    def discard(self, answer: Answer) -> None:
        assert not self.closed

    def drop(self, before: int) -> None:
        self.units = {unit: item for unit, item in self.units.items() if unit >= before}

    def close(self) -> None:
        self.closed = True


class Trainer(Workers):
    pass


class Told(Trial):
    """Does as the test has said, when the next batch is delivered."""

    said: tuple[int, bool] | None = None

    def delivered(self, turn: int, own: float, waited: float) -> None:
        if self.said is not None:
            self.workers, final = self.said
            self.turn += 1
            self.choice = Choice(self.workers, self.most, {}, 0.0) if final else None

    def says(self, workers: int, final: bool = False) -> None:
        self.said = workers, final


class Bench:
    """A backend, and what it is made of."""

    def __init__(self, most: int = 2) -> None:
        self.far, self.trial, self.claim = Workers(), Told(most, near=True), cpus.Claim(most)
        self.settled: list[Choice] = []
        self.backend = AutotuneBackend(self.far, self.claim, self.trial, Trainer, 2, self.settled.append)
        self.submit(-1)
        self.delivered()  # what a batch takes is known from the second one on

    def submit(self, *units: int) -> None:
        for unit in units:
            self.backend.submit(unit, f"work {unit}", None, 8)

    def delivered(self) -> Any:
        return self.backend.open(self.backend.receive(None))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_all_workers_are_left_to_themselves(bench: Bench) -> None:
    bench.submit(*range(9))
    assert bench.far.units == {unit: (f"work {unit}", None, 8) for unit in range(9)}


def test_fewer_workers_get_only_the_units_they_need() -> None:
    bench = Bench(most=8)
    bench.trial.says(3)
    bench.submit(0)
    bench.delivered()  # from here on
    bench.submit(*range(1, 20))
    assert len(bench.far.units) == 6
    assert all(worker == unit % 3 and rows == 0 for unit, (_, worker, rows) in bench.far.units.items())
    bench.delivered()
    assert len(bench.far.units) == 6


def test_units_of_workers_are_delivered_before_the_trainers(bench: Bench) -> None:
    bench.submit(0, 1, 2)
    bench.trial.says(0)
    assert bench.delivered() == ("far", "work 0")
    bench.submit(3, 4)
    assert set(bench.far.units) == {1, 2}
    assert [bench.delivered() for _ in range(4)] == [("far", "work 1"), ("far", "work 2"), "work 3", "work 4"]


def test_workers_end_when_the_last_batch_of_theirs_is_opened(bench: Bench) -> None:
    bench.submit(0, 1, 2)
    bench.far.first = [2, 1]
    later = [bench.backend.receive(None), bench.backend.receive(None)]
    bench.trial.says(0, final=True)
    assert bench.delivered() == ("far", "work 0")
    assert [choice.number for choice in bench.settled] == [0]
    assert bench.claim.number == 0
    assert not bench.far.closed
    assert bench.backend.open(later[1]) == ("far", "work 1")
    assert not bench.far.closed
    bench.backend.discard(later[0])
    assert bench.far.closed
    bench.submit(3)
    assert bench.delivered() == "work 3"
    assert not bench.backend.is_closed
    bench.backend.close()


def test_single_worker_stays_to_the_end(bench: Bench) -> None:
    bench.submit(0)
    bench.trial.says(1, final=True)
    bench.delivered()
    bench.submit(*range(1, 9))
    assert {worker for _, worker, _ in bench.far.units.values()} == {0}
    assert len(bench.far.units) == 2
    assert bench.claim.number == 1


def test_more_workers_than_before_are_started(bench: Bench) -> None:
    bench.submit(0)
    bench.trial.says(6)
    bench.delivered()
    assert bench.far.grows == [6] and bench.backend.grown == 6
    bench.submit(*range(1, 20))
    assert bench.far.units == {unit: (f"work {unit}", None, 8) for unit in range(1, 20)}
    bench.trial.says(3, final=True)
    bench.delivered()
    assert bench.far.grows == [6] and bench.backend.grown == 6
    assert bench.claim.number == 2, "beyond, they do not compute"


def test_a_trial_that_goes_on_in_other_workers_has_as_many() -> None:
    trial = Told(2, near=True)
    trial.workers = 5
    far = Workers()
    assert AutotuneBackend(far, cpus.Claim(2), trial).grown == 5
    assert far.grows == [5]


def test_dropped_unit_delays_no_other_unit(bench: Bench) -> None:
    bench.submit(0, 1, 2)
    bench.trial.says(0)
    bench.delivered()
    bench.submit(3)
    bench.backend.drop(4)
    bench.submit(4)
    assert bench.delivered() == "work 4"


def test_an_interrupted_unit_of_the_trainer_is_done_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.submit(0)
    bench.trial.says(0)
    bench.delivered()
    bench.submit(1, 2)
    receive = Trainer.receive

    def interrupted(self: Any, timeout: float | None) -> Answer:
        monkeypatch.setattr(Trainer, "receive", receive)
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.backend.receive(None)
    assert [bench.delivered(), bench.delivered()] == ["work 1", "work 2"]
