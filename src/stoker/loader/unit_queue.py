"""The first stage of a batch: plans the units of an epoch, submits some ahead, and takes their answers in order; and
the short paths. The file is long because all ways of a batch out of the queue share its counts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from stoker import errors
from stoker._core.interruption import tears
from stoker._engine.backend import NOT_PLAIN, Answer, Backend
from stoker._engine.supervision.split_policy import COMPARISONS, SplitPolicy, is_trial
from stoker.datasets.nesting import prefers_whole_batches
from stoker.loader._epoch import gather_or_split
from stoker.loader._epoch.plan import BatchesPlan, ComputedPlan, Step, StreamedPlan, TurnPlan
from stoker.loader._epoch.runs import AHEAD, RunLength, longest
from stoker.loader._job.stream_guesses import Guess, Guesses
from stoker.loader._job.work import Work

if TYPE_CHECKING:
    from stoker.events import Event
    from stoker.loader._accounting.accounting import Accounting
    from stoker.loader._accounting.ledger import EventDispatcher, Ledger
    from stoker.loader._epoch.epoch import Epoch
    from stoker.loader._epoch.progress import Progress
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
        self._planned: list[tuple[Step, Work]] = []  # not submitted
        self._sampler_error: BaseException | None = None
        self._outstanding = 0
        self._enough = 0  # units under way, with the answers, of which the next one may be taken without another
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
        self._ahead.runs = RunLength(most := longest(options))
        self._reads_ahead = most > 1
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
            self._progress.streamed(answer.worker, answer.report, ended=True)
            self._top_up(backend)

    def within_runs(self, backend: Backend, ledger: Ledger, later: Collection[Event]) -> ShortPath | None:
        """Returns the short path of an epoch that workers make in runs; None if batches need more. It takes a batch
        that has come within a run while enough others are under way; all else is done once for a run.

        Args:
            backend: has the workers.
            ledger: counts the seconds that the training loop waits.
            later: the events that wait to be sent.
        """
        if not (self._reads_ahead and self._in_order and self._walked is None):
            return None
        answers, steps, accounts, record = self._answers, self._steps, self._accounts, self._record
        counts, progress, clock = accounts.counts, self._progress, time.perf_counter

        def next_batch(asked: float) -> Any:
            due = self._due
            if self._outstanding + len(answers) <= self._enough or later or record.timing_sink is not None:
                return NOT_PLAIN
            while (answer := answers.get(due)) is None:
                if (come := backend.within_run()) is None:
                    return NOT_PLAIN
                self._arrived(come)
            report = answer.report
            if answer.kind != "batch" or report.faults or report.drawn:
                return NOT_PLAIN
            del answers[due]
            self._due = due + 1
            step = steps.pop(due)
            counts.delivered += report.samples
            counts.batches += 1
            accounts.clean += report.samples
            try:
                batch = backend.open(answer)
            except Exception as error:  # of a class of the user's; the next call returns the next batch
                if not tears(error):
                    accounts.not_opened(answer, step, error)
                    progress.received(step.number)
                raise
            waits = ledger.epoch
            waits.until = now = clock()
            waits.waited += now - asked
            progress.received(step.number)
            return batch

        return next_batch

    def arrived(self, backend: Backend) -> Iterator[tuple[Answer, Step]]:
        """Yields the next batches and their steps, as far as they have arrived, and leaves them here."""
        place = 0
        while True:
            if self._in_order:
                answer = self._answers.get(self._due + place)
            else:
                answer = next(itertools.islice(self._answers.values(), place, None), None)
            if answer is None and self._outstanding and backend.has_answer:
                self._receive(backend, None)
                continue
            if answer is None or answer.kind != "batch":
                return
            yield answer, self._steps[answer.unit]
            place += 1

    def _ready(self) -> Answer | None:
        if not self._in_order and self._answers:
            return self._answers.pop(next(iter(self._answers)))
        answer = self._answers.pop(self._due, None)
        if answer is not None:
            self._due += 1
        return answer

    def _receive(self, backend: Backend, timeout: float | None) -> None:
        self._arrived(backend.receive(timeout))

    def _arrived(self, answer: Answer) -> None:
        self._outstanding -= 1
        self._answers[answer.unit] = answer
        self._epoch.plan.answered(answer.worker, answer.kind == "end")
        self._ahead.runs.learn(answer)
        for note in answer.report.notes:  # last: a warning may be turned into an error
            self._tell_once(note)
        if answer.report.guess is not None:
            self._guesses.take(Guess(*answer.report.guess))

    def _top_up(self, backend: Backend) -> None:
        """Plans and submits units until enough are under way; keeps a sampler's error for its turn."""
        if self._planned_all:
            self._enough = -1
            return
        if self._ahead.runs.now > 1 and self._outstanding + len(self._answers) >= self._enough > 0:
            return  # not enough room for a run, as when it was last asked
        most, waiting = self._ahead.most(backend), len(self._answers)
        run = self._ahead.run(backend)
        self._enough = most - run + 1
        if self._ahead.has_room(most, self._outstanding + waiting, backend.ready + waiting, run):
            self._plan(backend, most)
            backend.flush()

    def _plan(self, backend: Backend, most: int) -> None:
        while most - self._outstanding - len(self._answers) >= (count := self._ahead.run(backend)):
            self._plan_units(count)
            if not self._planned:
                return
            self._submit(backend)

    def _plan_units(self, count: int) -> None:
        """Plans units until there are `count`, fewer at the end of the epoch."""
        plan, seed, planned = self._epoch.plan, self._epoch.seed, self._planned
        while len(planned) < count and not self._planned_all:
            try:
                if self._walked is not None and self._meanwhile and not self._walked.is_ready:
                    if not (self.is_idle or self._reads_ahead):
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
            planned.append((step, work))

    def _submit(self, backend: Backend) -> None:
        """Submits the planned units: in a run, if there are several, or one after the other where that fails."""
        first, planned, self._planned = self.submitted, self._planned, []
        if len(planned) > 1 and backend.makes_runs:
            self._steps.update(enumerate((step for step, _ in planned), first))
            try:
                backend.submit_run(first, [work for _, work in planned])
            except Exception as error:  # the indices of one cannot be sent
                if tears(error) or isinstance(error, errors.StokerError):
                    raise
                for unit in range(first, first + len(planned)):
                    del self._steps[unit]
            else:
                self.submitted += len(planned)
                self._outstanding += len(planned)
                return
        for step, work in planned:
            self._steps[self.submitted] = step
            try:
                backend.submit(self.submitted, work, step.worker, self._ahead.rows(step.indices))
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


# The short path: an epoch in process that needs no more than samples and collation. No unit is queued, no answer is
# opened or transferred, and lookups are done once for the epoch.


ShortPath = Callable[[float], Any]
"""Returns the next batch, asked for at this time; `NOT_PLAIN`, with nothing changed, if it needs the other path."""


def short_path(
    backend: Backend,
    begun: Epoch,
    ledger: Ledger,
    accounts: Accounting,
    dispatcher: EventDispatcher,
    progress: Progress,
) -> ShortPath | None:
    """Returns the short path for the rest of an epoch; None if a batch needs more, or may still.

    Args:
        backend: makes the batches.
        begun: the epoch.
        ledger: counts the seconds that the training loop waits.
        accounts: counts the batches.
        dispatcher: has the events that wait to be sent.
        progress: counts the batches that the user has received.
    """
    plan = begun.plan
    if not isinstance(plan, ComputedPlan | BatchesPlan | StreamedPlan | TurnPlan) or begun.place.ahead:
        return None
    if (make := backend.plain(begun.seed, plan.place)) is None:
        return None
    is_stream = isinstance(plan, TurnPlan)
    counts, later, clock = accounts.counts, dispatcher.later, time.perf_counter

    def next_batch(asked: float) -> Any:
        indices = plan.upcoming()
        if indices is None or later:
            return NOT_PLAIN
        batch: Any = make(indices)
        if batch is NOT_PLAIN:
            return batch
        samples, state = len(indices), None
        if is_stream:
            batch, samples, state = batch
        counts.delivered += samples
        counts.batches += 1
        accounts.clean += samples
        waits = ledger.epoch
        waits.until = now = clock()
        waits.waited += now - asked
        if state is not None:
            return progress.delivered(state, batch)
        progress.received(plan.advance())
        return batch

    return next_batch


class Prefetch:
    """The number of units under way: `prefetch_factor` for each worker, and fewer if workers share each unit.

    Args:
        options: of the loader.
        ledger: what workers of earlier epochs spent on samples, and those of this one on batches in parts.
    """

    def __init__(self, options: LoaderOptions, ledger: Ledger) -> None:
        self._options, self._ledger = options, ledger
        self._counts_batches = options.counts_batches  # asked once: a look at the dataset's class
        self.runs = RunLength(1)
        self._rows = options.batch_size or options.num_workers  # of the latest unit
        self._reckon(options.num_workers)
        self._shares = gather_or_split.may_share(options)
        self._prefers_whole = self._shares and prefers_whole_batches(options.dataset)
        self._is_whole = False  # the latest unit
        self._are_shared = False  # whether workers share units, as far as is known
        self._most_at_first = self._until_known(options, ledger.row_seconds)

    def _reckon(self, workers: int) -> None:
        self._workers = workers
        self._most = max(1, (self._options.prefetch_factor or 1) * workers)
        self._most_if_shared = gather_or_split.under_way(self._options, self._rows, workers)

    def rows(self, step_indices: Any) -> int:
        """Returns the rows of a unit that workers may share; 0 if one worker makes the whole unit."""
        keeps_whole = self._prefers_whole or self._ledger.dearer >= COMPARISONS
        ascends = self._shares and (keeps_whole or self._are_shared) and gather_or_split.ascends(step_indices)
        self._is_whole = keeps_whole and ascends
        if self._is_whole or (ascends and self._is_trial()):
            return 0
        rows = len(step_indices) if self._shares else 0
        if rows != self._rows and rows:
            self._rows, self._most_if_shared = rows, gather_or_split.under_way(self._options, rows, self._workers)
        return rows

    def _is_trial(self) -> bool:
        number, self._ledger.ascending = self._ledger.ascending, self._ledger.ascending + 1
        return is_trial(number, self._workers, self._ledger.dearer)

    def run(self, backend: Backend) -> int:
        """Returns the number of units in the next run: units that are cheap enough for it are not worth sharing."""
        return self.runs.now if self.runs.now > 1 and backend.makes_runs else 1

    def most(self, backend: Backend) -> int:
        """Returns the number of units that may be under way: fewer if workers share each, more if runs are cheap."""
        self._are_shared = backend.shares is True
        if (grown := backend.grown) > self._workers or (grown and grown != self._workers and self._options.on_demand):
            self._reckon(grown)
        if (run := self.run(backend)) > 1:
            return self._most if self._counts_batches else max(self._most, AHEAD * run * self._workers)
        if not self._shares or self._is_whole:
            return self._most
        shares = backend.shares
        if shares is None:
            return self._most_at_first
        return self._most_if_shared if shares else self._most

    @staticmethod
    def has_room(most: int, under_way: int, ready: int, run: int = 1) -> bool:
        """Returns whether to submit units now. Waking the workers is the trainer's largest cost for a batch: while
        all units under way are ready, the trainer submits several at once. A run is submitted as a whole.

        Args:
            most: units that may be under way.
            under_way: units that are under way, with the ready ones.
            ready: units that are ready.
            run: units in the next run.
        """
        if run > 1:
            return under_way + run <= most
        return under_way < most and (under_way * 2 <= most or ready < under_way)

    def _until_known(self, options: LoaderOptions, cost: float | None) -> int:
        """Returns the units under way until the first answers show whether units are shared.

        The cost of a sample in the last epoch shows it earlier; without that cost each worker can have a unit. More
        units would occupy memory that shared units do not need.
        """
        rows = options.batch_size
        if cost is None or rows is None:
            return min(self._most, max(self._most_if_shared, options.num_workers))
        return self._most_if_shared if SplitPolicy(options.num_workers, cost).share(rows, rows) < rows else self._most
