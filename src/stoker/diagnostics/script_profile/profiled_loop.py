"""`ProfiledLoop`: a program's loop over one of its loaders, as its process sums it up."""

from __future__ import annotations

import threading
import weakref
from time import perf_counter
from typing import Any

from stoker.diagnostics.profile.batch_sums import BatchSums
from stoker.diagnostics.profile.held_batch import fresh, shared_part
from stoker.diagnostics.profile.loop_times import FEWEST, LoopTimes, held_steps
from stoker.diagnostics.profile.profile_session import ProfileSession
from stoker.diagnostics.recorder import EpochRecord


class ProfiledLoop:
    """The loop over all loaders of one line and one class of datasets.

    Attributes:
        site: the line that iterates.
        times: of the loop.
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
        self._workers = 0
        self._is_own = False

    def begin(self, loader: Any, engine: str, is_own: bool) -> None:
        """Begins an epoch.

        Args:
            loader: of the program.
            engine: under it.
            is_own: whether the loader is Stoker's, and no torch loader.
        """
        self.engine, self._is_own = engine, is_own
        self._dataset = getattr(loader, "dataset", None)
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
        profile = self.times.profile(self.sums, self._dataset, self._workers, samples)
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
        loop: that it belongs to.
        session: in the loader; None under torch's engine.
        begun: `iter(loader)` was called.
        end_use: tells the loader that the epoch is over.
        count: number of its batches.
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
    """The session in one loader, while some of its epochs are under way.

    Args:
        ours: Stoker's loader.
        loop: that it belongs to.
        stacks: whether the stacks of workers are sampled.
    """

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
