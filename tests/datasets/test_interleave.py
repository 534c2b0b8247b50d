from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from stoker.datasets.interleave import InterleaveDataset
from stoker.datasets.iterable import from_iterable
from stoker.datasets.map import MapDataset
from stoker.datasets.shuffle_buffer import ShuffleDataset
from stoker.errors import StateFormatError, StateMismatchError
from stoker.testing.streams import SOURCES, Numbers, StreamSuite, through_json

TENS = [range(0, 6), range(10, 11), range(20, 20), range(30, 34), range(40, 47), range(50, 52)]


skipping = functools.partial(InterleaveDataset, empty="skip")


def tens() -> list[Any]:
    return [Numbers(numbers.start, numbers.stop) for numbers in TENS]


@pytest.mark.parametrize("open_at_once", [1, 3, 9])
@pytest.mark.parametrize(("block", "seed"), [(1, None), (3, 5)])
class TestResume(StreamSuite):
    @pytest.fixture
    def make(self, open_at_once: int, block: int, seed: int | None) -> Any:
        return lambda: skipping(tens(), open_at_once, block, seed)


class TestResumeOfEverySource(StreamSuite):
    @pytest.fixture
    def make(self) -> Any:
        return lambda: InterleaveDataset([*(kind(5) for kind in SOURCES.values()), [10, 11, 12]], 3, seed=1)


class TestResumeBelowAShuffle(StreamSuite):
    @pytest.fixture
    def make(self) -> Any:
        return lambda: ShuffleDataset(skipping(tens(), 2), 4)


def test_streams_take_turns_and_one_that_ends_makes_room() -> None:
    assert list(skipping(tens(), 2)) == [
        *(0, 10, 1, 30, 2, 31, 3, 32, 4, 33, 5, 40, 50, 41, 51, 42, 43, 44, 45, 46),
    ]
    assert list(skipping(tens(), 2, block=2)) == [
        *(0, 1, 10, 30, 31, 2, 3, 32, 33, 4, 5, 40, 41, 50, 51, 42, 43, 44, 45, 46),
    ]
    assert list(skipping(tens(), 1)) == list(itertools.chain.from_iterable(TENS))
    assert list(InterleaveDataset([range(3), "ab"], 9)) == [0, "a", 1, "b", 2]


def test_streams_without_samples_are_passed_over() -> None:
    assert list(skipping([Numbers(0), Numbers(0)], 1)) == []
    assert list(skipping([Numbers(0), Numbers(2), Numbers(0)], 3)) == [0, 1]


def test_the_seeds_order_is_pinned_and_another_in_each_epoch() -> None:
    """Orders that people trained with: they must never change."""
    streams = [[number] for number in range(12)]
    dataset = InterleaveDataset(streams, 3, seed=0)
    orders = []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        orders.append(list(dataset))
    assert orders == GOLDEN
    assert list(InterleaveDataset(streams, 3, seed=1)) not in orders


GOLDEN = [
    [7, 0, 8, 2, 3, 10, 1, 6, 9, 4, 5, 11],
    [1, 8, 9, 3, 6, 10, 5, 11, 0, 7, 4, 2],
    [7, 1, 5, 6, 3, 0, 11, 8, 10, 2, 9, 4],
]


def test_a_state_has_its_epoch() -> None:
    dataset = skipping(tens(), 3, seed=0)
    dataset.set_epoch(5)
    expected = list(dataset)
    assert expected != list(skipping(tens(), 3, seed=0))
    list(itertools.islice(iter(dataset), 4))
    other = skipping(tens(), 3, seed=0)
    other.load_state_dict(through_json(dataset.state_dict()))
    assert list(other) == expected[4:]


def test_streams_hear_of_the_epoch_when_they_are_opened() -> None:
    streams = tens()
    dataset = InterleaveDataset([streams[0], lambda: streams[1]], 1)
    dataset.set_epoch(4)
    list(dataset)
    assert [stream.epoch for stream in streams] == [4, 4, 0, 0, 0, 0]


def test_functions_are_called_when_their_turn_comes() -> None:
    alive: list[int] = []
    most = 0

    def opened(number: int) -> Any:
        def samples() -> Any:
            nonlocal most
            alive.append(number)
            most = max(most, len(alive))
            yield from [number] * 3
            alive.remove(number)

        return from_iterable(samples)

    dataset = InterleaveDataset([functools.partial(opened, number) for number in range(20)], 4)
    assert alive == []
    assert len(list(dataset)) == 60
    assert (alive, most) == ([], 4)


class TestResumeOfFunctions(StreamSuite):
    @pytest.fixture
    def make(self) -> Any:
        return lambda: InterleaveDataset([functools.partial(Numbers, n, n + 4) for n in range(0, 20, 4)], 2)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (3, 2), (2, 4)])
def test_a_state_goes_on_with_any_other_number_of_shares(before: int, after: int) -> None:
    def make(number: int, index: int, seed: int | None) -> Any:
        dataset = MapDataset(skipping(tens(), 2, seed=seed), str)
        return dataset.shard(number, index) if number > 1 else dataset

    for step, seed in itertools.product(range(9), (None, 3)):
        given, shares = [], {}
        for index in range(before):
            dataset = make(before, index, seed)
            given += list(itertools.islice(iter(dataset), step))
            shares |= through_json(dataset.state_dict())["shards"]
        for index in range(after):
            dataset = make(after, index, seed)
            dataset.load_state_dict({"shards": shares})
            given += list(dataset)
        assert sorted(given) == sorted(map(str, itertools.chain.from_iterable(TENS))), f"{step} steps, seed {seed}"


def test_shares_may_change_again_before_all_have_begun() -> None:
    dataset = skipping(tens(), 2)

    def taken(number: int, index: int, state: Any, step: int) -> tuple[list[Any], Any]:
        share = dataset.shard(number, index) if number > 1 else dataset
        share.load_state_dict(state)
        given = list(itertools.islice(iter(share), step))
        return given, through_json(share.state_dict())["shards"]

    for first, second, third in itertools.product((0, 3, 9), repeat=3):
        given, shares = [], {}
        for index in range(3):
            part, state = taken(3, index, {}, first)
            given, shares = given + part, shares | state
        part, state = taken(2, 0, {"shards": shares}, second)  # the other has not begun, and knows only of before
        given, shares = given + part, dict(sorted({**shares, **state}.items()))
        last: dict[str, Any] = {}
        for index in range(3):
            part, state = taken(3, index, {"shards": shares}, third)
            given, last = given + part, last | state
        given += taken(1, 0, {"shards": last}, 100)[0]
        assert sorted(given) == sorted(itertools.chain.from_iterable(TENS)), f"steps {first}, {second}, {third}"


def test_streams_begun_by_other_workers_are_opened_first() -> None:
    shares = {}
    for index in reversed(range(3)):
        share = skipping(tens(), 2).shard(3, index)
        next(iter(share))
        shares |= share.state_dict()["shards"]

    def make() -> Any:
        dataset = skipping(tens(), 2)
        dataset.load_state_dict({"shards": shares})
        return dataset

    expected = list(make())
    assert expected[:4] == [1, 30, 2, 31]  # the second has ended, the third is empty, the fourth comes in
    for step in range(len(expected)):
        dataset = make()
        list(itertools.islice(dataset, step))
        again = skipping(tens(), 2)
        again.load_state_dict(through_json(dataset.state_dict()))
        assert list(again) == expected[step:]


def test_the_state_of_many_streams_is_a_bit_for_each() -> None:
    dataset = InterleaveDataset([[number] for number in range(10_000)], 4, seed=0)
    assert len(list(itertools.islice(dataset, 9_000))) == 9_000
    assert len(str(dataset.state_dict())) < 2_900


def test_an_error_of_a_stream_passes_through_and_it_goes_on() -> None:
    class Faulty:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            if index == 1:
                raise OSError("sample 1")
            return index

    samples = iter(InterleaveDataset([Faulty(), "abc"], 2))
    assert [next(samples), next(samples)] == [0, "a"]
    with pytest.raises(OSError, match="sample 1"):
        next(samples)
    assert list(samples) == [2, "b", "c"]


def test_unopenable_stream_is_an_error_and_the_next_follows() -> None:
    def fails() -> Any:
        raise OSError("gone")

    samples = iter(InterleaveDataset([[0], fails, [2]], 1))
    assert next(samples) == 0
    with pytest.raises(OSError, match="gone"):
        next(samples)
    assert list(samples) == [2]


def test_states_of_another_order_are_refused() -> None:
    dataset = skipping(tens(), 2, seed=1)
    next(iter(dataset))
    state = dataset.state_dict()
    for other in (
        skipping(tens(), 3, seed=1),
        skipping(tens(), 2),
        skipping(tens(), 2, 2, 1),
    ):
        other.load_state_dict(state)
        with pytest.raises(StateMismatchError, match=r"the state is of another order, .*'open_at_once': 2"):
            iter(other)
    dataset = skipping(tens()[:-1], 2, seed=1)
    dataset.load_state_dict(state)
    with pytest.raises(StateMismatchError, match="the state is of 6 shards, but there are 5 now"):
        iter(dataset)
    entry = state["shards"]["0/1"]
    for broken in ({"turn": 2}, {"given": 1}, {"epoch": "x"}, {"done": "x"}, {"begun": [[1]]}):
        dataset = skipping(tens(), 2, seed=1)
        dataset.load_state_dict({"shards": {"0/1": entry | broken}})
        with pytest.raises(StateFormatError):
            iter(dataset)
    dataset.load_state_dict({"shards": {}})
    with pytest.raises(StateFormatError):
        iter(dataset)


def test_bad_arguments_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="needs at least one stream"):
        InterleaveDataset([], 3)
    with pytest.raises(TypeError, match=r"InterleaveDataset \(streams\[1\]\) was given a int, which is not a dataset"):
        InterleaveDataset([[1], 3], 3)
    with pytest.raises(ValueError, match="open_at_once is 0, expected at least 1"):
        InterleaveDataset([[1]], 0)
    with pytest.raises(ValueError, match="block is -1, expected at least 1"):
        InterleaveDataset([[1]], 1, block=-1)
    with pytest.raises(TypeError):
        InterleaveDataset([[1]], 1, seed="a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"InterleaveDataset \(from streams\[0\]\) was given a int"):
        iter(InterleaveDataset([lambda: 3], 1))
    dataset = InterleaveDataset([[1], [2]], 1)
    for number, index in [(3, 0), (2, 2), (2, -1), (0, 0)]:
        with pytest.raises(ValueError, match=f"no share {index} of {number} shares of 2 shards"):
            dataset.shard(number, index)


def test_a_stream_without_samples_is_named() -> None:
    with pytest.raises(ValueError, match=r"stream 1 of the interleave .* has no samples"):
        InterleaveDataset([[1], []], 2)
    samples = iter(InterleaveDataset([Numbers(2), lambda: Numbers(0), Numbers(4, 6)], 2))
    given: list[Any] = []
    with pytest.raises(ValueError, match=r"stream 1 of the interleave .* empty='skip'"):
        given.extend(samples)
    assert next(samples) == 4  # the next takes its place
    assert list(samples) == [1, 5]
    with pytest.raises(ValueError, match="empty is 'never', expected 'error' or 'skip'"):
        InterleaveDataset([[1]], 1, empty="never")  # type: ignore[arg-type]


def test_finished_stream_does_not_count_as_empty() -> None:
    dataset = InterleaveDataset([Numbers(2), Numbers(5, 8)], 1)
    samples = iter(dataset)
    assert [next(samples), next(samples)] == [0, 1]
    again = InterleaveDataset([Numbers(2), Numbers(5, 8)], 1)
    again.load_state_dict(through_json(dataset.state_dict()))
    assert list(again) == [5, 6, 7]


class Away:
    """A disk that may be away: streams on it cannot be opened, and count the attempts."""

    def __init__(self) -> None:
        self.is_away = True
        self.tries = 0

    def open(self, start: int, stop: int) -> Numbers:
        self.tries += self.is_away
        if self.is_away:
            raise OSError("the disk is away")
        return Numbers(start, stop)

    def made(self, lost: int) -> InterleaveDataset[int]:
        """Three streams of three numbers; the disk has one of them."""
        disks = [self.open if number == lost else Numbers for number in range(3)]
        streams = [functools.partial(disk, 10 * number, 10 * number + 3) for number, disk in enumerate(disks)]
        return InterleaveDataset(streams, 2)


def logged(dataset: InterleaveDataset[int]) -> Iterator[Any]:
    """The samples, and "lost" for each error."""
    samples = iter(dataset)
    while True:
        try:
            yield next(samples)
        except OSError:
            yield "lost"
        except StopIteration:
            return


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_epoch_continues_without_an_unopenable_stream(lost: int) -> None:
    disk = Away()
    dataset, states = disk.made(lost), []
    given = [(sample, states.append(through_json(dataset.state_dict())))[0] for sample in logged(dataset)]
    expected = [10 * number + i for number in range(3) if number != lost for i in range(3)]
    assert sorted(given, key=str) == [*sorted(expected, key=str), "lost"]
    assert disk.tries == 1
    for step, state in enumerate(states):
        again = disk.made(lost)
        again.load_state_dict(state)
        assert list(logged(again)) == given[step + 1 :]


def test_state_keeps_a_missing_stream_until_its_error_is_raised() -> None:
    disk = Away()
    disk.is_away = False
    samples = iter(dataset := disk.made(1))
    assert [next(samples) for _ in range(3)] == [0, 10, 1]
    state = through_json(dataset.state_dict())
    disk.is_away = True
    again = disk.made(1)
    again.load_state_dict(state)
    samples = iter(again)
    unread = through_json(again.state_dict())
    with pytest.raises(OSError, match="the disk is away"):
        next(samples)
    told = through_json(again.state_dict())
    assert sorted(samples) == [2, 20, 21, 22]
    disk.is_away = False
    for state, expected in ((unread, [2, 11, 12, 20, 21, 22]), (told, [2, 20, 21, 22])):
        again.load_state_dict(state)
        assert sorted(again) == expected


def test_function_that_raises_stopiteration_ends_no_interleave() -> None:
    samples = iter(InterleaveDataset([lambda: next(iter([])), [1]], 1))
    with pytest.raises(RuntimeError, match=r"streams\[0\] raised StopIteration"):
        next(samples)
    assert list(samples) == [1]
