"""Tensors that autograd follows, from workers: a leaf arrives as one, what was computed from it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import stoker
from stoker.errors import GradientInWorkerError

torch = pytest.importorskip("torch")

SIDES = [1, 50_000]  # in the pickle, and in the slot


class Computed(stoker.Dataset[Any]):
    def __init__(self, side: int) -> None:
        self.weights = torch.ones(side, requires_grad=True)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return index * self.weights


class Leaves(Computed):
    def __getitem__(self, index: int) -> Any:
        return self.weights


def by_stack(samples: list[Any]) -> Any:
    return {"deep": [torch.stack(samples)]}


def as_they_are(samples: list[Any]) -> Any:
    return samples


@pytest.mark.parametrize("how", ["fork", "forkserver"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("collate_fn", [None, by_stack, as_they_are])
def test_tensor_with_a_graph_is_refused_in_a_worker(how: str, side: int, collate_fn: Callable[..., Any] | None) -> None:
    """As by torch, in whose loader it is stacked into shared memory or pickled: no gradient would reach the trainer."""
    data = Computed(side)
    with (
        stoker.DataLoader(data, 2, num_workers=1, multiprocessing_context=how, collate_fn=collate_fn) as loader,
        pytest.raises(GradientInWorkerError, match=r"shape \(.*Backward0\).*\.detach\(\)"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("side", SIDES)
def test_a_leaf_arrives_as_a_leaf(side: int) -> None:
    with stoker.DataLoader(Leaves(side), 2, num_workers=1, collate_fn=as_they_are) as loader:
        (batch,) = loader
    assert all(leaf.requires_grad and leaf.is_leaf and bool((leaf == 1).all()) for leaf in batch)


def test_graph_stays_in_process() -> None:
    data = Computed(1)
    (batch,) = stoker.DataLoader(data, 2)
    batch.sum().backward()
    assert data.weights.grad.tolist() == [1]
