from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.loader._random import generators
from stoker.loader._random.generators import global_streams, mix, step, stream_of
from stoker.loader._random.mersenne_twister import TorchTwister

KEY = 0x0123456789ABCDEF


def a_torch_generator() -> Any:
    return pytest.importorskip("torch").Generator().manual_seed(5)


class Counting(random.Random):
    """No twister, though it is a `random.Random`."""

    def seed(self, key: Any = None, version: int = 2) -> None:
        self.count = hash(key)

    def random(self) -> float:
        self.count = (self.count * 5 + 1) % 2**64
        return self.count / 2**64

    def getstate(self) -> Any:
        return self.count

    def setstate(self, state: Any) -> None:
        self.count = state


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "random": (lambda: random.Random(5), lambda g: g.random()),
    "random-counting": (lambda: Counting(5), lambda g: g.random()),
    "random-normal": (lambda: random.Random(5), lambda g: g.gauss(0, 1)),
    "legacy": (lambda: np.random.RandomState(5), lambda g: g.random_sample()),
    "legacy-normal": (lambda: np.random.RandomState(5), lambda g: g.standard_normal()),
    "legacy-philox": (lambda: np.random.RandomState(np.random.Philox(5)), lambda g: g.random_sample()),
    "pcg64": (lambda: np.random.default_rng(5), lambda g: g.random()),
    "pcg64-half": (lambda: np.random.default_rng(5), lambda g: int(g.integers(2**32, dtype=np.uint32))),
    "pcg64dxsm": (lambda: np.random.Generator(np.random.PCG64DXSM(5)), lambda g: g.random()),
    "philox": (lambda: np.random.Generator(np.random.Philox(5)), lambda g: g.random()),
    "sfc64": (lambda: np.random.Generator(np.random.SFC64(5)), lambda g: g.random()),
    "mt19937": (lambda: np.random.Generator(np.random.MT19937(5)), lambda g: g.random()),
    "torch": (a_torch_generator, lambda g: sys.modules["torch"].rand((), generator=g).item()),
    "torch-normal": (a_torch_generator, lambda g: sys.modules["torch"].randn((), generator=g).item()),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return KINDS[request.param]


def drawn(draw: Callable[[Any], Any], generator: Any, count: int = 3) -> list[Any]:
    return [draw(generator) for _ in range(count)]


def test_mix_is_pinned() -> None:
    assert mix() == 0
    assert mix(0) == 0xE220A8397B1DCDAF  # the first number of SplitMix64 from seed 0
    assert mix(1, 2, 3) == 0xD0734750FDE362B3
    assert mix(3, 2, 1) != mix(1, 2, 3)
    assert step(mix(1, 2), 3) == mix(1, 2, 3)
    assert mix(-1) == mix(2**64 - 1)


def test_mix_has_no_collisions_among_many_samples() -> None:
    assert len({mix(seed, position) for seed in range(4) for position in range(2**15)}) == 2**17


def test_numbers_of_a_key_are_pinned() -> None:
    python, legacy, modern = random.Random(1), np.random.RandomState(1), np.random.default_rng(1)
    for generator in (python, legacy, modern):
        stream = stream_of(generator, salt=7)
        assert stream is not None
        stream.seed(KEY)
    assert python.getrandbits(64) == 0x9E4EB0D46EF2F0EF
    assert legacy.randint(2**32, size=2, dtype=np.uint32).tolist() == [2282883384, 59107176]
    assert modern.bit_generator.random_raw(2).tolist() == [14729112265815842864, 17911786590408673186]


def test_torch_numbers_of_a_key_are_pinned() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator()
    stream_of(generator, salt=7).seed(KEY)
    assert torch.randint(2**31, (2,), generator=generator).tolist() == [913013405, 875942378]


def test_the_key_decides_whatever_was_drawn_before(kind: Any) -> None:
    make, draw = kind
    generator = make()
    stream = stream_of(generator)
    stream.seed(KEY)
    first = drawn(draw, generator)
    draw(generator)
    stream.seed(KEY)
    assert drawn(draw, generator) == first


def test_both_halves_of_the_key_count(kind: Any) -> None:
    make, draw = kind
    generator = make()
    draw(generator)
    stream = stream_of(generator)
    seen = set()
    for upper in range(100):
        stream.seed(mix(upper) << 32 & 2**64 - 1 | KEY & 0xFFFFFFFF)
        seen |= set(drawn(draw, generator))
    assert len(seen) == 300


def test_restore_puts_back_what_was_drawn(kind: Any) -> None:
    make, draw = kind
    generator = make()
    draw(generator)  # leaves a normal generator with the second of a pair
    stream = stream_of(generator)
    state = stream.state()
    first = drawn(draw, generator)
    stream.seed(KEY)
    drawn(draw, generator)
    stream.restore(state)
    assert stream.state() == state
    assert drawn(draw, generator) == first


def test_the_state_moves_with_every_draw(kind: Any) -> None:
    make, draw = kind
    generator = make()
    stream = stream_of(generator)
    before = stream.state()
    assert stream.state() == before
    for _ in range(3):
        draw(generator)
        after = stream.state()
        assert after != before
        assert stream.state() == after
        before = after


def test_a_draw_since_the_latest_seed_is_seen(kind: Any) -> None:
    make, draw = kind
    generator = make()
    stream = stream_of(generator)
    draw(generator)  # leaves a normal generator with the second of a pair
    for key in (KEY, KEY, KEY + 1):
        stream.seed(key)
        assert not stream.drawn()
        assert not stream.drawn()  # to look is not to draw
        state = stream.state()
        draw(generator)
        assert stream.drawn()
        stream.restore(state)
        assert not stream.drawn()
        draw(generator)
        stream.state()
        assert stream.drawn()


@pytest.mark.parametrize("make", [lambda: random.Random(5), lambda: np.random.RandomState(5)])
def test_a_full_turn_of_a_twister_is_seen(make: Callable[[], Any]) -> None:
    generator = make()
    stream = stream_of(generator)
    stream.seed(KEY)
    before = stream.state()
    if isinstance(generator, random.Random):
        generator.getrandbits(32 * 624)
    else:
        generator.bytes(4 * 624)
    assert stream.state() != before
    assert stream.drawn()


def test_equal_generators_stay_equal_and_others_differ(kind: Any) -> None:
    make, draw = kind
    one, twin, other = make(), make(), make()
    draw(other)
    draw(other)
    for generator in (one, twin, other):
        stream_of(generator).seed(KEY)
    numbers = drawn(draw, one)
    assert drawn(draw, twin) == numbers
    assert drawn(draw, other) != numbers


def test_second_value_of_a_normal_pair_is_kept_separately() -> None:
    generator = np.random.RandomState(5)
    stream = stream_of(generator)
    generator.standard_normal()
    holding = stream.state()
    generator.standard_normal()
    assert stream.state() != holding
    stream.restore(holding)
    second = generator.standard_normal()
    stream.restore(holding)
    assert generator.standard_normal() == second
    plain = stream.state()
    first = generator.standard_normal()
    stream.restore(plain)
    assert generator.standard_normal() == first


def test_numpys_memory_and_its_public_calls_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def story() -> list[Any]:
        generator = np.random.RandomState(5)
        stream = stream_of(generator)
        stream.seed(KEY)
        numbers = [generator.random_sample(), generator.standard_normal()]
        state = stream.state()
        numbers += [generator.standard_normal(), generator.random_sample()]
        assert stream.state() != state
        stream.restore(state)
        return [*numbers, generator.standard_normal(), generator.random_sample(), stream.state()]

    quick = story()
    monkeypatch.setattr(generators, "memory_at", lambda address: np.zeros(625, np.uint32))
    assert story() == quick
    assert quick[2:4] == quick[4:6]


def test_pythons_memory_and_its_public_calls_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def story() -> list[Any]:
        generator = random.Random(5)
        stream = stream_of(generator)
        numbers = []
        for key in (KEY, KEY + 1):
            stream.seed(key)
            assert not stream.drawn()
            numbers += [generator.random(), generator.gauss(0, 1)]
            assert stream.drawn()
            state = stream.state()
            numbers += [generator.gauss(0, 1), generator.getrandbits(32 * 700)]
            assert stream.state() != state
            stream.restore(state)
            assert stream.state() == state
            assert [generator.gauss(0, 1), generator.getrandbits(32 * 700)] == numbers[-2:]
        return numbers

    quick = story()
    monkeypatch.setattr(generators, "words_of", lambda generator: None)
    assert story() == quick


def test_torchs_memory_and_its_public_calls_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    def story() -> list[Any]:
        generator = torch.Generator().manual_seed(5)
        stream = stream_of(generator)
        assert stream is not None
        found: list[Any] = []

        def draws(count: int = 2) -> None:
            found.extend(torch.rand(count, generator=generator).tolist())
            found.append(torch.randn((), generator=generator).item())  # of a pair
            found.extend([stream.state(), stream.state()])

        draws()
        for key in (KEY, KEY + 1):
            stream.seed(key)
            assert not stream.drawn()
            assert generator.initial_seed() == 5
            draws()
            assert stream.drawn()
            state = stream.state()
            draws(700)
            assert stream.state() != state
            stream.restore(state)
            assert stream.state() == state
            draws(700)
            assert found[-703:] == found[-1406:-703]
        generator.manual_seed(9)
        found.append(stream.state())
        stream.seed(KEY)
        assert generator.initial_seed() == 5, "whatever a sample has seeded it with"
        return found

    quick = story()
    monkeypatch.setattr(TorchTwister, "of", lambda generator: None)
    assert story() == quick


def test_a_state_of_torchs_is_whole_while_another_thread_draws() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(5)
    stream = stream_of(generator)
    assert stream is not None
    there_is_enough = threading.Event()

    def draw() -> None:
        numbers = torch.empty(50_000, dtype=torch.int32)
        while not there_is_enough.is_set():
            numbers.random_(generator=generator)

    other = threading.Thread(target=draw)
    other.start()
    states: set[Any] = set()
    try:
        while len(states) < 50:
            states.add(stream.state())
    finally:
        there_is_enough.set()
        other.join()
    for state in states:
        left, following = np.frombuffer(state, np.uint32)[2:5:2].tolist()
        assert left + following == 625 or (left, following) == (1, 0)
        stream.restore(state)
        assert stream.state() == state


def test_draw_of_another_thread_after_the_public_call_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(5)
    stream = stream_of(generator)
    public = stream._public

    def and_then_another_draws() -> bytes:
        state = public()
        torch.rand(3, generator=generator)
        return state

    torch.rand(3, generator=generator)
    with monkeypatch.context() as patch:
        patch.setattr(stream, "_public", and_then_another_draws)
        before = stream.state()
    assert stream.state() != before
    assert stream.state() == public()


def test_a_setstate_of_the_users_is_called() -> None:
    class Own(random.Random):
        put_back = 0

        def setstate(self, state: Any) -> None:
            self.put_back += 1
            super().setstate(state)

    generator = Own(5)
    stream = stream_of(generator)
    state, first, generator.put_back = stream.state(), generator.random(), 0
    stream.restore(state)
    assert (generator.put_back, generator.random()) == (1, first)


def test_torchs_initial_seed_stays() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(2**40 + 1)
    stream_of(generator).seed(KEY)
    assert generator.initial_seed() == 2**40 + 1
    torch.rand(700, generator=generator)
    assert generator.initial_seed() == 2**40 + 1


def test_torch_with_another_layout_is_still_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(generators, "_TORCH_SLOTS", 1)
    generator = torch.Generator()
    stream = stream_of(generator)
    numbers = []
    for key in (KEY, KEY + 2, KEY):
        stream.seed(key)
        numbers.append(torch.rand((), generator=generator).item())
    assert numbers[0] == numbers[2] != numbers[1]


def test_global_generators_differ_from_each_other_for_one_key() -> None:
    streams = global_streams()
    assert list(streams)[:2] == ["Python", "NumPy"]
    states = {whose: stream.state() for whose, stream in streams.items()}
    try:
        for stream in streams.values():
            stream.seed(KEY)
        assert random.getrandbits(32) != int(np.random.randint(2**32, dtype=np.uint32))
        assert all(stream.state() != states[whose] for whose, stream in streams.items())
    finally:
        for whose, stream in streams.items():
            stream.restore(states[whose])


def test_unseedable_generator_has_no_stream() -> None:
    assert stream_of(random.SystemRandom()) is None
    assert stream_of(random) is None
    assert stream_of(3) is None
