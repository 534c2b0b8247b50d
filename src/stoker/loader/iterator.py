"""The iterator of all backends.

A batch passes through five stages. *Take*: units are planned, submitted ahead, and answered (`UnitQueue`). *Account*:
the batch is counted. *Open*: the backend gives the batch. *Transfer*: it is moved, into pinned memory or to a device.
*Deliver*: the user's place moves on. A batch that is copied to a device ahead is opened and transferred before it is
taken. An epoch in process that needs no more than samples and collation takes the short path instead (`short_path`).

The file is long because an exception between two of these stages must leave the batch for the next `next()`.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from stoker import errors
from stoker._core import nominal
from stoker._core.exceptions import users_level
from stoker._core.interruption import tears
from stoker._core.worker_info import current
from stoker._engine.backend import NOT_PLAIN, Answer, Backend, Failure
from stoker._engine.process_guard import leave_if_left_behind
from stoker._engine.serial import SerialBackend
from stoker._engine.timings import BatchTimings
from stoker._engine.tracebacks import hide_own_frames
from stoker.device import pinning
from stoker.loader import torch_support
from stoker.loader._accounting import observer
from stoker.loader._accounting.accounting import Accounting
from stoker.loader._accounting.ledger import EventDispatcher
from stoker.loader._accounting.report import POOL, Report
from stoker.loader._epoch import epoch
from stoker.loader._epoch.plan import Step
from stoker.loader._job.work import TRIES
from stoker.loader.backends import new_backend
from stoker.loader.epoch_start import EpochStart
from stoker.loader.record import IteratedLoader, LoaderRecord, record_of
from stoker.loader.unit_queue import Prefetch, ShortPath, UnitQueue, short_path

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from stoker._engine.transport.reader import Lease
    from stoker.device.stage import DeviceStage
    from stoker.loader._options.loader_options import LoaderOptions


_ENDINGS = (
    errors.WorkerDiedError,
    errors.WorkerStartError,
    errors.ForkDeadlockError,
    errors.StalledError,
    errors.ErrorBudgetError,
    errors.EmptyBatchError,
)
"""Errors after which the epoch cannot continue."""


class LoaderIterator(nominal.iterator_base()):  # type: ignore[misc]  # the base is chosen at run time
    """Iterates over one epoch of a loader; made by `iter(loader)`.

    With persistent workers the loader keeps one iterator and restarts it for each epoch. Used by one thread at a time.
    The iterator ends its workers when its epoch is over (except persistent ones), when it is closed, dropped or
    garbage, and when the interpreter exits.

    Attributes:
        workers: the loader's number of workers when the iterator was made; a change of it needs another iterator.
    """

    def __init__(self, loader: IteratedLoader) -> None:
        self._owner = os.getpid()
        self._outside = current.rng  # another loader's, if this loader is part of its dataset
        self.workers = loader.num_workers
        record = record_of(loader)
        first, record.goes_on = not record.goes_on, False
        self._follow(loader, record, first)
        options = self._options
        self._pins = pinning.can_pin(options.pin_memory, options.pin_memory_device, options.output)
        self._timeout = float(options.timeout) if options.timeout else None
        self._meanwhile = options.num_workers > 0  # workers run while the user has a batch
        self._accounted: tuple[Answer, Step] | None = None  # about to be delivered
        self._why_closed = ""
        self._inside: dict[int, tuple[int]] = {}  # at 0, the thread that is in `next()`
        self._ledger = record.ledger
        self._dispatcher = EventDispatcher(record.ledger, options.on_event, record.told)
        self._accounts = Accounting(options, record.ledger, self._dispatcher)
        ahead = Prefetch(options, record.ledger)
        self._units = UnitQueue(options, record, ahead, self._dispatcher.steps, self._accounts)
        self._device: DeviceStage | None = None
        self._backend: Backend | None = self._new_backend(loader, options, record)
        self._rewind()
        self._start.draw_ahead()
        record.resumed = None  # last: if no iterator can be made, the loader keeps its place

    def suits(self, options: LoaderOptions) -> bool:
        """Returns whether its workers may serve these options. They transform batches, or leave that to the device; and
        where batches were moved, slots may be registered, of which the loop may have no view.
        """
        moved = self._options.moves_batches
        return moved == options.moves_batches or (not moved and options.batch_transform is None)

    def _rewind(self) -> None:
        """Prepares a new epoch, which begins with the first `next()`."""
        self._length_told = self._options.reported_length
        self._epoch: epoch.Epoch | None = None
        self._short: ShortPath | None = None
        self._early: BaseException | None = None  # met while a batch was looked for that was not asked for
        self._finished = False
        self._num_yielded = 0  # torch's name, read by some checkpoint code
        left = self._units.rewind(self._record, self._options.num_workers)
        for answer in left if self._accounted is None else [*left, self._accounted[0]]:
            self._discard(self._open_backend(), answer)
        self._accounted = None
        self._device = self._record.device_stage(self._options, self._pins)
        moves = self._device is not None or self._pins
        plain = not self._options.is_stream if self._meanwhile else self._length_told is None
        self._may_be_short = plain and not moves

    def _reset(self, loader: IteratedLoader, first_iter: bool = False) -> None:
        """Starts a new epoch on the same workers; units under way for the last epoch are dropped.

        Args:
            loader: the loader of the epoch.
            first_iter: unused; torch's iterators have it, so users' classes that wrap this one pass it.
        """
        self._open_backend().drop(self._units.submitted)
        try:
            record = record_of(loader)
            self._follow(loader, record, first=False)
        except BaseException as error:  # of a sampler, for example: the dropped units never arrive
            self._why_closed = f"{type(error).__name__} at the beginning of its next epoch closed this iterator"
            _before(error, self.close)
            raise
        self._rewind()
        self._start.draw_ahead()
        record.resumed = None

    def _follow(self, loader: IteratedLoader, record: LoaderRecord, first: bool) -> None:
        """Reads the loader's current options and the place at which the epoch begins."""
        self._record, self._options = record, record.options(loader)
        self._start = EpochStart(self._options, record, first)
        self._progress = self._start.progress

    def _new_backend(self, loader: IteratedLoader, options: LoaderOptions, record: LoaderRecord) -> Backend:
        auto = record.auto
        if auto is None:
            return new_backend(options, record, self._dispatcher, options.num_workers)
        workers = new_backend(options, record, self._dispatcher, auto.at_first(options))
        in_trainer = functools.partial(new_backend, record=record, dispatcher=self._dispatcher, workers=0)
        return auto.wrapped(workers, loader, options, in_trainer, self._dispatcher)

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return epoch.length_of(self._options)

    def __getstate__(self) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__} cannot be pickled: it belongs to this process. Send the loader, and call iter() "
            "there."
        )

    def __next__(self) -> Any:
        mine = (threading.get_ident(),)
        other = self._inside.setdefault(0, mine)
        if other is not mine and (other != mine or self._is_nested()):
            raise errors.IteratorBusyError(
                "next() is running already on this iterator, in another thread or because on_event calls it: let one "
                "thread take the batches, or hold a lock around next()."
            )
        try:
            if torch_support.is_on():
                return torch_support.recorded(self, self._observed_next)
            return self._next() if observer.current is None else self._observed_next()
        except BaseException as error:
            hide_own_frames(error, keep_first=True)
            raise
        finally:
            self._inside.clear()

    def _observed_next(self) -> Any:
        watching = observer.current
        return self._next() if watching is None else watching.next(self, LoaderIterator._next)

    def _is_nested(self) -> bool:
        """Returns whether a `next()` is below this one on the stack; otherwise one was interrupted as it left."""
        frame = sys._getframe(2)
        while frame.f_back is not None:
            if frame.f_code is LoaderIterator.__next__.__code__ and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False

    def _next(self) -> Any:
        if self._finished:
            raise StopIteration
        backend = self._backend or self._open_backend()
        asked = time.perf_counter()
        if (self._short is not None or self._may_be_short) and self._accounted is None:
            try:
                short = self._short or self._try_short(backend)
                batch = NOT_PLAIN if short is None else short(asked)
                if batch is not NOT_PLAIN:
                    self._num_yielded += 1
                    return batch
            except BaseException as error:
                self._heed(error, backend)
                raise
            self._short = short if self._meanwhile else None
        if self._early is not None:
            early, self._early = self._early, None
            self._heed(early, backend)
            raise early
        if self._device is not None:
            self._device.begin()
        if self._epoch is None:
            try:
                self._begin(asked)
            except BaseException as error:
                if self._epoch is not None:  # half begun
                    self._heed(error, backend)
                raise
        try:
            try:
                due = self._accounted_for(backend)
                batch = None if due is None or due[0].kind == "error" else self._opened(backend, *due)
            finally:
                counts, now = self._ledger.epoch, time.perf_counter()
                counts.waited += now - asked
                counts.until = now
            if due is not None:
                self._deliver(*due)
                if self._record.timing_sink is not None:
                    self._record.timing_sink(_timings(*due, asked, now))
                if due[0].kind == "batch":
                    return batch
        except BaseException as error:
            self._heed(error, backend)
            raise
        if due is not None:
            raise self._failed(due[0])  # no local name: with its traceback it would keep this iterator
        self._finish()
        raise StopIteration

    def _failed(self, answer: Answer) -> BaseException:
        """Returns the error of a unit for the user, behind what is guessed so far: the loop may end here."""
        error = _raised(answer.value)
        answer.value = None  # without workers, frames of its traceback have the answer: it would keep itself
        _before(error, self._units.flush_guesses)
        return error

    def _try_short(self, backend: Backend) -> ShortPath | None:
        """Returns the short path, if nothing of this epoch needs more; else None."""
        if self._epoch is None or (self._num_yielded > TRIES and self._num_yielded % TRIES):
            return None
        if self._meanwhile:
            self._short = self._units.within_runs(backend, self._ledger, self._dispatcher.later)
        elif self._units.is_idle:
            self._short = short_path(
                backend, self._epoch, self._ledger, self._accounts, self._dispatcher, self._progress
            )
        return self._short

    def _opened(self, backend: Backend, answer: Answer, step: Step) -> Any:
        try:
            if self._device is not None:
                opened = functools.partial(_with_lease, backend, answer)
                batch = self._device.take(answer.unit, self._known(answer, step), opened)
                self._copy_ahead(self._device, backend)
                return batch
            batch = backend.open(answer)
            return pinning.pin(batch) if self._pins else batch
        except Exception as error:  # of a class of the user's; the next call returns the next batch
            if self._device is not None and self._device.keeps(answer.unit):
                raise
            if not tears(error):
                self._forget_copy(answer)
                self._accounted = None
                self._accounts.not_opened(answer, step, error)
                self._received(answer, step)
            raise

    def _copy_ahead(self, device: DeviceStage, backend: Backend) -> None:
        """Begins to copy batches that are there and were not asked for. An error of theirs is for the next `next()`."""
        try:
            for answer, step in self._units.arrived(backend):
                if not device.has_room():
                    return
                if not device.has(answer.unit):
                    opened = functools.partial(_with_lease, backend, answer)
                    device.copy_ahead(answer.unit, self._known(answer, step), opened)
        except Exception as error:
            if tears(error):
                raise
            self._early = error

    def _known(self, answer: Answer, step: Step) -> dict[str, Any]:
        """Returns what a transform on the device gets to know of a batch: arguments of `BatchTransform`."""
        assert self._epoch is not None
        rows = range(step.position, step.position + step.stride * answer.report.samples, step.stride)
        seed, positions = answer.report.rows_at or (self._epoch.seed, rows)
        return {"seed": seed, "positions": positions, "epoch": self._epoch.number, "number": step.number}

    def _discard(self, backend: Backend, answer: Answer) -> None:
        """Frees the batch of an answer that is not delivered, opened or not."""
        if self._device is not None and self._device.has(answer.unit):
            self._device.drop(answer.unit)
        else:
            backend.discard(answer)

    def _forget_copy(self, answer: Answer) -> None:
        if self._device is not None:
            self._device.drop(answer.unit)

    def _deliver(self, answer: Answer, step: Step) -> None:
        """Counts a batch, or its error, as received by the user."""
        self._forget_copy(answer)
        self._accounted = None
        if answer.kind == "batch":
            self._num_yielded += 1
            if self._length_told is not None and self._num_yielded > self._length_told:
                self._warn_of_length(self._length_told)
        self._received(answer, step)  # last: an interrupt before this line leaves the batch undelivered

    def _received(self, answer: Answer, step: Step) -> None:
        """Moves the user's place past a batch or its error."""
        if self._options.is_stream:
            self._progress.streamed(answer.worker, answer.report, ended=False)
        else:
            self._progress.received(step.number)
            if answer.report.drawn:
                self._record.learn_drawn(answer.report.drawn)

    def _heed(self, error: BaseException, backend: Backend) -> None:
        """Cleans up before an exception reaches the user; `next()` may be called again afterwards."""
        current.rng = self._outside  # an interrupt without workers may skip its restoration
        if tears(error):
            self._why_closed = (
                f"{type(error).__name__} interrupted next() in the middle, so this iterator was closed: to go on with "
                "it might lose a batch. Nothing is lost: loader.load_state_dict(loader.state_dict()), and "
                "iter(loader) goes on with the batch that was due."
            )
            _before(error, self.close)
        elif isinstance(error, _ENDINGS):
            _before(error, self.close)
        elif isinstance(error, (OSError, ValueError)) and backend.is_closed:
            self._leave()
        elif isinstance(error, StopIteration):  # of a listener, a sampler, or a batch's own pin_memory()
            raise _raised(error) from error

    def _begin(self, asked: float) -> None:
        """Begins the epoch, at its first `next()`."""
        start = self._start
        start.obey_set_epoch()
        self._accounts.open()  # if it raises, the epoch has not begun
        begun = start.decided()
        self._accounts.begin(begun, self._options, asked)
        self._epoch = begun
        self._units.begin(self._options, begun, start.walked, start.progress, start.set_epoch)
        start.begun(begun)
        if self._options.is_stream and isinstance(self._backend, SerialBackend):
            start.progress.asks(self._backend.stream_state)
            self._backend.before_close(weakref.WeakMethod(start.progress.settle))
        if observer.current is not None and not self._options.is_stream:
            observer.current.plan(self, begun.plan, begun.place.ahead)

    def _leave(self) -> NoReturn:
        """Raises IteratorClosedError: another thread, or the interpreter's exit, ended the workers meanwhile."""
        leave_if_left_behind()
        raise errors.IteratorClosedError("the iterator was closed meanwhile: make a new one with iter(loader)")

    def _accounted_for(self, backend: Backend) -> tuple[Answer, Step] | None:
        """Returns the next answer for the user, accounted for, and its step; None at the end of the epoch."""
        while True:
            if self._accounted is None and not self._account(backend):
                return None
            if self._dispatcher.later:
                self._dispatcher.flush()  # if a listener raises, the next call delivers the batch
                self._open_backend()  # a listener may have closed the iterator
            due = self._accounted
            assert due is not None
            if due[0].kind != "empty":
                return due
            self._accounted = None
            self._received(*due)

    def _account(self, backend: Backend) -> bool:
        """Accounts for the next answer; returns False at the end of the epoch."""
        answer = self._units.take(backend, self._timeout)
        if answer is None:
            return False
        step = self._dispatcher.steps.pop(answer.unit)
        report, accounts = answer.report, self._accounts
        if answer.kind == "batch" and not report.faults:  # the common case, inlined for speed
            counts = accounts.counts
            counts.delivered += report.samples
            counts.batches += 1
            accounts.clean += report.samples
        else:
            try:
                accounts.deliver(answer, step)
            except errors.StokerError as error:
                self._discard(backend, answer)
                _before(error, self._dispatcher.flush)
                raise
        self._accounted = answer, step
        return True

    def _open_backend(self) -> Backend:
        if self._backend is None:
            why = self._why_closed or "the iterator is closed: make a new one with iter(loader)"
            raise errors.IteratorClosedError(why)
        return self._backend

    def _finish(self) -> None:
        self._finished = True
        self._progress.finish()
        try:
            self._accounts.close()
        finally:  # a listener may raise
            if not self._options.persistent_workers:
                self._release()
        self._units.flush_guesses()

    def close(self) -> None:
        """Ends the workers now, also persistent ones. Delivered batches stay valid. Idempotent.

        Takes some milliseconds, and at most a second if a worker is busy.
        """
        self._release()

    _shutdown_workers = close  # torch's private name, called by many scripts

    def _release(self) -> None:
        backend, self._backend = self._backend, None
        self._units.clear()
        self._accounted = None
        try:
            self._accounts.close()
        finally:  # a listener may raise
            if backend is not None:
                backend.close()
                if self._device is not None:
                    self._device.close()
        self._units.flush_guesses()

    @property
    def pool(self) -> dict[str, Any]:
        """Returns the use of the pool of workers that is shared with other ranks (`Report.pool`), or nothing."""
        use = None if self._backend is None else self._backend.pool_use()
        remote = self._options.remote
        return {} if use is None or remote is None else dict(zip(POOL, (remote.pool, *use), strict=True))

    def inspect(self, stacks: bool) -> tuple[dict[str, int], str | None]:
        """Returns the memory of this iterator's processes, in bytes by name, and their stacks if wanted."""
        backend = self._backend
        if backend is None:
            return {}, None
        sizes = {name: size for name, size in backend.memory().items() if size}
        return sizes, backend.stacks() if stacks else None

    @property
    def copies(self) -> dict[str, float]:
        """Returns the counts of the loader's copies to devices so far (`Report.copies`)."""
        return self._record.copies.as_dict()

    @property
    def machines(self) -> dict[str, Any]:
        """Returns what is known of other machines (`Report.elsewhere()`), or nothing."""
        return Report.of(self._ledger, pool=self.pool).elsewhere() if self._ledger.machines else {}

    @property
    def is_open(self) -> bool:
        """Returns whether the iterator still has its workers, and this process owns them."""
        return self._backend is not None and os.getpid() == self._owner

    def __enter__(self) -> Self:
        """Returns the iterator; the end of the `with` block closes it, also after an early exit from the loop."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _warn_of_length(self, reported: int) -> None:
        """Warns, as torch does, that an IterableDataset yields more than its length."""
        message = (
            f"Length of IterableDataset {self._options.dataset} was reported to be {reported}"
            f"(when accessing len(dataloader)), but {self._num_yielded} samples have been fetched. "
        )
        if self._options.num_workers > 0:
            message += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
            )
        warnings.warn(message, stacklevel=users_level())


def _with_lease(backend: Backend, answer: Answer) -> tuple[Any, Lease | None]:
    return backend.open(answer), backend.lease


def _raised(error: Any) -> BaseException:
    """Returns the error of a unit for the user; a StopIteration, which would end the epoch, as a RuntimeError."""
    if isinstance(error, Failure):
        error = error.rebuilt()
    if not isinstance(error, StopIteration):
        return error  # type: ignore[no-any-return]
    wrapped = RuntimeError(
        "code of yours (a sample, the collate_fn, a sampler, on_event) raised StopIteration, which would end the epoch "
        f"as if there were no more batches. Is there a next() without a default? {error}"
    )
    wrapped.__cause__ = error
    return wrapped


def _before(error: BaseException, call: Callable[[], None]) -> None:
    """Makes a call before `error` is raised. An exception of a listener becomes the context of `error`."""
    try:
        call()
    except Exception:
        raise error  # noqa: B904


def _timings(answer: Answer, step: Step, asked: float, now: float) -> BatchTimings:
    """Returns the times of a batch that was asked for then, and is there now."""
    report = answer.report
    kind, waited = answer.kind, now - asked
    return BatchTimings(answer.unit, step.number, report.samples, kind, asked, waited, report.timings, step.indices)
