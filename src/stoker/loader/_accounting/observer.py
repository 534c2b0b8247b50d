"""The observer of a process: a tool that watches its loaders. Without one, the calls below cost nothing.

A tool derives a class from `Observer`, overrides the methods of its interest, and passes an object to `observe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.events import Event


class Observer:
    """Watches the loaders of a process.

    Most methods stand around a step of a loader: they take that step as a call, make it once, and return its result or
    let its exception pass. The methods are called in the process and the thread of the step. Forked workers have the
    observer of their parent; clean ones have none until code in them calls `observe`.
    """

    def iterate(self, loader: Any, begin: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        """Stands around `iter(loader)`: returns `begin(loader)`, the iterator."""
        return begin(loader)

    def plan(self, iterator: Any, plan: Any, ahead: Any) -> None:
        """Takes the plan of an epoch of samples with indices, which begins with the first `next()`.

        Args:
            iterator: of the epoch.
            plan: gives the steps. The observer may replace its `next`, `upcoming` and `advance` by functions around
                them.
            ahead: numbers of steps whose batches an earlier process delivered already.
        """

    def next(self, iterator: Any, take: Callable[[Any], Any]) -> Any:
        """Stands around `next(iterator)`: returns `take(iterator)`, the batch."""
        return take(iterator)

    def make(self, share: float, make: Callable[[], Any]) -> Any:
        """Stands around the fetching and collating of a unit, in a worker or without workers in the trainer: returns
        `make()`.

        Batches in process that need no more than samples and collation pass without a call.

        Args:
            share: of the batch's rows that the unit has; 1 for a whole batch.
        """
        return make()

    def event(self, event: Event) -> None:
        """Takes an event of a loader, after it is counted."""


current: Observer | None = None
"""The observer of this process."""


def observe(observer: Observer | None) -> Observer | None:
    """Makes an observer that of this process, or removes it; returns the one before."""
    global current
    before, current = current, observer
    return before
