"""`num_workers="auto"`: the state that a loader keeps between its epochs, and the copy of a dataset for a trial in the
trainer.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stoker import collate
from stoker._core.machine import cpus, memory
from stoker._engine.backend import Backend
from stoker._engine.backends import KINDS
from stoker.datasets.base import Dataset
from stoker.events import WorkersChosen
from stoker.loader._accounting.ledger import EventDispatcher
from stoker.loader._autotune.backend import AutotuneBackend
from stoker.loader._autotune.hint import WAITING_SHARE
from stoker.loader._autotune.policy import Choice, Trial

if TYPE_CHECKING:
    from stoker.loader._accounting.ledger import Ledger
    from stoker.loader._options.loader_options import LoaderOptions


MakeBackend = Callable[["LoaderOptions"], Backend]
"""Makes a backend for these options."""

MEMORY_OF_A_WORKER = 512 << 20
"""Bytes expected for each worker: an interpreter with torch, and its batches."""

FOR_EACH_CPU = 4
"""Factor of workers over CPUs while samples wait for a disk or a network. `threads_per_worker` is for more."""

_WITH_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
"""Attributes that must be unset without workers: building a loader from its attributes would fail."""

AGAIN, LONG = 2, 5.0
"""Repetitions of the measurement if the training loop waits more than before, in an epoch of at least `LONG` seconds.
"""


class AutotuneController:
    """Finds the number of workers of a loader. Used by the thread that iterates.

    Args:
        least: workers that it begins with, whatever other open loaders have, if the machine allows them.

    Attributes:
        most: workers that the machine allows.
        choice: the decision, or None.
        set_aside: the loader's settings for workers, while it has none.
    """

    _least = 1  # of the class, as pickles of former versions lack it

    def __init__(self, least: int = 1) -> None:
        ranks = cpus.ranks()
        self.most = max(1, min(cpus.for_this_rank(), memory.available().bytes // (MEMORY_OF_A_WORKER * ranks)))
        if least != 1:
            self._least = least
        self.choice: Choice | None = None
        self._shown = self.most  # value of the loader's attribute
        self._running = self.most  # workers that the latest iterator began with
        self.set_aside: dict[str, Any] = {}
        self._trial: Trial | None = None
        self._claim: cpus.Claim | None = None
        self._again = 0

    @staticmethod
    def may_change(options: LoaderOptions) -> bool:
        """Returns whether the number of workers may change while an epoch runs."""
        return fixed(options) is None

    def copy(self) -> AutotuneController:
        """Returns the controller of a copied loader, which measures for itself."""
        other = object.__new__(AutotuneController)
        other.__dict__.update(self.__dict__, _trial=None, _claim=None)
        return other

    def fits(self, loader: Any, ledger: Ledger) -> bool:
        """An epoch begins: whether workers that were kept since the last one are as many as are wanted now."""
        choice, epoch = self.choice, ledger.epoch
        limit = math.inf if choice is None or self._again == AGAIN else max(WAITING_SHARE, 2 * choice.waiting)
        if epoch.spent >= LONG and epoch.waited / epoch.spent > limit:
            self._again += 1
            self.choice = self._trial = None
            self._show(loader, self.most)
            return False  # the workers that there are would not be measured
        return self._shown == self._running

    def prepare(self, loader: Any, options: LoaderOptions) -> None:
        """An iterator is about to be made, with as many workers as the other open loaders leave."""
        self._claim = None  # of a backend that could not be made
        if fixed(options):  # a fixed number does not depend on the other open loaders
            self._claim = cpus.Claim(self.most)
            return
        choice = self.choice
        wanted = self.most if choice is None or choice.number == choice.most else choice.number
        if choice is None or choice.number <= choice.most:
            self._claim = cpus.claim(wanted, self.most, min(self._least, self.most))
            self._running = self._claim.number
        else:  # those beyond do not compute
            self._claim = cpus.claim(choice.most, self.most)
            self._running = wanted
        self._show(loader, self._running)

    def at_first(self, options: LoaderOptions) -> int:
        """Workers that the iterator that was prepared begins with, and needs; others can be done without."""
        return options.num_workers if self._claim is None else min(options.num_workers, max(1, self._claim.number))

    def wrapped(
        self,
        far: Backend,
        loader: Any,
        options: LoaderOptions,
        in_trainer: MakeBackend,
        dispatcher: EventDispatcher,
    ) -> Backend:
        """The backend of an iterator that was prepared: it measures, where something is to be decided.

        Args:
            far: has the workers.
            loader: gets the number that is chosen.
            options: of the loader.
            in_trainer: makes a backend without workers.
            dispatcher: reports the choice.
        """
        claim, self._claim = self._claim, None
        if claim is None or not options.num_workers:
            return far
        ahead = options.prefetch_factor or 1
        if fixed(options) or self.choice is not None:
            if options.num_workers > max(1, claim.number) and far.capabilities.can_grow:
                far.grow(options.num_workers)
            return AutotuneBackend(far, claim)
        if self._trial is None or self._trial.most != options.num_workers:
            grows = far.capabilities.can_grow and options.memory_budget is None
            beyond = functools.partial(_beyond, self._least) if grows else lambda most: most
            self._trial = Trial(options.num_workers, not _far_only(options), ahead, beyond)
        near = functools.partial(_near, options, in_trainer)
        settled = functools.partial(self._settled, weakref.ref(loader), dispatcher)
        return AutotuneBackend(far, claim, self._trial, near, ahead, settled)

    def _settled(self, loader: weakref.ref[Any], dispatcher: EventDispatcher, choice: Choice) -> None:
        self.choice, self._trial = choice, None
        self._running = max([self._running, *choice.seconds])  # it may have become more than were chosen
        message = f"num_workers='auto' is {choice.number}, {choice.text}"
        seconds = {str(number): seconds for number, seconds in choice.seconds.items()}
        dispatcher.tell_later(WorkersChosen(message=message, number=choice.number, most=choice.most, seconds=seconds))
        if (its := loader()) is not None and its.num_workers == self._shown:
            self._show(its, choice.number)

    def obeyed(self, loader: Any) -> bool:
        """Whether the loader's number is still the one chosen here; a number that the user sets is obeyed."""
        if loader.num_workers == self._shown:
            return True
        vars(loader).update(self.set_aside)
        return False

    def _show(self, loader: Any, number: int) -> None:
        """Sets the loader's attributes as if the number had been given."""
        attributes = vars(loader)
        attributes["num_workers"] = self._shown = number
        if number and self.set_aside:
            attributes.update(self.set_aside)
            self.set_aside = {}
        elif not number and not self.set_aside:
            self.set_aside = {name: attributes[name] for name in _WITH_WORKERS}
            attributes.update(prefetch_factor=None, persistent_workers=False, multiprocessing_context=None)

    def text(self, options: LoaderOptions) -> str:
        """Returns the decision and its reason, for `describe()`."""
        ranks = f", shared by {cpus.ranks()} ranks" if cpus.ranks() > 1 else ""
        machine = f"{cpus.cpus().number} CPUs{ranks}, memory for {self.most} or more"
        if (reason := fixed(options)) is not None:
            return f"{self.most} ({machine}), not measured: {reason}"
        if self.choice is None:
            return f"{self.most} at first ({machine}); then what the first batches show"
        return f"{self.choice.number} {self.choice.text}"


def fixed(options: LoaderOptions) -> str | None:
    """Returns the reason for a fixed number of workers, as text; None if the number may change. A number is fixed if
    the samples, or their workers, depend on it.
    """
    if options.is_stream:
        return "the streams are shared out by the number of workers"
    if options.worker_init_fn is not None:
        return "worker_init_fn prepares a fixed number of workers"
    return "seeding='worker' seeds a fixed number of workers" if options.seeding == "worker" else None


def _beyond(least: int, most: int) -> int:
    """Returns the number of workers that are possible while they hardly compute."""
    return min(max(FOR_EACH_CPU * most, least), most + memory.available().bytes // (MEMORY_OF_A_WORKER * cpus.ranks()))


def _far_only(options: LoaderOptions) -> bool:
    """Returns whether the user's options need workers, or the work may leave traces in the trainer.

    A program that runs under `stoker.install()` has asked for workers, and its samples may rely on being in one.
    """
    asked = (
        options.shard == "torch",
        *(options.timeout, options.error_word != "raise", options.stall_action != "warn"),
        *(options.threads_per_worker > 1, options.in_flight, options.memory_budget, options.max_samples_per_worker),
    )
    own, functions = options.collate_fn, (types.FunctionType, types.BuiltinFunctionType)
    stateless = isinstance(own, functions) or collate.is_ours(own)
    transform = options.worker_transform
    return any(asked) or not stateless or not (transform is None or isinstance(transform, functions))


def _near(options: LoaderOptions, in_trainer: MakeBackend) -> Backend | None:
    """A backend in the trainer."""
    dataset = (
        options.dataset if KINDS[options.worker_method].capabilities.are_threads else dataset_copy(options.dataset)
    )
    if dataset is None:
        return None
    return in_trainer(replace(options, dataset=dataset, num_workers=0))


# The copy of a dataset for a trial in the trainer. Many datasets open their file at the first sample and keep it as an
# attribute; workers forked later would share the handle, and read wrong bytes.


_FIRST = 16
"""Items of a list that are checked for datasets: a list of paths may be long."""

_PLAIN = ("builtins", "numpy", "torch")
"""Packages whose classes open no files: lists, arrays, tensors."""


def dataset_copy(dataset: Any) -> Any:
    """Returns a shallow copy of a dataset and of the datasets in it; None if it cannot be copied.

    An object with a finaliser is not copied: the finaliser would close resources that the copy shares.
    """
    try:
        return _copied(dataset)
    except Exception:  # raised by the user's class when it is copied
        return None


def _copied(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple) and any(map(_is_dataset, value[:_FIRST])):
        return type(value)(_copied(item) for item in value)
    if isinstance(value, dict) and type(value) is dict and any(map(_is_dataset, value.values())):
        return {name: _copied(item) for name, item in value.items()}
    if type(value).__module__.partition(".")[0] in _PLAIN and not _is_dataset(value):
        return value
    if hasattr(value, "__del__"):
        raise TypeError
    twin = copy.copy(value)
    if twin is value and hasattr(value, "__dict__"):
        raise TypeError
    for name, item in list(getattr(twin, "__dict__", {}).items()):
        if _is_dataset(item) or isinstance(item, (list, tuple, dict)):
            twin.__dict__[name] = _copied(item)
    return twin


def _is_dataset(value: Any) -> bool:
    """Returns whether a value is a dataset, by its class, or because it has indices and attributes of its own."""
    torch_data = sys.modules.get("torch.utils.data")
    if isinstance(value, Dataset) or (torch_data is not None and isinstance(value, torch_data.Dataset)):
        return True
    plain = type(value).__module__.partition(".")[0] in _PLAIN
    return not plain and hasattr(type(value), "__getitem__") and hasattr(value, "__dict__")
