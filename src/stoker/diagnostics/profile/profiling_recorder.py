"""`ProfilingRecorder` profiles loops of a program from inside, and ends it once there is enough.

The hooks that call it are in the process before the user's script: what imports torch, or needs it, is imported as the
first loader is iterated over.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

from stoker._core.protocol import asked
from stoker.diagnostics.loader_hooks import MARK, LoaderHooks
from stoker.diagnostics.profile.batch_sums import BatchSums
from stoker.diagnostics.profile.profile_session import ProfileSession
from stoker.diagnostics.profile.profiling import FEWEST, LoopTimes, fresh, held_steps, shared_part, wait_too
from stoker.diagnostics.recorder import EpochRecord, Recorder, sampler_of, samples_in, say
from stoker.diagnostics.settings.batch_limit import EnoughBatches, ProfileOrder

WRITTEN = 0.5
"""Seconds between two versions of the profiles: a process that is killed loses everything after the last one."""

SHARE = 0.02
"""Share of the time that writing them may take."""


LIBRARIES = ("torch.utils.data.", "torchdata.", "stoker.", "builtins.")
"""Modules whose samplers tell their length without a side effect."""


class ProfilingRecorder(Recorder):
    """A recorder that profiles all loaders, and ends the program once one has given enough batches."""

    def __init__(self, folder: str, order: ProfileOrder) -> None:
        self._order = order
        super().__init__(folder)

    def _begin(self) -> None:
        super()._begin()
        self._loops: dict[tuple[str, str], ProfiledLoop] = {}
        self._uses: weakref.WeakKeyDictionary[Any, LoaderUse] = weakref.WeakKeyDictionary()
        self._enough = False
        self._due = 0.0

    def prepare(self, loader: Any, site: str) -> None:
        """Arranges for the times of the batches, before `iter(loader)`.

        Raises:
            EnoughBatches: there is enough.
        """
        self._end_if_enough()
        ours = sys.modules["stoker"].loader_of(loader)
        if ours is None:
            self._uses.pop(loader, None)
            return
        use = self._uses.get(loader)
        if use is None or use.ours() is not ours:
            use = self._uses[loader] = LoaderUse(ours, self._loop(loader, site), self._order.stacks)
        use.begin()

    def begin(
        self, loader: Any, site: str, begun: float, ready: float, engine: str = "torch", *_: object
    ) -> EpochRecord:
        """Records that an epoch has begun. Of its arguments in a more detailed record it needs none."""
        record = super().begin(loader, site, begun, ready, engine)
        loop, use = self._loop(loader, site), self._uses.get(loader)
        loop.begin(loader, engine, is_own=use is not None and use.ours() is loader)
        epoch = ProfiledEpoch(record, loop, None if engine == "torch" else use, begun)
        if self._order.site in (None, site):
            epoch.plan(self._order.batches, _length(loader))
        return epoch

    def sample(self, record: EpochRecord, seconds: float) -> None:
        """Counts time inside the sampler."""
        if isinstance(record, ProfiledEpoch):
            record.loop.times.sample(seconds)

    def next_batch(self, epoch: ProfiledEpoch, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """Returns the next batch of a loader, or a copy of the held one.

        Raises:
            EnoughBatches: there is enough.
        """
        epoch.step_over(perf_counter())
        self._end_if_enough()
        if epoch.holds_from is not None and epoch.count >= epoch.holds_from:
            return self._held(epoch, iterator)
        session = epoch.session
        asked = perf_counter()
        began = asked if epoch.count else epoch.begun
        if session is not None:
            session.is_inside = True
        try:
            batch = original(iterator)
        except StopIteration:
            self._epoch_over(epoch, asked)
            raise
        except Exception:
            self._received(epoch, perf_counter() - began, 0)
            epoch.give()
            raise
        finally:
            if session is not None:
                session.is_inside = False
        got = perf_counter()
        samples = samples_in(batch, epoch.single)
        self._received(epoch, got - began, samples)
        self.batch(epoch, asked, got, samples)
        epoch.loop.hold(batch)
        epoch.give()
        return batch

    def _received(self, epoch: ProfiledEpoch, seconds: float, samples: int) -> None:
        epoch.loop.received(seconds, samples, begins=epoch.count == 0)
        epoch.count += 1
        if epoch.session is not None:
            epoch.session.sum_up()

    def _epoch_over(self, epoch: ProfiledEpoch, asked: float) -> None:
        epoch.end_use()
        epoch.loop.sums.end_epoch()
        self.end(epoch, asked, perf_counter())

    def _held(self, epoch: ProfiledEpoch, iterator: Any) -> Any:
        """Returns a copy of the held batch, until there were enough of them."""
        loop = epoch.loop
        if not epoch.is_holding:
            loop.is_over = True
            wait_too(loop.times.step)
            if not loop.is_held:
                self._end()
            self.flush()  # the program is known to have given enough, whatever comes of the held batches
            epoch.is_holding = True
            _end_workers(iterator)
        if not loop.times.wants_more(epoch.replay):
            wait_too(loop.times.held)
            self._end()
        batch = loop.copy()
        epoch.give()
        return batch

    def _end(self) -> None:
        self._enough = True
        self._lines.append({"enough": perf_counter()})
        self._end_if_enough()

    def _end_if_enough(self) -> None:
        if self._enough:
            self.flush()
            raise EnoughBatches(0)

    def flush(self, now: float | None = None) -> None:
        """Writes all records, and the profiles from time to time; without `now`, these too."""
        super().flush(now)
        begun = perf_counter()
        if self._loops and not self._is_off and (now is None or begun >= self._due):
            self._write()
            self._due = begun + max(WRITTEN, (perf_counter() - begun) / SHARE)

    def forget(self) -> None:
        """Drops the program's objects, at its exit: a file among its variables is flushed when nothing refers to it."""
        self._loops.clear()
        self._uses.clear()

    def _write(self) -> None:
        path = os.path.join(self._order.folder, f"{self._pid}.json")
        try:
            with open(f"{path}.part", "w", encoding="utf-8") as file:
                profiles = [loop.as_dict() for loop in self._loops.values() if loop.times.count]
                json.dump({"rank": os.environ.get("RANK"), "loops": profiles}, file)
            os.replace(f"{path}.part", path)
        except OSError as error:
            self._is_off = True
            say(f"stoker profile: process {self._pid} is no longer profiled: {error}")

    def _loop(self, loader: Any, site: str) -> ProfiledLoop:
        key = site, type(getattr(loader, "dataset", None)).__name__
        if key not in self._loops:
            self._loops[key] = ProfiledLoop(site)
        return self._loops[key]


class ProfilingHooks(LoaderHooks):
    """The hooks of a process whose loaders are profiled."""

    def __init__(self, recorder: ProfilingRecorder) -> None:
        self._profiling = recorder
        super().__init__(recorder, recorder.prepare)

    def _measured_next(self) -> Callable[[Any, Callable[[Any], Any]], Any]:
        recorder = self._profiling

        def profiled_next(self_: Any, original: Callable[[Any], Any]) -> Any:
            epoch: ProfiledEpoch | None = vars(self_).get(MARK)
            if epoch is None:  # made by other means than iter(loader)
                return original(self_)
            try:
                return recorder.next_batch(epoch, self_, original)
            except StopIteration:
                vars(self_).pop(MARK, None)
                raise

        return profiled_next


def _length(loader: Any) -> int | None:
    """Returns the number of batches of an epoch, or None.

    A stream warns if its length is asked for, and a sampler of the user's may draw random numbers for it, which would
    change the samples that follow: neither is asked.
    """
    try:
        if getattr(loader, "_dataset_kind", 0) == 1 or not _is_library(type(loader).__len__):
            return None
        sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        while sampler is not None:
            if not _is_library(type(sampler)):
                return None
            sampler = asked(sampler, "sampler")  # of a batch sampler
        return len(loader)
    except Exception:  # of the user's dataset
        return None


def _is_library(made: Any) -> bool:
    """Returns whether a class or function is torch's, Stoker's, or Python's own, as a list of batches is."""
    return f"{made.__module__}.".startswith(LIBRARIES)


def _end_workers(iterator: Any) -> None:
    end = getattr(iterator, "close", None) or getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()


class ProfiledLoop:
    """The loop over all loaders of one line and one class of datasets.

    Attributes:
        sums: of the batches; empty under torch's engine.
        engine: "torch" or "stoker".
        inferred: why no step is run on a held batch; None if nothing speaks against it.
        is_over: whether enough batches were measured.
    """

    def __init__(self, site: str) -> None:
        self.site = site
        self.times = LoopTimes()
        self.sums = BatchSums()
        self.engine = "torch"
        self.inferred: str | None = None
        self.is_over = False
        self._samples = 0
        self._batch: Any = None  # the held one
        self._dataset: Any = None
        self._sampler: str | None = None
        self._workers = 0
        self._is_own = False

    def begin(self, loader: Any, engine: str, is_own: bool) -> None:
        """Begins an epoch.

        Args:
            is_own: whether the loader is Stoker's, and no torch loader.
        """
        self.engine, self._is_own = engine, is_own
        self._dataset, self._sampler = getattr(loader, "dataset", None), sampler_of(loader)
        self._workers = int(getattr(loader, "num_workers", 0) or 0)

    def received(self, seconds: float, samples: int, begins: bool) -> None:
        """Counts a batch, or an error."""
        self.times.received(seconds, begins)
        self._samples += samples

    def hold(self, batch: Any) -> None:
        """Keeps a copy of the second batch, or of the first one until there is a second, if it can be copied."""
        if self.times.count > 2 or self.inferred is not None:
            return
        if threading.current_thread() is not threading.main_thread():
            self.inferred = "the program takes its batches in a thread, and trains on them in another one"
        elif (part := shared_part(batch)) is not None:
            self.inferred = f"a batch holds an object ({part}) of which no copy can be made safely"
        else:
            self._batch = fresh(batch)

    def copy(self) -> Any:
        """Returns a copy of the held batch."""
        return fresh(self._batch)

    @property
    def is_held(self) -> bool:
        """Returns whether there is a batch to be held."""
        return self._batch is not None and self.inferred is None

    def as_dict(self) -> dict[str, Any]:
        """Returns the profile of the loop as plain JSON values."""
        samples = self._samples if self.engine == "torch" else None
        profile = self.times.profile(self.sums, self._dataset, self._workers, samples, self._sampler)
        return {
            "site": self.site,
            "engine": self.engine,
            "is_own": self._is_own,
            "waited": self.times.waited,
            "is_over": self.is_over,
            "inferred": self.inferred,
            "profile": profile.as_dict(),
        }


class ProfiledEpoch(EpochRecord):
    """An epoch under way that is profiled.

    Attributes:
        session: in the loader; None under torch's engine.
        begun: `iter(loader)` was called.
        end_use: tells the loader that the epoch is over.
        given: when the loop got the last one; None before it and after the step.
        holds_from: number of batches of the epoch after which the steps on the held batch begin; None if this epoch
            does not reach the number of batches that are measured.
        is_holding: whether they have begun.
        replay: number of them at most.
    """

    __slots__ = ("begun", "count", "end_use", "given", "holds_from", "is_holding", "loop", "replay", "session")

    def __init__(self, record: EpochRecord, loop: ProfiledLoop, use: LoaderUse | None, begun: float) -> None:
        super().__init__(record.loader, record.epoch, record.single)
        self.loop = loop
        self.session = None if use is None else use.session
        self.end_use = _nothing if use is None else use.end
        self.begun = begun
        self.count = 0
        self.given: float | None = None
        self.holds_from: int | None = None
        self.is_holding = False
        self.replay = 0

    def plan(self, batches: int, length: int | None) -> None:
        """Decides where the steps on the held batch begin: inside the epoch, so that no program gets more batches.

        Args:
            batches: that are measured, of all epochs.
            length: number of batches of the epoch; None if it is unknown.
        """
        left = batches - self.loop.times.count
        self.replay = held_steps(batches)
        if length is None:
            self.holds_from = left
        elif left <= length:
            self.replay = min(self.replay, length // 2)
            self.holds_from = min(left, length - self.replay)
            if self.replay < FEWEST and self.loop.inferred is None:
                self.loop.inferred = f"an epoch has {length} batches, too few to hold one of them"
                self.holds_from = left

    def step_over(self, now: float) -> None:
        """Counts the step of the loop that ends now."""
        if self.given is not None:
            times = self.loop.times
            (times.held if self.is_holding else times.step).add(now - self.given)
            self.given = None

    def give(self) -> None:
        """Notes that the loop gets a batch now."""
        self.given = perf_counter()


class LoaderUse:
    """The session in one loader, while some of its epochs are under way."""

    def __init__(self, ours: Any, loop: ProfiledLoop, stacks: bool) -> None:
        self.ours = weakref.ref(ours)
        self.session = ProfileSession(ours, _nothing, loop.sums, stacks)
        self._under_way = 0

    def begin(self) -> None:
        """Begins an epoch."""
        self._under_way += 1
        self.session.begin()

    def end(self) -> None:
        """Ends an epoch."""
        self._under_way -= 1
        if not self._under_way:
            self.session.end()


def _nothing() -> None:
    """Ends no workers: each iterator of the loader was begun under the profile."""
