"""The default collation, compiled: a plan made from the first batch replaces the type checks of later batches.

The results and errors are those of the general path, bit for bit: a batch that does not fit the plan is collated by the
general path. See `docs/design/08-gather-and-collation.md`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from stoker._core.interruption import tears
from stoker.collate import default, registry, tensors
from stoker.collate._compiled.collate_plan import plan_of
from stoker.collate._compiled.incremental import LOOKED_AT, MISFITS, Node, Probe, RowSink, SampleWriter, is_worth_it
from stoker.errors import MemoryLimitError

_PATIENCE = 16
"""Number of deviating batches up to which a plan is always made anew; beyond it, only if most batches fit."""


SMALL = 256
"""Samples up to which a batch whose leaves are below 16 KiB each (`incremental.LARGE`) takes only a few megabytes."""


class Compiled:
    """The default collation for batches of one dataset. Not thread safe: each worker has its own."""

    def __init__(self, output: registry.Output | None) -> None:
        self._output = output
        self._fn_map: Mapping[registry.Key, registry.CollateFn] | None = None
        self._plan: Node | None = None
        self._fitted = 0
        self._deviated = 0
        self._runs: Node | None = None  # the plan for runs of rows
        self._begun: float | None = None  # when the first sample was begun, if its time is to be measured
        self._count = 0  # of samples in their batch
        self._is_early = False  # whether samples are slow enough and have separate memory
        self._early: Node | None = None  # the plan whose rows are being written as samples arrive
        self._keeper: SampleWriter | None = None
        self._opening: Probe | None = None
        self._misfits = 0  # batches with a sample that did not fit its row

    def begin(
        self, count: int, lender: tensors.Lender | None, travels: bool = False, run_of: int | None = None
    ) -> RowSink | None:
        """Announces at most `count` samples, of one batch or of a run of its rows.

        Args:
            lender: gives the memory of the batch.
            travels: whether the batch is handed over to another process.
            run_of: rows of the whole batch, if the samples are a run of them that `rows` will collate.

        Returns:
            A function to call with each sample's place and the sample as soon as it is made; None if not worthwhile.
            For a run of rows, it raises the error if there is no memory for the batch.
        """
        plan = self._plan if run_of is None else self._runs
        self._begun = time.perf_counter()
        self._count = run_of or count
        is_run = run_of is not None
        writer = partial(self._kept, count=count, lender=lender, travels=self._count if travels else 0, strict=is_run)
        if count > 1 and (
            self._is_looked_at(plan) if plan is not None and plan.large else plan is None and self._may_plan
        ):
            opened = partial(self._opened, in_runs=is_run)
            self._opening = Probe(plan, opened, writer if self._is_early else None, writer)
            return self._opening
        if plan is None or not plan.large or count < 2:
            self._begun = None
        return None

    def end(self) -> None:
        """Ends the batch that `begin` announced: this object no longer refers to the batch's memory."""
        early, self._early, self._keeper, self._opening = self._early, None, None, None
        if early is not None:
            early.end()

    def _kept(self, plan: Node, count: int, lender: tensors.Lender | None, travels: int, strict: bool) -> SampleWriter:
        self._early, self._keeper = plan, SampleWriter(plan, count, lender, travels, strict)
        return self._keeper

    def _opened(self, first: Any, second: Any, seconds: float, in_runs: bool) -> Node | None:
        """Returns a plan if the first two samples, and the time of the second, make early writing worthwhile."""
        if not self._may_plan:
            return None
        leaves = registry.leaves_for(self._output)
        fn_map = registry.functions(leaves)
        try:
            plan = plan_of(first, fn_map, leaves, in_runs)
            if not (plan.large and is_worth_it(seconds, plan.large, self._count) and plan.is_apart([first, second])):
                return None
        except Exception as error:  # of any kind: the general path gives the batch, or a readable error
            if tears(error):
                raise
            return None
        if fn_map is not self._fn_map:
            self._plan = self._runs = None
        self._fn_map, self._is_early = fn_map, True  # even if there is no memory for this batch
        if in_runs:
            self._runs = plan
        else:
            self._plan = plan
        return plan

    def _is_looked_at(self, plan: Node) -> bool:
        """Whether the samples of a batch are looked at as they are made: to be written early, or because a batch of
        other samples than the last, far larger ones perhaps, has to be written early."""
        return self._is_early or plan.large >= LOOKED_AT

    @property
    def _may_plan(self) -> bool:
        return self._deviated < _PATIENCE or self._deviated < self._fitted

    def _look(self, plan: Node, samples: Sequence[Any]) -> None:
        """Decides whether the next samples are written as they arrive."""
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
        """Returns the samples, the first replaced by its row. Raises the error of a failed request for their memory."""
        if self._keeper is not None:
            self._keeper.raise_refusal()
        opening = self._opening
        if opening is not None and opening.first is not None and samples and samples[0] is opening.first[0]:
            return [opening.first[1], *samples[1:]]
        return samples

    @property
    def is_settled(self) -> bool:
        """Whether a plan is known and no rows are written before all samples have arrived."""
        return self._plan is not None and not (self._is_early and self._plan.large)

    def may_take(self, count: int, size: int) -> bool:
        """Returns whether a leaf of a batch of `count` samples may take `size` bytes, a few megabytes or more."""
        return self._plan is None or self._plan.large * count >= size or count > SMALL

    def settled(self, batch: Sequence[Any]) -> Any:
        """Returns the samples collated by the plan; None if they do not fit it or the plan is out of date."""
        if self._plan is None or registry.functions(registry.leaves_for(self._output)) is not self._fn_map:
            return None
        try:
            return self._plan.make(self._plan.check(batch))
        except Exception as error:  # of any kind: the general path gives the batch, or a readable error
            if tears(error):
                raise
            return None

    def __call__(self, batch: Sequence[Any]) -> Any:
        """Returns the samples collated into a batch."""
        batch = self._all(batch)
        leaves = registry.leaves_for(self._output)
        fn_map = registry.functions(leaves)
        if fn_map is not self._fn_map:
            self._plan = self._runs = None
        if self._plan is not None:
            try:
                self._look(self._plan, batch)
                collated = self._plan.make(self._plan.check(batch))
                self._fitted += 1
                return collated
            except Exception as error:  # of any kind: the general path gives the batch, or a readable error
                if isinstance(error, MemoryLimitError) or tears(error):
                    raise
                self._plan = None
                self._deviated += 1
        whole = default.collated_by(batch, fn_map)
        self._fn_map = fn_map
        if self._may_plan:
            self._plan = plan_of(batch[0], fn_map, leaves)
        return whole

    def rows(self, run: Sequence[Any]) -> Any:
        """Returns a run of a batch's rows, collated, to be joined later; None if it has other fields than rows.

        Raises:
            Exception: the samples do not fit together or the plan: the whole batch has to be collated by one worker.
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
