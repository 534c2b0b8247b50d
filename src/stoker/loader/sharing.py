"""Who makes a batch: whether it may be gathered at once (`docs/design/08-gather-and-collation.md`), or several workers
may make it, each some of its rows (`docs/design/11-parts.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker import collate
from stoker.datasets.gather import UNKNOWN, foreseen
from stoker.datasets.nesting import batched_by

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader


AT_ONCE = 2
"""Units that workers share at a time: while the last rows of one are made, those who are free begin the next."""


def under_way(loader: DataLoader[Any], rows: int, workers: int) -> int:
    """Units of so many rows that may be under way where workers share each: they are as one, who is given the next
    before it is done. There are more where they have so few rows that there would not be work for all.
    """
    enough = -(-AT_ONCE * workers // max(1, rows))
    ahead = loader.prefetch_factor or 1
    return min(max(1, ahead * workers), max(enough, ahead + 1))


def gathers(loader: DataLoader[Any]) -> bool | None:
    """Whether batches are gathered; None where nobody knows before a worker has asked the user's dataset."""
    collated = collate.for_output(loader.collate_fn, loader.output)
    if loader._is_stream or not loader._auto_collation or not collate.is_default(collated):
        return False
    layout = foreseen(loader.dataset)
    return None if layout is UNKNOWN else collate.is_gathered(collated, layout)


def may_gather(loader: DataLoader[Any]) -> bool:
    """Whether batches are gathered, as far as that is known before a worker has tried."""
    return gathers(loader) is not False


def may_share(loader: DataLoader[Any]) -> bool:
    """Whether a batch may be made in parts: samples are fetched one by one, and collated by rows.

    Not with a function of the user's that has to see a whole batch (`collate_fn`, `__getitems__` also of a dataset
    within one of ours), where a worker has a state of its own (`worker_init_fn`, `seeding="worker"`), where a bad
    sample may be left out or replaced (`on_error`), where a worker's threads make several batches at once, or where
    batches are gathered, which is cheap.
    """
    return (
        loader._method == "process"
        and loader.num_workers > 1
        and loader._threads == 1
        and loader._auto_collation
        and not loader._is_stream
        and loader.worker_init_fn is None
        and loader.seeding != "worker"
        and loader.on_error == "raise"
        and collate.is_default(collate.for_output(loader.collate_fn, loader.output))
        and batched_by(loader.dataset) is None
        and not may_gather(loader)
    )
