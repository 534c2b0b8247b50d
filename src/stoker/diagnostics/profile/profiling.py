"""`Profiling`: an epoch that is measured, and some steps on a held batch behind it."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from stoker.diagnostics.profile.held_batch import fresh
from stoker.diagnostics.profile.loop_times import LoopTimes, held_steps
from stoker.diagnostics.profile.profile_session import ProfileSession
from stoker.diagnostics.profile.profile_trace import ProfileTrace

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from stoker.diagnostics.profile.loader_profile import LoaderProfile
    from stoker.diagnostics.profile.stage_times import Durations


class Profiling:
    """Iterates over an epoch and measures it; made by `loader.profile()`. Used by one thread.

    The batches are those of `iter(loader)`, in its order. Behind them come copies of the second batch, `replay` times.
    The end, `close()`, `break` and the end of a `with` block end the workers; what was measured stays in `result`.

    Args:
        loader: of Stoker's.
        batches: number of batches of the epoch; None for all.
        replay: number of steps on the held batch; None for a fifth of `batches`, from 5 to 20, and none without it.
        end_workers: ends the persistent workers of the loader.
        stacks: whether the stacks of workers are sampled.
        trace: the file for the timeline; None for none.

    Raises:
        TypeError: one of these is no integer.
        ValueError: `batches` is less than 1, or `replay` less than 0.
        OSError: `trace` cannot be written.
    """

    def __init__(
        self,
        loader: Any,
        batches: int | None,
        replay: int | None,
        end_workers: Callable[[], None],
        stacks: bool = False,
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        batches = None if batches is None else operator.index(batches)
        replay = None if replay is None else operator.index(replay)
        if batches is not None and batches < 1:
            raise ValueError(f"profile(batches={batches}): at least 1 is needed, or None for the whole epoch")
        if replay is not None and replay < 0:
            raise ValueError(f"profile(replay={replay}): 0 or more steps can be run on a held batch")
        if replay is None:
            replay = 0 if batches is None else held_steps(batches)
        self._loader, self._limit, self._replay = loader, batches, replay
        self._trace = None if trace is None else ProfileTrace(trace)
        self._session = ProfileSession(loader, end_workers, stacks=stacks, trace=self._trace)
        self._finalize = weakref.finalize(self, self._session.end)
        self._finalize.atexit = False  # workers end by themselves there
        self._batches: Any = None
        self._phase = "new"  # then "epoch", "held" and "over"
        self._times = LoopTimes()
        self._given: float | None = None  # when the loop got its batch
        self._held: Any = None
        self._result: LoaderProfile | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        now = perf_counter()
        if self._phase == "epoch":
            self._step_over(self._times.step, now)
        elif self._phase == "held":
            self._step_over(self._times.held, now)
        elif self._phase == "over":
            raise StopIteration
        if self._phase == "new":
            self._session.begin()
            self._phase = "epoch"
            self._batches = iter(self._loader)
        elif self._phase == "epoch":
            self._session.sum_up()
            now = perf_counter()  # the sums count for nobody
        if self._phase == "epoch":
            if self._times.count != self._limit:
                try:
                    return self._next(now)
                except StopIteration:
                    pass
            self._end_epoch()
        if self._replays():
            batch = fresh(self._held)
            self._given = perf_counter()
            return batch
        self.close()
        raise StopIteration

    def _next(self, asked: float) -> Any:
        """Returns the next batch of the epoch."""
        self._session.is_inside = True
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception:
            self._received(asked)
            raise
        finally:
            self._session.is_inside = False
        self._received(asked)
        if self._times.count <= 2 and self._replay:
            self._held = fresh(batch)
            self._given = perf_counter()
        return batch

    def _received(self, asked: float) -> None:
        now = self._given = perf_counter()
        self._times.received(now - asked, begins=self._times.count == 0)

    def _step_over(self, steps: Durations, now: float) -> None:
        if self._given is not None:
            steps.add(now - self._given)
            self._given = None

    def _end_epoch(self) -> None:
        """Ends the workers: steps on the held batch have the machine to themselves."""
        if self._phase != "epoch":
            return
        self._phase = "held"
        self._times.end_steps()
        if self._trace is not None:
            self._trace.end(perf_counter())
        close = getattr(self._batches, "close", None)
        self._batches = None
        try:
            if close is not None:
                close()
        finally:
            self._session.end()

    def _replays(self) -> bool:
        """Returns whether there is one more step on the held batch."""
        return self._held is not None and self._times.wants_more(self._replay)

    def close(self) -> None:
        """Ends the profile now, and its workers. Idempotent."""
        if self._phase == "epoch":
            self._step_over(self._times.step, perf_counter())
            self._end_epoch()
        elif self._phase == "held":
            self._step_over(self._times.held, perf_counter())
        if self._phase == "held":
            self._times.end_held()
        self._phase, self._held = "over", None

    def __enter__(self) -> Self:
        """Returns the iterator; the end of the `with` block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def result(self) -> LoaderProfile:
        """Returns the measurements. Ends the profile if it has not ended, as after `break`."""
        self.close()
        if self._result is None:
            self._result = self._summed()
        return self._result

    def _summed(self) -> LoaderProfile:
        loader, session = self._loader, self._session  # num_workers="auto" may have found a number meanwhile
        return self._times.profile(session.sums, session.options.dataset, loader.num_workers)
