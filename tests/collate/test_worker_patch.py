"""torch's own `default_collate`, called by user code in a worker, writes where the batch travels."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stoker import collate

torch = pytest.importorskip("torch")
from torch.utils.data import default_collate as torchs_collate  # noqa: E402
from torch.utils.data._utils.collate import default_collate_fn_map as torchs_map  # noqa: E402


@pytest.fixture(autouse=True)
def torchs_map_restored() -> Iterator[None]:
    before = dict(torchs_map)
    yield
    torchs_map.clear()
    torchs_map.update(before)


def test_torchs_collation_writes_into_lent_memory(slot: Any) -> None:
    samples = [{"x": torch.ones(3), "y": np.ones(2)}, {"x": torch.zeros(3), "y": np.ones(2)}]
    expected = torchs_collate(samples)
    assert not slot.given
    collate.write_in_place()
    collate.write_in_place()
    batch = torchs_collate(samples)
    assert slot.holds(batch["x"]) and slot.holds(batch["y"])
    assert all(torch.equal(batch[key], expected[key]) for key in expected)


def test_nothing_changes_for_ours(slot: Any) -> None:
    collate.write_in_place()
    assert type(collate.numpy_collate([torch.ones(2)])) is np.ndarray
    assert slot.holds(collate.default_collate([np.ones(2), np.ones(2)]))


def test_a_function_of_the_users_stays() -> None:
    @functools.wraps(torchs_map[torch.Tensor])
    def mine(batch: Any, *, collate_fn_map: Any = None) -> str:
        return "mine"

    torchs_map[torch.Tensor] = mine
    collate.write_in_place()
    assert torchs_map[torch.Tensor] is mine and collate.default_collate([torch.ones(1)]) == "mine"


def test_nothing_is_put_where_the_user_removed_the_entry() -> None:
    del torchs_map[torch.Tensor]
    collate.write_in_place()
    assert torch.Tensor not in torchs_map


def test_nothing_happens_where_torch_is_not_loaded(torch_not_loaded: None) -> None:
    before = dict(torchs_map)
    collate.write_in_place()
    assert torchs_map == before
