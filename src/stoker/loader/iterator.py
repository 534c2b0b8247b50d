"""One iterator for all backends: plans units, keeps some ahead, puts answers in order, delivers."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from stoker import errors
from stoker._engine import ending, interruption
from stoker._engine.base import Answer, Backend, Failure
from stoker._worker_info import current
from stoker.device import pinning
from stoker.loader import epoch
from stoker.loader.accounts import Accounts
from stoker.loader.ahead import Ahead
from stoker.loader.job import Work
from stoker.loader.plan import Step
from stoker.loader.progress import Progress
from stoker.loader.resharding import reshared
from stoker.loader.state import START
from stoker.loader.walk import Walk
from stoker.loader.witness import Witness, users_level

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from stoker.loader.dataloader import DataLoader


_ENDINGS = (
    errors.WorkerDiedError,
    errors.WorkerStartError,
    errors.SickBirthError,
    errors.StalledError,
    errors.ErrorBudgetError,
    errors.EmptyBatchError,
)
"""What is raised when the epoch cannot go on."""


class LoaderIterator:
    """Iterates over one epoch of a loader; made by `iter(loader)`.

    With persistent workers the loader keeps one and starts it anew for each epoch. Used by one thread at a time. It
    ends its workers when its epoch is over (persistent ones excepted), when it is closed, dropped or garbage, and when
    the interpreter exits.

    Attributes:
        workers: the loader's number of them when it was made: another that is set later needs another iterator.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._owner = os.getpid()
        self._outside = current.info  # a worker's, where this is a loader within a dataset
        self.workers = loader.num_workers
        self._follow(loader)
        self._pin = pinning.can_pin(loader.pin_memory, loader.pin_memory_device, loader.output)
        self._timeout = float(loader.timeout) if loader.timeout else None
        self._ahead = Ahead(loader)
        self._in_order = loader.in_order or not loader.num_workers
        self._meanwhile = loader.num_workers > 0  # somebody works while the user has a batch
        self._submitted = 0  # number of the next unit; never starts anew, so that late answers are known as such
        self._answers: dict[int, Answer] = {}
        self._accounted: tuple[Answer, Step] | None = None  # about to be delivered
        self._why_closed = ""
        self._inside: dict[int, tuple[int]] = {}  # at 0, the thread that is in `next()`
        self._ledger = loader._ledger
        self._witness = Witness(loader._ledger, loader.on_event, loader._told)
        self._accounts = Accounts(loader, self._witness)
        self._backend: Backend | None = loader._new_backend(self._witness)
        self._rewind()
        loader._resumed = None  # only now: where no iterator comes of it, the loader keeps its place

    def _rewind(self) -> None:
        """Ready for a new epoch, which begins with the first `next()`."""
        self._length_told = self._loader._IterableDataset_len_called
        self._epoch: epoch.Epoch | None = None
        self._witness.steps.clear()
        self._planned_all = False
        self._sampler_error: BaseException | None = None
        self._finished = False
        self._num_yielded = 0  # torch's name: some who save where they stand read it
        self._outstanding = 0
        self._run = self._due = self._submitted
        for answer in [*self._answers.values(), *([] if self._accounted is None else [self._accounted[0]])]:
            self._open_backend().discard(answer)
        self._answers.clear()
        self._accounted = None

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Starts a new epoch on the same workers; what is under way for the last one is dropped.

        Args:
            loader: whose epoch it is.
            first_iter: what torch's iterators are told, and so classes of the user's that stand before ours.
        """
        self._open_backend().drop(self._submitted)
        try:
            self._follow(loader)
        except BaseException as error:  # a sampler's, say: what was dropped never comes
            self._why_closed = f"{type(error).__name__} at the beginning of its next epoch closed this iterator"
            _before(error, self.close)
            raise
        self._rewind()
        loader._resumed = None

    def _follow(self, loader: DataLoader[Any]) -> None:
        """Takes over the loader's settings as they are now, and where it is to begin."""
        place = loader._resumed or START
        if place.workers is not None:  # there may be other workers now than when it was loaded
            place = place._replace(workers=reshared(place.workers, max(1, loader.num_workers)))
        self._set_epoch = loader._epochs.announce(loader)
        self._loader = loader._snapshot()
        walked = not (loader._is_stream or epoch.is_computed(loader))
        self._walk = Walk(loader._index_sampler, loader.dataset, place) if walked else None
        self._replaces = loader.on_error != "raise" and loader.on_error != "skip"
        self._place = place if self._walk is None else self._walk.place
        self._progress = loader._progress = Progress(self._place, self._walk)

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return epoch.length_of(self._loader)

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
            return self._next()
        finally:
            self._inside.clear()

    def _is_nested(self) -> bool:
        """Whether a `next()` is below this one. If not, one was interrupted as it left."""
        frame = sys._getframe(2)
        while frame.f_back is not None:
            if frame.f_code is LoaderIterator.__next__.__code__ and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False

    def _next(self) -> Any:
        if self._finished:
            raise StopIteration
        backend = self._open_backend()
        asked = time.perf_counter()
        if self._epoch is None:
            self._begin(asked)
        try:
            try:
                due = self._delivered(backend)
                batch = None if due is None or due[0].kind == "error" else self._opened(backend, *due)
            finally:
                counts, now = self._ledger.epoch, time.perf_counter()
                counts.waited += now - asked
                counts.until = now
            if due is not None:
                self._accounted = None
                if due[0].kind == "batch":
                    self._num_yielded += 1
                    if self._length_told is not None and self._num_yielded > self._length_told:
                        self._warn_of_length(self._length_told)
                self._received(*due)  # last: who is interrupted before has not got it
                if due[0].kind == "batch":
                    return batch
        except BaseException as error:
            self._heed(error, backend)
            raise
        if due is not None:
            raise _raised(due[0].value)
        self._finish()
        raise StopIteration

    def _opened(self, backend: Backend, answer: Answer, step: Step) -> Any:
        try:
            batch = backend.open(answer)
            return pinning.pin(batch) if self._pin else batch
        except Exception as error:  # of a class of the user's; the next call gives the next batch
            if not interruption.tears(error):
                self._accounted = None
                self._accounts.not_opened(answer, step, error)
                self._received(answer, step)
            raise

    def _received(self, answer: Answer, step: Step) -> None:
        """The user has it, or its error."""
        if self._loader._is_stream:
            self._progress.streamed(answer.worker, answer.said.stream_state, ended=False)
        else:
            self._progress.received(step.number)

    def _heed(self, error: BaseException, backend: Backend) -> None:
        """What is to be done before an exception reaches the user, who may call `next()` again."""
        current.info = self._outside  # without workers it may be interrupted before it is set back
        if interruption.tears(error):
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
        elif isinstance(error, StopIteration):  # a listener's, a sampler's, a batch's own pin_memory()
            raise _raised(error) from error

    def _begin(self, asked: float) -> None:
        """The epoch is decided at its first `next()`, as in torch, also what is drawn for it from a generator."""
        epochs = self._loader._epochs
        if epochs.moved:  # by a `set_epoch` since `iter()`, as Lightning calls it
            self._set_epoch = epochs.announce(self._loader)
            if self._walk is None:
                self._place = START
            elif self._place.is_decided:
                self._walk = Walk(self._loader._index_sampler, self._loader.dataset, START)
                self._place = self._walk.place
        self._accounts.open()  # may raise: then the epoch has not begun, and no sampler has moved
        begun = epoch.begin(self._loader, self._walk, epochs.begun, self._place)
        self._accounts.begin(begun, self._loader, asked)
        self._epoch = begun
        epochs.begun += 1
        streams = max(1, self._loader.num_workers) if self._loader._is_stream else 0
        self._progress.begin(begun, self._walk, streams)

    def _leave(self) -> NoReturn:
        """The workers were ended while somebody waited for them: by another thread, or at the interpreter's end."""
        ending.leave_if_left_behind()
        raise errors.IteratorClosedError("the iterator was closed meanwhile: make a new one with iter(loader)")

    def _delivered(self, backend: Backend) -> tuple[Answer, Step] | None:
        """The next answer that the user is to see, accounted for, and its step; None at the end of the epoch."""
        while True:
            if self._accounted is None and not self._account(backend):
                return None
            if self._witness.later:
                self._witness.flush()  # what the user's listener raises costs no batch: it is the next
                self._open_backend()  # it may also have closed us
            due = self._accounted
            assert due is not None
            if due[0].kind != "empty":
                return due
            self._accounted = None
            self._received(*due)

    def _account(self, backend: Backend) -> bool:
        """Takes the next answer into account, if there is one."""
        answer = self._take(backend)
        if answer is None:
            return False
        step = self._witness.steps.pop(answer.unit)
        said, accounts = answer.said, self._accounts
        if answer.kind == "batch" and not said.faults:  # nearly all, and the trainer's own work is cold: no call
            counts = accounts.counts
            counts.delivered += said.samples
            counts.batches += 1
            accounts.clean += said.samples
        else:
            try:
                accounts.deliver(answer, step)
            except errors.StokerError as error:
                backend.discard(answer)
                _before(error, self._witness.flush)
                raise
        self._accounted = answer, step
        return True

    def _open_backend(self) -> Backend:
        if self._backend is None:
            why = self._why_closed or "the iterator is closed: make a new one with iter(loader)"
            raise errors.IteratorClosedError(why)
        return self._backend

    def _take(self, backend: Backend) -> Answer | None:
        """The next answer to deliver, in order of the units unless any order will do; None at the end of the epoch."""
        while True:
            if not self._outstanding and not self._answers:
                self._top_up(backend)
            if not self._outstanding and not self._answers:
                if self._sampler_error is not None:
                    error, self._sampler_error = self._sampler_error, None
                    raise error
                return None
            while (answer := self._ready()) is None:
                self._receive(backend)
                if self._due not in self._answers:
                    self._top_up(backend)  # one that comes before what has arrived is still waited for
            if answer.kind != "end":
                if self._meanwhile:  # else a sampler is walked no further than torch does: it may follow the training
                    try:
                        self._top_up(backend)
                    except BaseException:  # Ctrl-C in a sampler, say: the batch comes with the next call
                        self._answers[answer.unit] = answer
                        self._due -= self._in_order
                        raise
                return answer
            self._progress.streamed(answer.worker, answer.said.stream_state, ended=True)
            self._top_up(backend)

    def _ready(self) -> Answer | None:
        if not self._in_order and self._answers:
            return self._answers.pop(next(iter(self._answers)))
        answer = self._answers.pop(self._due, None)
        if answer is not None:
            self._due += 1
        return answer

    def _receive(self, backend: Backend) -> None:
        answer = backend.receive(self._timeout)
        self._outstanding -= 1
        self._answers[answer.unit] = answer
        assert self._epoch is not None
        self._epoch.plan.answered(answer.worker, answer.kind == "end")
        for note in answer.said.notes:  # last: a warning may be an error
            self._loader._tell_once(note)

    def _top_up(self, backend: Backend) -> None:
        """Plans and submits units until enough are under way. A sampler's error waits for its turn."""
        assert self._epoch is not None
        if self._planned_all:
            return
        most, waiting = self._ahead.most(backend), len(self._answers)
        if self._ahead.has_room(most, self._outstanding + waiting, backend.ready + waiting):
            self._plan(backend, most)
            backend.flush()

    def _plan(self, backend: Backend, most: int) -> None:
        assert self._epoch is not None
        plan, seed = self._epoch.plan, self._epoch.seed
        while self._outstanding + len(self._answers) < most:
            try:
                step = plan.next()
                mark = plan.mark()
                spares = plan.spares(step, seed) if self._replaces and step is not None else ()
            except Exception as error:
                if interruption.tears(error):
                    raise
                self._planned_all, self._sampler_error = True, error
                return
            if step is None:
                # A stream's plan goes on as long as a worker does; what it says now holds for ever
                self._planned_all = True
                if mark is not None:
                    self._progress.over(mark)
                return
            if mark is not None:
                self._progress.planned(step.number, mark)
            if step.number in self._place.ahead:  # delivered before the state was saved
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
            )
            rows = self._ahead.rows(step.indices)
            self._witness.steps[self._submitted] = step
            try:
                backend.submit(self._submitted, work, step.worker, rows)
            except errors.StokerError:
                raise
            except Exception as error:  # its indices cannot be sent
                if interruption.tears(error):
                    raise
                del self._witness.steps[self._submitted]
                self._planned_all, self._sampler_error = True, error
                return
            self._submitted += 1
            self._outstanding += 1

    def _finish(self) -> None:
        self._finished = True
        self._progress.finish()
        try:
            self._accounts.close()
        finally:  # a listener may raise
            if not self._loader.persistent_workers:
                self._release()

    def close(self) -> None:
        """Ends the workers now, also persistent ones. Batches that were delivered stay. Idempotent.

        Takes some milliseconds, and at most a second where a worker is busy.
        """
        self._release()

    _shutdown_workers = close  # torch's name, private, and called by many scripts that have no other way there

    def _release(self) -> None:
        backend, self._backend = self._backend, None
        self._answers.clear()
        self._accounted = None
        try:
            self._accounts.close()
        finally:  # a listener may raise
            if backend is not None:
                backend.close()

    def _inspect(self, stacks: bool) -> tuple[dict[str, int], str | None]:
        """Memory of the processes that work for this iterator, in bytes by name, and their stacks if wanted."""
        backend = self._backend
        if backend is None:
            return {}, None
        sizes = {name: size for name, size in backend.memory().items() if size}
        return sizes, backend.stacks() if stacks else None

    @property
    def is_open(self) -> bool:
        """Whether it still has its workers, and they are this process's."""
        return self._backend is not None and os.getpid() == self._owner

    def __enter__(self) -> Self:
        """`with` closes the iterator at its end, also where the loop is left early."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _warn_of_length(self, reported: int) -> None:
        """An IterableDataset that gives more than its length said, as torch warns of it."""
        message = (
            f"Length of IterableDataset {self._loader.dataset} was reported to be {reported}"
            f"(when accessing len(dataloader)), but {self._num_yielded} samples have been fetched. "
        )
        if self._loader.num_workers > 0:
            message += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
            )
        warnings.warn(message, stacklevel=users_level())


def _raised(error: Any) -> BaseException:
    """What a unit raised, as the user gets it. A StopIteration would pass for the end of the epoch."""
    if isinstance(error, Failure):
        error = error.rebuilt()
    if not isinstance(error, StopIteration):
        return error  # type: ignore[no-any-return]
    told = RuntimeError(
        "code of yours (a sample, the collate_fn, a sampler, on_event) raised StopIteration, which would end the epoch "
        f"as if there were no more batches. Is there a next() without a default? {error}"
    )
    told.__cause__ = error
    return told


def _before(error: BaseException, call: Callable[[], None]) -> None:
    """Calls it before this is raised. What a listener raises then is the error's context, and does not hide it."""
    try:
        call()
    except Exception:
        raise error  # noqa: B904
