"""The interface of a field of a batch in a compiled collation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Node(Protocol):
    """One field of the samples, with the fields inside it.

    Attributes:
        by_rows: whether the field consists of leaves with a row for each sample only, so that runs of its rows can be
            made separately.
        large: bytes of a sample's rows that are large enough for early writing, with `begin`, `put`, `end` and
            `is_apart` (see `IncrementalLeaf`).
    """

    by_rows: bool
    large: int

    def check(self, column: Sequence[Any]) -> Any:
        """Returns the column taken apart; raises any exception if it does not fit. Allocates no memory."""

    def make(self, checked: Any) -> Any:
        """Returns the field of the batch, from the result of `check`."""

    def begin(self, count: int, travels: int) -> None:
        """Allocates the memory of the rows."""

    def is_like(self, value: Any) -> bool:
        """Returns whether `put` would accept a sample's large leaves; may raise if not. Allocates no memory."""

    def put(self, place: int, value: Any) -> Any:
        """Writes a sample's rows, and returns the value with rows in place of its large leaves."""

    def end(self) -> None:
        """Drops the memory."""

    def is_apart(self, column: Sequence[Any]) -> bool:
        """Returns whether the samples of a batch share no large leaf."""
