"""Streams go on where each worker's stands: the same sequence on as many workers, each sample once on any other."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from stoker._engine.backend import UnitReport
from stoker.collate.registry import default_collate_fn_map
from stoker.datasets.interleave import InterleaveDataset
from stoker.datasets.stream import StreamIterator
from stoker.errors import ShardingError, StateError, StateFormatError, StateMismatchError, StokerWarning
from stoker.loader._epoch.epoch import Epoch
from stoker.loader._epoch.plan import TurnPlan
from stoker.loader._epoch.progress import Progress
from stoker.loader._state.resharding import reshared
from stoker.loader._state.schema import START
from stoker.testing.streams import Numbers

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # a machine may have one CPU
    pytest.mark.filterwarnings("ignore:The loader guesses that"),
    pytest.mark.filterwarnings("ignore:Workers . and . gave the same"),
    pytest.mark.filterwarnings("ignore:.* does not share its samples out among workers"),
    pytest.mark.filterwarnings("ignore:.* has 2 shards, too few for"),
    pytest.mark.filterwarnings("ignore:.* cannot say where it stands"),
]
SOME = settings(max_examples=max(20, settings().max_examples // 5))
N = 13


def rng() -> Any:
    """What a sample draws from: Python's generator. Threads share it, and so are given numbers that never change."""
    return random if threading.current_thread() is threading.main_thread() else random.Random(0)


def mine() -> tuple[int, int]:
    info = stoker.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Plain(stoker.IterableDataset[Any]):
    """A generator: nothing is known of it."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(N):
            yield number, rng().random()


class ShuffledFirst(Plain):
    """What it drew at its first sample decides about the others."""

    def __iter__(self) -> Iterator[Any]:
        numbers = list(range(N))
        rng().shuffle(numbers)
        for number in numbers:
            yield number, rng().random()


class Buffered(Plain):
    """What it draws at each sample decides about later ones."""

    def __iter__(self) -> Iterator[Any]:
        held: list[int] = []
        for number in range(N):
            held.append(number)
            if len(held) > 3:
                yield held.pop(rng().randrange(4)), rng().random()
        while held:
            yield held.pop(rng().randrange(len(held))), rng().random()


class SharesItself(Plain):
    def __iter__(self) -> Iterator[Any]:
        worker, workers = mine()
        for number in range(worker, N, workers):
            yield number, rng().random()


class SharesItselfUnevenly(Plain):
    def __iter__(self) -> Iterator[Any]:
        worker, _ = mine()
        for number in range([2, 9, 5][worker]):
            yield 100 * worker + number, rng().random()


class HasShards(Plain):
    """Gives a shard, which draws its order at its first sample."""

    stoker_protocol = True

    def __init__(self, numbers: Any = range(N)) -> None:
        self.numbers = numbers

    def shard(self, num_shards: int, index: int) -> HasShards:
        return HasShards(self.numbers[index::num_shards])

    def __iter__(self) -> Iterator[Any]:
        numbers = list(self.numbers)
        rng().shuffle(numbers)
        for number in numbers:
            yield number, rng().random()


class HasShardsAndSharesItself(HasShards):
    """Both, as Hugging Face's streams."""

    shards_itself = True

    def shard(self, num_shards: int, index: int) -> HasShardsAndSharesItself:
        return HasShardsAndSharesItself(self.numbers[index::num_shards])

    def __iter__(self) -> Iterator[Any]:
        worker, workers = mine()
        for number in self.numbers[worker::workers]:
            yield number, rng().random()


def shuffled_between() -> Any:
    return stoker.ShuffleDataset(stoker.MapDataset(HasShardsAndSharesItself(), lambda sample: sample[0]), 3)


class KeepsItsState(Plain):
    """As torchdata wants it; begins anew behind its end."""

    length = N

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.length:
            self.at += 1
            yield self.at - 1, rng().random()
        self.at = 0

    def state_dict(self) -> Any:
        return self.__dict__  # not a copy, as with many

    def load_state_dict(self, state: Any) -> None:
        self.__dict__ = state


class KeepsItsStateAndSharesItself(KeepsItsState):
    def __iter__(self) -> Iterator[Any]:
        worker, workers = mine()
        while self.at * workers + worker < N:
            self.at += 1
            yield (self.at - 1) * workers + worker, rng().random()
        self.at = 0


class IteratorKeepsItsState(Plain):
    def __iter__(self) -> Iterator[Any]:
        return _Kept()


class _Kept:
    at = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.at == N:
            raise StopIteration
        self.at += 1
        return self.at - 1, rng().random()

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]


class KeepsAStateBesideItsIterators(IteratorKeepsItsState):
    """What its iterators do not know."""

    def state_dict(self) -> Any:
        return {"version": 2}

    def load_state_dict(self, state: Any) -> None:
        assert state == {"version": 2}


class ItsOwnIterator(_Kept, Plain):
    """Begins anew at `iter()`, where torchdata loads it afterwards."""

    def __iter__(self) -> Iterator[Any]:
        self.at = 0
        return self


class KeepsTheGlobalGenerator(KeepsItsState):
    """As it stood behind the last sample, beside its place."""

    def state_dict(self) -> Any:
        return through_json({"at": self.at, "drawn": rng().getstate()})

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]
        version, numbers, gauss = state["drawn"]
        rng().setstate((version, tuple(numbers), gauss))


class Seldom(Plain):
    """Most samples draw nothing, no two generators are drawn from first by the same, and what was drawn is kept."""

    def __iter__(self) -> Iterator[Any]:
        python = numpys = 0.0
        for number in range(N):
            python = rng().random() if number in (4, 7, 9) else python
            numpys = float(np.random.random_sample()) if number in (5, 8) and rng() is random else numpys
            yield number, python, numpys


class DrawsWhereItIsLoaded(KeepsItsState):
    """Which no sample is to notice."""

    def __iter__(self) -> Iterator[Any]:
        while self.at < N:
            self.at += 1
            yield self.at - 1, rng().random() if self.at in (5, 6, 10) else 0.0
        self.at = 0

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        rng().random()


class DrawsWhereItIsOpened(stoker.Stream[Any]):
    """At a place: no sample is to notice, though most have drawn nothing."""

    def _begin(self, state: Any) -> Any:
        if state is not None:
            rng().random()
        return _Counted(state["at"] if state else 0)


class _Counted(StreamIterator[Any]):
    def __init__(self, at: int) -> None:
        self.at = at

    def __next__(self) -> Any:
        if self.at == N:
            raise StopIteration
        self.at += 1
        return self.at - 1, rng().random() if self.at > 7 else 0.0

    def state_dict(self) -> Any:
        return {"at": self.at}


class ShuffledLate(Plain):
    """Its order is drawn behind its first sample."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def __iter__(self) -> Iterator[Any]:
        yield self.first, 0.0
        numbers = list(range(self.first + 1, self.first + N))
        random.shuffle(numbers)
        for number in numbers:
            yield number, 0.0


class Stumbling(Plain):
    """Raises, and goes on when it is asked again."""

    def __iter__(self) -> Iterator[Any]:
        return _Stumbling()


class _Stumbling:
    at = -1

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.at += 1
        if self.at in (3, 7):
            raise ValueError("broken")
        if self.at == N:
            raise StopIteration
        return self.at, rng().random()


class Falling(Plain):
    """A generator that raises is over."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(N):
            if number == 5:
                raise ValueError("broken")
            yield number, rng().random()


def chain() -> Any:
    return stoker.ChainDataset([IteratorKeepsItsState(), Numbers(5), Numbers(0), Numbers(7)])


def mapped() -> Any:
    return stoker.MapDataset(Numbers(N), lambda number: (number, rng().random()))


SOURCES: list[Any] = [
    *(Plain, ShuffledFirst, Buffered, SharesItself, SharesItselfUnevenly, HasShards, KeepsItsState),
    *(KeepsItsStateAndSharesItself, IteratorKeepsItsState, Stumbling, Falling, chain, mapped),
    *(HasShardsAndSharesItself, shuffled_between, KeepsAStateBesideItsIterators, ItsOwnIterator),
    *(KeepsTheGlobalGenerator, Seldom, DrawsWhereItIsLoaded, DrawsWhereItIsOpened),
]
WAYS: list[dict[str, Any]] = [{}, {"shard": "none"}, {"worker_init_fn": int}, {"batch_size": None}, {"drop_last": True}]
THREADS: dict[str, Any] = {"num_workers": 3, "worker_method": "thread"}
PROCESSES: dict[str, Any] = {"num_workers": 3}


def loader(dataset: Any, **settings: Any) -> Any:
    made = {"batch_size": 2, "seed": 3, **settings}
    return stoker.DataLoader(dataset, collate_fn=None if made["batch_size"] is None else list, **made)


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def walked(iterator: Iterator[Any], count: int | None = None) -> list[Any]:
    """What comes, an error being something too."""
    received: list[Any] = []
    while count is None or len(received) < count:
        try:
            received.append(next(iterator))
        except StopIteration:
            break
        except ValueError:
            received.append("broken")
    return received


def assert_goes_on(make: Any, stops: Any = None, epochs: int = 2) -> None:
    whole = make()
    runs = [walked(iter(whole)) for _ in range(epochs)]
    for epoch, batches in enumerate(runs):
        for count in range(len(batches) + 1) if stops is None else {min(stop, len(batches)) for stop in stops}:
            first = make()
            for _ in range(epoch):
                walked(iter(first))
            assert walked(iter(first), count) == batches[:count]
            state = through_json(first.state_dict())
            second = make()
            second.load_state_dict(state)
            assert through_json(second.state_dict()) == state
            rest = iter(second)
            assert through_json(second.state_dict()) == state
            assert walked(rest) == batches[count:], (epoch, count)
            assert [walked(iter(second)) for _ in runs[epoch + 1 :]] == runs[epoch + 1 :], (epoch, count)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("source", SOURCES)
def test_resumed_stream_is_the_same_in_the_trainer(source: Any, way: dict[str, Any]) -> None:
    assert_goes_on(lambda: loader(source(), **way), epochs=1 if way else 2)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("source", SOURCES)
def test_resumed_stream_is_the_same_on_threads(source: Any, way: dict[str, Any]) -> None:
    make = lambda: loader(source(), **THREADS, **way)  # noqa: E731
    assert_goes_on(make, **({"stops": (4,), "epochs": 1} if way else {"stops": (0, 1, 5)}))


@pytest.mark.parametrize(
    "source", [Buffered, SharesItselfUnevenly, HasShards, KeepsItsState, Stumbling, mapped, Seldom]
)
def test_resumed_stream_is_the_same_in_processes(source: Any) -> None:
    assert_goes_on(lambda: loader(source(), **PROCESSES), stops=(3,), epochs=1)


def test_stream_state_of_one_worker_loads_without_workers() -> None:
    first = loader(KeepsItsState())
    iterator = iter(first)
    next(iterator)
    second = loader(KeepsItsState(), num_workers=1)
    second.load_state_dict(through_json(first.state_dict()))
    assert list(second) == list(iterator)


@pytest.mark.parametrize("settings", [THREADS, PROCESSES], ids=["threads", "processes"])
def test_persistent_workers_are_sent_back(settings: dict[str, Any]) -> None:
    with loader(KeepsItsState(), persistent_workers=True, **settings) as kept:
        iterator = iter(kept)
        received, states = [], []
        for batch in iterator:
            received.append(batch)
            states.append(through_json(kept.state_dict()))
        for number in (2, 0, 0, 4):
            kept.load_state_dict(states[number])
            iterator = iter(kept)
            assert next(iterator) == received[number + 1]
        kept.load_state_dict(states[3])
        assert list(kept) == received[4:]


def test_counts_what_was_received_not_what_was_read_ahead() -> None:
    first = loader(Plain(), **THREADS, prefetch_factor=3)
    whole = list(loader(Plain(), **THREADS))
    for number, _ in enumerate(first):
        second = loader(Plain(), **THREADS)
        second.load_state_dict(first.state_dict())
        assert list(second) == whole[number + 1 :]


def test_unknown_stream_is_read_again_with_one_warning() -> None:
    first = loader(Plain(), **THREADS)
    walked(iter(first), 4)
    second = loader(Plain(), **THREADS)
    with pytest.warns(StokerWarning, match=r"Plain cannot say .* its workers read 21 samples again") as warned:
        second.load_state_dict(first.state_dict())
        list(second)
    assert len([w for w in warned if "cannot say" in str(w.message)]) == 1
    assert __file__ in {w.filename for w in warned}


@pytest.mark.filterwarnings("error:.* cannot say where it stands")
@pytest.mark.parametrize("source", [KeepsItsState, IteratorKeepsItsState, lambda: Numbers(N), mapped])
def test_a_stream_that_keeps_its_state_is_not_read_again(source: Any) -> None:
    first = loader(source(), **THREADS)
    walked(iter(first), 4)
    loader(source(), **THREADS).load_state_dict(first.state_dict())


@pytest.mark.parametrize("count", [1, 3])
def test_a_stream_that_has_become_shorter_is_named(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first = loader(Plain())
    walked(iter(first), 5)
    second = loader(Plain())
    second.load_state_dict(first.state_dict())
    monkeypatch.setitem(globals(), "N", 4)
    with pytest.raises(StateMismatchError, match="stands behind sample 10 of a stream that has 4 now"):
        next(iter(second))


def test_state_that_cannot_be_saved_raises_in_state_dict() -> None:
    class Silent(KeepsItsState):
        def state_dict(self) -> Any:
            raise RuntimeError("the connection is closed")

    some = loader(Silent(), num_workers=1)
    assert len(list(some)) == 7
    iterator = iter(some)
    next(iterator)
    with pytest.raises(StateError, match=r"worker 0 cannot say where it stands: .*the connection is closed"):
        some.state_dict()
    assert len(list(iterator)) == 6


def test_a_loaded_state_is_not_written_to() -> None:
    first = loader(KeepsItsState(), **THREADS)
    walked(iter(first), 4)
    state = first.state_dict()
    before = json.dumps(state)
    rest = [list(_loaded(loader(KeepsItsState(), **THREADS), state)) for _ in range(2)]
    assert rest[0] == rest[1]
    list(_loaded(loader(KeepsItsState()), state))
    assert json.dumps(state) == before


def _loaded(some: Any, state: Any) -> Any:
    some.load_state_dict(state)
    return some


# With another number of workers


def settings_for(workers: int) -> dict[str, Any]:
    return {"num_workers": workers, "worker_method": "thread"} if workers else {}


def read_in_legs(make: Any, legs: list[tuple[int, int]], last: int, **settings: Any) -> list[Any]:
    """Returns batches of some workers, then of another number, then the rest."""
    received: list[Any] = []
    state = None
    for workers, count in [*legs, (last, None)]:
        some = loader(make(), **settings, **settings_for(workers))
        if state is not None:
            some.load_state_dict(state)
        iterator = iter(some)
        received += itertools.chain.from_iterable(itertools.islice(iterator, count))
        iterator.close()  # type: ignore[attr-defined]
        state = through_json(some.state_dict())
    return received


def test_draws_of_a_sharded_stream_do_not_depend_on_workers() -> None:
    whole = list(itertools.chain.from_iterable(loader(Seldom())))
    assert len({number for sample in whole for number in sample[1:]}) == 1 + 5
    for *legs, last in [((0, 2), (3, 3), 2), ((2, 1), 3), ((2, 4), 0), ((3, 5), 2)]:
        received: list[Any] = []
        state = None
        for workers, count in (*legs, (last, None)):
            some = loader(Seldom(), num_workers=workers)
            if state is not None:
                some.load_state_dict(state)
            iterator = iter(some)
            received += itertools.chain.from_iterable(itertools.islice(iterator, count))
            iterator.close()
            state = through_json(some.state_dict())
        assert sorted(received) == whole, (legs, last)


def as_formerly(some: Any) -> Any:
    """Its state without the words that say what was drawn from: all generators were seeded for each sample."""
    state = some.state_dict()
    below = json.loads(state["below"])
    for worker in below["workers"]:
        if worker is not None:
            del worker["drawn"]
    return {**state, "below": json.dumps(below)}


def test_state_without_draw_source_means_per_sample_seeding() -> None:
    by_position = list(loader(Seldom(), seeding="sample"))
    some = loader(Seldom(), seeding="sample")
    walked(iter(some), 1)
    assert list(_loaded(loader(Seldom()), as_formerly(some))) == by_position[1:] != list(loader(Seldom()))[1:]


@pytest.mark.parametrize(("workers", "count"), [(0, 1), (0, 3), (2, 1), (2, 3)])
def test_state_without_draw_source_loses_nothing_in_later_ones(workers: int, count: int) -> None:
    some = loader(ShuffledLate(), seeding="sample", num_workers=workers)
    received = walked(iter(some), count)
    state = as_formerly(some)
    for more in (2, None):
        some = _loaded(loader(ShuffledLate(), num_workers=workers), state)
        received += walked(iter(some), more)
        state = some.state_dict()
    assert sorted(number for number, _ in itertools.chain.from_iterable(received)) == list(range(N))


def test_end_of_per_sample_seeding_repeats_no_numbers() -> None:
    some = loader(Plain(), seeding="sample")
    numbers = walked(iter(some), 2)
    numbers += list(_loaded(loader(Plain()), some.state_dict()))
    assert len({drawn for _, drawn in itertools.chain.from_iterable(numbers)}) == N


class OpensWithADraw(Plain):
    def __iter__(self) -> Iterator[Any]:
        first = rng().random()
        return ((number, first, rng().random()) for number in range(N))


class OpensWithADrawAndDrawsSeldom(Plain):
    """What is drawn at the opening is the first draw, also if no sample but the sixth draws another."""

    def __iter__(self) -> Iterator[Any]:
        first = rng().random()
        return ((number, first, rng().random() if number == 5 else 0.0) for number in range(N))


@pytest.mark.parametrize("kind", [OpensWithADraw, OpensWithADrawAndDrawsSeldom])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_samples_draw_the_same_on_any_number_of_workers(workers: int, kind: Any) -> None:
    assert sorted(itertools.chain.from_iterable(loader(kind(), num_workers=workers))) == list(
        itertools.chain.from_iterable(loader(kind()))
    )


class Registered(int):
    """Collated by a function that draws."""


def drawing(samples: Any, *, collate_fn_map: Any = None) -> Any:
    random.random()
    return list(samples)


def test_numbers_drawn_in_a_collator_are_not_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that read one stream by stride would part."""

    class Late(Plain):
        def __iter__(self) -> Iterator[Any]:
            return (Registered(number) for number, _ in ShuffledLate().__iter__())

    monkeypatch.setitem(default_collate_fn_map, Registered, drawing)
    for workers, size in ((2, 1), (2, 2), (3, 1)):
        made = stoker.DataLoader(Late(), size, num_workers=workers, seed=3)
        assert sorted(itertools.chain.from_iterable(made)) == list(range(N))


class AsksAtOnce(Plain):
    def __iter__(self) -> Iterator[Any]:
        worker, workers = mine()
        return ((number, random.random()) for number in range(worker, N, workers))


def test_stream_that_asks_when_opened_draws_as_its_worker() -> None:
    made = list(itertools.chain.from_iterable(loader(AsksAtOnce(), num_workers=3)))
    assert len({drawn for _, drawn in made}) == N


class Buffering(Plain):
    """Which of its samples comes next is drawn for each, among those that it has read ahead."""

    stoker_protocol = True

    def __init__(self, numbers: Any = range(N)) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[Any]:
        waiting = list(self.numbers)
        while waiting:
            yield waiting.pop(random.randrange(len(waiting[:4])))

    def shard(self, num_shards: int, index: int) -> Buffering:
        return Buffering(self.numbers[index::num_shards])


class ShuffledShards(Buffering):
    def __iter__(self) -> Iterator[Any]:
        numbers = list(self.numbers)
        random.shuffle(numbers)
        yield from numbers

    def shard(self, num_shards: int, index: int) -> ShuffledShards:
        return ShuffledShards(self.numbers[index::num_shards])


class BufferingWhole(Buffering):
    shard: Any = None


@pytest.mark.parametrize(
    "below",
    [
        *(Buffering, BufferingWhole, ShuffledShards),
        lambda: stoker.ChainDataset([Buffering(), Numbers(3)]),
        lambda: stoker.ChainDataset([ShuffledShards(), ShuffledShards(range(50, 59))]),
    ],
    ids=["shards", "whole", "shuffled", "chain", "chain of shuffled"],
)
@pytest.mark.parametrize("workers", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_mapped_stream_is_reread_as_it_was(below: Any, workers: int) -> None:
    make = lambda: loader(stoker.MapDataset(below(), int), num_workers=workers)  # noqa: E731
    whole = walked(iter(make()))
    for count in (1, 3, 5, len(whole) - 1):
        some = make()
        assert walked(iter(some), count) == whole[:count]
        assert walked(iter(_loaded(make(), through_json(some.state_dict())))) == whole[count:]


@pytest.mark.parametrize("workers", [0, 2])
def test_repeated_views_are_reread_in_their_order(workers: int) -> None:
    class First(Plain):
        def __iter__(self) -> Iterator[Any]:
            numbers = list(range(N))
            random.shuffle(numbers)
            yield from numbers

    make = lambda: loader(stoker.ViewsDataset(First(), 2, transform), num_workers=workers)  # noqa: E731
    whole = walked(iter(make()))
    some = make()
    assert walked(iter(some), 6) == whole[:6]
    assert walked(iter(_loaded(make(), some.state_dict()))) == whole[6:]


def transform(sample: Any, view: int) -> Any:
    return sample


def test_parts_of_a_chain_draw_numbers_of_their_own() -> None:
    for workers in (0, 2):
        made = list(itertools.chain.from_iterable(loader(stoker.ChainDataset([Plain()] * 3), num_workers=workers)))
        assert len({drawn for _, drawn in made}) == 3 * N


@pytest.mark.parametrize("workers", [1, 2])
def test_a_chain_that_goes_on_is_where_it_would_have_been(workers: int) -> None:
    one, count = loader(chain_of_shuffled(), num_workers=workers), 9
    walked(iter(one), count)
    other = _loaded(loader(chain_of_shuffled(), num_workers=workers), one.state_dict())
    walked(iter(other), 1)
    calm = loader(chain_of_shuffled(), num_workers=workers)
    walked(iter(calm), count + 1)
    assert other.state_dict() == calm.state_dict()


def chain_of_shuffled() -> Any:
    return stoker.ChainDataset([ShuffledLate(), Numbers(0), ShuffledLate(100)])


@pytest.mark.parametrize("make", [chain_of_shuffled, lambda: stoker.MapDataset(chain_of_shuffled(), tuple)])
@pytest.mark.parametrize("workers", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3)), 2])
def test_parts_of_a_chain_in_an_order_of_their_own(make: Any, workers: int) -> None:
    """Each worker draws the same order for a part, also where it is read again."""
    everything = [*range(N), *range(100, 100 + N)]
    for count in (0, 2, 8, 10):
        some = loader(make(), num_workers=workers)
        received = walked(iter(some), count)
        received += walked(iter(_loaded(loader(make(), num_workers=workers), through_json(some.state_dict()))))
        assert sorted(number for number, *_ in itertools.chain.from_iterable(received)) == everything, count


def test_named_shards_have_been_drawn_from_by_whichever_worker() -> None:
    states: list[Any] = [
        {"ended": False, "position": position, "stream": {"shards": {f"file {position}": 0}}, "drawn": drawn}
        for position, drawn in ((5, {}), (9, {"torch": 7, "NumPy": 4}), (2, {"NumPy": 1}))
    ]
    assert [state["drawn"] for state in reshared(states, 2)] == [{"NumPy": 1, "torch": 7}] * 2
    del states[0]["drawn"]
    assert [state["drawn"] for state in reshared(states, 2)] == [{"NumPy": -1, "Python": -1, "torch": -1}] * 2


LEGS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4)


class Long(Plain):
    length = 41

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.length):
            yield number, rng().random()


class LongKept(KeepsItsState):
    length = 41


def long_map() -> Any:
    return stoker.MapDataset(Numbers(41), lambda number: (number, rng().random()))


@pytest.mark.parametrize("source", [Long, LongKept, long_map])
@SOME
@given(legs=LEGS, last=st.integers(0, 4), size=st.integers(1, 3))
def test_a_stream_that_the_loader_shares_out(source: Any, legs: Any, last: int, size: int) -> None:
    if sum(count for _, count in legs) * size < 41:
        received = read_in_legs(source, legs, last, batch_size=size)
        assert sorted(number for number, _ in received) == list(range(41))


def few_shards() -> Any:
    """Fewer than the workers that some legs have: these share it out by stride."""
    shards = [stoker.MapDataset(Numbers(length), lambda place, n=number: 100 * n + place) for number, length in FEW]
    return InterleaveDataset(shards, open_at_once=2, seed=1)


FEW = ((0, 21), (1, 20))


@pytest.mark.parametrize("make", [few_shards, lambda: stoker.MapDataset(few_shards(), abs)], ids=["bare", "mapped"])
@SOME
@given(legs=LEGS, last=st.integers(0, 4), size=st.integers(1, 3))
def test_a_stream_of_fewer_shards_than_workers(make: Any, legs: Any, last: int, size: int) -> None:
    if sum(count for _, count in legs) * size < 41:
        received = read_in_legs(make, legs, last, batch_size=size)
        assert sorted(received) == sorted(100 * number + place for number, length in FEW for place in range(length))


def test_stream_with_too_few_shards_is_read_whole_with_a_reason() -> None:
    """The message says why each worker reads a stream of fewer shards than workers as a whole."""
    some = loader(few_shards(), **settings_for(3))
    with pytest.warns(StokerWarning, match="has 2 shards, too few for 3 workers.* num_workers=2"):
        list(some)


@SOME
@given(legs=LEGS, last=st.integers(0, 4), length=st.integers(0, 12))
def test_a_short_stream_that_the_loader_shares_out(legs: Any, last: int, length: int) -> None:
    """Legs that end behind the end, of some workers or of all: then the next epoch begins."""

    class Short(Long):
        pass

    Short.length = length
    received = sorted(number for number, _ in read_in_legs(Short, legs, last))
    passes, rest = divmod(len(received), max(1, length))
    assert rest == 0
    assert received == sorted(list(range(length)) * passes)


class Files(stoker.IterableDataset[Any]):
    """Shares named files out among the workers; knows how far it is in each."""

    files = {"a": 9, "b": 0, "c": 14, "d": 3, "e": 6, "f": 1, "g": 8}  # noqa: RUF012

    def __init__(self) -> None:
        self.read: dict[str, int] = {}

    def __iter__(self) -> Iterator[Any]:
        worker, workers = mine()
        names = list(self.files)[worker::workers]
        self.read = {name: self.read.get(name, 0) for name in names}
        for name in names:
            while self.read[name] < self.files[name]:
                self.read[name] += 1
                yield f"{name}{self.read[name]}"

    def state_dict(self) -> Any:
        return {"shards": self.read}

    def load_state_dict(self, state: Any) -> None:
        self.read = state["shards"]


class FilesOfAll(Files):
    """The same, but a worker's state names also the files of others, as it was told them."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: dict[str, int] = {}

    def __iter__(self) -> Iterator[Any]:
        worker, workers = mine()
        self.read, self.loaded = self.loaded, {}
        for name in list(self.files)[worker::workers]:
            while self.read.get(name, 0) < self.files[name]:
                self.read[name] = self.read.get(name, 0) + 1
                yield f"{name}{self.read[name]}"

    def load_state_dict(self, state: Any) -> None:
        self.loaded = dict(state["shards"])


class FilesOfIterator(Files):
    """The same, but its iterator has the state."""

    def __iter__(self) -> Iterator[Any]:
        return _FilesOfIterator()

    state_dict = load_state_dict = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        if name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        return super().__getattribute__(name)


class _FilesOfIterator:
    def __init__(self) -> None:
        self.files = Files()
        self.samples = iter(self.files)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.samples)

    def state_dict(self) -> Any:
        return self.files.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.files.load_state_dict(state)


class FilesOfBoth(Files):
    """The same, but its iterator has a state as well, which says less."""

    def __iter__(self) -> Iterator[Any]:
        return _Counting(super().__iter__())


class _Counting:
    def __init__(self, samples: Iterator[Any]) -> None:
        self.samples = samples
        self.given = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.given += 1
        return next(self.samples)

    def state_dict(self) -> Any:
        return {"given": self.given}

    def load_state_dict(self, state: Any) -> None:
        self.given = state["given"]


def interleaved() -> Any:
    streams = [
        stoker.MapDataset(Numbers(length), lambda number, name=name: f"{name}{number + 1}")
        for name, length in Files.files.items()
    ]
    return InterleaveDataset(streams, open_at_once=2, seed=1, empty="skip")


@pytest.mark.parametrize("source", [Files, FilesOfAll, FilesOfIterator, FilesOfBoth, interleaved])
@SOME
@given(legs=LEGS, last=st.integers(0, 4), size=st.integers(1, 3))
def test_a_stream_that_names_its_shards(source: Any, legs: Any, last: int, size: int) -> None:
    if sum(count for _, count in legs) * size >= 41:
        return
    received = read_in_legs(source, legs, last, batch_size=size)
    assert sorted(received) == sorted(f"{name}{n + 1}" for name, length in Files.files.items() for n in range(length))


class Forgetful(FilesOfAll):
    """Names nothing behind its end."""

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        self.read = {}


def test_stream_that_forgets_its_shards_keeps_its_workers() -> None:
    first = loader(Forgetful(), batch_size=24, **settings_for(2))
    seen = _flat(walked(iter(first), 2))  # all of one worker, whose last batch ends behind its end
    state = first.state_dict()
    for workers in (1, 3):
        with pytest.raises(StateMismatchError, match="no longer named the shards"):
            loader(Forgetful(), batch_size=24, **settings_for(workers)).load_state_dict(state)
    again = loader(Forgetful(), batch_size=24, **settings_for(2))
    again.load_state_dict(state)
    assert len(set(seen) | set(_flat(list(again)))) == sum(Files.files.values())


def _flat(batches: Any) -> list[Any]:
    return list(itertools.chain.from_iterable(batches))


@pytest.mark.parametrize("saved_by", [1, 2])
@pytest.mark.parametrize("source", [SharesItself, KeepsItsStateAndSharesItself])
def test_stream_that_shares_itself_out_keeps_its_workers(source: Any, saved_by: int) -> None:
    first = loader(source(), **settings_for(saved_by))
    walked(iter(first), 3)
    second = loader(source(), **settings_for(3))
    if saved_by == 1:  # not known before it is read
        second.load_state_dict(first.state_dict())
        with pytest.raises(StateMismatchError, match="Use as many workers as saved the state"):
            next(iter(second))
    else:
        with pytest.raises(StateMismatchError, match=r"streams of 2 workers, and this loader has 3.*num_workers=2"):
            second.load_state_dict(first.state_dict())


@pytest.mark.parametrize("source", [HasShards, chain])
def test_stream_that_was_read_in_parts_keeps_its_workers(source: Any) -> None:
    first = loader(source(), **settings_for(2))
    walked(iter(first), 3)
    for workers in (0, 1, 3):
        with pytest.raises(StateMismatchError, match="streams of 2 workers"):
            loader(source(), **settings_for(workers)).load_state_dict(first.state_dict())


@pytest.mark.parametrize("workers", [2, 4])
def test_stream_begun_by_one_worker_can_be_ended_by_any_number(workers: int) -> None:
    """Also what would have been read in parts: then each worker reads the whole, and gives its share."""
    for source in (HasShards, chain):
        whole = _numbers(itertools.chain.from_iterable(loader(source())))
        assert _numbers(read_in_legs(source, [(1, 3)], workers)) == whole


def _numbers(samples: Any) -> list[int]:
    return sorted(sample[0] if isinstance(sample, tuple) else sample for sample in samples)


def test_all_that_has_ended_has_ended_for_any_number() -> None:
    first = loader(SharesItself(), num_workers=2, worker_method="thread", batch_size=4)
    whole = list(first)
    iterator = iter(first)
    assert [next(iterator) for _ in whole]
    second = loader(SharesItself(), batch_size=4)
    second.load_state_dict(through_json(first.state_dict()))
    assert list(second) == []
    assert len(list(second)) == 4


def test_sharding_is_part_of_a_stream_state() -> None:
    first = loader(Plain(), **THREADS)
    for other in ({"shard": "none"}, {"worker_init_fn": int}):
        with pytest.raises(StateMismatchError, match="shard was 'auto' and is 'none'"):
            loader(Plain(), **THREADS, **other).load_state_dict(first.state_dict())


def test_late_worker_info_call_is_an_error_after_a_resume() -> None:
    class Late(Plain):
        def __iter__(self) -> Iterator[Any]:
            for number in range(N):
                if number == 5:
                    stoker.get_worker_info()
                yield number

    first = loader(Late(), num_workers=2, worker_method="thread", batch_size=1)
    iterator = iter(first)
    assert [next(iterator) for _ in range(5)] == [[0], [1], [2], [3], [4]]
    with pytest.raises(ShardingError, match="after its first sample"):
        next(iterator)


@pytest.mark.parametrize(
    "states",
    [
        [3],
        ["ended"],
        [{}],
        [{"position": 3, "stream": None}],
        [{"ended": False}],
        [{"ended": False, "position": "3", "stream": None}],
        [{"ended": False, "position": 3}],
        [{"ended": False, "position": 3, "stream": [3]}],
        [{"ended": False, "position": 3, "stream": None, "drawn": ["NumPy"]}],
        [{"ended": False, "position": 3, "stream": None, "drawn": {"NumPy": "4"}}],
    ],
    ids=str,
)
def test_states_of_no_stream(states: list[Any]) -> None:
    with pytest.raises(StateFormatError, match="the state is damaged: its streams are"):
        reshared(states, 2)


def test_named_shards_resume_behind_all_drawn_positions() -> None:
    """A position and a worker's number make a sample's random numbers: none comes again."""
    states = [
        {"ended": False, "position": position, "stream": {"shards": {f"file {position}": position}}}
        for position in (5, 9, 2)
    ]
    before = json.dumps(states)
    merged = reshared(states, 2)
    assert [state["position"] for state in merged] == [9, 9]
    assert merged[0]["stream"] == {"shards": {"file 5": 5, "file 9": 9, "file 2": 2}}
    assert json.dumps(states) == before


def test_first_samples_of_merged_states_draw_their_own_numbers() -> None:
    class Drawing(Files):
        def __iter__(self) -> Iterator[Any]:
            return ((name, random.random()) for name in super().__iter__())

    some = loader(Drawing(), num_workers=2)
    received = walked(iter(some), 4)
    for workers in (1, 3):
        rest = walked(iter(_loaded(loader(Drawing(), num_workers=workers), through_json(some.state_dict()))))
        drawn = [sample[-1] for sample in itertools.chain(*received, *rest)]
        assert len(set(drawn)) == len(drawn), workers


def test_resharding_does_not_change_the_given_state() -> None:
    states = [{"ended": False, "position": 5, "stream": {"seen": 5}}]
    before = json.dumps(states)
    assert [state["strided"] for state in reshared(states, 2)] == [True, True]
    assert json.dumps(states) == before


def test_a_worker_that_could_not_say_stands_where_it_said_last() -> None:
    progress = Progress()
    progress.begin(Epoch(0, 1, TurnPlan([0]), START), None, streams=1)
    progress.streamed(0, UnitReport(stream_state=pickle.dumps({"position": 4, "stream": None})), ended=False)
    progress.streamed(0, UnitReport(), ended=False)
    _, place = progress.place(1)
    assert (place.workers, place.batches) == ([{"ended": False, "position": 4, "stream": None}], 2)


def test_a_state_without_its_streams_is_truncated() -> None:
    first = loader(Plain())
    walked(iter(first), 2)
    with pytest.raises(StateFormatError, match="does not hold the states of the streams"):
        loader(Plain()).load_state_dict({**first.state_dict(), "below": None})


def test_state_of_another_kind_of_stream_is_refused() -> None:
    first = loader(chain(), **settings_for(2))
    walked(iter(first), 2)
    second = loader(Plain(), **settings_for(2))
    second.load_state_dict(first.state_dict())
    with pytest.raises(StateMismatchError, match="the state is of another dataset than this Plain"):
        next(iter(second))


class _Drawing(stoker.IterableDataset[Any]):
    """Knows nothing of where it stands, and draws for each sample."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(6):
            yield number, random.random()


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize("stop", range(1, 12))
def test_samples_reread_by_a_chain_draw_nothing_of_the_next(stop: int) -> None:
    def make() -> Any:
        return stoker.DataLoader(
            stoker.ChainDataset([_Drawing(), _Drawing()]), batch_size=None, seed=2, collate_fn=tuple
        )

    whole = list(make())
    first = make()
    iterator = iter(first)
    begun = [next(iterator) for _ in range(stop)]
    second = make()
    second.load_state_dict(first.state_dict())
    assert begun + list(second) == whole


class Open(stoker.IterableDataset[Any]):
    """A stream that the loader shares out; it can only be opened where the server answers."""

    def __init__(self, is_away: bool = False) -> None:
        self.is_away = is_away

    def __iter__(self) -> Iterator[Any]:
        if self.is_away:
            raise OSError("server away")
        return iter(range(24))


def of(workers: int, **how: Any) -> Any:
    method = {"worker_method": "thread"} if workers else {}
    return stoker.DataLoader(Open(), batch_size=2, num_workers=workers, seed=1, output="numpy", **method, **how)


def numbers_of(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch]


def begun(workers: int) -> tuple[Any, list[int]]:
    loader = of(workers)
    iterator = iter(loader)
    seen = numbers_of(next(iterator) for _ in range(4))
    iterator.close()
    return loader, seen


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (2, 0)])
def test_worker_count_set_after_the_state_is_used(before: int, after: int) -> None:
    loader, seen = begun(before)
    state = loader.state_dict()
    loader = of(before)
    loader.load_state_dict(state)
    loader.num_workers = after
    assert sorted(seen + numbers_of(loader)) == list(range(24))


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_a_state_names_the_streams_that_there_were(before: int, after: int) -> None:
    loader, seen = begun(before)
    loader.num_workers = after
    state = loader.state_dict()
    loader = of(after)
    loader.load_state_dict(state)
    assert sorted(seen + numbers_of(loader)) == list(range(24))


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_persistent_workers_are_as_many_as_were_set_last(before: int, after: int) -> None:
    with of(before, persistent_workers=True) as loader:
        assert sorted(numbers_of(loader)) == list(range(24))
        loader.num_workers = after
        assert sorted(numbers_of(loader)) == list(range(24))


def test_a_stream_that_could_not_be_opened_is_not_over() -> None:
    loader = stoker.DataLoader(Open(is_away=True), batch_size=2, output="numpy")
    iterator = iter(loader)
    with pytest.raises(OSError, match="server away"):
        next(iterator)
    states = [loader.state_dict()]
    assert list(iterator) == []  # in this run it is not tried again
    states.append(loader.state_dict())
    for state in states:
        loader = stoker.DataLoader(Open(), batch_size=2, output="numpy")
        loader.load_state_dict(state)
        assert numbers_of(loader) == list(range(24))


def test_the_samples_of_a_batch_that_raises_are_all_raised() -> None:
    class Raises(stoker.IterableDataset[Any]):
        def __iter__(self) -> Any:
            self.next = 0
            return self

        def __next__(self) -> int:
            self.next += 1
            if self.next == 3:
                raise OSError("torn")
            if self.next > 8:
                raise StopIteration
            return self.next

    loader = stoker.DataLoader(Raises(), batch_size=4, output="numpy")
    iterator = iter(loader)
    with pytest.raises(OSError, match="torn"):
        next(iterator)
    assert numbers_of(iterator) == [4, 5, 6, 7, 8]
    counts = loader.report().epoch
    assert (counts.delivered, counts.raised) == (5, 3)


class DrawsItsOrder(stoker.IterableDataset[int]):
    """When it is opened, and not at its first sample."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = range(*numbers)

    def __iter__(self) -> Iterator[int]:
        order = list(self.numbers)
        random.shuffle(order)
        return iter(order)


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize(
    "make",
    [
        lambda: stoker.ChainDataset([DrawsItsOrder(6), DrawsItsOrder(100, 108)]),
        lambda: stoker.MapDataset(stoker.ChainDataset([DrawsItsOrder(6), DrawsItsOrder(100, 108)]), abs),
        lambda: stoker.ChainDataset(
            [stoker.from_iterable(lambda part=part: iter(DrawsItsOrder(part, part + 7))) for part in (0, 50)]  # type: ignore[misc]
        ),
    ],
    ids=["chain", "mapped", "from_iterable"],
)
def test_order_drawn_at_opening_is_the_same_after_resume(make: Any, workers: int) -> None:
    def loader() -> Any:
        return stoker.DataLoader(make(), batch_size=2, num_workers=workers, collate_fn=list, seed=5)

    whole, states, batches = loader(), [], []
    for batch in whole:
        batches.append(batch)
        states.append(whole.state_dict())
    for behind, state in enumerate(states, 1):
        rest = loader()
        rest.load_state_dict(state)
        assert list(rest) == batches[behind:]
