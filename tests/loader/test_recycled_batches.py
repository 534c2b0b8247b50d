"""Large batches of this process reuse the memory of earlier ones that are gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import collate
from stoker._engine.transport import owned

pytestmark = pytest.mark.skipif(not owned._COUNTS, reason="nobody counts references here")

ROWS = np.arange(40.0 * 512).reshape(40, 512)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches need not be large for it."""
    monkeypatch.setattr(owned, "LEAST", 1)


class Gathers(stoker.Dataset[Any]):
    stoker_protocol = True

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> Any:
        return ROWS[index]

    def gather_layout(self) -> Any:
        return ROWS[:0]

    def gather(self, indices: Any, out: Any) -> None:
        out[...] = ROWS[indices]


class Remembers:
    """A collator that gives the batch before with each."""

    def __init__(self) -> None:
        self.before: Any = None

    def __call__(self, samples: list[Any]) -> Any:
        before, self.before = self.before, collate.numpy_collate(samples)
        return self.before if before is None else before


WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "collated": lambda: {"dataset": list(ROWS)},
    "gathered": lambda: {"dataset": Gathers()},
    "padded": lambda: {"dataset": list(ROWS), "collate_fn": stoker.PadCollator()},
    "by threads": lambda: {"dataset": list(ROWS), "num_workers": 2, "worker_method": "thread"},
}


def rows(batch: Any) -> Any:
    return batch.values if isinstance(batch, collate.Padded) else batch


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_kept_batch_is_never_overwritten(way: str, output: Any) -> None:
    if output == "torch":
        pytest.importorskip("torch")
    loader: Any = stoker.DataLoader(**WAYS[way](), batch_size=4, output=output, seed=0)
    every_third, last = [], None
    for number, batch in enumerate(loader):
        if number % 3 == 0:
            every_third.append((number, batch))
        last = batch  # and the others are let go of
    assert last is not None
    for number, batch in every_third:
        assert np.array_equal(np.asarray(rows(batch)), ROWS[4 * number : 4 * number + 4])


def test_memory_is_used_again() -> None:
    loader = stoker.DataLoader(Gathers(), batch_size=4, output="numpy", num_workers=0)
    assert len({int(batch.ctypes.data) for batch in loader}) <= 3


def test_a_collator_may_keep_what_it_was_lent() -> None:
    loader = stoker.DataLoader(list(ROWS), batch_size=4, collate_fn=Remembers(), output="numpy", num_workers=0)
    batches = list(loader)
    expected = [0, *range(len(batches) - 1)]
    assert [int(batch[0, 0] // (4 * 512)) for batch in batches] == expected
