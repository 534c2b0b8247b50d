"""Streams that ask which worker they are in: what the loader guesses from it, what it says, and `shards_itself`."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import stoker
from stoker import FilterDataset, InterleaveDataset, MapDataset, MixDataset, ShuffleDataset, ZipDataset, from_iterable
from stoker.errors import ShardingError, StokerWarning

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # a machine may have one CPU
    pytest.mark.filterwarnings("ignore:.* cannot say where it stands"),
]

BOTH = pytest.mark.parametrize("method", ["process", "thread"])


class Logs(stoker.IterableDataset[int]):
    """Reads its worker's number only to log it."""

    log: Any = staticmethod(lambda info: f"reading in worker {info.id}")

    def __init__(self, length: int = 6) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        info = stoker.get_worker_info()
        if info is not None:
            self.log(info)
        return iter(range(self.length))


class LogsAll(Logs):
    log = staticmethod(repr)


class LogsNothing(Logs):
    log = staticmethod(bool)


class LogsLate(Logs):
    """Says at its end which worker it was."""

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)
        if (info := stoker.get_worker_info()) is not None:
            self.log(info)


class Shuffles(Logs):
    """In an order of the worker's own."""

    def __iter__(self) -> Iterator[int]:
        return iter(stoker.sample_rng().random_generator.sample([*super().__iter__()], self.length))


class Recipe(Logs):
    """Shares itself out, as torch's documentation has it."""

    def __iter__(self) -> Iterator[int]:
        info = stoker.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.length, step))


class Torchs(Recipe):
    """Asks torch's function."""

    def __iter__(self) -> Iterator[int]:
        import torch

        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.length, step))


def declaring(kind: type[Logs], said: Any) -> type[Logs]:
    return type(kind.__name__, (kind,), {"shards_itself": said})


def told(dataset: Any, method: str = "thread", *, epochs: int = 1, **settings: Any) -> tuple[list[Any], list[str]]:
    """The samples of the last epoch with two workers, sorted, and the warnings of all."""
    settings = {"batch_size": 2, "num_workers": 2, "worker_method": method, "collate_fn": list, **settings}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StokerWarning)
        with stoker.DataLoader(dataset, **settings) as loader:
            made = [list(loader) for _ in range(epochs)][-1]
    samples = made if settings["batch_size"] is None else list(itertools.chain.from_iterable(made))
    return sorted(samples), [str(warning.message) for warning in caught if warning.category is StokerWarning]


TWICE = sorted([*range(6), *range(6)])


# What it says where it guesses


@BOTH
@pytest.mark.parametrize("batch_size", [None, 1, 2, 4, 16])
@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (Logs, "reads get_worker_info().id"),
        (LogsAll, "reads get_worker_info().id"),
        (LogsNothing, "calls get_worker_info()"),
    ],
)
def test_stream_that_only_logs_its_worker_gives_one_warning(
    kind: type[Logs], asked: str, batch_size: int | None, method: str
) -> None:
    torch = pytest.importorskip("torch")
    settings: dict[str, Any] = {"batch_size": batch_size}
    if batch_size is None:
        settings["collate_fn"] = None
    samples, texts = told(kind(), method, epochs=2, **settings)
    theirs = torch.utils.data.DataLoader(kind(), None, num_workers=2)
    assert samples == sorted(map(int, theirs)) == TWICE
    assert len(texts) == 1
    assert "gave the same first 6 samples" in texts[0]
    assert f"because it {asked} before its first sample" in texts[0]
    assert f"that {kind.__name__} shares" in texts[0]
    assert "shards_itself = False" in texts[0]


@BOTH
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", [Recipe, Torchs])
def test_the_usual_recipe_gets_one_note(kind: type[Logs], persistent: bool, method: str) -> None:
    torch = pytest.importorskip("torch")
    samples, texts = told(kind(20), method, epochs=3, persistent_workers=persistent)
    assert samples == sorted(map(int, torch.utils.data.DataLoader(kind(20), None, num_workers=2))) == [*range(20)]
    assert len(texts) == 1
    assert texts[0].startswith(f"The loader guesses that {kind.__name__} shares its samples out among the workers")
    assert "shards_itself = True" in texts[0] and "shards_itself = False" in texts[0]


def test_an_order_of_each_worker_hides_that_samples_come_twice() -> None:
    """So the guess is always told: that first samples differ proves nothing."""
    samples, texts = told(Shuffles(40))
    assert samples == sorted([*range(40), *range(40)])
    assert len(texts) == 1
    assert "The loader guesses that Shuffles shares" in texts[0]


def test_warning_comes_with_the_first_batches_of_a_stream() -> None:
    class Endless(Recipe):
        def __iter__(self) -> Iterator[int]:
            info = stoker.get_worker_info()
            return itertools.count() if info is None else itertools.count(info.id, info.num_workers)

    loader = stoker.DataLoader(Endless(), 2, num_workers=2, worker_method="thread")
    with iter(loader) as iterator, pytest.warns(StokerWarning, match="guesses that Endless shares"):
        next(iterator), next(iterator)


@pytest.mark.parametrize("how", ["closed", "next epoch"])
def test_a_note_comes_though_the_loop_is_left_early(how: str) -> None:
    loader = stoker.DataLoader(Logs(100), 1, num_workers=2, worker_method="thread", persistent_workers=True)
    with loader, pytest.warns(StokerWarning, match="Workers 0 and 1 gave the same first"):
        iterator = iter(loader)
        next(iterator), next(iterator), next(iterator)
        if how == "closed":
            iterator.close()
        else:
            iter(loader)


@BOTH
def test_a_function_over_a_stream_may_ask(method: str) -> None:
    def named(number: int) -> int:
        info = stoker.get_worker_info()
        assert info is None or info.id >= 0
        return number

    stream = from_iterable(range, 6)
    samples, texts = told(MapDataset(stream, named), method)
    assert (samples, len(texts)) == (TWICE, 1)
    assert "that from_iterable(range) or a function around it shares" in texts[0]
    stream.shards_itself = False  # type: ignore[attr-defined]
    assert told(MapDataset(stream, named), method) == ([*range(6)], [])


@BOTH
def test_sharding_by_a_worker_init_fn_is_a_guess(method: str) -> None:
    torch = pytest.importorskip("torch")
    plain, init = from_iterable(range, 6), lambda worker: None
    samples, texts = told(plain, method, worker_init_fn=init)
    assert (samples, len(texts)) == (TWICE, 1)
    assert "because the loader has a worker_init_fn, which may shard the stream" in texts[0]
    theirs = torch.utils.data.DataLoader(Logs(), None, num_workers=2, worker_init_fn=init)
    assert told(declaring(Logs, True)(), method, worker_init_fn=init) == (sorted(map(int, theirs)), [])
    assert told(declaring(Logs, False)(), method, worker_init_fn=init) == ([*range(6)], [])
    assert told(plain, method, worker_init_fn=init, shard="none") == (TWICE, [])


def test_nothing_is_guessed_for_one_worker_or_none() -> None:
    for settings in ({"num_workers": 1}, {"num_workers": 0, "worker_method": "process"}):
        assert told(Logs(), **settings) == ([*range(6)], [])
        assert told(Logs(), worker_init_fn=lambda worker: None, **settings) == ([*range(6)], [])


def test_a_class_known_to_share_itself_out_gets_no_note() -> None:
    known = type("IterableDataset", (Recipe,), {"__module__": "datasets.iterable_dataset"})
    assert told(known()) == ([*range(6)], [])
    assert told(MapDataset(known(), int)) == ([*range(6)], [])
    assert told(type("Theirs", (known,), {})()) == ([*range(6)], [])


# What a stream declares


@BOTH
@pytest.mark.parametrize("kind", [Logs, LogsAll, LogsNothing, LogsLate, Shuffles])
def test_a_stream_that_declares_it_does_not_is_shared_out(kind: type[Logs], method: str) -> None:
    dataset = declaring(kind, False)()
    alone = told(dataset, num_workers=0, worker_method="process", seed=1)[0]
    assert told(dataset, method, epochs=2, seed=1) == (alone, []) == ([*range(6)], [])
    assert told(dataset, method, shard="none")[0] == TWICE


@BOTH
@pytest.mark.parametrize("kind", [Recipe, Torchs])
def test_declared_sharding_gives_no_warning(kind: type[Logs], method: str) -> None:
    assert told(declaring(kind, True)(), method, epochs=2) == ([*range(6)], [])


def test_a_declaration_need_not_ask() -> None:
    """A stream may know its share from elsewhere; each worker then draws as itself."""

    class Draws(Logs):
        def __iter__(self) -> Iterator[Any]:
            return ((number, stoker.sample_rng().random_generator.random()) for number in range(self.length))

    samples, texts = told(declaring(Draws, True)(), seed=3)
    assert [number for number, _ in samples] == TWICE
    assert len({drawn for _, drawn in samples}) == 12
    assert texts == []


AROUND: dict[str, Any] = {
    "map": lambda stream: MapDataset(stream, int),
    "filter": lambda stream: FilterDataset(stream, lambda number: True),
    "shuffle": lambda stream: ShuffleDataset(MapDataset(stream, int), 3),
    "mix": lambda stream: MixDataset([stream, type(stream)(0)], [1, 1], "drop"),
    "chain": lambda stream: stoker.ChainDataset([stream]),
    "chain within": lambda stream: MapDataset(stoker.ChainDataset([stream, type(stream)(0)]), int),
    "zip": lambda stream: MapDataset(ZipDataset(stream, stream), max),
}


@BOTH
@pytest.mark.parametrize("around", AROUND)
def test_a_declaration_holds_below_combinators(around: str, method: str) -> None:
    make = AROUND[around]
    for dataset in (declaring(Logs, False)(), declaring(LogsLate, False)(), declaring(Recipe, True)()):
        assert told(make(dataset), method, epochs=2) == ([*range(6)], [])
    assert told(make(Recipe()), method)[0] == [*range(6)]
    assert len(told(make(Recipe()), method)[1]) == 1


def test_a_combinator_may_declare_for_all_below() -> None:
    mapped = MapDataset(Logs(), int)
    mapped.shards_itself = False  # type: ignore[attr-defined]
    assert told(mapped) == ([*range(6)], [])
    mapped = MapDataset(declaring(Recipe, True)(), int)
    mapped.shards_itself = False  # type: ignore[attr-defined]
    with pytest.raises(ShardingError, match="Recipe declares shards_itself = True, but the dataset that reads it"):
        told(mapped)


def test_combined_streams_may_ask_if_declared_unsharded() -> None:
    quiet = declaring(Logs, False)()
    samples, texts = told(ZipDataset(quiet, from_iterable(range, 6)))
    assert samples == [(number, number) for number in range(6)]
    assert len(texts) == 1
    assert "does not share its samples out" in texts[0]
    interleaved = InterleaveDataset([quiet, declaring(Logs, False)()], 1)
    assert told(interleaved) == (TWICE, [])
    with pytest.raises(ShardingError, match="streams of an InterleaveDataset"):
        told(InterleaveDataset([declaring(Recipe, True)(), quiet], 1))


def test_a_late_question_names_the_declaration() -> None:
    with pytest.warns(StokerWarning), pytest.raises(ShardingError, match="declare the attribute shards_itself"):
        list(stoker.DataLoader(LogsLate(), 2, num_workers=2, worker_method="thread"))


@pytest.mark.parametrize("said", [1, "yes", 0])
def test_a_declaration_is_true_or_false(said: Any) -> None:
    with pytest.raises(TypeError, match=r"shards_itself of Logs is .*, expected True or False"):
        told(declaring(Logs, said)())
    assert told(declaring(Recipe, None)())[0] == [*range(6)]


# Streams with `shard`


class Cut(stoker.IterableDataset[int]):
    """Has a method shard(), and declares stoker_protocol."""

    stoker_protocol = True

    def __init__(self, numbers: range = range(6)) -> None:
        self.numbers = numbers

    def shard(self, num_shards: int, index: int) -> Any:
        return type(self)(self.numbers[index::num_shards])

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


class CutAndLogs(Cut):
    def __iter__(self) -> Iterator[int]:
        info = stoker.get_worker_info()
        assert info is None or info.id >= 0
        return super().__iter__()


class CutTwice(Cut):
    """Shares itself out beside its `shard`."""

    shards_itself = True

    def __iter__(self) -> Iterator[int]:
        info = stoker.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(self.numbers[first::step])


SINGLE: dict[str, Any] = {
    "bare": lambda stream: stream,
    "map": lambda stream: MapDataset(stream, int),
    "chain": lambda stream: MapDataset(stoker.ChainDataset([stream]), int),
}


@BOTH
@pytest.mark.parametrize("around", SINGLE)
def test_the_shard_of_a_class_that_opts_in_comes_first(around: str, method: str) -> None:
    make = SINGLE[around]
    assert told(make(Cut()), method) == ([*range(6)], [])
    samples, texts = told(make(CutAndLogs()), method, epochs=2)
    assert samples == [*range(6)]
    assert len(texts) == 1
    assert "CutAndLogs has a method shard()" in texts[0] and "shards_itself = True" in texts[0]
    quiet = type("Quiet", (CutAndLogs,), {"shards_itself": False})
    assert told(make(quiet()), method) == ([*range(6)], [])
    assert told(make(CutTwice()), method) == ([*range(6)], [])


# States


@BOTH
@pytest.mark.parametrize(("kind", "said"), [(Logs, False), (LogsLate, False), (Recipe, True)])
def test_a_state_of_a_stream_that_declares_goes_on(kind: type[Logs], said: bool, method: str) -> None:
    dataset = declaring(kind, said)(20)
    settings: dict[str, Any] = {"num_workers": 2, "worker_method": method, "collate_fn": list}
    first = stoker.DataLoader(dataset, 3, **settings)
    iterator = iter(first)
    seen = [sample for _ in range(2) for sample in next(iterator)]
    state = first.state_dict()
    iterator.close()
    for workers in (2, 3, 1) if said is False else (2,):
        second = stoker.DataLoader(dataset, 3, **{**settings, "num_workers": workers})
        second.load_state_dict(state)
        assert sorted(seen + [sample for batch in second for sample in batch]) == [*range(20)]


def test_state_of_loader_sharding_needs_the_same_declaration() -> None:
    settings: dict[str, Any] = {"num_workers": 2, "worker_method": "thread", "collate_fn": list}
    first = stoker.DataLoader(declaring(Logs, False)(20), 3, **settings)
    next(iter(first))
    second = stoker.DataLoader(declaring(Logs, True)(20), 3, **settings)
    second.load_state_dict(first.state_dict())
    with pytest.raises(stoker.errors.StateMismatchError, match="shares itself out"):
        list(second)
