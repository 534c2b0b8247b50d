"""A loader goes on where its state says: the batches that follow are those that would have followed, bit for bit."""

from __future__ import annotations

import itertools
import json
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, precondition, rule

import stoker
from stoker.samplers import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from stoker.samplers.bucket import BucketBatchSampler
from tests.loader._state.edits import edited

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have one CPU
SOME = settings(max_examples=max(6, settings().max_examples // 10))
"""An example here is several runs: so many in the quick tests, a hundred in the long ones."""


def loader(dataset: Any, **settings: Any) -> Any:
    return stoker.DataLoader(dataset, **{"collate_fn": list, **settings})


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


class Dealt(stoker.Sampler[Any]):
    """Batches as a function, of uneven sizes."""

    stoker_protocol = True

    def __init__(self, length: int) -> None:
        self.length = length

    def batches(self, key: int) -> Dealt:
        return self

    def __len__(self) -> int:
        return -(-self.length // 3)

    def batch(self, number: int) -> list[int]:
        return list(range(3 * number, min(3 * number + 3, self.length)))

    def position(self, number: int) -> int:
        return 3 * number

    def __iter__(self) -> Iterator[Any]:
        return map(self.batch, range(len(self)))


# Every order that is known by position, as arguments of a loader: number of samples, batch size, drop_last

Arguments = Callable[[int, int, bool], dict[str, Any]]


def sampler(make: Callable[[int], Any]) -> Arguments:
    return lambda n, size, drop: {"sampler": make(n), "batch_size": size, "drop_last": drop}


ORDERS: dict[str, Arguments] = {
    "in order": lambda n, size, drop: {"batch_size": size, "drop_last": drop},
    "shuffled": lambda n, size, drop: {"batch_size": size, "drop_last": drop, "shuffle": True},
    "single": lambda n, size, drop: {"batch_size": None, "collate_fn": None, "shuffle": True},
    "random": sampler(lambda n: RandomSampler(range(n))),
    "with replacement": sampler(lambda n: RandomSampler(range(n), replacement=True, num_samples=n + 3)),
    "several passes": sampler(lambda n: RandomSampler(range(n), num_samples=2 * n + 1)),
    "subset": sampler(lambda n: SubsetRandomSampler(range(0, n, 2))),
    "weighted": sampler(lambda n: WeightedRandomSampler(np.arange(1, n + 1), n)),
    "weighted, each once": sampler(lambda n: WeightedRandomSampler(np.arange(1, n + 1), n, replacement=False)),
    "batch sampler": lambda n, size, drop: {"batch_sampler": BatchSampler(RandomSampler(range(n)), size, drop)},
    "batches": lambda n, size, drop: {"batch_sampler": Dealt(n)},
    "buckets": lambda n, size, drop: {"batch_sampler": BucketBatchSampler(np.full(n, 7), batch_size=size)},
}


@pytest.mark.parametrize("seed", [7, None])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_at_every_batch(order: str, seed: int | None, undisturbed: Any, noisy: Any) -> None:
    run = undisturbed(lambda: loader(noisy(7), seed=seed, **ORDERS[order](7, 3, False)))
    for stop in run.stops():
        run.goes_on(*stop)


@pytest.mark.parametrize("order", ORDERS)
@SOME
@given(
    n=st.integers(1, 14), size=st.integers(1, 5), drop=st.booleans(), seed=st.none() | st.integers(0, 9), data=st.data()
)
def test_every_order_at_any_batch(
    order: str, n: int, size: int, drop: bool, seed: int | None, data: Any, undisturbed: Any, noisy: Any
) -> None:
    run = undisturbed(lambda: loader(noisy(n), seed=seed, **ORDERS[order](n, min(size, n), drop)))
    run.goes_on(*data.draw(st.sampled_from(list(run.stops()))))


@pytest.mark.parametrize("order", ["shuffled", "buckets", "single"])
def test_saved_and_loaded_with_other_workers(order: str, other_workers: Any, rolled: Any) -> None:
    other_workers.go_on(lambda **some: loader(rolled(23), seed=4, **ORDERS[order](23, 4, False), **some))


@pytest.mark.parametrize("order", ["shuffled", "batches"])
def test_counts_what_was_received_not_what_was_made_ahead(order: str, other_workers: Any) -> None:
    other_workers.count_what_was_received(
        lambda **some: loader(range(40), seed=1, **ORDERS[order](40, 2, False), **some)
    )


class _Broken(stoker.Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index in (4, 11):
            raise ValueError(f"sample {index} is broken")
        return index


def _tolerant(iterator: Iterator[Any]) -> Iterator[Any]:
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        except ValueError:
            yield "broken"


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}], ids=str)
@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_a_batch_that_failed_counts_as_received(workers: dict[str, Any], count: int) -> None:
    first = loader(_Broken(), batch_size=2, **workers)
    received = list(itertools.islice(_tolerant(iter(first)), count))
    second = loader(_Broken(), batch_size=2)
    second.load_state_dict(first.state_dict())
    received += list(_tolerant(iter(second)))
    assert received == [[0, 1], [2, 3], "broken", [6, 7], [8, 9], "broken"]


def test_after_a_break_the_state_stands_where_the_loop_was_left() -> None:
    first = loader(range(10), batch_size=2, seed=1, shuffle=True)
    for number, _ in enumerate(first):
        if number == 2:
            break
    state = first.state_dict()
    assert (state["epoch"], state["batches"]) == (0, 3)
    following = list(first)
    second = loader(range(10), batch_size=2, seed=1, shuffle=True)
    second.load_state_dict(state)
    whole = list(loader(range(10), batch_size=2, seed=1, shuffle=True))
    assert [list(second), list(second)] == [whole[3:], following]


def test_state_is_that_of_the_latest_iterator() -> None:
    both = loader(range(10), batch_size=2, seed=1, shuffle=True)
    older, newer = iter(both), iter(both)
    for iterator in (older, newer, older, older):
        next(iterator)
    state = both.state_dict()
    assert (state["epoch"], state["batches"]) == (1, 1)
    again = loader(range(10), batch_size=2, seed=1, shuffle=True)
    again.load_state_dict(state)
    assert list(again) == list(newer)


def test_an_iterator_that_is_gone_has_left_its_state() -> None:
    gone = loader(range(10), batch_size=2, num_workers=2)
    iterator = iter(gone)
    next(iterator)
    del iterator
    assert gone.state_dict()["batches"] == 1


@pytest.mark.parametrize("order", ["shuffled", "buckets"])
@pytest.mark.parametrize("method", ["process", "thread"])
def test_persistent_workers_are_rewound_in_mid_epoch(order: str, method: str, rolled: Any) -> None:
    def make(**settings: Any) -> Any:
        return loader(rolled(23), seed=2, **ORDERS[order](23, 4, False), **settings)

    serial = make()
    runs = [list(serial) for _ in range(2)]
    with make(num_workers=2, worker_method=method, persistent_workers=True) as kept:
        iterator = iter(kept)
        states = []
        for _ in range(4):
            next(iterator)
            states.append(through_json(kept.state_dict()))
        for number in (3, 0, 0, 2):  # also twice in a row, and behind the batch at which it stands
            kept.load_state_dict(states[number])
            assert kept.state_dict() == states[number]
            next(iterator, None)  # of the abandoned epoch
            assert kept.state_dict() == states[number]
            iterator = iter(kept)
            assert next(iterator) == runs[0][number + 1]
        kept.load_state_dict(states[1])
        assert [list(kept), list(kept)] == [runs[0][2:], runs[1]]


# Without a seed


def test_state_holds_the_epochs_seed_without_a_fixed_one() -> None:
    """Later epochs follow from the user's generator, which he restores himself."""
    generator = np.random.default_rng(8)
    first = loader(range(20), batch_size=3, shuffle=True, generator=generator)
    iterator = iter(first)
    next(iterator)
    state, kept = through_json(first.state_dict()), generator.bit_generator.state
    rest, later = list(iterator), list(first)
    other = np.random.default_rng(99)
    second = loader(range(20), batch_size=3, shuffle=True, generator=other)
    second.load_state_dict(state)
    assert list(second) == rest
    other.bit_generator.state = kept
    assert list(second) == later


# What it costs


class Huge(stoker.Dataset[int]):
    def __init__(self, length: int = 10**10) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Counting(RandomSampler):
    """Counts for how many positions it was asked."""

    stoker_protocol = True

    asked = 0

    def order(self, key: int) -> Any:
        inner = super().order(key)

        class Order:
            def __len__(self) -> int:
                return len(inner)

            def take(self, positions: Any) -> Any:
                Counting.asked += len(positions)
                return inner.take(positions)

        return Order()


def _deep(settings: dict[str, Any]) -> Any:
    """A loader of ten thousand million samples, a state of it near the end, and what follows it there."""
    make = lambda: loader(Huge(), batch_size=64, seed=3, **settings)  # noqa: E731
    first = make()
    next(iter(first))
    state = first.state_dict()
    ranks = settings.get("num_replicas", 1)
    batches = (Huge().length - 1000) // 64 // ranks
    return make, edited(state, batches=batches, position=batches * 64 * ranks)


HUGE: list[dict[str, Any]] = [
    {"shuffle": True},
    {"shuffle": False},
    {"shuffle": True, "distributed": "exact", "num_replicas": 10_000, "rank": 9_999},
    {"shuffle": True, "batches_per_epoch": 10**9},
]


@pytest.mark.parametrize("settings", HUGE, ids=str)
def test_a_state_is_small_and_the_next_batch_is_not_walked_to(settings: dict[str, Any]) -> None:
    make, state = _deep(settings)
    assert len(json.dumps(state)) < 1000
    second = make()
    next(iter(make()))  # what is made once in a process is not counted
    tracemalloc.start()
    second.load_state_dict(state)
    batch = next(iter(second))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(set(batch)) == len(batch) and batch[0] > 0
    assert peak < 1 << 20
    assert len(json.dumps(second.state_dict())) < 1000
    assert second.state_dict()["batches"] == state["batches"] + 1


def test_a_resumed_epoch_asks_for_the_positions_that_are_left() -> None:
    make = lambda: loader(range(10**5), batch_size=10, seed=1, sampler=Counting(range(10**5)))  # noqa: E731
    first = make()
    next(iter(first))
    state = edited(first.state_dict(), batches=9_990, position=99_900)
    Counting.asked = 0
    second = make()
    second.load_state_dict(state)
    assert Counting.asked == 0
    assert sum(map(len, second)) == 100
    assert Counting.asked == 100


@pytest.mark.parametrize("order", ORDERS)
def test_a_state_is_small(order: str) -> None:
    some = loader(range(200), **ORDERS[order](200, 3, False))
    for _ in some:
        assert len(json.dumps(some.state_dict())) < 1000


# Ways for a state to travel


@pytest.mark.parametrize("order", ["shuffled", "batches"])
@pytest.mark.parametrize("way", ["pickle", "torch.save", "weights_only", "json"])
def test_a_state_travels(order: str, way: str, tmp_path: Any) -> None:
    make = lambda: loader(range(30), seed=1, **ORDERS[order](30, 4, False))  # noqa: E731
    first = make()
    iterator = iter(first)
    list(itertools.islice(iterator, 3))
    state = first.state_dict()
    if way == "pickle":
        state = pickle.loads(pickle.dumps(state))
    elif way == "json":
        state = through_json(state)
    else:
        torch = pytest.importorskip("torch")
        torch.save(state, tmp_path / "state")
        state = torch.load(tmp_path / "state", weights_only=way == "weights_only")
    second = make()
    second.load_state_dict(state)
    assert list(second) == list(iterator)


def test_a_pickled_loader_goes_where_its_state_says() -> None:
    first = loader(range(30), batch_size=4, seed=1, shuffle=True)
    iterator = iter(first)
    list(itertools.islice(iterator, 3))
    first.load_state_dict(first.state_dict())
    copy = pickle.loads(pickle.dumps(first))
    assert copy.state_dict() == first.state_dict()
    assert list(copy) == list(iterator)


class Loops(RuleBasedStateMachine):
    """Training loops that begin, break off, save, load and start anew in any order; a list of epochs is the model."""

    states = Bundle("states")
    N, SIZE, EPOCHS = 17, 3, 12

    @initialize(pieces=st.none() | st.integers(1, 9), workers=st.sampled_from([0, 0, 0, 2]))
    def begin(self, pieces: int | None, workers: int) -> None:
        self.pieces = pieces
        whole = self.make(0)
        self.epochs = [list(whole) for _ in range(self.EPOCHS)]
        self.following = 0  # epochs that have begun
        self.place = (0, 0)  # epoch and batches of the latest iterator, as its user sees them
        self.new(workers)

    def make(self, workers: int) -> Any:
        threads: dict[str, Any] = {"num_workers": workers, "worker_method": "thread"} if workers else {}
        return loader(
            range(self.N), shuffle=True, batch_size=self.SIZE, seed=1, batches_per_epoch=self.pieces, **threads
        )

    def new(self, workers: int) -> None:
        self.loader = self.make(workers)
        self.iterator: Any = None

    @precondition(lambda self: self.following < self.EPOCHS - 2)
    @rule()
    def enter(self) -> None:
        """A loop, or `next(iter(loader))`: it stands where the state says that was loaded last, else at a start."""
        self.place = self.resumed if self.iterator is None and self.resumed else (self.following, 0)
        self.resumed = None
        self.iterator, self.has_begun = iter(self.loader), False

    @precondition(lambda self: self.iterator is not None)
    @rule(count=st.integers(1, 7))
    def take(self, count: int) -> None:
        epoch, done = self.place
        if done < 0:
            return  # it is over
        received = list(itertools.islice(self.iterator, count))
        assert received == self.epochs[epoch][done : done + count]
        self.following = epoch + 1
        over = len(received) < count
        self.place = (epoch + 1, -1) if over else (epoch, done + count)

    @rule(target=states)
    def save(self) -> Any:
        epoch, done = self.place if self.resumed is None else self.resumed
        state = through_json(self.loader.state_dict())
        assert (state["epoch"], state["batches"]) == (epoch, max(done, 0))
        return state

    @rule(state=states, workers=st.none() | st.sampled_from([0, 0, 2]))
    def load(self, state: Any, workers: int | None) -> None:
        """Into this loader, or into another process's."""
        if workers is not None:
            self.new(workers)
        self.loader.load_state_dict(state)
        assert self.loader.state_dict() == state
        self.resumed, self.iterator = (state["epoch"], state["batches"]), None
        self.following = state["epoch"]

    resumed: Any = None


TestLoops = Loops.TestCase
TestLoops.settings = settings(max_examples=max(15, settings().max_examples // 5), stateful_step_count=20)


def test_loaded_state_survives_a_failed_iter(tmp_path: Any) -> None:
    def made(**how: Any) -> Any:
        return loader(range(10), batch_size=2, seed=1, **how)

    first = made()
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    resumed = made(quarantine=tmp_path / "nowhere" / "bad.jsonl")
    resumed.load_state_dict(first.state_dict())
    with pytest.raises(stoker.errors.QuarantineError):
        iter(resumed)
    (tmp_path / "nowhere").mkdir()
    assert resumed.state_dict()["batches"] == 3
    assert [int(number) for batch in resumed for number in batch] == [6, 7, 8, 9]


def test_numpys_integers_are_plain_in_a_state() -> None:
    ranks = {"distributed": "pad", "num_replicas": np.int64(2), "rank": np.int64(1)}
    made = loader(range(40), batch_size=2, seed=1, batches_per_epoch=np.int64(3), **ranks)
    next(iter(made))
    state = made.state_dict()
    assert json.loads(json.dumps(state)) == state


def test_batches_that_came_before_the_state_are_not_planned() -> None:
    made = loader(range(10), batch_size=2, seed=1, in_order=False, num_workers=1, worker_method="thread")
    state = edited(made.state_dict(), ahead=[3])
    made.load_state_dict(state)
    assert len([number for batch in made for number in batch]) == 8
    counts = made.report().epoch
    assert (counts.planned, counts.delivered, counts.not_requested) == (8, 8, 0)


class Pressed(BaseException):
    """As KeyboardInterrupt."""


class Interrupted(stoker.Sampler[Any]):
    """Indices by one; at the one that it is told it raises, once: what Ctrl-C does in a sampler of the user's."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.at, self.error = at, error

    def __iter__(self) -> Iterator[int]:
        return iter(Counted(self))


class Counted:
    def __init__(self, of: Interrupted) -> None:
        self.of, self.next = of, 0

    def __iter__(self) -> Iterator[int]:
        return self  # type: ignore[return-value]

    def __next__(self) -> int:
        if self.next == self.of.at:
            self.of.at = -1
            raise self.of.error
        if self.next == 20:
            raise StopIteration
        self.next += 1
        return self.next - 1


def test_exit_raised_in_a_sampler_costs_no_batch() -> None:
    how: dict[str, Any] = {"num_workers": 1, "worker_method": "thread", "output": "numpy"}
    made: Any = stoker.DataLoader(range(20), batch_size=None, sampler=Interrupted(9, Pressed()), **how)
    iterator, seen, pressed = iter(made), [], 0
    while True:
        try:
            seen.append(int(next(iterator)))
        except Pressed:
            pressed += 1
        except StopIteration:
            break
    assert pressed == 1
    assert seen == list(range(9))  # behind it a pass is over, as any generator would be
