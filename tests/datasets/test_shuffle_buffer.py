from __future__ import annotations

import itertools
import statistics
from collections import Counter
from typing import Any

import pytest

from stoker.datasets.shuffle_buffer import ShuffleDataset
from stoker.datasets.stream import State, StreamIterator
from stoker.errors import StateFormatError, StateMismatchError
from stoker.testing.streams import SOURCES, Numbers, StreamSuite, through_json


class Watched(Numbers):
    """Counts what is read of it."""

    def _begin(self, state: State | None) -> StreamIterator[int]:
        return _Counting(super()._begin(state))


class _Counting(StreamIterator[int]):
    reads = 0

    def __init__(self, numbers: StreamIterator[int]) -> None:
        self._numbers = numbers

    def __next__(self) -> int:
        _Counting.reads += 1
        return next(self._numbers)

    def state_dict(self) -> State:
        return self._numbers.state_dict()


@pytest.fixture
def reads() -> type[_Counting]:
    _Counting.reads = 0
    return _Counting


@pytest.mark.parametrize("n", [2, 5, 30])
@pytest.mark.parametrize("buffer_size", [1, 5, 100])
class TestResume(StreamSuite):
    @pytest.fixture
    def make(self, n: int, buffer_size: int) -> Any:
        return lambda: ShuffleDataset(Numbers(0, n, num_shards=2), buffer_size, seed=3)


@pytest.mark.parametrize("kind", SOURCES)
class TestResumeOfEverySource(StreamSuite):
    @pytest.fixture
    def make(self, kind: str) -> Any:
        return lambda: ShuffleDataset(SOURCES[kind](30), 4)


def test_the_order_is_pinned() -> None:
    """Orders that people trained with: they must never change."""
    assert list(ShuffleDataset(Numbers(24), 6, seed=0)) == GOLDEN[0]
    dataset = ShuffleDataset(Numbers(24), 6, seed=7)
    dataset.set_epoch(2)
    assert list(dataset) == GOLDEN[1]
    assert list(ShuffleDataset(Numbers(10), 10, seed=-1)) == GOLDEN[2]


GOLDEN = [
    [3, 2, 1, 7, 0, 4, 8, 6, 5, 10, 9, 13, 15, 16, 14, 18, 11, 21, 17, 12, 20, 19, 23, 22],
    [3, 4, 6, 1, 0, 2, 12, 5, 10, 11, 13, 16, 15, 7, 17, 8, 9, 18, 14, 20, 23, 19, 22, 21],
    [9, 5, 0, 3, 2, 4, 1, 7, 6, 8],
]


def test_order_depends_on_epoch_and_seed() -> None:
    orders = set()
    for seed, epoch in itertools.product(range(3), range(3)):
        source = Numbers(50)
        dataset = ShuffleDataset(source, 10, seed=seed)
        dataset.set_epoch(epoch)
        orders.add(tuple(dataset))
        assert source.epoch == epoch
    assert len(orders) == 9
    assert all(sorted(order) == list(range(50)) for order in orders)


def test_a_state_has_its_epoch() -> None:
    dataset = ShuffleDataset(Numbers(30), 5)
    dataset.set_epoch(5)
    expected = list(dataset)
    list(itertools.islice(iter(dataset), 12))
    other = ShuffleDataset(Numbers(30), 5)
    other.load_state_dict(through_json(dataset.state_dict()))
    assert list(other) == expected[12:]


def test_sample_moves_by_at_most_the_buffer_size() -> None:
    size, n = 100, 20_000
    order = list(ShuffleDataset(Numbers(n), size))
    moves = [(place - number) / size for place, number in enumerate(order)]
    assert max(map(abs, moves)) < 1.2  # the places are exact, the number of samples before a place varies a little
    for part in (moves[:1000], moves[1000:-1000], moves[-1000:]):
        assert abs(statistics.mean(part)) < 0.1
    assert 0.56 < statistics.pstdev(moves[1000:-1000]) < 0.60  # 1 / sqrt(3)
    quarters = Counter(int(2 * (move + 1)) for move in moves[1000:-1000] if abs(move) < 1)
    assert all(abs(quarters[quarter] / len(moves[1000:-1000]) - 0.25) < 0.02 for quarter in range(4))


def test_both_ends_of_the_stream_are_shuffled() -> None:
    size, n = 100, 300
    first: Counter[int] = Counter()
    last: Counter[int] = Counter()
    for seed in range(300):
        order = list(ShuffleDataset(Numbers(n), size, seed=seed))
        first[min(order[0] // 25, 3)] += 1
        last[min((n - 1 - order[-1]) // 25, 3)] += 1
    for ends in (first, last):  # the first sample is one of the first hundred, each with the same chance
        assert sum((ends[quarter] - 75) ** 2 / 75 for quarter in range(4)) < 16.3  # chi-square, p = 0.001


def test_a_stream_within_the_buffer_is_shuffled_wholly() -> None:
    orders = Counter(tuple(ShuffleDataset(Numbers(4), 4, seed=seed)) for seed in range(2400))
    assert len(orders) == 24
    assert sum((orders[order] - 100) ** 2 / 100 for order in orders) < 49.7  # chi-square, p = 0.001


def test_neighbours_do_not_stay_neighbours() -> None:
    order = list(ShuffleDataset(Numbers(10_000), 50))
    near = sum(abs(a - b) == 1 for a, b in itertools.pairwise(order))
    assert near < 10_000 * 0.03  # of 200 candidates two are neighbours


def test_about_buffer_size_samples_are_held(reads: type[_Counting]) -> None:
    size = 400
    samples = iter(ShuffleDataset(Watched(0, 20_000), size))
    next(samples)
    assert reads.reads - 1 <= size + 10
    held = []
    for given in range(2, 15_000):
        next(samples)
        held.append(reads.reads - given)
    assert max(held) < 1.2 * size
    assert abs(statistics.mean(held) / size - 1) < 0.05


@pytest.mark.parametrize("size", [1, 3, 64])
def test_resuming_reads_at_most_so_much_again(reads: type[_Counting], size: int) -> None:
    for step in (0, 1, size, 3 * size, 777, 1000):
        dataset = ShuffleDataset(Watched(0, 1000), size)
        samples = iter(dataset)
        for _ in range(step):
            next(samples)
        read = reads.reads
        state = through_json(dataset.state_dict())
        again = ShuffleDataset(Watched(0, 1000), size)
        again.load_state_dict(state)
        reads.reads = 0
        resumed = iter(again)
        following = next(resumed, None)
        needed = 0 if following is None else reads.reads
        assert following == next(samples, None)
        assert read - step >= 0
        assert needed <= 2.2 * size + 5, f"at step {step}"
        reads.reads = 0


def test_a_source_that_fails_goes_on() -> None:
    class Faulty(Numbers):
        def _begin(self, state: State | None) -> StreamIterator[int]:
            return _Faulty(super()._begin(state))

    class _Faulty(_Counting):
        def __next__(self) -> int:
            number = next(self._numbers)
            if number == 7:
                raise OSError("sample 7")
            return number

    samples = iter(ShuffleDataset(Faulty(20), 5))
    given, failures = [], 0
    while True:
        try:
            given.append(next(samples))
        except OSError:
            failures += 1
        except StopIteration:
            break
    assert failures == 1
    assert sorted(given) == [number for number in range(20) if number != 7]


def test_shards_have_orders_of_their_own() -> None:
    whole: Any = ShuffleDataset(Numbers(2000, num_shards=2), 50)
    one, other = ([number // 2 for number in whole.shard(2, index)] for index in range(2))
    assert sorted(one) == sorted(other) == list(range(1000))
    together = sum(abs(a - b) < 3 for a, b in zip(one, other, strict=True))
    assert together < 150, "neighbours of the whole move apart: 5 of 100 places are so near by chance"
    assert list(whole.shard(1, 0)) == list(whole), "one shard is the whole"


def test_a_state_of_another_shard_is_refused() -> None:
    whole: Any = ShuffleDataset(Numbers(200, num_shards=2), 20)
    one = whole.shard(2, 0)
    next(iter(one))
    state = one.state_dict()
    again = whole.shard(2, 0)
    again.load_state_dict(state)
    assert [*again] == [*whole.shard(2, 0)][1:]
    for other in (whole, whole.shard(2, 1)):
        other.load_state_dict(state)
        with pytest.raises(ValueError, match="another order"):
            iter(other)
    del state["salt"]  # as before shards had orders of their own
    again.load_state_dict(state)
    with pytest.raises(ValueError, match="another order"):
        iter(again)


def test_shuffle_buffer_has_the_length_of_its_source() -> None:
    assert len(ShuffleDataset(Numbers(9), 3)) == 9
    with pytest.raises(TypeError):
        len(ShuffleDataset(SOURCES["plain"](3), 3))


def test_states_of_another_order_are_refused() -> None:
    dataset = ShuffleDataset(Numbers(20), 5, seed=1)
    next(iter(dataset))
    state = dataset.state_dict()
    for other in (ShuffleDataset(Numbers(20), 6, seed=1), ShuffleDataset(Numbers(20), 5, seed=2)):
        other.load_state_dict(state)
        with pytest.raises(StateMismatchError, match=r"the state is of another order, .*'buffer_size': 5"):
            iter(other)
    for broken in ({"last": None}, {"last": [1, "2"]}, {"last": [1]}, {"read": -1}, {"source": 3}, {"epoch": None}):
        dataset.load_state_dict(state | broken)
        with pytest.raises(StateFormatError):
            iter(dataset)


def test_bad_arguments_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"a list, a dataset by index.*DataLoader\(dataset, shuffle=True\)"):
        ShuffleDataset([1, 2], 5)
    with pytest.raises(TypeError, match="a int, which is not a dataset"):
        ShuffleDataset(3, 5)
    with pytest.raises(ValueError, match="buffer_size is 0, expected at least 1"):
        ShuffleDataset(Numbers(3), 0)
    with pytest.raises(TypeError, match=r"buffer_size is 2\.5, expected an integer"):
        ShuffleDataset(Numbers(3), 2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ShuffleDataset(Numbers(3), 5, seed="a")  # type: ignore[arg-type]
