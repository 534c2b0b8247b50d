"""Limits the number of units of an epoch that are under way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker._engine.backend import Backend
from stoker._engine.supervision.split_policy import COMPARISONS, SplitPolicy, is_trial
from stoker.datasets.nesting import prefers_whole_batches
from stoker.loader._epoch import gather_or_split

if TYPE_CHECKING:
    from stoker.loader._accounting.ledger import Ledger
    from stoker.loader._options.loader_options import LoaderOptions


class Prefetch:
    """The number of units under way: `prefetch_factor` for each worker, and fewer if workers share each unit.

    Args:
        options: of the loader.
        ledger: what workers of earlier epochs spent on samples, and those of this one on batches in parts.
    """

    def __init__(self, options: LoaderOptions, ledger: Ledger) -> None:
        self._options, self._ledger = options, ledger
        self._rows = options.batch_size or options.num_workers  # of the latest unit
        self._reckon(options.num_workers)
        self._shares = gather_or_split.may_share(options)
        self._prefers_whole = self._shares and prefers_whole_batches(options.dataset)
        self._is_whole = False  # the latest unit
        self._are_shared = False  # whether workers share units, as far as is known
        self._most_at_first = self._until_known(options, ledger.row_seconds)

    def _reckon(self, workers: int) -> None:
        self._workers = workers
        self._most = max(1, (self._options.prefetch_factor or 1) * workers)
        self._most_if_shared = gather_or_split.under_way(self._options, self._rows, workers)

    def rows(self, step_indices: Any) -> int:
        """Returns the rows of a unit that workers may share; 0 if one worker makes the whole unit."""
        keeps_whole = self._prefers_whole or self._ledger.dearer >= COMPARISONS
        ascends = self._shares and (keeps_whole or self._are_shared) and gather_or_split.ascends(step_indices)
        self._is_whole = keeps_whole and ascends
        if self._is_whole or (ascends and self._is_trial()):
            return 0
        rows = len(step_indices) if self._shares else 0
        if rows != self._rows and rows:
            self._rows, self._most_if_shared = rows, gather_or_split.under_way(self._options, rows, self._workers)
        return rows

    def _is_trial(self) -> bool:
        number, self._ledger.ascending = self._ledger.ascending, self._ledger.ascending + 1
        return is_trial(number, self._workers, self._ledger.dearer)

    def most(self, backend: Backend) -> int:
        """Returns the number of units that may be under way: fewer if workers share each."""
        self._are_shared = backend.shares is True
        if backend.grown > self._workers:
            self._reckon(backend.grown)
        if not self._shares or self._is_whole:
            return self._most
        shares = backend.shares
        if shares is None:
            return self._most_at_first
        return self._most_if_shared if shares else self._most

    @staticmethod
    def has_room(most: int, under_way: int, ready: int) -> bool:
        """Returns whether to submit units now. Waking the workers is the trainer's largest cost for a batch: while
        all units under way are ready, the trainer submits several at once.

        Args:
            most: units that may be under way.
            under_way: units that are under way, with the ready ones.
            ready: units that are ready.
        """
        return under_way < most and (under_way * 2 <= most or ready < under_way)

    def _until_known(self, options: LoaderOptions, cost: float | None) -> int:
        """Returns the units under way until the first answers show whether units are shared.

        The cost of a sample in the last epoch shows it earlier; without that cost each worker can have a unit. More
        units would occupy memory that shared units do not need.
        """
        rows = options.batch_size
        if cost is None or rows is None:
            return min(self._most, max(self._most_if_shared, options.num_workers))
        return self._most_if_shared if SplitPolicy(options.num_workers, cost).share(rows, rows) < rows else self._most
