"""Batches in process on the short path and off it: samples, states, errors and random numbers are the same."""

from __future__ import annotations

import _thread
import itertools
import random
import signal
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from stoker._core.native import seeding
from stoker.loader._job.map_fetcher import MapFetcher
from stoker.loader._random import sample_seeding

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:.* cannot say where it stands")

DRAWS: list[Callable[[], Any]] = [
    lambda: 0.0,
    random.random,
    lambda: random.gauss(0, 1),
    lambda: float(np.random.rand()),
    lambda: float(np.random.standard_normal()),
    lambda: float(torch.rand(1)),
    lambda: float(torch.randn(1)),
    lambda: stoker.sample_rng().random_generator.random(),
    lambda: float(stoker.sample_rng().numpy_generator.random()),
]


class Drawing(stoker.IterableDataset[Any]):
    """Sample n is (n, the numbers of its draws)."""

    def __init__(self, draws: dict[int, list[int]], length: int, fails: frozenset[int] = frozenset()) -> None:
        self.draws, self.length, self.fails = draws, length, fails

    def __iter__(self) -> Iterator[Any]:
        return _Reading(self)


class _Reading(Iterator[Any]):
    """Goes on behind an error."""

    def __init__(self, dataset: Drawing) -> None:
        self.dataset, self.number = dataset, -1

    def __next__(self) -> Any:
        self.number += 1
        if self.number >= self.dataset.length:
            raise StopIteration
        drawn = sum(DRAWS[draw]() for draw in self.dataset.draws.get(self.number, []))
        if self.number in self.dataset.fails:
            raise stoker.SkipSample if self.number % 2 else ValueError(f"sample {self.number}")
        return self.number, drawn


def read(loader: Any, epochs: int = 2, most: int = 10**9) -> list[Any]:
    """All batches and errors, as values; the training loop draws between them."""
    seen: list[Any] = []
    for _ in range(epochs):
        iterator = iter(loader)
        while True:
            try:
                seen.append([column.tolist() for column in next(iterator)])
            except StopIteration:
                break
            except (ValueError, RuntimeError) as error:
                seen.append(str(error))
            seen.append([random.random(), float(np.random.standard_normal()), float(torch.randn(1))])
            if len(seen) >= most:
                return seen
    return seen


def seeded() -> None:
    random.seed(3)
    np.random.seed(4)
    torch.manual_seed(5)


streams = st.builds(
    Drawing,
    st.dictionaries(st.integers(0, 120), st.lists(st.integers(0, len(DRAWS) - 1), max_size=2), max_size=8)
    | st.integers(0, len(DRAWS) - 1).map(lambda draw: {n: [draw] for n in range(120)}),
    st.integers(0, 120),
    st.frozensets(st.integers(0, 120), max_size=2),
)


@settings(max_examples=25)
@given(dataset=streams, batch_size=st.integers(1, 17), seeding_mode=st.sampled_from(["auto", "sample", "worker"]))
def test_batches_are_those_of_the_full_path(dataset: Drawing, batch_size: int, seeding_mode: Any) -> None:
    def loader() -> Any:
        seeded()
        return stoker.DataLoader(dataset, batch_size=batch_size, seed=7, seeding=seeding_mode)

    quick = read(loader())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeding, "library", None)
        assert read(loader()) == quick


@settings(max_examples=15)
@given(dataset=streams, batch_size=st.integers(1, 9), stop=st.integers(1, 40), again=st.booleans())
def test_resumed_in_the_middle_of_an_epoch(dataset: Drawing, batch_size: int, stop: int, again: bool) -> None:
    """With and without compiled code before and after the state."""
    dataset.fails = frozenset()
    loader = stoker.DataLoader(dataset, batch_size=batch_size, seed=7)
    whole = [batch for batch in read(loader, epochs=1) if len(batch) == 2]
    loader, given = stoker.DataLoader(dataset, batch_size=batch_size, seed=7), list[Any]()
    for batch in loader:
        given.append([column.tolist() for column in batch])
        if len(given) == stop:
            break
    else:
        return
    state = loader.state_dict()
    with pytest.MonkeyPatch.context() as patch:
        if again:
            patch.setattr(seeding, "library", None)
        other = stoker.DataLoader(dataset, batch_size=batch_size, seed=7)
        other.load_state_dict(state)
        assert given + [batch for batch in read(other, epochs=1) if len(batch) == 2] == whole


@pytest.mark.parametrize("workers", [{"num_workers": 1}, {"num_workers": 1, "worker_method": "thread"}], ids=str)
def test_numbers_are_those_of_a_worker(workers: dict[str, Any]) -> None:
    draws = {n: [n % 3 and 7 + n % 2] if workers.get("worker_method") else [n % len(DRAWS)] for n in range(300)}
    dataset = Drawing(draws, 300)
    own = [[column.tolist() for column in batch] for batch in stoker.DataLoader(dataset, batch_size=8, seed=7)]
    theirs = stoker.DataLoader(dataset, batch_size=8, seed=7, **workers)
    assert [[column.tolist() for column in batch] for batch in theirs] == own


def test_short_path_is_taken() -> None:
    """Otherwise these tests would compare the full path with itself, unnoticed."""
    if seeding.library is None:
        pytest.skip(seeding.why)
    iterator = iter(stoker.DataLoader(Drawing({}, 500), batch_size=8))
    for _ in range(9):
        next(iterator)
    assert iterator._short is not None


def test_samples_of_another_shape_take_the_full_path() -> None:
    class Growing(stoker.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for number in range(200):
                yield np.zeros(1 if number < 96 else 2) + random.random()

    seen = [batch.tolist() for batch in stoker.DataLoader(Growing(), batch_size=8, seed=1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeding, "library", None)
        assert [batch.tolist() for batch in stoker.DataLoader(Growing(), batch_size=8, seed=1)] == seen
    assert [len(batch[0]) for batch in seen] == [1] * 12 + [2] * 13


def test_interrupt_in_the_middle_of_a_batch_loses_nothing() -> None:
    class Interrupted(stoker.IterableDataset[int]):
        due = True

        def __iter__(self) -> Iterator[int]:
            for number in range(200):
                if number == 100 and self.due:
                    self.due = False
                    raise KeyboardInterrupt
                yield number

    loader = stoker.DataLoader(Interrupted(), batch_size=8, seed=1)
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        for batch in loader:
            seen += batch.tolist()
    loader.load_state_dict(loader.state_dict())
    for batch in loader:
        seen += batch.tolist()
    assert seen == [*range(200)]


def look_at_few(patch: pytest.MonkeyPatch, samples: int = 20) -> None:
    """Makes samples cheap after few of them, also on a busy machine."""
    patch.setattr(sample_seeding, "_PROBES", samples)
    patch.setattr(sample_seeding, "_DEAR", 1e9)


class Noise:
    """Sample n is (n, the numbers of its draws)."""

    def __init__(self, draws: dict[int, list[int]], length: int, fails: frozenset[int] = frozenset()) -> None:
        self.draws, self.length, self.fails = draws, length, fails
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, float]:
        self.asked.append(index)
        drawn = sum(DRAWS[draw]() for draw in self.draws.get(index, []))
        if index in self.fails:
            raise StopIteration if index % 2 else ValueError(f"sample {index}")
        return index, drawn


every = st.lists(st.integers(0, len(DRAWS) - 1), max_size=2)
datasets = st.builds(
    Noise,
    st.dictionaries(st.integers(0, 100), every, max_size=8)
    | every.map(lambda draws: dict.fromkeys(range(100), draws))
    | st.lists(every, min_size=100, max_size=100).map(lambda draws: dict(enumerate(draws))),
    st.integers(1, 100),
    st.frozensets(st.integers(0, 100), max_size=2),
)


def test_noise_is_that_of_the_full_path() -> None:
    @settings(max_examples=25, deadline=None)
    @given(
        dataset=datasets,
        batch_size=st.integers(1, 17),
        probes=st.integers(1, 30),
        sampler=st.sampled_from([{"shuffle": True}, {}, {"seeding": "sample"}, {"seeding": "worker"}]),
    )
    def check(dataset: Noise, batch_size: int, probes: int, sampler: dict[str, Any]) -> None:
        def all_batches() -> tuple[list[Any], list[int]]:
            seeded()
            dataset.asked = []
            try:
                return read(stoker.DataLoader(dataset, batch_size=batch_size, seed=7, **sampler)), dataset.asked
            finally:
                dataset.asked = []

        with pytest.MonkeyPatch.context() as patch:
            look_at_few(patch, probes)
            quick = all_batches()
            patch.setattr(seeding, "library", None)
            assert all_batches() == quick

    check()


@pytest.mark.parametrize("workers", [{"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=str)
def test_noise_is_that_of_workers(workers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample draws: from generators of its own under threads, which share the global ones."""
    look_at_few(monkeypatch)
    draws = {n: [7 + n % 2] if workers.get("worker_method") else [1 + n % 6, 3] for n in range(400)}
    own, theirs = (
        stoker.DataLoader(Noise(draws, 400), batch_size=8, shuffle=True, seed=7, **by) for by in ({}, workers)
    )
    for _ in range(2):
        assert [[each.tolist() for each in batch] for batch in own] == [
            [each.tolist() for each in batch] for batch in theirs
        ]


@pytest.mark.parametrize("stop", [1, 13, 30])
def test_noise_resumed_in_the_middle_of_an_epoch(stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    look_at_few(monkeypatch)

    def loader() -> Any:
        return stoker.DataLoader(Noise({n: [2, 4, 6] for n in range(300)}, 300), batch_size=8, shuffle=True, seed=7)

    whole = [[each.tolist() for each in batch] for batch in loader()]
    first, seen = loader(), list[Any]()
    for batch in first:
        seen.append([each.tolist() for each in batch])
        if len(seen) == stop:
            break
    second = loader()
    second.load_state_dict(first.state_dict())
    monkeypatch.setattr(seeding, "library", None)
    assert seen + [[each.tolist() for each in batch] for batch in second] == whole


def test_short_path_is_taken_with_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise these tests would compare the full path with itself, unnoticed."""
    if seeding.library is None:
        pytest.skip(seeding.why)
    look_at_few(monkeypatch)
    iterator = iter(stoker.DataLoader(Noise({n: [1, 3, 5] for n in range(300)}, 300), batch_size=8))
    for _ in range(20):
        next(iterator)
    assert iterator._short is not None


def test_loop_keeps_its_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a normal pair holds back too."""
    look_at_few(monkeypatch)

    def loop(draws: list[int]) -> list[float]:
        seeded()
        numbers: list[float] = []
        for _ in stoker.DataLoader(Noise(dict.fromkeys(range(300), draws), 300), batch_size=8):
            numbers += [random.gauss(0, 1), np.random.standard_normal(), float(torch.randn(1))]
        return numbers

    assert loop([2, 4, 6]) == loop([])


def states() -> tuple[int, ...]:
    """What a sample sees of the global generators, beside their numbers."""
    legacy: Any = np.random.get_state()
    jumped = np.random.RandomState(np.random.mtrand._rand._bit_generator.jumped()).randint(2**30)
    seen = random.getstate(), legacy[1].tolist(), legacy[2:], torch.get_rng_state()[8:].tolist()  # not `initial_seed`
    return int(legacy[1][0]), jumped, *(zlib.crc32(repr(state).encode()) for state in seen)


class Watching:
    """Sample n is (n, the states before its draws, the draws, the states behind them)."""

    def __init__(self, begins: int, length: int = 120) -> None:
        self.begins, self.length = begins, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> tuple[float, ...]:
        before, draws = states(), [random.random, np.random.standard_normal, lambda: float(torch.randn(1))]
        return number, *before, *(draw() for draw in draws if number >= self.begins), *states()


class WatchingStream(stoker.IterableDataset[Any]):
    def __init__(self, begins: int) -> None:
        self.samples = Watching(begins)

    def __iter__(self) -> Iterator[Any]:
        return map(self.samples.__getitem__, range(120))


@pytest.mark.parametrize(
    ("dataset", "workers"),
    [(Watching(0), 2), *((WatchingStream(begins), 1) for begins in (0, 40, 120))],
    ids=["by index", "a stream", "a stream from 40 on", "a stream from 120 on"],
)
def test_states_within_samples_are_those_of_workers(
    dataset: Any, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the short path begins and on it: a state does not show which path a sample took."""
    look_at_few(monkeypatch)

    def all_samples(**options: Any) -> list[Any]:
        loader = stoker.DataLoader(dataset, batch_size=4, seed=7, collate_fn=list, **options)
        return [batch for _ in range(2) for batch in loader]

    own = all_samples()
    assert all_samples(num_workers=workers) == own
    monkeypatch.setattr(seeding, "library", None)
    assert all_samples() == own


class Preempted(Exception):
    pass


def test_handler_that_raises_behind_a_sample_reaches_the_loop() -> None:
    """Samples that run no Python code leave it to the loader, which has read a whole batch then."""
    sent: list[int] = []

    def handler(*_: Any) -> None:
        sent.append(1)
        raise Preempted

    def numbers() -> Iterator[Any]:
        alarms = [signal.SIGALRM] * (not sent)
        return itertools.chain(range(1001), filter(_thread.interrupt_main, alarms), range(1001, 3000))

    class Numbers(stoker.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return numbers()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        loader, seen = stoker.DataLoader(Numbers(), batch_size=8, seed=1), list[int]()
        iterator = iter(loader)
        with pytest.raises(Preempted):
            while len(seen) < 2000:
                seen += next(iterator).tolist()
        assert len(sent) == 1
        with pytest.raises(stoker.errors.IteratorClosedError):
            next(iterator)
    finally:
        signal.signal(signal.SIGALRM, before)
    again = stoker.DataLoader(Numbers(), batch_size=8, seed=1)
    again.load_state_dict(loader.state_dict())
    assert seen == [*range(len(seen))] and next(iter(again)).tolist() == [*range(len(seen), len(seen) + 8)]


class Leaving(_Reading):
    def __next__(self) -> Any:
        self.number += 1
        if self.number in self.dataset.fails:
            self.dataset.fails -= {self.number}
            raise SystemExit
        return self.number


def test_state_behind_a_sample_that_leaves_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drawing, "__iter__", lambda self: Leaving(self))
    loader, left = stoker.DataLoader(Drawing({}, 0, frozenset({195, 198, 211})), batch_size=8, seed=1), 0
    iterator = iter(loader)
    for _ in range(40):
        try:
            next(iterator)
        except SystemExit:
            left += 1
    assert left == 3
    again = stoker.DataLoader(Drawing({}, 0), batch_size=8, seed=1)
    again.load_state_dict(loader.state_dict())
    assert next(iter(again)).tolist() == next(iterator).tolist()


@pytest.mark.parametrize("whole", [False, True], ids=["one by one", "at once"])
def test_interrupt_behind_an_error_leaves_no_samples(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is made of the samples that are fetched, and each sample is asked for once."""
    look_at_few(monkeypatch)
    asked: list[int] = []

    class Once:
        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> float:
            asked.append(index)
            if index == 101 and asked.count(index) == 1:
                raise ValueError("only once")
            return float(index) if index < 160 else index  # the later batches need the long path

    class AtOnce(Once):
        def __getitems__(self, indices: list[int]) -> list[float]:
            return [self[index] for index in indices]

    def interrupted(has_fetched: Any) -> Any:
        def fetched(source: MapFetcher, *arguments: Any) -> None:
            has_fetched(source, *arguments)
            monkeypatch.undo()
            raise KeyboardInterrupt

        return fetched

    iterator = iter(stoker.DataLoader(AtOnce() if whole else Once(), batch_size=4))
    outcomes: list[Any] = [next(iterator).tolist() for _ in range(25)]
    name = "has_fetched_all" if whole else "has_fetched"
    monkeypatch.setattr(MapFetcher, name, interrupted(getattr(MapFetcher, name)))
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    with pytest.raises(ValueError, match="only once"):
        next(iterator)
    outcomes += [batch.tolist() for batch in iterator]
    assert outcomes == [[*range(first, first + 4)] for first in range(0, 200, 4) if first != 100]
    assert sorted(asked) == [index for index in range(200) if index < 102 or index > 103]
