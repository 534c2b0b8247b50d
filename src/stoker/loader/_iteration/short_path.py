"""The stages of a batch in few calls, for an epoch in process of which nothing else is asked.

A batch is then its collated samples: no unit is queued, no answer is opened or transferred. What the calls need is
looked up once for the epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoker._engine.backend import NOT_PLAIN, Backend
from stoker.loader._epoch.plan import BatchesPlan, ComputedPlan

if TYPE_CHECKING:
    from stoker.loader._accounting.accounting import Accounting
    from stoker.loader._accounting.event_dispatcher import EventDispatcher
    from stoker.loader._accounting.ledger import Ledger
    from stoker.loader._epoch.epoch import Epoch
    from stoker.loader._epoch.progress import Progress

ShortPath = Callable[[float], Any]
"""Returns the next batch, asked for at this time; `NOT_PLAIN`, with nothing changed, if it needs the other path."""


def short_path(
    backend: Backend, begun: Epoch, ledger: Ledger, accounts: Accounting, witness: EventDispatcher, progress: Progress
) -> ShortPath | None:
    """Returns the short path for the rest of an epoch; None if a batch needs more, or may still.

    Args:
        backend: makes the batches.
        begun: the epoch.
        ledger: counts the seconds that the training loop waits.
        accounts: counts the batches.
        witness: has the events that wait to be sent.
        progress: counts the batches that the user has received.
    """
    plan = begun.plan
    if not isinstance(plan, ComputedPlan | BatchesPlan) or begun.place.ahead:
        return None
    if (make := backend.plain(begun.seed, plan.place)) is None:
        return None
    counts, later, clock = accounts.counts, witness.later, time.perf_counter

    def next_batch(asked: float) -> Any:
        indices = plan.upcoming()
        if indices is None or later:
            return NOT_PLAIN
        batch = make(indices)
        if batch is NOT_PLAIN:
            return batch
        samples = len(indices)
        counts.delivered += samples
        counts.batches += 1
        accounts.clean += samples
        waits = ledger.epoch
        waits.until = now = clock()
        waits.waited += now - asked
        progress.received(plan.advance())
        return batch

    return next_batch
