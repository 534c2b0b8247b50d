"""Accounts for delivered batches: the ledger, the error budget, the quarantine file, the events."""

from __future__ import annotations

import copy
import math
import os
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from stoker import errors
from stoker._core.exceptions import cut, format_exception, summary_of
from stoker._core.protocol import asked
from stoker._engine.backend import Answer, Failure
from stoker._engine.tracebacks import without_own_lines
from stoker.events import Event, FaultRecord, PoisonSample, QuarantineFailed, SampleFailed, SampleSkipped, plain_index
from stoker.loader._accounting.ledger import Counts, EventDispatcher, Ledger
from stoker.loader._epoch import epoch as epochs
from stoker.loader._epoch import ranks as world
from stoker.loader._epoch.plan import Step
from stoker.loader._options.argument_checks import DEFAULT_MAX_ERROR_RATE, DEFAULT_MAX_ERRORS, check_error_budget

if TYPE_CHECKING:
    from stoker.loader._accounting.quarantine import QuarantineFile
    from stoker.loader._epoch.epoch import Epoch
    from stoker.loader._options.loader_options import LoaderOptions


class Accounting:
    """The accounts of one iterator. Every sample is counted once, when its batch is about to be delivered.

    Args:
        ledger: counts for the loader.
        dispatcher: reports bad samples.

    Attributes:
        clean: samples of batches without a bad one that the error budget has not counted yet.

    Raises:
        QuarantineError: the file cannot be opened.
    """

    def __init__(self, options: LoaderOptions, ledger: Ledger, dispatcher: EventDispatcher) -> None:
        self._dispatcher = dispatcher
        dispatcher.accounts = weakref.WeakMethod(self.note_event)
        self._ledger = ledger
        self._budget = ErrorBudget(options.max_errors, options.max_error_rate)
        self._path = options.quarantine
        self._file = _opened(options.quarantine)
        self._first: FaultRecord | None = None  # bad sample of the epoch
        self._epoch = 0
        self.counts = Counts()
        self._rank, self._ranks = 0, 1
        self.clean = 0
        # Samples that end their workers, by unit and place: an event for each time
        self._blamed: dict[int, dict[int, list[PoisonSample]]] = {}
        self._batched, self._has_workers = options.auto_collation, options.capabilities.has_workers
        self._spared = 0 if options.error_word in ("skip", "replace") else 1  # of each unit: the last may be its error

    def open(self) -> None:
        """Opens the quarantine file before an epoch begins; on failure the epoch has not begun."""
        self._file = self._file or _opened(self._path)

    def begin(self, epoch: Epoch, options: LoaderOptions, asked: float) -> None:
        """Begins an epoch; its first batch was requested at `asked`."""
        self._budget.rewind()
        self.clean = 0
        self._first = None
        self._blamed.clear()
        self._epoch = epoch.number
        self._rank, self._ranks = _world(options)
        self.counts = self._ledger.begin(self, epoch.number, epoch.samples, asked)

    def deliver(self, answer: Answer, step: Step) -> None:
        """Accounts for an answer that is about to be delivered. Most are batches without a bad sample: the caller may
        count those into `counts` and `clean` itself.

        Raises:
            ErrorBudgetError: the epoch has too many bad samples.
            EmptyBatchError: the batch is empty, and other ranks rely on one.
        """
        report = answer.report
        self._budget.add(self.clean, errors=0)
        self.clean = 0
        self._blamed.pop(answer.unit, None)
        epoch, batch, rank = self._epoch, step.number, self._rank
        faults = [replace(fault, epoch=epoch, batch=batch, rank=rank) for fault in report.faults]
        for fault in faults:
            self._note(fault)
        if answer.kind == "error":
            is_known = self._batched and isinstance(step.indices, (list, np.ndarray))
            count = len(step.indices) if is_known else report.samples
            self.counts.add_raised(count, faults or [self._of_batch(answer.value, answer.worker, step)])
            return
        samples = 0 if answer.kind == "empty" else report.samples
        left_out = sum(fault.outcome == "skipped" for fault in faults)
        bad = sum(fault.kind != "skip" for fault in faults)
        if (reason := self._budget.add(samples + left_out, bad)) is not None:
            self.counts.add_raised(samples + left_out, faults)
            raise self._too_many(reason)
        self.counts.add_delivered(samples, faults)
        if answer.kind == "empty" and self._ranks > 1:
            raise errors.EmptyBatchError(
                f"every sample of batch {step.number} was left out on rank {self._rank} of {self._ranks}: the other "
                "ranks have a batch there, and would wait for this one. Use on_error='replace', which keeps every "
                "batch as it was planned."
            )

    def _of_batch(self, error: Any, worker: int, step: Step) -> FaultRecord:
        """Returns the fault of a batch: an error of a collate_fn, a batch_transform, or a worker's start."""
        packed = error if isinstance(error, Failure) else None
        raised = cast("BaseException", error)
        return FaultRecord(
            kind="batch",
            outcome="raised",
            position=step.position,
            exception=summary_of(raised) if packed is None else packed.text,
            traceback=format_exception(raised) if packed is None else packed.traceback,
            worker=worker,
            epoch=self._epoch,
            batch=step.number,
            rank=self._rank,
        )

    def not_opened(self, answer: Answer, step: Step, error: Exception) -> None:
        """Counts the samples of a batch as raised: it was accounted for, but could not be opened in this process."""
        samples, counts = answer.report.samples, self.counts
        replaced = sum(fault.outcome == "replaced" for fault in answer.report.faults)
        counts.delivered -= samples - replaced
        counts.replaced -= replaced
        counts.batches -= samples > 0
        counts.add_raised(samples, [self._of_batch(error, answer.worker, step)])
        who = f": worker {answer.worker} made it" if self._has_workers else ""
        error.add_note(f"Raised in this process, when batch {step.number} was opened{who}")

    def was_delivered(self, step: Step) -> None:
        """Leaves out a batch that was delivered before the state was saved from which the epoch resumes."""
        if self.counts.planned is not None:
            self.counts.planned -= len(step.indices) if self._batched else 1

    def note_event(self, event: Event) -> None:
        """Accounts for a worker's event. A batch whose samples end their workers takes long, because each sample runs
        at least twice. The batch is given up as soon as the known bad samples exceed the budget.

        Raises:
            ErrorBudgetError: they do, for the batch that the trainer waits for.
        """
        if not isinstance(event, PoisonSample):  # the helper process has died
            self._blamed.clear()  # the next helper starts without this knowledge
            return
        unit, place = event.unit, event.mark
        if place >= 0 and unit is not None:
            self._blamed.setdefault(unit, {}).setdefault(place, []).append(event)
        due = min(self._dispatcher.steps, default=-1)  # others may be delivered before the run ends at that one
        step, blamed = self._dispatcher.steps.get(due), self._blamed.get(due)
        if step is None or blamed is None or not isinstance(step.indices, (list, np.ndarray)):
            return
        # Replacements come from the same batch first, and are bad in their own places as well
        count = min(len(step.indices), max(len(blamed), *map(len, blamed.values()))) - self._spared
        if (reason := self._budget.foreseen(self.clean + len(step.indices), count)) is None:
            return
        faults = [self._fault(step, place, blamed[place][0]) for place in sorted(blamed)]
        for fault in faults:
            self._note(fault)
        self.counts.add_raised(len(step.indices), faults)
        raise self._too_many(reason)

    def _fault(self, step: Step, place: int, event: PoisonSample) -> FaultRecord:
        """Returns the fault of a sample that has ended its workers, from the facts in the trainer."""
        error = "StalledError" if event.stalled else "WorkerDiedError"
        return FaultRecord(
            kind="stall" if event.stalled else "death",
            outcome="raised",
            place=place,
            position=step.position + place * step.stride,
            index=plain_index(step.indices[place]),
            exception=f"{error}: {event.message.splitlines()[0]}",
            traceback=event.message,
            worker=-1 if event.worker is None else event.worker,
            time=event.time,
            epoch=self._epoch,
            batch=step.number,
            rank=self._rank,
        )

    def _note(self, fault: FaultRecord) -> None:
        """Writes a bad sample to the file before its batch is delivered, and reports it."""
        if self._file is not None and (error := self._file.write(fault)) is not None:
            self._tell_of_file(error)
        if fault.kind != "skip" and self._first is None:
            self._first = fault
        if fault.outcome == "raised":
            return  # the user gets it
        what = "asked to be left out" if fault.kind == "skip" else "failed"
        done = "was left out"
        if fault.outcome == "replaced":
            done = "the next takes its place" if fault.index is None else f"was replaced by {fault.replacement}"
        described = f" ({fault.description})" if fault.description else ""
        where = (
            f"sample {fault.position} of the stream (worker {fault.worker}){described}"  # as that worker reads it
            if fault.index is None
            else f"sample {fault.index}{described} of batch {fault.batch}"
        )
        kind = SampleSkipped if fault.kind == "skip" else SampleFailed
        message = f"{where} {what}, and {done}: {cut(fault.exception or '')}"
        self._dispatcher.tell_later(
            kind(message=message, time=fault.time, worker=fault.worker, batch=fault.batch, fault=fault)
        )

    def _tell_of_file(self, error: OSError) -> None:
        message = (
            f"the quarantine file {self._path} cannot be written: {error}. Missing lines are written as soon as they "
            "can be; the counts in loader.report() are complete."
        )
        self._dispatcher.tell_later(QuarantineFailed(message=message, errno=error.errno))

    def _too_many(self, reason: str) -> errors.ErrorBudgetError:
        first: Any = self._first
        where = f"in batch {first.batch}, at sample {first.index}, worker {first.worker}"
        error = errors.ErrorBudgetError(
            f"{reason}. The first was {first.exception} ({where}). Is a disk or a server out of reach, or the "
            "dataset broken? If not, raise max_errors or max_error_rate, or leave the bad samples out "
            "(stoker.quarantine)."
        )
        error.__cause__ = errors.WorkerTraceback(without_own_lines(first.traceback))
        return error

    def close(self) -> None:
        """Closes the file; a new epoch opens it again."""
        file, self._file = self._file, None
        if file is not None and (error := file.close()) is not None:
            self._tell_of_file(error)
            self._dispatcher.flush()


def _opened(path: str | os.PathLike[str] | None) -> QuarantineFile | None:
    if path is None:
        return None
    from stoker.loader._accounting.quarantine import QuarantineFile

    return QuarantineFile(path)


def _world(options: LoaderOptions) -> tuple[int, int]:
    """Returns (rank, ranks that rely on each other's batches), from the loader, its samplers or torch."""
    here = epochs.world_of(options)
    if here.size > 1:
        return here.rank, here.size
    for sampler in (options.sampler, options.batch_sampler, asked(options.batch_sampler, "sampler")):
        ranks = asked(sampler, "num_replicas")
        if isinstance(ranks, int):
            rank = asked(sampler, "rank", 0)
            return rank if isinstance(rank, int) else 0, ranks
    group = world.of_torch() or here
    return group.rank, 1 if options.is_stream else group.size  # a stream's number of batches on each rank is unknown


# The number of bad samples that an epoch may have. Pure.


FEW = 10
"""Errors that the rate always allows: one bad sample in a small first batch is already a high rate."""


class ErrorBudget:
    """Counts samples and errors since the epoch began, and reports when there are too many.

    Args:
        max_errors: errors allowed in an epoch; None for any number.
        max_error_rate: errors per sample, from 0 to 1, allowed beyond the first `FEW`; 0 allows none at all, and None
            any number.

    Raises:
        ValueError, TypeError: the numbers are invalid.
    """

    def __init__(
        self, max_errors: int | None = DEFAULT_MAX_ERRORS, max_error_rate: float | None = DEFAULT_MAX_ERROR_RATE
    ) -> None:
        self._most, self._rate = check_error_budget(max_errors, max_error_rate)
        self.rewind()

    def rewind(self) -> None:
        """Begins a new epoch, with a full budget."""
        self._samples = self._errors = 0

    def add(self, samples: int, errors: int) -> str | None:
        """Counts a batch.

        Args:
            samples: chosen by the sampler, including those that failed.
            errors: samples that failed.

        Returns:
            The exceeded limit as text, or None.
        """
        self._samples += samples
        self._errors += errors
        if not self._errors:
            return None
        if self._most is not None and self._errors > self._most:
            return f"{self._counts()}, and max_errors={self._most} allows {self._most:,}"
        if self._rate is not None and self._errors > (allowed := self._allowed_by(self._rate)):
            return f"{self._counts()}, and max_error_rate={self._rate:g} allows {allowed:,}"
        return None

    def foreseen(self, samples: int, errors: int) -> str | None:
        """Returns the result of `add` for a batch, without counting it."""
        return copy.copy(self).add(samples, errors)

    def _allowed_by(self, rate: float) -> int:
        rounded = math.floor(rate * self._samples + 1e-6)  # 0.29 * 100 is a little less than 29
        return max(FEW, rounded) if rate else 0

    def _counts(self) -> str:
        samples = max(self._samples, self._errors)
        share = f"{self._errors / samples:.2%}"
        return f"{self._errors:,} of {samples:,} samples of this epoch ({share}) were bad"
