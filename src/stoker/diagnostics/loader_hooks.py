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
import weakref
from collections.abc import Callable, Iterator
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
        prepare: called with a loader, and with the line that iterates, before an epoch begins.
        detailed: whether the workers of the loaders are measured too, and the bytes of batches.
        order: notes which samples the batches hold; None for no notes.

    Attributes:
        faults: records the errors that loaders raise.
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
        self._made: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._early = 0.0  # seconds inside the sampler while an iterator is made

    def observe(self) -> None:
        """Measures the loaders of Stoker."""
        observe(self)

    def note_makers(self, module: str) -> None:
        """Notes the lines that make Stoker's loaders, once their module is imported."""
        self._replace(sys.modules[module].DataLoader, "__init__", self._noted_init)

    def measure(self, module: str) -> None:
        """Measures the loaders of an imported module of `MEASURED`. Idempotent."""
        self._modules.add(module)
        (home, iterators, method), loaders = MEASURED[module]
        kind = getattr(sys.modules[home], iterators)
        self._replace(getattr(sys.modules[module], loaders), "__iter__", self._measured_iter)
        self._replace(getattr(sys.modules[module], loaders), "__init__", self._noted_init)
        self._replace(kind, method, self._measured_method)
        if "_next_index" in vars(kind):
            self._replace(kind, "_next_index", self._timed_index)

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

    def _noted_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def noted_init(self_: Any, *args: Any, **settings: Any) -> None:
            original(self_, *args, **settings)
            with contextlib.suppress(TypeError):  # of a class whose objects have no hash
                self._made[self_] = _site(self_)

        return noted_init

    def _timed_index(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        clock, sample = time.perf_counter, self._recorder.sample
        noted = None if self._order is None else self._order.noted_index(MARK)

        @functools.wraps(original)
        def timed_index(self_: Any) -> Any:
            record: EpochRecord | None = self_.__dict__.get(MARK)
            begun = clock()
            try:
                indices = original(self_)
            except StopIteration:
                if noted is not None:
                    noted(self_, None)
                raise
            finally:
                if record is None:
                    self._early += clock() - begun
                else:
                    sample(record, clock() - begun)
            if noted is not None:
                noted(self_, indices)
            return indices

        return timed_index

    def iterate(self, loader: Any, begin: Callable[[Any], Any]) -> Any:
        """Measures `iter(loader)`."""
        if self._depth:
            return begin(loader)
        site, order = _site(), self._order
        self._early = 0.0
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
            record = self._recorder.begin(loader, site, begun, ready, engine, mark, self._maker(loader))
            if self._early:
                self._recorder.sample(record, self._early)
            if engine == "stoker":
                note_workers(self._recorder, loader, mark)
            vars(iterator)[MARK] = record
            if order is not None:
                order.begun(early, loader, iterator, record)
        return iterator

    def _maker(self, loader: Any) -> str | None:
        """Returns the line that made a loader; None if it is not known."""
        with contextlib.suppress(TypeError):
            return self._made.get(loader)
        return None

    def plan(self, iterator: Any, plan: Any, ahead: Any) -> None:
        """Measures the sampler of an epoch of Stoker's, and notes its samples."""
        record: EpochRecord | None = vars(iterator).get(MARK)
        if record is None:
            return
        time_plan(plan, functools.partial(self._recorder.sample, record))
        if self._order is not None and record.notes is not None:
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

        def note_totals(iterator: Any, loader: int) -> None:
            for name in ("copies", "machines"):
                if found := getattr(iterator, name, None):
                    recorder.note({"loader": loader, name: found})

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
                note_totals(self_, record.loader)
                raise
            except Exception as error:
                self.faults.raised(error, clock())
                raise
            finally:
                recorder.mark = outside
            got = clock()
            taken = getattr(self_, "_num_yielded", 1)
            if taken & (taken - 1) == 0:  # a loop may end no epoch
                note_totals(self_, record.loader)
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


def time_plan(plan: Any, add: Callable[[float], object]) -> None:
    """Gives `add` the seconds that a plan of Stoker's takes to tell the next indices: the sampler's time."""
    clock = time.perf_counter

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            begun = clock()
            try:
                return original(*args)
            finally:
                add(clock() - begun)

        return call

    for name in ("walk", "next", "upcoming", "advance"):
        if hasattr(plan, name):
            setattr(plan, name, timed(getattr(plan, name)))


class _SamplerClock(Observer):
    """Does what another observer does, and times the samplers of the epochs that begin."""

    def __init__(self, inner: Observer, add: Callable[[float], object]) -> None:
        self._add = add
        self.iterate, self.next, self.make, self.event = inner.iterate, inner.next, inner.make, inner.event  # type: ignore[method-assign]
        self._plan = inner.plan

    def plan(self, iterator: Any, plan: Any, ahead: Any) -> None:
        time_plan(plan, self._add)
        self._plan(iterator, plan, ahead)


@contextlib.contextmanager
def sampler_timed(add: Callable[[float], object]) -> Iterator[None]:
    """Gives `add` the seconds inside the samplers of those epochs of Stoker's loaders that begin meanwhile."""
    before = observe(None)
    observe(_SamplerClock(before or Observer(), add))
    try:
        yield
    finally:
        observe(before)


def _site(made: Any = None) -> str:
    """Returns the line of the user's program that iterates: "train.py:31"; else that of the nearest library.

    Args:
        made: in place of that, the line that makes this object is wanted: `__init__` of derived classes do not count.
    """
    frame: Any = sys._getframe(2)
    nearest: Any = None
    while frame is not None:
        file = frame.f_code.co_filename
        is_part = made is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is made
        if not file.startswith(_OURS) and not is_part:
            nearest = nearest or frame
            if not file.startswith((*_LIBRARIES, "<frozen")):
                nearest = frame
                break
        frame = frame.f_back
    return f"{os.path.basename(nearest.f_code.co_filename)}:{nearest.f_lineno}"


_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
