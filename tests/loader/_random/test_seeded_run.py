"""Seeds in compiled code: the numbers of every sample are those that the generators' own seeds give."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker._core.native import seeding
from stoker.loader._random.generators import LegacyState, global_streams, step, stream_of
from stoker.loader._random.seeded_run import Lent, SeededRun

torch = pytest.importorskip("torch")

needs_it = pytest.mark.skipif(seeding.library is None, reason=seeding.why)

DRAWS: list[Callable[[], Any]] = [
    lambda: None,
    random.random,
    lambda: random.gauss(0, 1),
    lambda: [random.getrandbits(32) for _ in range(700)],
    np.random.rand,
    np.random.standard_normal,
    lambda: np.random.randint(0, 1000, 700).tolist(),
    lambda: torch.rand(3).tolist(),
    lambda: torch.randn(1).tolist(),
    lambda: torch.randn(700).tolist(),
]


def test_library_is_there_where_it_can_be_built() -> None:
    """Otherwise its tests would run without it, unnoticed."""
    has_compiler = any(map(shutil.which, ("cc", "gcc", "clang")))
    refused = os.environ.get("STOKER_NATIVE") == "0"
    assert (seeding.library is not None) == (has_compiler and not refused), seeding.why


def drawing(samples: list[list[int]]) -> Iterator[list[Any]]:
    for draws in samples:
        yield [DRAWS[draw]() for draw in draws]


@needs_it
@settings(max_examples=40)
@given(
    samples=st.lists(st.lists(st.integers(0, len(DRAWS) - 1), max_size=3), min_size=1, max_size=50),
    key=st.integers(0, 2**64 - 1),
    first=st.integers(0, 100) | st.integers(2**40, 2**40 + 5),
    stride=st.integers(1, 3),
    cut=st.integers(1, 50),
)
def test_numbers_are_those_of_each_seed(samples: list[list[int]], key: int, first: int, stride: int, cut: int) -> None:
    streams = [*global_streams().values()]
    before = [stream.state() for stream in streams]
    expected: list[Any] = []
    each = drawing(samples)
    for position in range(first, first + stride * len(samples), stride):
        for stream in streams:
            stream.seed(step(key, position))
        expected.append(next(each))
    run = SeededRun.of(streams, [])
    assert run is not None
    made: list[Any] = []
    iterator = drawing(samples)
    while not run.take(key, first + stride * len(made), stride, iterator, made, cut):
        for draw in DRAWS:  # of the trainer
            draw()
    assert made == expected
    for stream, state in zip(streams, before, strict=True):
        stream.restore(state)
    assert [stream.state() for stream in streams] == before


@needs_it
@settings(max_examples=30)
@given(data=st.data())
def test_first_draw_ends_the_run(data: st.DataObject) -> None:
    streams = global_streams()
    watched = [streams[name] for name in data.draw(st.permutations([*streams]))]
    for stream in watched:
        stream.seed(5)
    run = SeededRun.of([], watched)
    assert run is not None
    draw, at, made = data.draw(st.integers(1, len(DRAWS) - 1)), data.draw(st.integers(0, 9)), list[Any]()
    assert not run.take(1, 0, 1, drawing([[]] * at + [[draw]] + [[]] * 5), made, at + 4)
    assert len(made) == at + 1 and run.has_moved


@needs_it
def test_exceptions_pass_and_leave_what_was_read() -> None:
    def failing() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("three")

    run, made = SeededRun.of([], []), list[Any]()
    assert run is not None
    with pytest.raises(KeyError, match="three"):
        run.take(1, 0, 1, failing(), made, 10)
    assert made == [1, 2]


@needs_it
def test_sample_that_asks_for_its_position_is_the_last() -> None:
    positions: list[int] = []

    def asking() -> Iterator[int]:
        for number in range(9):
            if number == 3:
                positions.append(run.end())
            yield number

    run, made = SeededRun.of([], []), list[Any]()
    assert run is not None
    assert not run.take(1, 40, 2, asking(), made, 9)
    assert made == [0, 1, 2, 3] and positions == [46]


@needs_it
def test_nothing_is_kept() -> None:
    """No reference to a sample, and none to the iterator."""
    import sys

    sample, run = object(), SeededRun.of([*global_streams().values()], [])
    assert run is not None
    iterator = iter([sample] * 100)
    before = sys.getrefcount(sample), sys.getrefcount(iterator), sys.getrefcount(None)
    made: list[Any] = []
    run.take(1, 0, 1, iterator, made, 90)
    made.clear()
    del iterator
    assert sys.getrefcount(sample) <= before[0]
    assert abs(sys.getrefcount(None) - before[2]) < 50


def test_generators_that_it_does_not_know_are_refused() -> None:
    class Own(random.Random):
        def seed(self, *_: Any) -> None: ...

    for generator in (np.random.default_rng(1), Own(1)):
        stream = stream_of(generator)
        assert stream is not None and SeededRun.of([stream], []) is None


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeding, "library", None)
    assert SeededRun.of([], []) is None


@pytest.mark.parametrize("in_c", [False, pytest.param(True, marks=needs_it)])
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    turns=st.lists(st.tuples(*[st.lists(st.integers(0, len(DRAWS) - 1), max_size=2)] * 2), min_size=1, max_size=6),
    active=st.sets(st.sampled_from(["Python", "NumPy", "torch"])),
)
def test_lent_generators_keep_the_numbers_of_the_loop(
    in_c: bool, turns: list[tuple[list[int], list[int]]], active: set[str]
) -> None:
    """Of both ways, also with samples that seed generators for themselves, and second numbers of normal pairs."""
    streams = global_streams()
    for stream in streams.values():
        stream.seed(11)
    start = {stream: stream.state() for stream in streams.values()}
    expected = [[DRAWS[draw]() for draw in loops] for loops, _ in turns]
    for stream in start:
        stream.seed(5)
    idle = [(stream, stream.state()) for name, stream in streams.items() if name not in active]
    for stream, state in start.items():
        stream.restore(state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeding, "library", seeding.library if in_c else None)
        lent = Lent(idle, [streams[name] for name in active])
    numbers = []
    for loops, samples in turns:
        lent.lend()
        assert [stream.state() for stream, _ in idle] == [own for _, own in idle]
        for name in active:
            streams[name].seed(9)
        drawn = [DRAWS[draw]() for draw in samples]
        kinds = {"Python" if draw < 4 else "NumPy" if draw < 7 else "torch" for draw in samples if draw}
        assert {*lent.take_back()} == {streams[name] for name in kinds - active}, drawn
        numbers.append([DRAWS[draw]() for draw in loops])
    assert numbers == expected


@pytest.mark.parametrize("in_c", [False, pytest.param(True, marks=needs_it)])
@pytest.mark.parametrize("all_idle", [False, True])
def test_interrupted_batch_gives_the_states_back_later(
    in_c: bool, all_idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an interrupt has prevented `take_back`, the next `lend` makes up for it. Taking back twice does no harm."""
    monkeypatch.setattr(seeding, "library", seeding.library if in_c else None)
    streams = [*global_streams().values()]
    for stream in streams:
        stream.seed(5)
    lent = Lent([(stream, stream.state()) for stream in streams if all_idle], [] if all_idle else streams)
    for stream in streams:
        stream.seed(11)
    random.gauss(0, 1), np.random.standard_normal(), torch.randn(1)
    loops = [stream.state() for stream in streams]
    lent.lend()
    random.gauss(0, 1), np.random.standard_normal(), torch.randn(1)
    lent.lend()
    lent.take_back()
    assert not lent.take_back()
    assert [stream.state() for stream in streams] == loops


@needs_it
@pytest.mark.parametrize("count", [1, 8, 9, 64, 65, 200])
def test_states_are_those_that_seeds_leave(count: int) -> None:
    streams = [*global_streams().values()]
    made: list[Any] = []
    run = SeededRun.of(streams, [])
    assert run is not None

    def states() -> Iterator[Any]:
        while True:
            yield random.getstate(), *map(repr, np.random.get_state()), torch.get_rng_state().tolist()

    run.take(3, 7, 2, states(), made, count)
    by_hand = states()
    for number, state in enumerate(made):
        for stream in streams:
            stream.seed(step(3, 7 + 2 * number))
        assert next(by_hand) == state, number


@needs_it
@settings(max_examples=30)
@given(data=st.data())
def test_seeds_for_single_positions(data: st.DataObject) -> None:
    """In a row or not, and of several keys."""
    streams = [*global_streams().values()]
    run = SeededRun.of(streams, [])
    assert run is not None
    runs = st.tuples(st.integers(0, 2), st.integers(0, 40) | st.integers(2**40, 2**40 + 9), st.integers(1, 40))
    for key, first, many in data.draw(st.lists(runs, min_size=1, max_size=6)):
        for position in range(first, first + many):
            run.seed(key, position)
            states = [stream.state() for stream in streams]
            for stream in streams:
                stream.seed(step(key, position))
            assert [stream.state() for stream in streams] == states
            DRAWS[data.draw(st.integers(0, len(DRAWS) - 1))]()


@needs_it
def test_foreign_bit_generator_is_left_alone() -> None:
    """Also the second number of a normal pair that it holds back, and the words of the one before."""
    legacy = global_streams()["NumPy"]
    run, own = SeededRun.of([legacy], []), np.random.get_bit_generator()  # type: ignore[attr-defined]
    lent = Lent([], [legacy])
    assert run is not None
    expected = np.random.RandomState(np.random.MT19937(5)).standard_normal(5).tolist()

    def replaced() -> Iterator[float]:
        np.random.set_bit_generator(np.random.MT19937(5))  # type: ignore[attr-defined]
        while True:
            yield np.random.standard_normal()

    made: list[float] = []
    before = own.state["state"]["key"].tolist()
    try:
        iterator = replaced()
        made.append(next(iterator))
        lent.lend()
        run.take(1, 0, 1, iterator, made, 3)
        lent.take_back()
        made.append(next(iterator))
    finally:
        np.random.set_bit_generator(own)  # type: ignore[attr-defined]
    assert made == expected
    assert own.state["state"]["key"].tolist() == before


class Lock:
    """NumPy's: says what the generator's words were when it was taken, and when it was released."""

    def __init__(self, generator: np.random.RandomState) -> None:
        self.generator: Any = generator
        self.words: list[bytes] = []
        self.raises = 0

    def acquire(self) -> None:
        self.raises -= 1
        if not self.raises:
            raise KeyboardInterrupt
        self.words.append(self.generator.get_state()[1].tobytes())

    release = __exit__ = lambda self, *_: self.words.append(self.generator.get_state()[1].tobytes())
    __enter__ = acquire


@needs_it
def test_words_of_numpy_are_written_under_its_lock() -> None:
    """A thread that draws an array holds that, and not the interpreter's: it would read behind words that change."""
    generator = np.random.RandomState(1)
    lock, stream = Lock(generator), cast("Any", LegacyState(generator))
    stream._lock, stream._held = lock, (lock.acquire, lock.release)
    run = SeededRun.of([stream], [])
    lent = Lent([(stream, LegacyState(np.random.RandomState(2)).state())], [])
    assert run is not None
    loops = stream.state()
    for write in (
        lambda: run.seed(1, 0),
        lambda: stream.restore(loops),
        lent.lend,
        lent.take_back,
        lambda: stream.seed(3),
    ):
        lock.words = []
        write()
        held, freed = lock.words
        assert held != freed == generator.get_state()[1].tobytes()


@needs_it
def test_interrupted_wait_for_the_lock_of_numpy() -> None:
    generator = np.random.RandomState(1)
    lock, stream = Lock(generator), cast("Any", LegacyState(generator))
    stream._held = lock.acquire, lock.release
    lent = Lent([(stream, LegacyState(np.random.RandomState(2)).state())], [])
    loops = stream.state()
    for write in (lent.lend, lent.take_back):
        lock.raises = 1
        with pytest.raises(KeyboardInterrupt):
            write()
        assert stream.state() == loops
        lent.lend()
        assert stream.state() != loops
    lent.take_back()
    assert stream.state() == loops
