"""`num_workers="auto"`: what a loader keeps of it between its epochs."""

from __future__ import annotations

import functools
import math
import types
import weakref
from typing import TYPE_CHECKING, Any

from stoker import collate
from stoker._engine.base import Backend
from stoker._events import Event
from stoker._machine import cpus, memory, shares
from stoker.loader.auto import WAITS, Choice, Trial
from stoker.loader.detached import detached
from stoker.loader.tuned import TunedBackend
from stoker.loader.witness import Witness

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader

MEMORY_OF_A_WORKER = 512 << 20
"""Bytes that are reckoned with for each worker: an interpreter with torch, and its batches."""

FOR_EACH_CPU = 4
"""Workers where samples wait for a disk or a network, and the CPUs for samples. `threads_per_worker` is for more."""

_WITH_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
"""Attributes that nobody may have without workers: who rebuilds the loader from its attributes would be refused."""

AGAIN, LONG = 2, 5.0
"""How often it is measured anew because the training loop waits more than it did, in an epoch of so many seconds."""


class Automatic:
    """Finds the number of workers of a loader. Used by the thread that iterates.

    Attributes:
        most: workers that the machine allows.
        choice: what was decided, or None.
        set_aside: what the loader was asked for with workers, while it has none.
    """

    def __init__(self) -> None:
        ranks = shares.ranks()
        self.most = max(1, min(shares.for_this_rank(), memory.available().bytes // (MEMORY_OF_A_WORKER * ranks)))
        self.choice: Choice | None = None
        self._shown = self.most  # what the loader's attribute was set to
        self._running = self.most  # workers that the latest iterator began with
        self.set_aside: dict[str, Any] = {}
        self._trial: Trial | None = None
        self._claim: shares.Claim | None = None
        self._again = 0

    def copy(self) -> Automatic:
        """For a copy of the loader, which measures for itself."""
        other = object.__new__(Automatic)
        other.__dict__.update(self.__dict__, _trial=None, _claim=None)
        return other

    def fits(self, loader: DataLoader[Any]) -> bool:
        """An epoch begins: whether workers that were kept since the last one are as many as are wanted now."""
        choice, epoch = self.choice, loader._ledger.epoch
        limit = math.inf if choice is None or self._again == AGAIN else max(WAITS, 2 * choice.waiting)
        if epoch.spent >= LONG and epoch.waited / epoch.spent > limit:
            self._again += 1
            self.choice = self._trial = None
            self._show(loader, self.most)
            return False  # the workers that there are would not be measured
        return self._shown == self._running

    def prepare(self, loader: DataLoader[Any]) -> None:
        """An iterator is about to be made, with as many workers as the other open loaders leave."""
        self._claim = None  # of one that could not be made
        if fixed(loader):  # what a worker does follows from the number, so that does not depend on who else is open
            self._claim = shares.Claim(self.most)
            return
        choice = self.choice
        wanted = self.most if choice is None or choice.number == choice.most else choice.number
        if choice is None or choice.number <= choice.most:
            self._claim = shares.claim(wanted, self.most)
            self._running = self._claim.number
        else:  # those beyond do not compute
            self._claim = shares.claim(choice.most, self.most)
            self._running = wanted
        self._show(loader, self._running)

    def at_first(self, loader: DataLoader[Any]) -> int:
        """Workers that the iterator that was prepared begins with, and needs; others can be done without."""
        return loader.num_workers if self._claim is None else min(loader.num_workers, max(1, self._claim.number))

    def wrapped(self, far: Backend, loader: DataLoader[Any], witness: Witness) -> Backend:
        """The backend of an iterator that was prepared: it measures, where something is to be decided."""
        claim, self._claim = self._claim, None
        if claim is None or not loader.num_workers:
            return far
        ahead = loader.prefetch_factor or 1
        if fixed(loader) or self.choice is not None:
            if loader.num_workers > max(1, claim.number) and far.can_grow:
                far.grow(loader.num_workers)
            return TunedBackend(far, claim)
        if self._trial is None or self._trial.most != loader.num_workers:
            beyond = _beyond if far.can_grow and loader.memory_budget is None else lambda most: most
            self._trial = Trial(loader.num_workers, not _far_only(loader), ahead, beyond)
        near = functools.partial(_near, loader._snapshot(), witness)
        settled = functools.partial(self._settled, weakref.ref(loader), witness)
        return TunedBackend(far, claim, self._trial, near, ahead, settled)

    def _settled(self, loader: weakref.ref[DataLoader[Any]], witness: Witness, choice: Choice) -> None:
        self.choice, self._trial = choice, None
        self._running = max([self._running, *choice.seconds])  # it may have become more than were chosen
        message = f"num_workers='auto' is {choice.number}, {choice.text}"
        details = {"seconds": {str(number): seconds for number, seconds in choice.seconds.items()}}
        witness.tell_later(Event("auto", message, details={"number": choice.number, "most": choice.most, **details}))
        if (its := loader()) is not None and its.num_workers == self._shown:
            self._show(its, choice.number)

    def obeyed(self, loader: DataLoader[Any]) -> bool:
        """Whether the loader's number is still ours: who sets another is obeyed."""
        if loader.num_workers == self._shown:
            return True
        loader.__dict__.update(self.set_aside)
        return False

    def _show(self, loader: DataLoader[Any], number: int) -> None:
        """The loader's attributes become what they were if the number had been given."""
        attributes = loader.__dict__
        attributes["num_workers"] = self._shown = number
        if number and self.set_aside:
            attributes.update(self.set_aside)
            self.set_aside = {}
        elif not number and not self.set_aside:
            self.set_aside = {name: attributes[name] for name in _WITH_WORKERS}
            attributes.update(prefetch_factor=None, persistent_workers=False, multiprocessing_context=None)

    def text(self, loader: DataLoader[Any]) -> str:
        """What was decided and why, for `describe()`."""
        ranks = f", shared by {shares.ranks()} ranks" if shares.ranks() > 1 else ""
        machine = f"{cpus.cpus().number} CPUs{ranks}, memory for {self.most} or more"
        if (reason := fixed(loader)) is not None:
            return f"{self.most} ({machine}), not measured: {reason}"
        if self.choice is None:
            return f"{self.most} at first ({machine}); then what the first batches show"
        return f"{self.choice.number} {self.choice.text}"


def fixed(loader: DataLoader[Any]) -> str | None:
    """Why the number stays that of the machine, in words: it changes what is delivered, or where. None: it need not."""
    if loader._is_stream:
        return "the streams are shared out by it"
    if loader.worker_init_fn is not None:
        return "worker_init_fn prepares so many workers"
    return "seeding='worker' seeds so many workers" if loader.seeding == "worker" else None


def _beyond(most: int) -> int:
    """Workers that there may be where they hardly compute, of whom there are so many."""
    return min(FOR_EACH_CPU * most, most + memory.available().bytes // (MEMORY_OF_A_WORKER * shares.ranks()))


def _far_only(loader: DataLoader[Any]) -> bool:
    """Whether the user has asked for what only workers can do, or the work may leave traces in the trainer."""
    asked = (
        *(loader.timeout, loader.on_error != "raise", loader.stall_action != "warn", loader.threads_per_worker > 1),
        *(loader.memory_budget, loader.max_samples_per_worker),
    )
    own = loader.collate_fn
    stateless = isinstance(own, (types.FunctionType, types.BuiltinFunctionType)) or collate.is_ours(own)
    return any(asked) or not stateless


def _near(snapshot: DataLoader[Any], witness: Witness) -> Backend | None:
    """A backend in the trainer."""
    dataset = snapshot.dataset if snapshot.worker_method == "thread" else detached(snapshot.dataset)
    if dataset is None:
        return None
    own = snapshot._snapshot()
    own.__dict__.update(dataset=dataset, num_workers=0, _hint=None)
    return own._plain_backend(witness, 0)
