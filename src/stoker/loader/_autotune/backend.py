"""A backend that moves between workers and the trainer, between two units: `num_workers="auto"`.

It wraps another backend. Units that are not begun wait here, and go to the backend of the current turn. Units in
progress elsewhere are delivered first. A batch is the same function of its unit on each backend, so the delivered
batches are the same. This module reads the clock; `policy.py` decides.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker._core.machine.cpus import Claim
from stoker._engine.backend import Answer, Backend
from stoker.loader._autotune.policy import Choice, Trial

if TYPE_CHECKING:
    from stoker._engine.transport.reader import Lease


class _Unit(NamedTuple):
    number: int
    work: Any
    worker: int | None
    rows: int


class AutotuneBackend(Backend):
    """Runs units on workers, or as a trial decides.

    Args:
        far: the workers.
        claim: of CPUs; ends with the backend.
        trial: the trial in progress, or None: all units go to the workers.
        near: makes the backend in the trainer; returns None if there cannot be one.
        ahead: batches ahead for each worker.
        settled: is called with the trial's choice.
    """

    def __init__(
        self,
        far: Backend,
        claim: Claim,
        trial: Trial | None = None,
        near: Callable[[], Backend | None] = lambda: None,
        ahead: int = 2,
        settled: Callable[[Choice], None] = lambda choice: None,
    ) -> None:
        self.capabilities = far.capabilities
        self._far: Backend | None = far
        self._near: Backend | None = None
        self._make_near = near
        self._claim = claim
        self._trial = trial
        self._ahead = ahead
        self._settled = settled
        self._began = self._have = 0 if trial is None else trial.most  # workers; they may become more
        self._workers: int | None = None  # number of workers for the next units, or None: all of them
        self._waiting: deque[_Unit] = deque()  # units not handed out
        self._begun: int | None = None  # the first of them, if the trainer has begun it
        self._under_way: set[int] = set()  # units that the workers have
        self._unopened = 0  # batches of theirs that were received
        self._nearby: set[int] = set()  # batches of the trainer's that were received
        self._turns: dict[int, int] = {}  # unit → turn in which it was handed out
        self._waited = 0.0  # since the last batch was opened
        self._opened: float | None = None
        self._lease: Lease | None = None  # of the batch that was opened last
        if trial is not None:
            trial.busy = _busy(weakref.ref(far))
            trial.interrupted()
            self._take_turns(trial)

    def submit(self, unit: int, work: Any, worker: int | None, rows: int = 0) -> None:
        self._waiting.append(_Unit(unit, work, worker, rows))
        self._hand_out()

    @property
    def makes_runs(self) -> bool:
        """Whether the workers may make a run: not during a trial, which counts batches, nor with some of them."""
        is_free = self._trial is None and self._workers is None and not self._waiting
        return is_free and self._far is not None and self._far.makes_runs

    def submit_run(self, unit: int, works: Sequence[Any]) -> None:
        assert self._far is not None  # it makes runs
        self._far.submit_run(unit, works)
        self._under_way.update(range(unit, unit + len(works)))

    def _hand_out(self) -> bool:
        """Sends units to the workers, up to the number allowed; returns whether there were any."""
        workers, any_left = self._workers, False
        while self._waiting and workers != 0 and self._far is not None:
            if workers is not None and len(self._under_way) >= self._ahead * workers:
                break
            unit = self._waiting.popleft()
            if workers == 1 or (workers is not None and self._trial is not None):  # the others are idle meanwhile
                unit = unit._replace(worker=unit.number % workers, rows=0)
            self._far.submit(*unit)
            self._under_way.add(unit.number)
            self._note_turn(unit.number)
            any_left = True
        return any_left

    def _note_turn(self, unit: int) -> None:
        if self._trial is not None:
            self._turns[unit] = self._trial.turn

    def flush(self) -> None:
        if self._far is not None:
            self._far.flush()

    @property
    def ready(self) -> int:
        return 0 if self._far is None else self._far.ready

    @property
    def has_answer(self) -> bool:
        return self._far is not None and self._far.has_answer

    @property
    def lease(self) -> Lease | None:
        return self._lease

    @property
    def shares(self) -> bool | None:
        return self._far.shares if self._far is not None and self._workers is None else False

    def receive(self, timeout: float | None) -> Answer:
        began = time.perf_counter()
        try:
            while (answer := self._received(timeout)) is None:
                pass
            return answer
        finally:
            self._waited += time.perf_counter() - began

    def _received(self, timeout: float | None) -> Answer | None:
        if self._far is None or (self._workers == 0 and not self._under_way):
            return self._from_near()
        answer = self._far.receive(timeout)
        self._under_way.discard(answer.unit)
        self._unopened += answer.kind == "batch"
        if self._waiting and self._hand_out():
            self._far.flush()
        return answer

    def _from_near(self) -> Answer | None:
        """Returns the next batch, made in the trainer; None if the workers must make it."""
        if self._near is None:
            self._near = self._make_near()
        near, unit = self._near, self._waiting[0]
        if near is None:
            self._not_near("the dataset cannot be copied for it")
            return None
        if self._begun != unit.number:
            near.submit(unit.number, unit.work, None)
            self._begun = unit.number
            self._note_turn(unit.number)
        answer = near.receive(None)
        self._begun = None
        if (
            answer.kind == "error" and self._trial is not None
        ):  # the workers will show whether the sample or the trainer is the cause
            self._not_near(f"a batch raised {type(answer.value).__name__} there: {answer.value}")
            return None
        self._waiting.popleft()
        if answer.kind == "batch":
            self._nearby.add(answer.unit)
        return answer

    def _not_near(self, reason: str) -> None:
        assert self._trial is not None
        self._trial.without_near(reason)
        self._follow(self._trial)

    def open(self, answer: Answer) -> Any:
        if answer.unit in self._nearby:
            self._nearby.discard(answer.unit)
            batch, self._lease = answer.value, None
        else:
            assert self._far is not None
            batch, self._lease = self._far.open(answer), self._far.lease
            self._unopened -= 1
        if self._trial is not None:
            self._note_opened(answer.unit, self._trial)
        self._let_go()
        return batch

    def _note_opened(self, unit: int, trial: Trial) -> None:
        """Reports the measurements of a delivered batch to the trial."""
        now, before, turn = time.perf_counter(), self._opened, trial.turn
        if before is not None:
            if trial.workers > trial.most and self._far is not None:
                trial.there_are(self._far.workers_there)
            trial.delivered(self._turns.get(unit, -1), max(0.0, now - before - self._waited), self._waited)
        self._turns.pop(unit, None)
        self._opened, self._waited = now, 0.0
        if trial.turn != turn or trial.choice is not None:
            self._follow(trial)

    def _follow(self, trial: Trial) -> None:
        """Switches to the next turn's workers."""
        self._take_turns(trial)
        if trial.choice is not None:
            self._trial = None
            self._turns.clear()
            self._claim.number = min(trial.choice.number, trial.most)  # beyond, they do not need CPUs
            self._settled(trial.choice)
        if self._hand_out():
            self.flush()

    def _take_turns(self, trial: Trial) -> None:
        if self._far is not None and trial.workers > self._have:
            self._have = trial.workers
            self._far.grow(self._have)
        self._workers = None if trial.workers == self._have else trial.workers

    @property
    def grown(self) -> int:
        return self._have if self._have > self._began else 0

    def _let_go(self) -> None:
        """Ends the workers as soon as they are not needed and all their batches are delivered."""
        wanted = self._workers != 0 or self._trial is not None or self._under_way or self._unopened
        if self._far is not None and not wanted:
            self._far.close()
            self._far = None

    def discard(self, answer: Answer) -> None:
        if answer.unit in self._nearby:
            self._nearby.discard(answer.unit)
        elif self._far is not None:
            self._far.discard(answer)
            self._unopened -= answer.kind == "batch"
            self._let_go()

    def drop(self, before: int) -> None:
        if self._far is not None:
            self._far.drop(before)
        self._waiting = deque(unit for unit in self._waiting if unit.number >= before)
        self._under_way = {unit for unit in self._under_way if unit >= before}
        self._near = self._begun = self._opened = None  # the dataset may be another one in the next epoch
        self._turns.clear()
        if self._trial is not None:
            self._trial.interrupted()

    def stacks(self) -> str:
        return "" if self._far is None else self._far.stacks()

    @property
    def is_closed(self) -> bool:
        return self._far is not None and self._far.is_closed

    def memory(self) -> dict[str, int]:
        return {} if self._far is None else self._far.memory()

    def close(self) -> None:
        self._waiting.clear()
        self._near = None
        self._claim.release()
        if self._far is not None:
            self._far.close()


def _busy(backend: weakref.ref[Backend]) -> Callable[[], dict[int, float]]:
    """Returns a function for the workers' processor time, with a weak reference: the trial outlives the iterator."""

    def busy() -> dict[int, float]:
        its = backend()
        return {} if its is None else its.cpu_seconds()

    return busy
