"""What an iterator accounts for when it delivers: the ledger, the error budget, the quarantine file, the events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stoker import errors
from stoker._engine.base import Answer
from stoker._events import Event
from stoker.loader import epoch as epochs
from stoker.loader import world
from stoker.loader.budget import ErrorBudget
from stoker.loader.ledger import Counts
from stoker.loader.plan import Step
from stoker.loader.quarantine import QuarantineFile
from stoker.loader.witness import Witness

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader
    from stoker.loader.epoch import Epoch


class Accounts:
    """Of one iterator. Every sample is counted once, when its batch is about to be delivered.

    Args:
        loader: whose settings and ledger these are.
        witness: who is told of bad samples.

    Raises:
        QuarantineError: the file cannot be opened.
    """

    def __init__(self, loader: DataLoader[Any], witness: Witness) -> None:
        self._witness = witness
        self._ledger = loader._ledger
        self._budget = ErrorBudget(loader.max_errors, loader.max_error_rate)
        self._path = loader.quarantine
        self._file = None if loader.quarantine is None else QuarantineFile(loader.quarantine)
        self._first: dict[str, Any] | None = None  # bad sample of the epoch
        self._epoch = 0
        self._counts = Counts()
        self._rank, self._ranks = 0, 1
        self._clean = 0  # samples that the budget has not been told of: those of batches in which none was bad

    def begin(self, epoch: Epoch, loader: DataLoader[Any], asked: float) -> None:
        """An epoch begins, with a first batch that was asked for then."""
        self._budget.rewind()
        self._clean = 0
        self._first = None
        self._epoch = epoch.number
        self._rank, self._ranks = _world(loader)
        if self._file is None and self._path is not None:
            self._file = QuarantineFile(self._path)
        self._counts = self._ledger.begin(self, epoch.number, epoch.samples, asked)

    def deliver(self, answer: Answer, step: Step) -> None:
        """An answer is about to be given to the user.

        Raises:
            ErrorBudgetError: that were too many bad samples.
            EmptyBatchError: nothing is left of the batch, and other ranks count on one.
        """
        said = answer.said
        if answer.kind == "batch" and not said.faults:
            counts = self._counts  # nearly every batch, so it is short here
            counts.delivered += said.samples
            counts.batches += 1
            self._clean += said.samples
            return
        self._budget.add(self._clean, errors=0)
        self._clean = 0
        faults = [{**fault, "epoch": self._epoch, "batch": step.number, "rank": self._rank} for fault in said.faults]
        for fault in faults:
            self._note(fault)
        if answer.kind == "error":
            count = len(step.indices) if isinstance(step.indices, (list, np.ndarray)) else said.samples
            self._counts.add_raised(count, faults)
            return
        samples = 0 if answer.kind == "empty" else said.samples
        left_out = sum(fault["outcome"] == "skipped" for fault in faults)
        bad = sum(fault["kind"] != "skip" for fault in faults)
        if (reason := self._budget.add(samples + left_out, bad)) is not None:
            self._counts.add_raised(samples + left_out, faults)
            raise self._too_many(reason)
        self._counts.add_delivered(samples, faults)
        if answer.kind == "empty" and self._ranks > 1:
            raise errors.EmptyBatchError(
                f"every sample of batch {step.number} was left out on rank {self._rank} of {self._ranks}: the other "
                "ranks have a batch there, and would wait for this one. Use on_error='replace', which keeps every "
                "batch as it was planned."
            )

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
            done = "the next takes its place" if fault["index"] is None else f"replaced by {fault['replacement']}"
        described = f" ({fault['description']})" if fault["description"] else ""
        told = f"sample {fault['index']}{described} of batch {fault['batch']} {what}, and {done}: {fault['exception']}"
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
