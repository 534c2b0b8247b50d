"""A sampler of the user's is walked again: from its own state, or with its generators as they were."""

from __future__ import annotations

import copy
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from stoker.errors import StateError, StateMismatchError
from stoker.samplers import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # a machine may have one CPU
SOME = settings(max_examples=max(6, settings().max_examples // 10))
"""An example here is several runs: so many in the quick tests, a hundred in the long ones."""


def loader(dataset: Any, **settings: Any) -> Any:
    return stoker.DataLoader(dataset, **{"collate_fn": list, **settings})


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


# Samplers of users


class Shuffled:
    """Draws its order at iter(), from a generator of its own."""

    def __init__(self, length: int, generator: Any) -> None:
        self.length, self.inner = length, {"deep": [generator]}

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        (generator,) = self.inner["deep"]
        order = list(range(self.length))
        generator.shuffle(order)
        return iter(order)


class Drawn(Shuffled):
    """Draws each index when it is needed."""

    def __iter__(self) -> Iterator[int]:
        (generator,) = self.inner["deep"]
        for _ in range(self.length):
            yield generator.randrange(self.length)


class Repeated:
    """A function that returns a new iterator each time, as a sampler."""

    def __init__(self, function: Callable[[], Iterator[int]], length: int) -> None:
        self.function, self.length = function, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return self.function()


class Kept:
    """Keeps a state of its own, and begins anew by itself: behind the last index it stands in its next epoch."""

    def __init__(self, length: int) -> None:
        self.length, self.state = length, {"at": 0, "epoch": 0}

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        while self.state["at"] < self.length:
            self.state["at"] += 1
            yield (self.state["at"] * 7 + self.state["epoch"] * 3) % self.length
        self.state["at"] = 0
        self.state["epoch"] += 1

    def state_dict(self) -> dict[str, int]:
        return self.state  # not a copy, as many would

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = state


class KeptUntilAsked(Kept):
    """As torchdata's: begins where a loaded state says once, and else anew. Behind its end nothing follows."""

    resume = 0

    def __iter__(self) -> Iterator[int]:
        self.state["at"], self.resume = self.resume, 0
        while self.state["at"] < self.length:
            self.state["at"] += 1
            yield self.length - self.state["at"]

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.resume = state["at"]


class KeptByIterator:
    """Its iterator has the state."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return _KeptByIterator(self.length)


class _KeptByIterator:
    def __init__(self, length: int) -> None:
        self.left = list(range(0, length, 2)) + list(range(1, length, 2))

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        return self.left.pop()

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = state["left"]


class OddBatches(KeptByIterator):
    """Batches of 1, 2, 3, 1, … indices; keeps its place."""

    def __iter__(self) -> Iterator[Any]:
        return _OddBatches(self.length)


class _OddBatches(_KeptByIterator):
    def __next__(self) -> Any:
        size = len(self.left) % 3 + 1
        batch, self.left = self.left[:size], self.left[size:]
        if not batch:
            raise StopIteration
        return batch


def _numpys_order(n: int) -> Iterator[int]:
    yield from np.random.permutation(n).tolist()


def _pythons_order(n: int) -> Iterator[int]:
    return iter(random.sample(range(n), n))  # drawn by iter() already


# Every kind of sampler, as arguments of a loader: number of samples, batch size, drop_last

Arguments = Callable[[int, int, bool], dict[str, Any]]


def sampler(make: Callable[[int], Any]) -> Arguments:
    return lambda n, size, drop: {"sampler": make(n), "batch_size": size, "drop_last": drop}


def batched(make: Callable[[int], Any], form: Any = BatchSampler) -> Arguments:
    return lambda n, size, drop: {"batch_sampler": form(make(n), size, drop)}


def shared(make: Callable[[], Any]) -> Arguments:
    """The loader draws its seeds from the generator of its sampler."""

    def arguments(n: int, size: int, drop: bool) -> dict[str, Any]:
        generator = make()
        theirs = RandomSampler(range(n), generator=generator)
        return {"sampler": theirs, "generator": generator, "batch_size": size, "drop_last": drop}

    return arguments


WALKED: dict[str, Arguments] = {
    "NumPy's generator": sampler(lambda n: RandomSampler(range(n), generator=np.random.default_rng(3))),
    "NumPy's generator, shared": shared(lambda: np.random.default_rng(3)),
    "generator, replacement": sampler(
        lambda n: RandomSampler(range(n), replacement=True, num_samples=40, generator=np.random.default_rng(3))
    ),
    "weighted by generator": sampler(
        lambda n: WeightedRandomSampler(np.arange(1, n + 1), n, generator=np.random.default_rng(3))
    ),
    "batches by generator": batched(lambda n: RandomSampler(range(n), generator=np.random.default_rng(3))),
    "distributed": sampler(lambda n: DistributedSampler(range(n), 2, 1, seed=5)),
    "list": sampler(lambda n: list(range(n))[::-1]),
    "function": sampler(lambda n: Repeated(lambda: iter(range(n)), n)),
    "one pass": sampler(lambda n: Repeated(lambda: (i for i in range(n)), n)),
    "draws at iter()": sampler(lambda n: Shuffled(n, random.Random(3))),
    "draws at iter(), NumPy": sampler(lambda n: Shuffled(n, np.random.default_rng(3))),
    "draws at iter(), NumPy's legacy": sampler(lambda n: Shuffled(n, np.random.RandomState(3))),
    "draws on the way": sampler(lambda n: Drawn(n, random.Random(3))),
    "draws from NumPy": sampler(lambda n: Repeated(lambda: _numpys_order(n), n)),
    "draws from Python at iter()": sampler(lambda n: Repeated(lambda: _pythons_order(n), n)),
    "keeps its state": sampler(Kept),
    "keeps its state once": sampler(KeptUntilAsked),
    "iterator keeps its state": sampler(KeptByIterator),
    "in batches, keeps its state": batched(Kept),
    "batches, keeps its state": lambda n, size, drop: {"batch_sampler": OddBatches(n)},
}


def _torchs() -> dict[str, Arguments]:
    if torch is None:
        return {}
    data, generator = torch.utils.data, lambda: torch.Generator().manual_seed(3)
    return {
        "torch's generator": sampler(lambda n: RandomSampler(range(n), generator=generator())),
        "torch's generator, shared": shared(generator),
        "torch's RandomSampler": sampler(lambda n: data.RandomSampler(range(n))),
        "torch's RandomSampler, generator": sampler(lambda n: data.RandomSampler(range(n), generator=generator())),
        "torch's, replacement": sampler(lambda n: data.RandomSampler(range(n), True, 40, generator=generator())),
        "torch's SubsetRandomSampler": sampler(lambda n: data.SubsetRandomSampler(range(0, n, 2))),
        "torch's WeightedRandomSampler": sampler(lambda n: data.WeightedRandomSampler([1.0] * n, n)),
        "torch's DistributedSampler": sampler(lambda n: data.DistributedSampler(range(n), 2, 0)),
        "torch's BatchSampler": batched(lambda n: RandomSampler(range(n)), data.BatchSampler),
        "torch's tensors": lambda n, size, drop: {"batch_sampler": [torch.arange(n), torch.arange(0, n, 2)]},
    }


ORDERS = {**WALKED, **_torchs()}
GLOBAL = {name for name in ORDERS if name.startswith("draws from")}
GLOBAL |= {f"torch's {name}Sampler" for name in ("Random", "SubsetRandom", "WeightedRandom", "Batch")}
"""They draw from a global generator, once: an epoch that has not begun follows from where the user has that then."""


@pytest.mark.parametrize("seed", [pytest.param(7, marks=pytest.mark.slow), None])
@pytest.mark.parametrize("order", [order for order in ORDERS if order not in GLOBAL])
def test_every_order_at_every_batch(order: str, seed: int | None, undisturbed: Any, noisy: Any) -> None:
    run = undisturbed(lambda: loader(noisy(7), seed=seed, **ORDERS[order](7, 3, False)))
    for stop in run.stops():
        run.goes_on(*stop)


@pytest.mark.parametrize("order", [order for order in ORDERS if order not in GLOBAL])
@SOME
@given(
    n=st.integers(1, 14), size=st.integers(1, 5), drop=st.booleans(), seed=st.none() | st.integers(0, 9), data=st.data()
)
def test_every_order_at_any_batch(
    order: str, n: int, size: int, drop: bool, seed: int | None, data: Any, undisturbed: Any, noisy: Any
) -> None:
    run = undisturbed(lambda: loader(noisy(n), seed=seed, **ORDERS[order](n, min(size, n), drop)))
    run.goes_on(*data.draw(st.sampled_from(list(run.stops()))))


@pytest.mark.parametrize("order", [order for order in ORDERS if order in GLOBAL])
def test_walked_sampler_draws_again_from_a_global_generator(order: str, undisturbed: Any) -> None:
    """Only for the walk: the user's generator stays where it is."""
    make = lambda: loader(range(9), **ORDERS[order](9, 2, False))  # noqa: E731
    for epoch, count in itertools.product((0, 1), (1, 3)):
        undisturbed.seed_everything(1)
        first = make()
        for _ in range(epoch):
            list(first)
        iterator = iter(first)
        list(itertools.islice(iterator, count))
        state, rest = through_json(first.state_dict()), list(iterator)
        undisturbed.seed_everything(2)
        second = make()
        second.load_state_dict(state)
        with undisturbed.globals_as_they_are():
            assert list(second) == rest


@pytest.mark.parametrize("order", ["NumPy's generator", "keeps its state"])
def test_saved_and_loaded_with_other_workers(order: str, other_workers: Any, rolled: Any) -> None:
    other_workers.go_on(lambda **some: loader(rolled(23), seed=4, **ORDERS[order](23, 4, False), **some))


@pytest.mark.parametrize("order", ["draws on the way", "in batches, keeps its state"])
def test_counts_what_was_received_not_what_was_made_ahead(order: str, other_workers: Any) -> None:
    other_workers.count_what_was_received(
        lambda **some: loader(range(40), seed=1, **ORDERS[order](40, 2, False), **some)
    )


class Held(stoker.Dataset[int]):
    """Fetches of these numbers, counted as they come, wait until `gate` is open: other batches overtake theirs."""

    def __init__(self, length: int, held: set[int]) -> None:
        self.length, self.held = length, held
        self.gate, self.calls = threading.Event(), itertools.count()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if self.number(index) in self.held:
            self.gate.wait()
        return index

    def number(self, index: int) -> int:
        return next(self.calls)


class HeldByIndex(Held):
    def number(self, index: int) -> int:
        return index


ANY_ORDER: dict[str, Any] = {"num_workers": 3, "worker_method": "thread", "in_order": False}


def received_of(running: Any, count: int) -> tuple[list[Any], Any]:
    """Returns the first batches and the state after them; then delayed batches may come."""
    iterator = iter(running)
    received = list(itertools.islice(iterator, count))
    state = through_json(running.state_dict())
    running.dataset.gate.set()
    iterator.close()
    return received, state


@pytest.mark.parametrize("order", ["shuffled", "keeps its state", "draws at iter()"])
@SOME
@given(legs=st.lists(st.tuples(st.sets(st.integers(0, 9), max_size=2), st.integers(0, 4)), min_size=1, max_size=3))
def test_batches_that_came_out_of_order_come_once(order: str, legs: list[tuple[set[int], int]]) -> None:
    arguments = {"shuffled": lambda n, size, drop: {"batch_size": size, "shuffle": True}, **ORDERS}[order]
    n, received, state = 60, [], None  # enough batches that none of those that are waited for is held up
    for held, count in legs:
        running = loader(Held(n, held), seed=1, **{**arguments(n, 2, False), **ANY_ORDER})
        if state is not None:
            running.load_state_dict(state)
        more, state = received_of(running, count)
        received += more
    last = loader(range(n), seed=1, **arguments(n, 2, False))
    last.load_state_dict(state)
    received += list(last)
    assert sorted(received) == sorted(loader(range(n), seed=1, **arguments(n, 2, False)))


def test_batches_that_overtook_another_are_in_the_state() -> None:
    received, state = received_of(loader(HeldByIndex(30, {0}), batch_size=2, prefetch_factor=1, **ANY_ORDER), 3)
    assert (state["batches"], len(state["ahead"])) == (0, 3)
    assert sorted(received) == [[2 * number, 2 * number + 1] for number in state["ahead"]]
    in_twos, in_threes = (loader(range(30), batch_size=size, in_order=False) for size in (2, 3))
    in_twos.load_state_dict(state)
    assert sorted([*received, *in_twos]) == [[i, i + 1] for i in range(0, 30, 2)]
    with pytest.raises(StateMismatchError, match=r"out of order \(in_order=False\).* 1 ranks x 2 there, 1 x 3 here"):
        in_threes.load_state_dict(state)
    in_threes.load_state_dict(state, strict=False)
    assert list(in_threes) == [[i, i + 1, i + 2] for i in range(0, 30, 3)]


def test_a_state_can_be_loaded_any_number_of_times() -> None:
    first = loader(range(9), sampler=Kept(9), batch_size=2)
    iterator = iter(first)
    next(iterator)
    state = first.state_dict()
    before = json.dumps(state)
    rest = list(iterator)
    for _ in range(2):
        again = loader(range(9), sampler=Kept(9), batch_size=2)
        again.load_state_dict(state)
        assert list(again) == rest
        assert json.dumps(state) == before


def test_an_infinite_sampler_goes_on() -> None:
    make = lambda: loader(range(7), sampler=Repeated(lambda: itertools.cycle(range(7)), 7), batch_size=3)  # noqa: E731
    whole = list(itertools.islice(make(), 9))
    for count in range(9):
        first = make()
        list(itertools.islice(first, count))
        second = make()
        second.load_state_dict(through_json(first.state_dict()))
        assert list(itertools.islice(second, 9 - count)) == whole[count:]


def test_a_sampler_that_fails_does_so_at_its_place_again() -> None:
    def failing() -> Iterator[int]:
        yield from range(5)
        raise RuntimeError("the index file is broken")

    first = loader(range(9), sampler=Repeated(failing, 9), batch_size=2)
    iterator = iter(first)
    assert [next(iterator), next(iterator)] == [[0, 1], [2, 3]]
    for _ in range(2):
        second = loader(range(9), sampler=Repeated(failing, 9), batch_size=2)
        second.load_state_dict(first.state_dict())
        with pytest.raises(RuntimeError, match="index file"):
            next(iter(second))


def test_a_sampler_that_has_become_shorter_is_named() -> None:
    first = loader(range(9), sampler=list(range(9)), batch_size=2)
    list(itertools.islice(first, 4))
    second = loader(range(9), sampler=[1, 2, 3, 4, 5], batch_size=2)
    second.load_state_dict(first.state_dict())
    with pytest.raises(StateMismatchError, match=r"after step 4 of the sampler, which now ends after 3"):
        next(iter(second))


def test_a_sampler_for_another_number_of_ranks_is_named() -> None:
    """Its batches are counted for one rank."""
    first = loader(range(20), sampler=DistributedSampler(range(20), 2, 0), batch_size=2)
    second = loader(range(20), sampler=DistributedSampler(range(20), 4, 0), batch_size=2)
    with pytest.raises(StateMismatchError, match="num_replicas was 2 and is 4"):
        second.load_state_dict(first.state_dict())
    other = loader(range(20), sampler=DistributedSampler(range(20), 2, 1), batch_size=2)
    other.load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"batch_size": 3}, "batch_size was 2 and is 3"),
        ({"drop_last": True}, "drop_last was False and is True"),
        ({"sampler": range(9)}, "over list' and is 'walked from BatchSampler over range'"),
        ({"sampler": None}, "order was 'walked from BatchSampler over list' and is 'SequentialSampler/1'"),
        ({"sampler": None, "batch_size": 1, "batch_sampler": [[0]]}, "over list' and is 'walked from list'"),
    ],
)
def test_changed_setting_of_a_walked_sampler_is_named(changed: dict[str, Any], told: str) -> None:
    settings: dict[str, Any] = {"sampler": list(range(9)), "batch_size": 2}
    state = loader(range(9), **settings).state_dict()
    with pytest.raises(StateMismatchError, match=told):
        loader(range(9), **{**settings, **changed}).load_state_dict(state)


def test_sampler_owns_no_dataset_or_global_generator() -> None:
    """Though it can reach them: the state does not hold them, and the walk does not move them."""

    class Reaching:
        def __init__(self, dataset: Any) -> None:
            self.dataset, self.choose = dataset, random.randrange

        def __iter__(self) -> Iterator[int]:
            return iter(range(9))

    class Dataset(stoker.Dataset[int]):
        def __init__(self) -> None:
            self.generator = random.Random(1)

        def __getitem__(self, index: int) -> int:
            return index

    def make() -> Any:
        dataset = Dataset()
        return loader(dataset, sampler=Reaching(dataset), batch_size=2)

    first = make()
    assert "generators" not in json.loads(first.state_dict()["below"])
    list(itertools.islice(first, 2))
    assert "generators" not in json.loads(first.state_dict()["below"])


def test_an_epoch_of_which_nothing_came_is_where_it_was() -> None:
    """Ctrl-C in the first batch behind a resume."""
    interrupted = True

    class Interrupted(stoker.Dataset[int]):
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> int:
            if interrupted:
                raise KeyboardInterrupt
            return index

    first = loader(range(9), sampler=Kept(9), batch_size=2, seed=1)
    iterator = iter(first)
    next(iterator), next(iterator)
    second = loader(Interrupted(), sampler=Kept(9), batch_size=2, seed=1)
    second.load_state_dict(first.state_dict())
    resumed = iter(second)
    with pytest.raises(KeyboardInterrupt):
        next(resumed)
    state = through_json(second.state_dict())
    assert (state["batches"], state["position"]) == (2, 4)
    interrupted = False
    rest = list(iterator)
    assert list(resumed) == rest
    third = loader(range(9), sampler=Kept(9), batch_size=2, seed=1)
    third.load_state_dict(state)
    assert list(third) == rest


def test_the_state_of_pythons_generator_is_that_of_getstate() -> None:
    """Not how it lies in the memory of this interpreter: it goes to others, and comes from those that were before."""
    generator = random.Random(1)
    version, words, held_back = generator.getstate()
    first = loader(range(9), sampler=Shuffled(9, generator), batch_size=2)
    list(itertools.islice(first, 1))
    before_iter, _ = json.loads(first.state_dict()["below"])["generators"]
    assert before_iter == {"0": [version, list(words), held_back]}


def test_a_generator_that_the_sampler_no_longer_has() -> None:
    first = loader(range(9), sampler=Shuffled(9, random.Random(1)), batch_size=2)
    list(itertools.islice(first, 1))
    for other in (np.random.default_rng(1), [].sort):
        second = loader(range(9), sampler=Shuffled(9, other), batch_size=2)
        second.load_state_dict(first.state_dict())
        for _ in range(2):  # it stays loaded
            with pytest.raises(StateError, match="generator that the sampler drew from"):
                iter(second)


def test_a_walk_loads_no_sample() -> None:
    class Watched(stoker.Dataset[int]):
        loaded = 0

        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> int:
            Watched.loaded += 1
            return index

    make = lambda: loader(Watched(), batch_size=5, sampler=Shuffled(100, random.Random(1)))  # noqa: E731
    first = make()
    list(itertools.islice(first, 15))
    Watched.loaded = 0
    second = make()
    second.load_state_dict(first.state_dict())
    next(iter(second))
    assert Watched.loaded == 5


@pytest.mark.parametrize("order", ["distributed", "list", "keeps its state", "one pass"])
def test_a_state_is_small(order: str) -> None:
    some = loader(range(200), **ORDERS[order](200, 3, False))
    for _ in some:
        assert len(json.dumps(some.state_dict())) < 1000


class BegunAnewByIter:
    """Its own iterator, which each `iter()` sends back to the start; Lightning's in `predict` is one."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    def __iter__(self) -> Iterator[Any]:
        self.left = iter(self.steps)
        return self

    def __next__(self) -> Any:
        return next(self.left)


def test_an_iterator_is_begun_once() -> None:
    batches = [[0, 1], [2, 3], [4, 5]]
    whole = stoker.DataLoader(range(6), batch_sampler=BegunAnewByIter(batches), output="numpy")
    for _ in range(2):
        assert [batch.tolist() for batch in whole] == batches


class WithoutLength(Kept):
    """Its length says nothing of whether there is a sampler."""

    def __len__(self) -> int:
        return 0


class Endless(Kept):
    def __len__(self) -> int:
        raise RuntimeError("there is no end")

    def __bool__(self) -> bool:
        raise RuntimeError("nobody asks for my truth")


@pytest.mark.parametrize("kind", [WithoutLength, Endless])
@pytest.mark.parametrize("workers", [0, 1])
def test_state_of_a_sampler_does_not_depend_on_its_length(kind: type[Kept], workers: int) -> None:
    def loader() -> stoker.DataLoader[Any]:
        return stoker.DataLoader(range(20), batch_size=4, sampler=kind(20), num_workers=workers, output="numpy")

    first = loader()
    with iter(first) as batches:
        seen = [next(batches).tolist() for _ in range(2)]
        state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    seen += [batch.tolist() for batch in iter(second)]
    assert [index for batch in seen for index in batch] == list(Kept(20))


class Counted(Kept):
    """Counts the calls of `state_dict()`; gives indices of a kind."""

    def __init__(self, length: int, kind: Callable[[int], Any] = int) -> None:
        super().__init__(length)
        self.asked, self.kind = 0, kind

    def __iter__(self) -> Iterator[Any]:
        return map(self.kind, super().__iter__())

    def state_dict(self) -> dict[str, int]:
        self.asked += 1
        return super().state_dict()


class Anything(stoker.Dataset[Any]):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: Any) -> Any:
        return index


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "worker_method": "thread"}], ids=str)
def test_state_of_a_sampler_is_asked_for_with_the_loaders(workers: dict[str, Any]) -> None:
    sampler = Counted(40)
    some = loader(range(40), sampler=sampler, batch_size=2, **workers)
    for _ in range(2):
        list(some)
        next(iter(some))
    assert sampler.asked == 0
    some.state_dict()
    assert sampler.asked == 1


KINDS: list[Callable[[int], Any]] = [
    int,
    str,
    float,
    np.int64,
    np.float32,
    lambda number: (number, ("b", np.uint8(number))),
    lambda number: {"tuple": number},  # of no kind that has a form in a state
    *([] if torch is None else [torch.tensor]),
]


@pytest.mark.parametrize("count", [0, 1, 5, 11])
def test_given_indices_come_back_as_they_were(count: int) -> None:
    for kind, size in itertools.product(KINDS, (2, None)):
        settings: dict[str, Any] = {"num_workers": 2, "worker_method": "thread"}
        settings |= {"batch_size": size, "collate_fn": repr}
        first = loader(Anything(), sampler=Counted(23, kind), **settings)
        batches = iter(first)
        received = list(itertools.islice(batches, count))
        state = through_json(first.state_dict())
        assert len(received) == state["batches"] == count
        rest = list(batches)
        second = loader(Anything(), sampler=Counted(23, kind), **settings)
        second.load_state_dict(state)
        assert through_json(second.state_dict()) == state
        assert list(second) == rest
        again = loader(Anything(), sampler=Counted(23, kind), batch_size=size, collate_fn=repr)
        again.load_state_dict(state)
        assert list(again) == rest


@pytest.mark.parametrize("length", [5, 23])
@pytest.mark.parametrize("kind", [int, Fraction])
def test_given_batches_outlast_later_states(kind: Callable[[int], Any], length: int) -> None:
    """The first run gives more batches ahead than each later one takes; of a short sampler it gives all."""
    for size in (1, 2, None):
        settings: dict[str, Any] = {"batch_size": size, "collate_fn": repr}
        ahead = {"num_workers": 2, "worker_method": "thread", "prefetch_factor": 4}
        whole = list(loader(Anything(), sampler=Counted(length, kind), **settings))
        for takes in (1, 2):
            received: list[str] = []
            state: Any = None
            while state is None or state["epoch"] == 0:
                how = {**settings, **ahead} if state is None else settings
                some = loader(Anything(), sampler=Counted(length, kind), **how)
                if state is not None:
                    some.load_state_dict(copy.deepcopy(state))
                received += itertools.islice(iter(some), takes)
                if len(received) >= len(whole):
                    break
                state = some.state_dict()
            assert received == whole, (size, takes)


def test_sampler_that_draws_globally_is_not_walked_again() -> None:
    """What it has given comes; what follows is drawn from where the generator then is, as in a run that goes on."""

    class Wandering(Kept):
        def __iter__(self) -> Iterator[int]:
            while self.state["at"] < self.length:
                self.state["at"] += 1
                yield random.randrange(1000)

    first = loader(Anything(), sampler=Wandering(23), batch_size=2, num_workers=2, worker_method="thread")
    random.seed(1)
    batches = iter(first)
    next(batches)
    state, drawn = through_json(first.state_dict()), random.getstate()
    rest = list(batches)
    second = loader(Anything(), sampler=Wandering(23), batch_size=2)
    second.load_state_dict(state)
    resumed = iter(second)
    random.setstate(drawn)
    assert list(resumed) == rest
