"""`in_step`: equal numbers of steps on ranks with unequal numbers of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from stoker.loader._epoch import epoch
from stoker.loader._state.schema import START
from stoker.loader.dataloader import DataLoader
from stoker.loader.record import record_of

T = TypeVar("T")


def in_step(loader: DataLoader[T]) -> Iterator[T | None]:
    """Yields a rank's batches, then None for each step that other ranks still have to take.

    For an evaluation with `distributed="exact"`, in which some ranks have one batch more: all ranks then call a
    collective operation (`all_reduce`, a gathering of predictions) equally often. The number of steps follows from the
    number of samples; the ranks do not communicate. In each step `loader.state_dict()` is the same on all ranks: a rank
    that has no batch left is in the epoch until the last step is done.

    Args:
        loader: divided among ranks by `distributed=`; of any other loader only its own batches are yielded.
    """
    record = record_of(loader)
    record.obey_set_epoch()
    steps = epoch.steps_of_all_ranks(record.options(loader), record.resumed)
    end = (record.resumed or START).batches + steps
    taken = 0
    for batch in loader:
        taken += 1
        yield batch
    progress, waits = record.progress, steps - taken
    for _ in range(waits):
        progress.waits(end)
        yield None
    if waits > 0:
        progress.finish()
