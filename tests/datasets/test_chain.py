from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stoker.datasets import ChainDataset, IterableDataset


class Stream(IterableDataset[int]):
    def __init__(self, *values: int) -> None:
        self.values = values
        self.opened = False

    def __iter__(self) -> Iterator[int]:
        self.opened = True
        return iter(self.values)


class Sized(Stream):
    def __len__(self) -> int:
        return len(self.values)


def test_streams_come_one_after_the_other() -> None:
    first, second = Sized(1, 2), Sized(3)
    chain: ChainDataset[int] = ChainDataset([first, second])
    assert len(chain) == 3
    samples = iter(chain)
    assert next(samples) == 1
    assert not second.opened
    assert list(samples) == [2, 3]
    assert list(chain) == [1, 2, 3]


def test_torchs_streams_are_streams() -> None:
    torch_data = pytest.importorskip("torch.utils.data")

    class Theirs(torch_data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return iter([7])

        def __len__(self) -> int:
            return 1

    chain: ChainDataset[Any] = ChainDataset([Theirs(), Sized(8)])
    assert (list(chain), len(chain)) == ([7, 8], 2)


def test_what_is_no_stream_is_found_when_its_turn_comes() -> None:
    chain: ChainDataset[Any] = ChainDataset([Sized(1), [2]])
    samples = iter(chain)
    assert next(samples) == 1
    with pytest.raises(AssertionError, match="ChainDataset only supports IterableDataset"):
        next(samples)
    with pytest.raises(AssertionError, match="ChainDataset only supports IterableDataset"):
        len(chain)


def test_a_stream_without_length_makes_the_chain_one() -> None:
    with pytest.raises(TypeError):
        len(ChainDataset([Stream(1)]))
