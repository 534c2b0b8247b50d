"""Hooks that measure the loaders of a program from inside: torch's, torchdata's and Stoker's.

Stoker's loaders call the hooks as the observer of the process. Of torch's and torchdata's classes two methods are
replaced, that which begins an epoch and that which returns the next batch, by a wrapper that asks the clock before and
after. `LoaderHooks.undo` puts the methods back.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoker._core.protocol import is_ours
from stoker.diagnostics.recorder import SIZED, TOGETHER, EpochRecord, Recorder, bytes_in, counted_by_shape, samples_in
from stoker.diagnostics.worker_hooks import FaultHooks, WorkerHooks, note_workers, starting
from stoker.extend import Observer, observe

if TYPE_CHECKING:
    from stoker.diagnostics.composition.order_hooks import OrderHooks
    from stoker.events import Event

TORCHDATA = "torchdata.stateful_dataloader.stateful_dataloader"

MEASURED = {
    "torch.utils.data.dataloader": (("torch.utils.data.dataloader", "_BaseDataLoaderIter", "__next__"), "DataLoader"),
    # has an __iter__ of its own; its iterators are derived from torch's
    TORCHDATA: (("torch.utils.data.dataloader", "_BaseDataLoaderIter", "__next__"), "StatefulDataLoader"),
}
"""By the module of a class of loaders not ours: its class of iterators, with the method that returns a batch, and its
name."""

MARK = "_stoker_epoch"
"""The attribute of an iterator that holds its `EpochRecord`."""

_LIBRARIES = tuple({sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class LoaderHooks(Observer):
    """The hooks of this process.

    Args:
        recorder: is given what the loaders do.
        prepare: called with a loader, and with the line that iterates, before an epoch begins.
        detailed: whether the workers of the loaders are measured too, and the bytes of batches.
        order: notes which samples the batches hold; None for no notes.

    Attributes:
        faults: records the errors that loaders raise.
        workers: measures the making of batches, if the hooks are detailed.
    """

    def __init__(
        self,
        recorder: Recorder,
        prepare: Callable[[Any, str], None] | None = None,
        detailed: bool = False,
        order: OrderHooks | None = None,
    ) -> None:
        self._recorder = recorder
        self.faults = FaultHooks(recorder)
        self.workers = WorkerHooks(recorder) if detailed else None
        self._prepare = prepare
        self._order = order
        self._depth = 0  # of `iter()` calls that are measured: a loader may be made of another one
        self._replaced: list[tuple[type, str, Any]] = []
        self._modules: set[str] = set()
        self._next = self._measured_next()

    def observe(self) -> None:
        """Measures the loaders of Stoker."""
        observe(self)

    def measure(self, module: str) -> None:
        """Measures the loaders of an imported module of `MEASURED`. Idempotent."""
        self._modules.add(module)
        (home, iterators, method), loaders = MEASURED[module]
        self._replace(getattr(sys.modules[module], loaders), "__iter__", self._measured_iter)
        self._replace(getattr(sys.modules[home], iterators), method, self._measured_method)
        for kind, name, wrapper in () if self._order is None else self._order.of(module, MARK):
            self._replace(kind, name, wrapper)

    def measures(self, module: str) -> bool:
        """Returns whether the loaders of a module are measured."""
        return module in self._modules

    def undo(self) -> None:
        """Puts the classes' own methods back, unless another has replaced them since. Idempotent."""
        latest = observe(None)
        if latest is not self:
            observe(latest)
        for kind, name, original in reversed(self._replaced):
            if getattr(vars(kind).get(name), "__wrapped__", None) is original:
                setattr(kind, name, original)
        self._replaced.clear()
        self._modules.clear()

    def _replace(self, kind: type, name: str, wrapper: Callable[[Any], Any]) -> None:
        original = vars(kind)[name]
        if any(known[:2] == (kind, name) for known in self._replaced):
            return
        self._replaced.append((kind, name, original))
        setattr(kind, name, wrapper(original))

    def _measured_iter(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def measured_iter(self_: Any) -> Any:
            return self.iterate(self_, original)

        return measured_iter

    def _measured_method(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        measured_next = self._next

        @functools.wraps(original)
        def measured_method(self_: Any) -> Any:
            return measured_next(self_, original)

        return measured_method

    def iterate(self, loader: Any, begin: Callable[[Any], Any]) -> Any:
        """Measures `iter(loader)`."""
        if self._depth:
            return begin(loader)
        site, order = _site(), self._order
        if self._prepare is not None:
            self._prepare(loader, site)
        mark = None if self.workers is None else self._recorder.new_mark()
        begun = time.perf_counter()
        self._depth += 1
        try:
            with (
                contextlib.nullcontext() if mark is None else starting(mark),
                contextlib.nullcontext() if order is None else order.beginning(loader, site) as early,
            ):
                iterator = begin(loader)
        finally:
            self._depth -= 1
        if hasattr(iterator, "__dict__"):
            ready = time.perf_counter()
            engine = "stoker" if is_ours(type(iterator)) else "torch"
            record = self._recorder.begin(loader, site, begun, ready, engine, mark)
            if engine == "stoker":
                note_workers(self._recorder, loader, mark)
            vars(iterator)[MARK] = record
            if order is not None:
                order.begun(early, loader, iterator, record)
        return iterator

    def plan(self, iterator: Any, plan: Any, ahead: Any) -> None:
        """Notes the samples of an epoch of Stoker's."""
        record: EpochRecord | None = vars(iterator).get(MARK)
        if self._order is not None and record is not None and record.notes is not None:
            self._order.follow(plan, ahead, record.notes)

    def next(self, iterator: Any, take: Callable[[Any], Any]) -> Any:
        """Measures `next(iterator)`."""
        return self._next(iterator, take)

    def make(self, share: float, make: Callable[[], Any]) -> Any:
        """Measures the making of a batch, or of a part of it."""
        return make() if self.workers is None else self.workers.make(share, make)

    def event(self, event: Event) -> None:
        """Records a fault."""
        if self.workers is not None:
            self.faults.heed(event)

    def _measured_next(self) -> Callable[[Any, Callable[[Any], Any]], Any]:
        recorder, clock = self._recorder, time.perf_counter
        adds = type(recorder).batch is Recorder.batch  # else each batch is given to it

        def measured_next(self_: Any, original: Callable[[Any], Any]) -> Any:
            record: EpochRecord | None = self_.__dict__.get(MARK)
            if record is None:  # made by other means than iter(loader): no loader is known
                return original(self_)
            outside, recorder.mark = recorder.mark, record.mark
            asked = clock()
            try:
                batch = original(self_)
            except StopIteration:
                del vars(self_)[MARK]
                recorder.end(record, asked, clock())
                raise
            except Exception as error:
                self.faults.raised(error, clock())
                raise
            finally:
                recorder.mark = outside
            got = clock()
            first = batch[0] if type(batch) is list and batch else batch
            if type(first) is record.counted:
                try:
                    samples = first.shape[0]
                except Exception:  # a nested tensor, or one without dimensions
                    samples = samples_in(batch, False)
            else:
                samples = samples_in(batch, record.single)
                record.counted = None if record.single else counted_by_shape(first)
            span = recorder.open
            if adds and span is not None and got - span[2] < TOGETHER and span[0] == record.loader:
                span[3] = got  # as `Recorder.batch` does it: a call takes longer
                span[4] += 1
                span[5] += got - asked
                span[6] += samples
            else:
                recorder.batch(record, asked, got, samples)
            if record.sized < SIZED and record.mark is not None:
                recorder.size(record, bytes_in(batch))
            if record.notes is not None:
                record.notes.received(batch)
            return batch

        return measured_next


def _site() -> str:
    """Returns the line of the user's program that iterates: "train.py:31"; else that of the nearest library."""
    frame: Any = sys._getframe(2)
    nearest: Any = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_OURS):
            nearest = nearest or frame
            if not file.startswith((*_LIBRARIES, "<frozen")):
                nearest = frame
                break
        frame = frame.f_back
    return f"{os.path.basename(nearest.f_code.co_filename)}:{nearest.f_lineno}"


_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
