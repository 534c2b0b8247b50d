"""torch that is imported by a sample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import stoker

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # a machine may have one CPU
    pytest.mark.filterwarnings("ignore:.* does not share its samples out among workers"),
]


@pytest.mark.slow
@pytest.mark.parametrize("birth", ["fork", "forkserver"])
def test_its_generator_begins_alike_in_all_workers(birth: str) -> None:
    """They read one stream by stride, so it must have one order."""

    class Shuffled(stoker.IterableDataset[int]):  # one of this module would bring torch with it
        def __iter__(self) -> Iterator[int]:
            import torch

            yield from torch.randperm(24).tolist()

    made: list[list[Any]] = []
    for _ in range(2):
        loader = stoker.DataLoader(
            Shuffled(), 2, num_workers=2, seed=5, output="numpy", collate_fn=list, multiprocessing_context=birth
        )
        made.append(list(itertools.chain.from_iterable(loader)))
    assert made[0] == made[1] != sorted(made[0]) == list(range(24))
