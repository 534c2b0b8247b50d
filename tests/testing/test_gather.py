"""The suite finds memory that is kept, in whatever form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.testing.gather import GatherSuite

ROWS = np.arange(15.0).reshape(5, 3)


class Keeping:
    """Keeps of each batch what `keep` makes of it."""

    stoker_protocol = True

    def __init__(self, layout: Any, keep: Callable[[Any], Any]) -> None:
        self.layout = layout
        self.keep = keep
        self.kept: list[Any] = []

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> Any:
        return ROWS[index]

    def gather_layout(self) -> Any:
        return self.layout

    def gather(self, indices: Any, out: Any) -> None:
        out[...] = out.new_tensor(ROWS[indices]) if hasattr(out, "new_tensor") else ROWS[indices]
        self.kept.append(self.keep(out))


@pytest.mark.parametrize("keep", [lambda out: out, lambda out: out[1:], lambda out: out.data, lambda out: out.view()])
def test_an_array_that_is_kept_is_found(keep: Any) -> None:
    with pytest.raises(AssertionError, match="or a view of it, is kept after the call"):
        GatherSuite().test_it_keeps_nothing(Keeping(ROWS[:0], keep))


@pytest.mark.parametrize(
    "keep", [lambda out: out, lambda out: out[1:], lambda out: out.detach(), lambda out: out.numpy()]
)
def test_a_tensor_that_is_kept_is_found(keep: Any) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(AssertionError, match="or a view of it, is kept after the call"):
        GatherSuite().test_it_keeps_nothing(Keeping(torch.empty((0, 3), dtype=torch.float64), keep))


@pytest.mark.parametrize("kind", ["array", "float64", "bfloat16"])
def test_copies_may_be_kept(kind: str) -> None:
    layout: Any = ROWS[:0]
    if kind != "array":
        torch = pytest.importorskip("torch")
        layout = torch.empty((0, 3), dtype=getattr(torch, kind))
    GatherSuite().test_it_keeps_nothing(Keeping(layout, lambda out: (out + 0, out.shape)))
