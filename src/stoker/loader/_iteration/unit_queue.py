"""The first stage of a batch: plans the units of an epoch, submits some ahead, and takes their answers in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker import errors
from stoker._engine.backend import Answer, Backend
from stoker._engine.process_guard import tears
from stoker.loader._epoch.plan import Step
from stoker.loader._job.stream_guesses import Guess, Guesses
from stoker.loader._job.work import Work

if TYPE_CHECKING:
    from stoker.loader._accounting.accounting import Accounting
    from stoker.loader._epoch.epoch import Epoch
    from stoker.loader._epoch.plan import StreamedPlan
    from stoker.loader._epoch.progress import Progress
    from stoker.loader._iteration.prefetch import Prefetch
    from stoker.loader._options.loader_options import LoaderOptions
    from stoker.loader.record import LoaderRecord


class UnitQueue:
    """The units of an iterator that are under way. Numbers of units never restart, which identifies late answers.

    Args:
        options: of the loader.
        record: of the loader; shows each note of a worker to the user once.
        ahead: limits the units under way.
        steps: receives the step of each unit, by its number, until the unit's answer is accounted for.
        accounts: leaves out the batches that were delivered before the state was saved.

    Attributes:
        submitted: number of the next unit.
    """

    def __init__(
        self,
        options: LoaderOptions,
        record: LoaderRecord,
        ahead: Prefetch,
        steps: dict[int, Step],
        accounts: Accounting,
    ) -> None:
        self._ahead = ahead
        self._steps = steps
        self._accounts = accounts
        self._in_order = options.in_order or not options.num_workers
        self._meanwhile = options.num_workers > 0  # workers run while the user has a batch
        self.submitted = 0
        self._answers: dict[int, Answer] = {}
        self._guesses = Guesses(1, record.tell_once, record.told)
        self.rewind(record, options.num_workers)

    def rewind(self, record: LoaderRecord, workers: int) -> list[Answer]:
        """Prepares a new epoch. Returns the answers of the last one that were not taken."""
        self._guesses.flush()
        self._record, self._tell_once = record, record.tell_once
        self._guesses = Guesses(workers, record.tell_once, record.told)
        self._planned_all = False
        self._sampler_error: BaseException | None = None
        self._outstanding = 0
        self._run = self._due = self.submitted
        self._steps.clear()
        left = [*self._answers.values()]
        self._answers.clear()
        return left

    def begin(
        self,
        options: LoaderOptions,
        begun: Epoch,
        walked: StreamedPlan | None,
        progress: Progress,
        set_epoch: int | None,
    ) -> None:
        """Begins an epoch.

        Args:
            options: of the loader at that epoch.
            begun: the epoch.
            walked: the plan of a sampler that is walked ahead.
            progress: counts the batches that the user has received.
            set_epoch: the argument of the dataset's `set_epoch` in workers.
        """
        self._epoch, self._walked, self._progress, self._set_epoch = begun, walked, progress, set_epoch
        self._is_stream = options.is_stream
        self._replaces = options.error_word not in ("raise", "skip")

    @property
    def is_idle(self) -> bool:
        """Returns whether no unit is under way, and no answer waits."""
        return not (self._outstanding or self._answers)

    def take(self, backend: Backend, timeout: float | None) -> Answer | None:
        """Returns the next answer, in order of the units if `in_order`; None at the end of the epoch."""
        while True:
            if self.is_idle:
                self._top_up(backend)
            if self.is_idle:
                if self._sampler_error is not None:
                    error, self._sampler_error = self._sampler_error, None
                    raise error
                return None
            while (answer := self._ready()) is None:
                self._receive(backend, timeout)
                if self._due not in self._answers:
                    self._top_up(backend)  # an earlier unit is still under way
            if answer.kind != "end":
                if self._meanwhile:  # without workers torch walks no further: a sampler may follow the training
                    try:
                        if self._walked is not None:
                            self._walked.walk(1)
                        self._top_up(backend)
                    except BaseException:  # Ctrl-C in a sampler, for example: the next call returns the batch
                        self._answers[answer.unit] = answer
                        self._due -= self._in_order
                        raise
                return answer
            self._progress.streamed(answer.worker, answer.said, ended=True)
            self._top_up(backend)

    def _ready(self) -> Answer | None:
        if not self._in_order and self._answers:
            return self._answers.pop(next(iter(self._answers)))
        answer = self._answers.pop(self._due, None)
        if answer is not None:
            self._due += 1
        return answer

    def _receive(self, backend: Backend, timeout: float | None) -> None:
        answer = backend.receive(timeout)
        self._outstanding -= 1
        self._answers[answer.unit] = answer
        self._epoch.plan.answered(answer.worker, answer.kind == "end")
        for note in answer.said.notes:  # last: a warning may be turned into an error
            self._tell_once(note)
        if answer.said.guess is not None:
            self._guesses.take(Guess(*answer.said.guess))

    def _top_up(self, backend: Backend) -> None:
        """Plans and submits units until enough are under way; keeps a sampler's error for its turn."""
        if self._planned_all:
            return
        most, waiting = self._ahead.most(backend), len(self._answers)
        if self._ahead.has_room(most, self._outstanding + waiting, backend.ready + waiting):
            self._plan(backend, most)
            backend.flush()

    def _plan(self, backend: Backend, most: int) -> None:
        plan, seed = self._epoch.plan, self._epoch.seed
        while self._outstanding + len(self._answers) < most:
            try:
                if self._walked is not None and self._meanwhile and not self._walked.is_ready:
                    if not self.is_idle:
                        return  # torch walks no further, even if more units may be under way
                    self._walked.walk(1)
                step = plan.next()
                spares = plan.spares(step, seed) if self._replaces and step is not None else ()
            except Exception as error:
                if tears(error):
                    raise
                self._planned_all, self._sampler_error = True, error
                return
            if step is None:
                # Final: a stream's plan continues as long as any worker does
                self._planned_all = True
                return
            if step.number in self._epoch.place.ahead:  # delivered before the state was saved, or left out by skip()
                self._accounts.was_delivered(step)
                continue
            work = Work(
                self._run,
                seed,
                step.position,
                step.indices,
                step.stride,
                self._set_epoch,
                self._epoch.number,
                step.number,
                spares,
                self._epoch.place.order if self._is_stream else None,
                self._record.drawn,
            )
            rows = self._ahead.rows(step.indices)
            self._steps[self.submitted] = step
            try:
                backend.submit(self.submitted, work, step.worker, rows)
            except errors.StokerError:
                raise
            except Exception as error:  # its indices cannot be sent
                if tears(error):
                    raise
                del self._steps[self.submitted]
                self._planned_all, self._sampler_error = True, error
                return
            self.submitted += 1
            self._outstanding += 1

    def clear(self) -> None:
        """Forgets the answers that were not taken: their backend is closed."""
        self._answers.clear()

    def flush_guesses(self) -> None:
        """Shows the user the guesses that no further answer can change."""
        self._guesses.flush()
