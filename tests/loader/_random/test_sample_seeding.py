from __future__ import annotations

import copy
import itertools
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker._core.native import seeding
from stoker.errors import StokerWarning
from stoker.loader._random import sample_seeding
from stoker.loader._random.generators import global_streams
from stoker.loader._random.sample_rng import SampleRNG
from stoker.loader._random.sample_seeding import SampleSeeding

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

SEED = 1234


class Noisy:
    """A dataset whose samples are what they draw; `draws(index)` names the generators."""

    def __init__(self, draws: Callable[[int], tuple[str, ...]]) -> None:
        self.draws = draws
        self.python = random.Random(1)
        self.legacy = [np.random.RandomState(1)]
        self.modern = {"rng": np.random.default_rng(1)}
        self.torchs = None if torch is None else torch.Generator().manual_seed(1)
        self.rng = SampleRNG(0)
        self.fetched: list[int] = []

    def __getitem__(self, index: int) -> list[Any]:
        self.fetched.append(index)
        return [index, *(self.draw(source) for source in self.draws(index))]

    def draw(self, source: str) -> float:
        if source == "Python":
            return random.gauss(0, 1)
        if source == "NumPy":
            return float(np.random.standard_normal())
        if source == "python":
            return self.python.random()
        if source == "legacy":
            return float(self.legacy[0].standard_normal())
        if source == "modern":
            return float(self.modern["rng"].random())
        if source == "rng":
            return self.rng.random_generator.random() + float(self.rng.numpy_generator.random())
        if torch is None:
            return 0.0
        if source == "Torch":
            return float(torch.randn(()))
        return float(torch.rand((), generator=self.torchs))


SOURCES = ["Python", "NumPy", "Torch", "python", "legacy", "modern", "torchs", "rng"]
PATTERNS: dict[str, Callable[[int], bool]] = {
    "always": lambda index: True,
    "never": lambda index: False,
    "late": lambda index: index >= 40,
    "sometimes": lambda index: index % 23 == 19,
    "rarely": lambda index: index == 77,
}


@pytest.fixture(autouse=True)
def generators_put_back() -> Iterator[None]:
    streams = global_streams().values()
    states = [(stream, stream.state()) for stream in streams]
    yield
    for stream, state in states:
        stream.restore(state)


def looked_at(samples: int, dear: bool) -> AbstractContextManager[Any]:
    """Has this number of a worker's first samples looked at; all of them if they are dear."""
    return mock.patch.multiple(sample_seeding, _PROBES=samples, _AGAIN=min(samples, 8), _DEAR=0.0 if dear else 1e9)


def run(
    dataset: Noisy,
    batches: list[range],
    *,
    workers: int = 1,
    mode: sample_seeding.Seeding = "auto",
    restore: bool = False,
    seed: int = SEED,
    in_part: bool = False,
) -> dict[int, list[Any]]:
    """What every position gives, position and index being the same."""
    made: dict[int, list[Any]] = {}
    for worker in range(workers):
        own = copy.deepcopy(dataset)
        worker_seeding = SampleSeeding(mode, dataset=own, restore=restore, rng=own.rng)
        for positions in batches[worker::workers]:
            indices = list(positions)
            samples = worker_seeding.samples(seed, positions, own.__getitem__, indices, in_part=in_part)
            assert [sample[0] for sample in samples] == indices
            made |= zip(positions, samples, strict=True)
        dataset.fetched += own.fetched
    return made


def cut(stop: int, sizes: list[int]) -> list[range]:
    batches, start = [], 0
    while start < stop:
        size = sizes[len(batches) % len(sizes)]
        batches.append(range(start, min(start + size, stop)))
        start += size
    return batches


@given(
    pattern=st.sampled_from(sorted(PATTERNS)),
    sources=st.lists(st.sampled_from(SOURCES), min_size=1, max_size=3),
    spread=st.booleans(),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    workers=st.integers(1, 3),
    restore=st.booleans(),
    start=st.integers(0, 60),
    mode=st.sampled_from(["dear", "in part", "sample"]),
)
def test_a_sample_draws_the_same_on_every_path(
    pattern: str, sources: list[str], spread: bool, sizes: list[int], workers: int, restore: bool, start: int, mode: str
) -> None:
    """Of samples that take 0.3 ms, in every part of a shared batch, and with `seeding="sample"`."""

    def draws(index: int) -> tuple[str, ...]:
        if not PATTERNS[pattern](index):
            return ()
        return (sources[index % len(sources)],) if spread else tuple(sources)

    batches = [batch for batch in cut(100, sizes) if batch.start >= start]
    model = run(Noisy(draws), [range(p, p + 1) for p in range(100)], mode="sample")
    with looked_at(8, dear=mode == "dear"):
        seeding = "sample" if mode == "sample" else "auto"
        made = run(Noisy(draws), batches, workers=workers, restore=restore, mode=seeding, in_part=mode == "in part")
    assert made == {position: model[position] for batch in batches for position in batch}
    numbers = [number for sample in model.values() for number in sample[1:] if number != 0.0]
    assert len(set(numbers)) == len(numbers) or len(set(sources)) < len(sources)


@pytest.mark.parametrize("source", SOURCES)
def test_epochs_and_positions_differ(source: str) -> None:
    if source in ("Torch", "torchs"):
        pytest.importorskip("torch")
    made = [run(Noisy(lambda index: (source,)), cut(40, [40]), seed=seed) for seed in (1, 2)]
    assert len({sample[1] for epoch in made for sample in epoch.values()}) == 80


def test_generators_with_other_initial_seeds_differ() -> None:
    one, other = Noisy(lambda index: ("modern",)), Noisy(lambda index: ("modern",))
    other.modern["rng"] = np.random.default_rng(2)
    assert run(one, [range(8)])[3] != run(other, [range(8)])[3]


@pytest.mark.parametrize("source", SOURCES)
def test_consistent_samples_are_fetched_once(source: str) -> None:
    for draws in (lambda index: (source,), lambda index: ()):
        dataset = Noisy(draws)
        run(dataset, cut(200, [32]))
        assert dataset.fetched == list(range(200))


@pytest.mark.parametrize("size", [1, 4, 32])
@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_sample_is_fetched_twice(pattern: str, restore: bool, size: int) -> None:
    dataset = Noisy(lambda index: tuple(SOURCES) if PATTERNS[pattern](index) else ())
    with looked_at(8, dear=False):
        run(dataset, cut(200, [size]), restore=restore)
    assert dataset.fetched == list(range(200))


@pytest.mark.parametrize("source", SOURCES[:-1])
@pytest.mark.parametrize("restore", [False, True])
def test_only_the_batch_of_a_late_first_draw_differs(restore: bool, source: str) -> None:
    """Its numbers are of no other sample, of no other worker, and not the training loop's."""
    if source in ("Torch", "torchs"):
        pytest.importorskip("torch")

    def draws(index: int) -> tuple[str, ...]:
        return (source,) if index >= 100 else ()

    model = run(Noisy(draws), [range(p, p + 1) for p in range(240)], mode="sample")
    twin = Noisy(draws)
    loops = [twin.draw(source) for _ in range(8)]
    with looked_at(8, dear=False):
        made = [run(Noisy(draws), cut(240, [32])[worker::2], restore=restore) for worker in range(2)]
    for worker, late in enumerate((range(128, 160), range(96, 128))):
        assert {p: sample for p, sample in made[worker].items() if p not in late} == {
            p: model[p] for p in made[worker] if p not in late
        }
    numbers = [sample[1] for worker in made for sample in worker.values() if len(sample) > 1] + loops
    assert len(set(numbers)) == len(numbers) == 140 + 8


def test_late_draw_of_a_second_epoch_has_numbers_of_its_own() -> None:
    dataset = Noisy(lambda index: ("Python",) if index >= 20 else ())
    worker_seeding, numbers = SampleSeeding("auto", dataset=None), list[float]()
    with looked_at(8, dear=False):
        for seed, late in ((1, 100), (2, 100), (3, 20)):
            for batch in cut(40, [16]):
                made = worker_seeding.samples(seed, batch, lambda i, late=late: dataset[i] if i >= late else [i], batch)
                numbers += [sample[1] for sample in made if len(sample) > 1]
    assert len(set(numbers)) == len(numbers) == 20


def test_samples_of_one_millisecond_stay_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(sample_seeding, "perf_counter", lambda: next(clock) * 1e-3)  # a batch takes 1 ms

    def late(index: int) -> tuple[str, ...]:
        return ("Python",) if index >= 3300 else ()

    model = run(Noisy(late), [range(3000, 3400)], mode="sample")
    dear = run(Noisy(late), cut(3400, [3]))
    assert all(dear[position] == model[position] for position in range(3000, 3400))
    cheap = run(Noisy(late), cut(3400, [4]))
    differ = [position for position in range(3000, 3400) if cheap[position] != model[position]]
    assert differ == list(range(3300, 3304))


def test_first_1000_samples_of_a_worker_are_seeded() -> None:
    def late(index: int) -> tuple[str, ...]:
        return ("NumPy",) if index >= 999 else ()

    model = run(Noisy(late), [range(990, 1100)], mode="sample")
    made = run(Noisy(late), cut(1100, [64]))
    assert all(made[position] == model[position] for position in range(990, 1100))


def test_generators_found_are_told_to_other_workers() -> None:
    dataset = Noisy(lambda index: ("Python", "modern") if index >= 20 else ())
    first, second = SampleSeeding("auto", dataset=dataset), SampleSeeding("auto", dataset=copy.deepcopy(dataset))
    with looked_at(8, dear=False):
        first.samples(SEED, range(40), dataset.__getitem__, range(40))
        news = first.news()
        assert [name.partition(" ")[0] for name in news] == ["Python", "Generator"] and not first.news()
        second.learn(news)
        again = Noisy(dataset.draws)
        second._dataset = again
        made = second.samples(SEED, range(40), again.__getitem__, range(40))
        assert not second.news()
    assert made == list(run(Noisy(dataset.draws), [range(40)], mode="sample").values())


@pytest.mark.parametrize("size", [1, 32])
@pytest.mark.parametrize("restore", [False, True])
def test_unused_generators_are_not_seeded(restore: bool, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Noisy(lambda index: ("modern",))
    with looked_at(8, dear=False):
        worker_seeding = SampleSeeding("auto", dataset=dataset, restore=restore, rng=dataset.rng)
        worker_seeding.samples(SEED, range(40), dataset.__getitem__, range(40))
    python = random.getstate()
    seeded = []
    for stream in worker_seeding._active + worker_seeding._idle:
        monkeypatch.setattr(stream, "seed", lambda key, stream=stream: seeded.append(stream))
    for start in range(40, 72, size):
        positions = range(start, start + size)
        worker_seeding.samples(SEED, positions, dataset.__getitem__, positions)
    assert len(seeded) == 32 and len(set(seeded)) == 1
    assert random.getstate() == python


def test_generators_that_an_epoch_brings_are_taken_up() -> None:
    def epoch(worker_seeding: SampleSeeding, dataset: Noisy, seed: int, start: int) -> list[Any]:
        dataset.modern["rng"] = np.random.default_rng(seed)
        positions = range(start, 40)
        return worker_seeding.samples(seed, positions, dataset.__getitem__, positions)

    one, other = Noisy(lambda index: ("modern",)), Noisy(lambda index: ("modern",))
    kept, fresh = SampleSeeding("auto", dataset=one), SampleSeeding("auto", dataset=other)
    epoch(kept, one, 1, 0)
    assert epoch(kept, one, 2, 0)[20:] == epoch(fresh, other, 2, 20)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("size", [2, 32])
def test_the_trainers_generators_are_not_disturbed(pattern: str, size: int) -> None:
    dataset = Noisy(lambda index: tuple(SOURCES[:-1]) if PATTERNS[pattern](index) else ())
    worker_seeding = SampleSeeding("auto", dataset=dataset, restore=True)
    streams = list(global_streams().values())
    own = copy.deepcopy([dataset.python, dataset.legacy[0], dataset.modern["rng"]])
    np.random.standard_normal()  # leaves the second of a pair
    for batch in cut(100, [size]):
        before = [stream.state() for stream in streams]
        worker_seeding.samples(SEED, batch, dataset.__getitem__, batch)
        worker_seeding.collate(SEED, batch[0], lambda: dataset.draw("Python"))
        with worker_seeding.undisturbed(SEED):
            worker_seeding.one(SEED, batch[0], lambda: dataset.draw("NumPy"), {})
        assert [stream.state() for stream in streams] == before
        random.random(), np.random.standard_normal(), dataset.draw("Torch")
    assert dataset.python.random() == own[0].random()
    assert dataset.legacy[0].standard_normal() == own[1].standard_normal()
    assert dataset.modern["rng"].random() == own[2].random()


def test_trainer_draws_between_batches_are_not_a_samples() -> None:
    worker_seeding = SampleSeeding("auto", dataset=None, restore=True)
    fetched: list[int] = []
    streams = list(global_streams().values())
    for batch in cut(64, [16]):
        before = [stream.state() for stream in streams]
        worker_seeding.samples(SEED, batch, fetched.append, batch)
        assert [stream.state() for stream in streams] == before
        random.random(), np.random.random_sample()
        if (torch := sys.modules.get("torch")) is not None:
            torch.rand(())
    assert fetched == list(range(64)), "each once"


def test_generator_states_are_restored_after_an_exception() -> None:
    def fetch(index: int) -> float:
        if index == 20:
            raise KeyError(random.random())
        return random.random()

    worker_seeding = SampleSeeding("auto", dataset=None, restore=True)
    before = random.getstate()
    with pytest.raises(KeyError):
        worker_seeding.samples(SEED, range(32), fetch, range(32))
    assert random.getstate() == before


def test_undisturbed_puts_states_back_once_at_its_end() -> None:
    worker_seeding = SampleSeeding("auto", dataset=None, restore=True)
    model, of_model, drawn = SampleSeeding("auto", dataset=None), dict[str, int](), dict[str, int]()
    expected = [model.one(SEED, position, random.random, of_model) for position in range(3)]
    random.random()
    before = random.getstate()
    with worker_seeding.undisturbed(SEED):
        made = [worker_seeding.one(SEED, position, random.random, drawn) for position in range(3)]
        assert random.getstate() != before
    assert random.getstate() == before
    assert made == expected


@pytest.mark.parametrize("failing", [0, 3, 16, 25])
@pytest.mark.parametrize("size", [4, 32])
def test_exception_of_a_sample_is_unchanged_and_has_its_place(failing: int, size: int) -> None:
    class OwnError(Exception):
        pass

    error = OwnError("sample")

    def fetch(index: int) -> int:
        if index == 100 + failing:
            raise error
        return index

    worker_seeding = SampleSeeding("auto", dataset=None)
    indices = range(100, 100 + size)
    if failing >= size:
        assert worker_seeding.samples(SEED, range(size), fetch, indices) == list(indices)
        assert worker_seeding.failed_at is None
        return
    with pytest.raises(OwnError) as raised:
        worker_seeding.samples(SEED, range(size), fetch, indices)
    assert raised.value is error
    assert worker_seeding.failed_at == failing
    assert worker_seeding.samples(SEED, range(2), fetch, [1, 2]) == [1, 2]
    assert worker_seeding.failed_at is None


def test_exception_from_a_draw_is_the_same_on_each_path() -> None:
    def fetch(index: int) -> float:
        number = random.random() if index >= 40 else 0.0
        if number > 0.8:
            raise ValueError(index, number)
        return number

    def failure(start: int, size: int) -> Any:
        worker_seeding = SampleSeeding("auto", dataset=None)
        for batch in range(start, 400, size):
            positions = range(batch, batch + size)
            try:
                worker_seeding.samples(SEED, positions, fetch, positions)
            except ValueError as error:
                return error.args
        raise AssertionError("a sample should have failed")

    assert failure(0, 32) == failure(0, 1) == failure(20, 50) == failure(0, 400)


def test_purposes_have_numbers_of_their_own() -> None:
    worker_seeding = SampleSeeding("auto", dataset=None)
    made = [
        worker_seeding.one(SEED, 5, random.random, {"Python": -1}),
        worker_seeding.whole(SEED, 5, random.random),
        worker_seeding.collate(SEED, 5, random.random),
    ]
    assert len(set(made)) == 3
    sample = worker_seeding.samples(SEED, range(5, 6), lambda index: random.random(), [0])
    assert sample == made[:1]
    assert worker_seeding.collate(SEED, 5, random.random) == made[2]


def read_in_turn(
    dataset: Noisy, start: int, drawn: dict[str, int], sizes: list[int], restore: bool = False, mode: Any = "auto"
) -> list[Any]:
    """The samples from there on, of a stream whose samples had drawn from these, and whose batches are collated."""
    worker_seeding = SampleSeeding(mode, dataset=None, restore=restore, rng=dataset.rng)
    made = []
    for batch in cut(100 - start, sizes):
        with worker_seeding.undisturbed(SEED):
            for position in range(start + batch.start, start + batch.stop):
                made.append(worker_seeding.one(SEED, position, lambda index=position: dataset[index], drawn))
        if batch.start % 2:
            worker_seeding.collate(SEED, start + batch.start, lambda: [dataset.draw(source) for source in SOURCES[:3]])
        random.random(), np.random.standard_normal(), dataset.draw("Torch")  # draws between two batches
    return made


@given(
    pattern=st.sampled_from(sorted(PATTERNS)),
    sources=st.lists(st.sampled_from(["Python", "NumPy", "Torch", "rng"]), min_size=1, max_size=3),
    spread=st.booleans(),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    restore=st.booleans(),
    start=st.integers(0, 100),
)
def test_a_stream_draws_the_same_from_wherever_it_is_read(
    pattern: str, sources: list[str], spread: bool, sizes: list[int], restore: bool, start: int
) -> None:
    """The first sample that draws from a generator finds it as the stream's first would have, the others as always."""

    def draws(index: int) -> tuple[str, ...]:
        if not PATTERNS[pattern](index):
            return ()
        return (sources[index % len(sources)],) if spread else tuple(sources)

    drawn: dict[str, int] = {}
    whole = read_in_turn(Noisy(draws), 0, drawn, [start, 100] if start else [100])
    of_torch = set() if torch is None else {"Torch"}
    wanted = {source for index in range(100) for source in draws(index)} & {"Python", "NumPy", *of_torch}
    assert {whose.capitalize() if whose == "torch" else whose for whose in drawn} == wanted
    before: dict[str, int] = {}
    read_in_turn(Noisy(lambda index: draws(index) if index < start else ()), 0, before, [100])
    assert read_in_turn(Noisy(draws), start, before, sizes, restore) == whole[start:]
    again = dict(drawn)
    assert read_in_turn(Noisy(draws), 0, again, sizes, restore) == whole, "with all that is known by then"
    assert again == drawn
    always: dict[str, int] = {}
    by_position = read_in_turn(Noisy(draws), 0, always, sizes, mode="sample")
    assert read_in_turn(Noisy(draws), start, always, sizes) == by_position[start:]
    met: set[str] = set()
    for index, (sample, usual) in enumerate(zip(whole, by_position, strict=True)):
        new = set(draws(index)) - met - {"rng"}
        assert index == 0 or new or sample == usual
        met |= new
    numbers = [number for sample in whole for number in sample[1:] if number != 0.0]
    assert len(set(numbers)) == len(numbers) or len(set(sources)) < len(sources)


def test_generator_unused_by_a_stream_is_seeded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeding, "library", None)  # else not each seed is a call
    worker_seeding = SampleSeeding("auto", dataset=None)
    worker_seeding.collate(SEED, 0, int)  # takes them up
    seeded: list[Any] = []
    for whose, stream in worker_seeding._globals.items():
        seed = stream.seed
        monkeypatch.setattr(stream, "seed", lambda key, whose=whose, seed=seed: (seeded.append(whose), seed(key)))
    drawn: dict[str, int] = {}
    for position in range(20):
        worker_seeding.one(SEED, position, random.random if position >= 10 else int, drawn)
    assert drawn == {"Python": 10}
    assert seeded.count("Python") == 1 + 9
    assert seeded.count("NumPy") == 1 + 1  # and once more when the others are looked through anew


def test_draws_between_samples_of_a_stream_change_nothing() -> None:
    """The one who is asked what to do about a sample that failed."""

    def fails() -> None:
        raise KeyError

    one, other, drawn = SampleSeeding("auto", dataset=None), SampleSeeding("auto", dataset=None), dict[str, int]()
    with pytest.raises(KeyError):
        one.one(SEED, 0, fails, drawn)
    random.random()
    assert one.one(SEED, 1, int, drawn) == 0 and drawn == {}
    other.one(SEED, 0, int, drawn)
    assert one.one(SEED, 2, random.random, {}) == other.one(SEED, 2, random.random, {})


def test_a_global_generator_that_cannot_be_seeded_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "_inst", random.SystemRandom())
    drawn: dict[str, int] = {}
    worker_seeding = SampleSeeding("auto", dataset=None)
    assert worker_seeding.one(SEED, 0, lambda: float(np.random.random_sample()), drawn) >= 0
    assert drawn == {"NumPy": 0}
    assert worker_seeding.samples(SEED, range(20), int, range(20)) == list(range(20))


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("bits", [np.random.MT19937, np.random.PCG64])
def test_samples_may_replace_numpys_global_bit_generator(bits: Any, restore: bool) -> None:
    """Whose words are then others: until the next epoch it runs its own course."""

    def fetch(index: int) -> float:
        if index == 25:
            np.random.set_bit_generator(bits(5))
        return float(np.random.random_sample())

    kept = np.random.get_bit_generator()
    worker_seeding = SampleSeeding("auto", dataset=None, restore=restore)
    try:
        for batch in cut(60, [8]):
            worker_seeding.samples(SEED, batch, fetch, batch)
        for batch in cut(20, [8]):
            worker_seeding.samples(SEED + 1, batch, lambda index: float(np.random.random_sample()), batch)
        one, other = (
            worker_seeding.samples(SEED + 1, range(8, 16), lambda index: float(np.random.random_sample()), range(8))
            for _ in range(2)
        )
    finally:
        np.random.set_bit_generator(kept)
    assert one == other and len(set(one)) == 8


def test_seeding_a_global_generator_counts_as_drawing() -> None:
    calls = {"Python": lambda: random.seed(3), "NumPy": lambda: np.random.seed(3)}
    if torch is not None:
        calls["torch"] = lambda: torch.manual_seed(torch.initial_seed())
    for whose, seed in calls.items():
        drawn: dict[str, int] = {}
        SampleSeeding("auto", dataset=None).one(SEED, 0, seed, drawn)
        assert drawn == {whose: 0}


def test_streams_are_never_asked_twice() -> None:
    worker_seeding, drawn = SampleSeeding("auto", dataset=None), dict[str, int]()
    source = iter((index, random.random()) for index in range(40))
    made = [worker_seeding.one(SEED, position, lambda: next(source), drawn) for position in range(40)]
    assert [index for index, _ in made] == list(range(40))
    with pytest.raises(StopIteration):
        worker_seeding.one(SEED, 40, lambda: next(source), drawn)


def test_a_generator_of_rng_may_be_kept() -> None:
    def kept(start: int) -> dict[int, float]:
        rng = SampleRNG(0)
        cache: list[random.Random] = []

        def fetch(index: int) -> float:
            if index < 50:
                return 0.0
            if not cache:
                cache.append(rng.random_generator)
            return cache[0].random()

        worker_seeding = SampleSeeding("auto", dataset=None, threads=True, rng=rng)
        made = {}
        for batch in range(start, 100, 20):
            positions = range(batch, min(batch + 20, 100))
            made |= zip(positions, worker_seeding.samples(SEED, positions, fetch, positions), strict=True)
        return made

    whole = kept(0)
    assert len({whole[position] for position in range(50, 100)}) == 50
    for start in (40, 50, 60):
        assert kept(start) == {position: whole[position] for position in range(start, 100)}


@pytest.mark.parametrize("mode", ["auto", "sample", "worker"])
@pytest.mark.parametrize("threads", [False, True])
def test_rng_gives_the_same_in_every_mode(mode: sample_seeding.Seeding, threads: bool) -> None:
    dataset = Noisy(lambda index: ("rng",))
    worker_seeding = SampleSeeding(mode, dataset=dataset, threads=threads, rng=dataset.rng)
    model = run(Noisy(lambda index: ("rng",)), [range(24)])
    assert worker_seeding.samples(SEED, range(24), dataset.__getitem__, range(24)) == list(model.values())


def test_worker_mode_leaves_generators_to_their_course() -> None:
    dataset = Noisy(lambda index: ("Python", "NumPy", "modern"))
    worker_seeding = SampleSeeding("worker", dataset=dataset)
    twin = copy.deepcopy(dataset)
    random.seed(1), np.random.seed(1)
    made = worker_seeding.samples(SEED, range(40), dataset.__getitem__, range(40))
    made.append(worker_seeding.one(SEED, 40, lambda: dataset[40], {}))
    random.seed(1), np.random.seed(1)
    assert made == [twin[index] for index in range(41)]


def test_threads_do_not_touch_what_they_share() -> None:
    dataset = Noisy(lambda index: ("rng",))
    worker_seeding = SampleSeeding("auto", dataset=dataset, threads=True, rng=dataset.rng)
    streams = global_streams().values()
    before = [stream.state() for stream in streams]
    own = copy.deepcopy(dataset.python)
    worker_seeding.samples(SEED, range(40), dataset.__getitem__, range(40))
    assert [stream.state() for stream in streams] == before
    assert dataset.python.random() == own.random()


def test_threads_that_draw_from_a_global_generator_warn_once() -> None:
    dataset = Noisy(lambda index: ("NumPy",))
    worker_seeding = SampleSeeding("auto", dataset=dataset, threads=True)
    with pytest.warns(StokerWarning, match=r"of NumPy moved .* stoker\.sample_rng\(\)"):
        worker_seeding.samples(SEED, range(8), dataset.__getitem__, range(8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        worker_seeding.samples(SEED, range(8, 16), dataset.__getitem__, range(8, 16))
        SampleSeeding("worker", dataset=dataset, threads=True).samples(SEED, range(8), dataset.__getitem__, range(8))


def test_concurrent_training_loop_draws_are_not_the_datasets() -> None:
    dataset = Noisy(lambda index: ("NumPy",) if index % 4 else ())  # as if other code drew now and then
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SampleSeeding("auto", dataset=dataset, threads=True).samples(SEED, range(16), dataset.__getitem__, range(16))


@pytest.mark.parametrize("mode", ["auto", "sample"])
@pytest.mark.parametrize("first", [0, 10, 30])
@pytest.mark.parametrize("restore", [False, True])
def test_torch_may_be_imported_by_a_sample(
    mode: sample_seeding.Seeding, first: int, restore: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    model = run(Noisy(lambda index: ("Torch",) if index >= first else ()), [range(40)])
    torch.default_generator.manual_seed(torch.Generator().initial_seed())  # as an import leaves it
    before = torch.get_rng_state()
    monkeypatch.delitem(sys.modules, "torch")
    dataset = Noisy(lambda index: ("Torch",))
    dataset.torchs = None

    def fetch(index: int) -> Any:
        if index < first:
            return [index]
        if "torch" not in sys.modules:
            monkeypatch.setitem(sys.modules, "torch", torch)
            dataset.rng.on_torch()  # as the import does, at its end
        return dataset[index]

    worker_seeding = SampleSeeding(mode, dataset=dataset, restore=restore, rng=dataset.rng)
    made = worker_seeding.samples(SEED, range(40), fetch, range(40))
    assert made == list(model.values())
    assert torch.equal(torch.get_rng_state(), before) == restore


def test_sample_mode_sees_through_a_fork_of_the_state() -> None:
    def forked(index: int) -> float:
        state = random.getstate()
        number = random.random()
        random.setstate(state)
        return number

    positions = range(40)
    made = SampleSeeding("sample", dataset=None).samples(SEED, positions, forked, positions)
    assert len(set(made)) == 40
