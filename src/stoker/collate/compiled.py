"""The default collation, compiled: the first batch says what samples look like, the later ones are not asked again.

It gives what the general path gives, bit for bit, and raises what that raises: a batch that does not fit the plan is
collated by the general path. See `docs/design/08-gather-and-collation.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.collate import default, registry
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

    @property
    def is_by_rows(self) -> bool:
        """Whether the last batch was nothing but leaves with a row for each sample, as far as samples have shown."""
        return self._plan is not None and self._plan.by_rows

    def __call__(self, batch: Sequence[Any]) -> Any:
        """Collates samples into a batch."""
        leaves = registry.leaves_for(self._output)
        fn_map = registry.functions(leaves)
        if self._plan is not None and fn_map is self._fn_map:
            try:
                made = self._plan.make(self._plan.check(batch))
                self._fitted += 1
                return made
            except MemoryLimitError:
                raise
            except Exception:  # whatever it is: the general path gives the batch, or the error to read
                self._plan = None
                self._deviated += 1
        whole = default.collated_by(batch, fn_map)
        if self._deviated < _PATIENCE or self._deviated < self._fitted:
            self._plan, self._fn_map = plan_of(batch[0], fn_map, leaves), fn_map
        return whole
