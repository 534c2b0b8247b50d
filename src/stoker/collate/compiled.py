"""The default collation, compiled: the first batch says what samples look like, the later ones are not asked again.

It gives what the general path gives, bit for bit, and raises what that raises: a batch that does not fit the plan is
collated by the general path. See `docs/design/08-gather-and-collation.md`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from stoker.collate import default, memory, registry
from stoker.collate.early import MISFITS, Keep, Keeper, Opening, is_worth_it
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
        self._count = 0  # of samples in their batch
        self._is_early = False  # whether samples are so slow, and have memory of their own
        self._early: Node | None = None  # whose rows are being written as the samples come
        self._keeper: Keeper | None = None
        self._opening: Opening | None = None
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
        self._begun = time.perf_counter()
        self._count = run_of or count
        kept = partial(self._kept, count=count, lender=lender, travels=self._count if travels else 0)
        if count > 1 and (self._is_early if plan is not None and plan.large else plan is None and self._may_plan):
            self._opening = Opening(plan, partial(self._opened, in_runs=run_of is not None), kept)
            return self._opening
        if plan is None or not plan.large or count < 2:
            self._begun = None
        return None

    def end(self) -> None:
        """What `begin` began is over: nobody here looks at the batch's memory any more."""
        early, self._early, self._keeper, self._opening = self._early, None, None, None
        if early is not None:
            early.end()

    def _kept(self, plan: Node, count: int, lender: memory.Lender | None, travels: int) -> Keeper:
        self._early, self._keeper = plan, Keeper(plan, count, lender, travels)
        return self._keeper

    def _opened(self, first: Any, second: Any, seconds: float, in_runs: bool) -> Node | None:
        """The plan, if the first two samples and the time that the second took say that it is worth it."""
        if not self._may_plan:
            return None
        leaves = registry.leaves_for(self._output)
        fn_map = registry.functions(leaves)
        try:
            plan = plan_of(first, fn_map, leaves, in_runs)
            if not (plan.large and is_worth_it(seconds, plan.large, self._count) and plan.is_apart([first, second])):
                return None
        except Exception:  # whatever it is: the general path gives the batch, or the error to read
            return None
        if fn_map is not self._fn_map:
            self._plan = self._runs = None
        self._fn_map, self._is_early = fn_map, True  # also where there is no memory for this batch
        if in_runs:
            self._runs = plan
        else:
            self._plan = plan
        return plan

    @property
    def _may_plan(self) -> bool:
        return self._deviated < _PATIENCE or self._deviated < self._fitted

    def _look(self, plan: Node, samples: Sequence[Any]) -> None:
        """Finds out whether the next samples are to be written as they come."""
        if self._begun is None:
            return
        since, self._begun = self._begun, None
        keeper = self._keeper
        seconds = time.perf_counter() - since - (0.0 if keeper is None else keeper.seconds)
        is_slow = is_worth_it(seconds / len(samples), plan.large, self._count)
        if keeper is None:
            self._is_early = is_slow and self._misfits < MISFITS and plan.is_apart(samples)
        else:
            self._misfits += keeper.is_over
            self._is_early = is_slow and not keeper.is_over

    def _all(self, samples: Sequence[Any]) -> Sequence[Any]:
        """The samples, with what stands for the first; raises what was raised when there was no memory for them."""
        if self._keeper is not None:
            self._keeper.raise_refusal()
        opening = self._opening
        if opening is not None and opening.first is not None and samples and samples[0] is opening.first[0]:
            return [opening.first[1], *samples[1:]]
        return samples

    def __call__(self, batch: Sequence[Any]) -> Any:
        """Collates samples into a batch."""
        batch = self._all(batch)
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
        if self._may_plan:
            self._plan = plan_of(batch[0], fn_map, leaves)
        return whole

    def rows(self, run: Sequence[Any]) -> Any:
        """Collates a run of the samples of a batch whose rows are joined later; None where it has other than rows.

        Raises:
            Exception: the samples do not go together, or are not like those before: the whole batch is to be collated.
        """
        run = self._all(run)
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
