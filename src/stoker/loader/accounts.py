"""What an iterator accounts for when it delivers: the ledger, the error budget, the quarantine file, the events."""

from __future__ import annotations

import os
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker import errors
from stoker._engine.base import Answer, Failure
from stoker._events import Event
from stoker._stories import story_of, summary_of
from stoker.loader import epoch as epochs
from stoker.loader import world
from stoker.loader.budget import ErrorBudget
from stoker.loader.ledger import Counts, plain_index
from stoker.loader.plan import Step
from stoker.loader.witness import Witness

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader
    from stoker.loader.epoch import Epoch
    from stoker.loader.quarantine import QuarantineFile


class Accounts:
    """Of one iterator. Every sample is counted once, when its batch is about to be delivered.

    Args:
        loader: whose settings and ledger these are.
        witness: who is told of bad samples.

    Attributes:
        counts: of its epoch.
        clean: samples that the error budget has not been told of: those of batches in which none was bad.

    Raises:
        QuarantineError: the file cannot be opened.
    """

    def __init__(self, loader: DataLoader[Any], witness: Witness) -> None:
        self._witness = witness
        witness.accounts = weakref.WeakMethod(self.heard)
        self._ledger = loader._ledger
        self._budget = ErrorBudget(loader.max_errors, loader.max_error_rate)
        self._path = loader.quarantine
        self._file = _opened(loader.quarantine)
        self._first: dict[str, Any] | None = None  # bad sample of the epoch
        self._epoch = 0
        self.counts = Counts()
        self._rank, self._ranks = 0, 1
        self.clean = 0
        # Samples that end their workers, by unit and place there: each time that one was blamed
        self._blamed: dict[int, dict[int, list[Event]]] = {}
        self._batched = loader._auto_collation
        self._spared = 0 if loader.on_error in ("skip", "replace") else 1  # of each unit: the last may be its error

    def open(self) -> None:
        """An epoch is about to begin: what is needed for it is there, or nothing of it has happened.

        Raises:
            QuarantineError: the file cannot be opened.
        """
        self._file = self._file or _opened(self._path)

    def begin(self, epoch: Epoch, loader: DataLoader[Any], asked: float) -> None:
        """An epoch begins, with a first batch that was asked for then."""
        self._budget.rewind()
        self.clean = 0
        self._first = None
        self._blamed.clear()
        self._epoch = epoch.number
        self._rank, self._ranks = _world(loader)
        self.counts = self._ledger.begin(self, epoch.number, epoch.samples, asked)

    def deliver(self, answer: Answer, step: Step) -> None:
        """An answer is about to be given to the user. Nearly every one is a batch without a bad sample: those may be
        counted into `counts` and `clean` by who gives them.

        Raises:
            ErrorBudgetError: that were too many bad samples.
            EmptyBatchError: nothing is left of the batch, and other ranks count on one.
        """
        said = answer.said
        self._budget.add(self.clean, errors=0)
        self.clean = 0
        self._blamed.pop(answer.unit, None)
        faults = [{**fault, "epoch": self._epoch, "batch": step.number, "rank": self._rank} for fault in said.faults]
        for fault in faults:
            self._note(fault)
        if answer.kind == "error":
            is_known = self._batched and isinstance(step.indices, (list, np.ndarray))
            count = len(step.indices) if is_known else said.samples
            self.counts.add_raised(count, faults or [self._of_batch(answer, step)])
            return
        samples = 0 if answer.kind == "empty" else said.samples
        left_out = sum(fault["outcome"] == "skipped" for fault in faults)
        bad = sum(fault["kind"] != "skip" for fault in faults)
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

    def _of_batch(self, answer: Answer, step: Step) -> dict[str, Any]:
        """An error that is no sample's: a collate_fn's, or that of a worker's start."""
        error = answer.value
        is_packed = isinstance(error, Failure)
        return {
            "kind": "batch",
            "outcome": "raised",
            "place": None,
            "position": step.position,
            "index": None,
            "description": None,
            "exception": error.text if is_packed else summary_of(error),
            "traceback": error.traceback if is_packed else story_of(error),
            "worker": answer.worker,
            "replacement": None,
            "time": time.time(),
            "epoch": self._epoch,
            "batch": step.number,
            "rank": self._rank,
        }

    def not_opened(self, answer: Answer, step: Step, error: Exception) -> None:
        """A batch that is accounted for could not be opened in this process: its samples are raised instead."""
        samples, counts = answer.said.samples, self.counts
        replaced = sum(fault["outcome"] == "replaced" for fault in answer.said.faults)
        counts.delivered -= samples - replaced
        counts.replaced -= replaced
        counts.batches -= samples > 0
        counts.raised += samples
        if hasattr(error, "add_note"):
            error.add_note(
                f"Raised in this process, when batch {step.number} was opened: worker {answer.worker} made it"
            )

    def was_delivered(self, step: Step) -> None:
        """A batch of the plan was delivered before the state was saved from which the epoch goes on."""
        if self.counts.planned is not None:
            self.counts.planned -= len(step.indices) if self._batched else 1

    def heard(self, event: Event) -> None:
        """What befell a worker. A batch whose samples end their workers takes long: each of them has to do it twice at
        least. So it is given up as soon as those that are known are too many for it to be delivered.

        Raises:
            ErrorBudgetError: that is so for the batch that is waited for.
        """
        if event.kind == "zygote_death":
            self._blamed.clear()  # the next one knows nothing, and finds out anew
            return
        unit, place = event.details["unit"], event.details["mark"]
        if place >= 0:
            self._blamed.setdefault(unit, {}).setdefault(place, []).append(event)
        due = min(self._witness.steps, default=-1)  # others may be delivered before the run ends at that one
        step, blamed = self._witness.steps.get(due), self._blamed.get(due)
        if step is None or blamed is None or not isinstance(step.indices, (list, np.ndarray)):
            return
        # Those that stood in for one come from its batch first, and are bad in their own places as well
        count = min(len(step.indices), max(len(blamed), *map(len, blamed.values()))) - self._spared
        if (reason := self._budget.foreseen(self.clean + len(step.indices), count)) is None:
            return
        faults = [self._fault(step, place, blamed[place][0]) for place in sorted(blamed)]
        for fault in faults:
            self._note(fault)
        self.counts.add_raised(len(step.indices), faults)
        raise self._too_many(reason)

    def _fault(self, step: Step, place: int, event: Event) -> dict[str, Any]:
        """A sample that has ended its workers, as far as the trainer knows it."""
        kind, error = ("stall", "StalledError") if event.details["stalled"] else ("death", "WorkerDiedError")
        return {
            "kind": kind,
            "outcome": "raised",
            "place": place,
            "position": step.position + place * step.stride,
            "index": plain_index(step.indices[place]),
            "description": None,
            "exception": f"{error}: {event.message.splitlines()[0]}",
            "traceback": event.message,
            "worker": event.worker,
            "replacement": None,
            "time": event.time,
            "epoch": self._epoch,
            "batch": step.number,
            "rank": self._rank,
        }

    def _note(self, fault: dict[str, Any]) -> None:
        """A bad sample: into the file before its batch is delivered, and to whoever listens."""
        if self._file is not None and (error := self._file.write(fault)) is not None:
            self._tell_of_file(error)
        if fault["kind"] != "skip" and self._first is None:
            self._first = fault
        if fault["outcome"] == "raised":
            return  # the user gets it
        what = "asked to be left out" if fault["kind"] == "skip" else "failed"
        done = "was left out"
        if fault["outcome"] == "replaced":
            done = "the next takes its place" if fault["index"] is None else f"was replaced by {fault['replacement']}"
        described = f" ({fault['description']})" if fault["description"] else ""
        where = (
            f"sample {fault['position']} of the stream (worker {fault['worker']})"  # as that worker reads it
            if fault["index"] is None
            else f"sample {fault['index']}{described} of batch {fault['batch']}"
        )
        told = f"{where} {what}, and {done}: {fault['exception']}"
        kind = "skip" if fault["kind"] == "skip" else "error"
        self._witness.tell_later(Event(kind, told, fault["time"], fault["worker"], fault["batch"], fault))

    def _tell_of_file(self, error: OSError) -> None:
        told = (
            f"the quarantine file {self._path} cannot be written: {error}. What is missing is written when it can be; "
            "the counts in loader.report() are complete."
        )
        self._witness.tell_later(Event("quarantine_failed", told, details={"errno": error.errno}))

    def _too_many(self, reason: str) -> errors.ErrorBudgetError:
        first: Any = self._first
        where = f"in batch {first['batch']}, at sample {first['index']}, worker {first['worker']}"
        error = errors.ErrorBudgetError(
            f"{reason}. The first was {first['exception']} ({where}). Is a disk or a server away, or the dataset "
            "broken? Else raise max_errors or max_error_rate, or leave the bad samples out (stoker.quarantine)."
        )
        error.__cause__ = errors.WorkerTraceback(first["traceback"])
        return error

    def close(self) -> None:
        """The file is closed; a new epoch opens it again."""
        file, self._file = self._file, None
        if file is not None and (error := file.close()) is not None:
            self._tell_of_file(error)
            self._witness.flush()


def _opened(path: str | os.PathLike[str] | None) -> QuarantineFile | None:
    if path is None:
        return None
    from stoker.loader.quarantine import QuarantineFile

    return QuarantineFile(path)


def _world(loader: DataLoader[Any]) -> tuple[int, int]:
    """(rank, ranks that count on each other's batches), as far as the loader, its samplers or torch say."""
    here = epochs.world_of(loader)
    if here.size > 1:
        return here.rank, here.size
    for sampler in (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)):
        ranks = getattr(sampler, "num_replicas", None)
        if isinstance(ranks, int):
            return getattr(sampler, "rank", 0), ranks
    group = world.of_torch() or here
    return group.rank, 1 if loader._is_stream else group.size  # how many a stream has on each rank, nobody knows
