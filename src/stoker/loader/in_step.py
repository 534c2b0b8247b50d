"""Ranks that take equally many steps over unequally many batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from stoker.loader import epoch
from stoker.loader.dataloader import DataLoader

T = TypeVar("T")


def in_step(loader: DataLoader[T]) -> Iterator[T | None]:
    """Yields a rank's batches, then None for each step that other ranks still have to take.

    For an evaluation with `distributed="exact"`, in which some ranks have a batch more: whatever the ranks do together
    in a step (`all_reduce`, a gathering of predictions) is then called equally often by all. How many steps there are
    follows from the number of samples; nothing is communicated.

    Args:
        loader: shared out by `distributed=`; any other has only its own batches.
    """
    loader._obey_set_epoch()
    steps = epoch.steps_of_all_ranks(loader)
    taken = 0
    for batch in loader:
        taken += 1
        yield batch
    while taken < steps:
        taken += 1
        yield None
