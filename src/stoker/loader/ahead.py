"""How many units of an epoch are under way while the user has a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker._engine.base import Backend
from stoker._supervision.cut import Cut
from stoker.loader import sharing

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader


class Ahead:
    """How many an iterator keeps under way: `prefetch_factor` for each worker, and fewer where workers share each.

    Args:
        loader: whose settings count.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader._snapshot()
        self._rows = loader.batch_size or loader.num_workers  # of the latest unit
        self._reckon(loader.num_workers)
        self._shares = sharing.may_share(loader)
        self._most_at_first = self._until_known(loader)

    def _reckon(self, workers: int) -> None:
        self._workers = workers
        self._most = max(1, (self._loader.prefetch_factor or 1) * workers)
        self._most_if_shared = sharing.under_way(self._loader, self._rows, workers)

    def rows(self, step_indices: Any) -> int:
        """Rows of a unit that workers may share; 0 of one that is one worker's."""
        rows = len(step_indices) if self._shares else 0
        if rows != self._rows and rows:
            self._rows, self._most_if_shared = rows, sharing.under_way(self._loader, rows, self._workers)
        return rows

    def most(self, backend: Backend) -> int:
        """Units that may be under way. Where workers share each, more of them need not be."""
        if backend.grown > self._workers:
            self._reckon(backend.grown)
        if not self._shares:
            return self._most
        shares = backend.shares
        if shares is None:
            return self._most_at_first
        return self._most_if_shared if shares else self._most

    @staticmethod
    def has_room(most: int, under_way: int, ready: int) -> bool:
        """Whether more is to be submitted now. To wake the workers costs the trainer more than all else that it does
        for a batch: while all that is under way lies ready, it is done for several batches at once.

        Args:
            most: units that may be under way.
            under_way: those that are, with those that lie ready.
            ready: those that lie ready.
        """
        return under_way < most and (under_way * 2 <= most or ready < under_way)

    def _until_known(self, loader: DataLoader[Any]) -> int:
        """Units under way until the first answers tell whether they are shared: what they take is then in use.

        What a sample cost the workers of the last epoch tells it before; else each worker can have a unit.
        """
        cost, rows = loader._ledger.row_seconds, loader.batch_size
        if cost is None or rows is None:
            return min(self._most, max(self._most_if_shared, loader.num_workers))
        return self._most_if_shared if Cut(loader.num_workers, cost).share(rows, rows) < rows else self._most
