"""The default collation, compiled: the first batch says what samples look like, the later ones are not asked again.

It gives what the general path gives, bit for bit, and raises what that raises: a batch that does not fit the plan is
collated by the general path. See `docs/design/08-gather-and-collation.md`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.collate import default, memory, registry
from stoker.collate.early import MISFITS, WORTH, Keep, Keeper
from stoker.collate.plan import Node, plan_of
from stoker.errors import MemoryLimitError

_PATIENCE = 16
"""So many batches may deviate before it matters whether most do."""


class Compiled:
    """The default collation for batches of one dataset. Not thread safe: one for each worker.

    Args:
        output: which kind of leaves.
    """

    def __init__(self, output: registry.Output | None) -> None:
        self._output = output
        self._fn_map: Mapping[registry.Key, registry.CollateFn] | None = None
        self._plan: Node | None = None
        self._fitted = 0
        self._deviated = 0
        self._runs: Node | None = None  # the plan for runs of rows
        self._begun: float | None = None  # when the samples were, if that matters
        self._is_early = False  # whether samples are so slow, and have memory of their own
        self._early: Node | None = None  # whose rows are being written as the samples come
        self._keeper: Keeper | None = None
        self._misfits = 0  # batches of which one could not be

    def begin(
        self, count: int, lender: memory.Lender | None, travels: bool = False, run_of: int | None = None
    ) -> Keep | None:
        """Samples are about to be made, at most so many: for one batch, or for a run of its rows.

        Args:
            count: of samples.
            lender: gives the memory of the batch.
            travels: whether the batch is handed over to another process.
            run_of: of how many rows they are a run, which `rows` will collate.

        Returns:
            What each is to be given to as soon as it is made, with its place; None where that is not worth it.
        """
        plan = self._plan if run_of is None else self._runs
        if plan is None or not plan.large or count < 2:
            self._begun = None
            return None
        self._begun = time.perf_counter()
        if not self._is_early:
            return None
        self._early, self._keeper = plan, Keeper(plan, count, lender, (run_of or count) if travels else 0)
        return self._keeper

    def end(self) -> None:
        """What `begin` began is over: nobody here looks at the batch's memory any more."""
        early, self._early, self._keeper = self._early, None, None
        if early is not None:
            early.end()

    def _look(self, plan: Node, samples: Sequence[Any]) -> None:
        """Finds out whether the next samples are to be written as they come."""
        if self._begun is None:
            return
        since, self._begun = self._begun, None
        is_slow = time.perf_counter() - since > WORTH * len(samples)
        if self._keeper is None:
            self._is_early = is_slow and self._misfits < MISFITS and plan.is_apart(samples)
        else:
            self._misfits += self._keeper.is_over
            self._is_early = is_slow and not self._keeper.is_over

    def __call__(self, batch: Sequence[Any]) -> Any:
        """Collates samples into a batch."""
        leaves = registry.leaves_for(self._output)
        fn_map = registry.functions(leaves)
        if fn_map is not self._fn_map:
            self._plan = self._runs = None
        if self._plan is not None:
            try:
                self._look(self._plan, batch)
                made = self._plan.make(self._plan.check(batch))
                self._fitted += 1
                return made
            except MemoryLimitError:
                raise
            except Exception:  # whatever it is: the general path gives the batch, or the error to read
                self._plan = None
                self._deviated += 1
        whole = default.collated_by(batch, fn_map)
        self._fn_map = fn_map
        if self._deviated < _PATIENCE or self._deviated < self._fitted:
            self._plan = plan_of(batch[0], fn_map, leaves)
        return whole

    def rows(self, run: Sequence[Any]) -> Any:
        """Collates a run of the samples of a batch whose rows are joined later; None where it has other than rows.

        Raises:
            Exception: the samples do not go together, or are not like those before: the whole batch is to be collated.
        """
        leaves = registry.leaves_for(self._output)
        fn_map = registry.functions(leaves)
        if self._runs is None or fn_map is not self._fn_map:
            self._runs, self._fn_map, self._plan = plan_of(run[0], fn_map, leaves, in_runs=True), fn_map, None
        if not self._runs.by_rows:
            return None
        try:
            self._look(self._runs, run)
            return self._runs.make(self._runs.check(run))
        except Exception:
            self._runs = None
            raise
