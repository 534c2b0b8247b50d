from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stoker.datasets import ChainDataset, IterableDataset, from_iterable
from stoker.datasets.stream import resume
from stoker.errors import StateMismatchError
from stoker.loader.dataloader import DataLoader
from stoker.testing.streams import SOURCES, Numbers, StreamSuite


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


def test_chain_refuses_a_non_stream_when_its_turn_comes() -> None:
    chain: ChainDataset[Any] = ChainDataset([Sized(1), [2]])
    samples = iter(chain)
    assert next(samples) == 1
    with pytest.raises(AssertionError, match="ChainDataset only supports IterableDataset"):
        next(samples)
    with pytest.raises(AssertionError, match="ChainDataset only supports IterableDataset"):
        len(chain)


def test_chain_has_no_length_with_a_stream_without_length() -> None:
    with pytest.raises(TypeError):
        len(ChainDataset([Stream(1)]))


@pytest.mark.parametrize(
    "make",
    [
        *(lambda kind=kind: ChainDataset([kind(4), kind(0), kind(3)]) for kind in SOURCES.values()),
        lambda: ChainDataset([Numbers(4, num_shards=2), ChainDataset([Numbers(5, num_shards=3), Numbers(2)])]),
        lambda: ChainDataset([Numbers(7, num_shards=2), Numbers(6, num_shards=3)]),
    ],
    ids=[*SOURCES, "nested", "sharded"],
)
class TestChains(StreamSuite):
    pass


def test_the_streams_before_the_state_are_not_opened_again() -> None:
    first, second = Sized(1, 2), Sized(3, 4)
    chain: ChainDataset[int] = ChainDataset([first, second])
    chain.load_state_dict({"stream": 1, "at": {"seen": 1}})
    assert list(chain) == [4]
    assert not first.opened


def test_chain_of_an_iterator_of_streams_is_resumed() -> None:
    """`datasets` may be an iterator, of streams that are made when their turn comes."""

    def chain() -> ChainDataset[int]:
        return ChainDataset(Numbers(start, start + 3) for start in (0, 10, 20))

    whole = chain()
    samples = iter(whole)
    assert [next(samples) for _ in range(5)] == [0, 1, 2, 10, 11]
    rest = chain()
    rest.load_state_dict(whole.state_dict())
    assert list(iter(rest)) == list(samples) == [12, 20, 21, 22]
    assert (rest.num_shards, list(rest)) == (1, [])
    rest.set_epoch(1)


def test_a_state_beyond_the_last_stream_is_refused() -> None:
    chain: ChainDataset[int] = ChainDataset([Sized(1)])
    chain.load_state_dict({"stream": 2})
    with pytest.raises(ValueError, match="stands in stream 2 of a chain that has 1"):
        iter(chain)


def test_a_sample_that_fails_is_passed_over() -> None:
    class Torn(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise OSError

    samples = iter(ChainDataset([Torn(), Sized(2)]))
    assert next(samples) == 1
    with pytest.raises(OSError):
        next(samples)
    assert list(samples) == [2]


def test_shards_and_epochs_are_those_of_the_streams() -> None:
    parts = [Numbers(6, num_shards=3), Numbers(10, 14, num_shards=2)]
    chain: ChainDataset[int] = ChainDataset(parts)
    assert chain.num_shards == 2
    assert list(chain.shard(num_shards=2, index=1)) == [1, 3, 5, 11, 13]
    chain.set_epoch(3)
    assert [part.epoch for part in parts] == [3, 3]
    assert ChainDataset([*parts, Sized(1)]).num_shards == 1


def test_chain_passes_over_a_stream_that_cannot_be_opened() -> None:
    def chain(there: bool) -> ChainDataset[int]:
        away = from_iterable(range, 10, 13) if there else from_iterable(open, "/nowhere/at/all")
        return ChainDataset([from_iterable(range, 3), away, from_iterable(range, 20, 23)])

    samples = iter(dataset := chain(there=False))
    assert [next(samples) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError):
        next(samples)
    states = [dataset.state_dict()]
    assert next(samples) == 20
    states.append(dataset.state_dict())
    assert list(samples) == [21, 22]
    for there in (False, True):
        for state, expected in zip(states, ([20, 21, 22], [21, 22]), strict=True):
            rest = chain(there)
            rest.load_state_dict(state)
            assert list(rest) == expected


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize("workers", [None, 2])
def test_a_state_of_a_longer_chain_is_refused(workers: int | None) -> None:
    """StopIteration would pass for the end."""

    def chain(number: int) -> Any:
        return ChainDataset([from_iterable(lambda: range(4))] * number)

    if workers is None:
        with pytest.raises(StateMismatchError, match="stream 1 of a chain that has"):
            resume(chain(1), {"stream": 1, "at": {"given": 1}})
        return
    how: Any = {"num_workers": workers, "worker_method": "thread", "batch_size": 1, "collate_fn": list}
    with DataLoader(chain(2), **how) as loader:
        iterator = iter(loader)
        for _ in range(6):
            next(iterator)
        state = loader.state_dict()
    with DataLoader(chain(1), **how) as loader:
        loader.load_state_dict(state)
        with pytest.raises(StateMismatchError, match="stream 1 of a chain that has"):
            list(loader)
