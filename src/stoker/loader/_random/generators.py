"""One small interface to random generators of every kind: read the state, restore it, seed it from 64 bits.

Seeding happens before each sample, so it is written for speed. Two generators need more than their `seed` functions.
NumPy's legacy one takes 64 bits only by a slow path (11 us). torch's ignores all but the lowest 32 bits, so that two of
some 65,000 samples would share their numbers. Both are Mersenne twisters, whose words can be written directly.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Protocol, cast

import numpy as np

from stoker._core.native import seeding
from stoker.loader._random.mersenne_twister import (
    WORDS,
    TorchTwister,
    in_c,
    memory_at,
    place_of_held_back,
    seen_in,
    words_of,
)

GLOBALS = ("Python", "NumPy", "torch")
"""Libraries whose global generators are known."""

_MASK = 2**64 - 1
_MASK_128 = 2**128 - 1
_TORCH_SLOTS = 632

HEAD = 12
"""Bytes of a Python generator that show whether it was drawn from: the number of used words, and two words."""


def mix(*words: int) -> int:
    """Returns a 64-bit hash of integers (each taken modulo 2**64). Pure; its values never change between versions."""
    key = 0
    for word in words:
        key = step(key, word)
    return key


def step(key: int, word: int) -> int:
    """Returns `mix(*words, word)`, given `key = mix(*words)`."""
    key = ((key ^ word) + 0x9E3779B97F4A7C15) & _MASK
    key = ((key ^ key >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    key = ((key ^ key >> 27) * 0x94D049BB133111EB) & _MASK
    return key ^ key >> 31


class RandomState(Protocol):
    """A random generator. Not thread safe, like every generator.

    `state()` returns a value that stays equal until a number is drawn, and that `restore()` accepts. `seed()` takes any
    64-bit key; streams of the same kind with different `salt` give different numbers for the same key. `drawn()`
    returns whether a number was drawn since the latest `seed()`, at a lower cost than comparing two states. `in_c()`
    returns it as compiled code needs it, as long as it lives; None if that cannot seed it.

    Attributes:
        salt: copies of a generator in other processes have the same.
    """

    salt: int

    @property
    def state(self) -> Any: ...

    @property
    def restore(self) -> Any: ...

    def seed(self, key: int) -> None: ...

    def drawn(self) -> bool: ...

    def in_c(self) -> seeding.Twister | None: ...


def salt_of(state: object) -> int:
    """Returns a salt from a generator's state, so that generators with different initial seeds stay different."""
    return int.from_bytes(blake2b(repr(state).encode(), digest_size=8).digest(), "little")


class PythonState:
    """A `random.Random`, including the global one.

    `getstate` makes 625 integers (14 us), and `setstate` takes as many (20 us). The words are therefore read and
    written in memory if their address is known (`mersenne_twister`). Such a state is valid in this process only.

    Args:
        generator: the generator.
        salt: see `RandomState`.
        lasting: whether states are kept beyond this process: they are then the values of `getstate`.
    """

    def __init__(self, generator: random.Random, salt: int | None = None, lasting: bool = False) -> None:
        self._generator = generator
        self._seed: Callable[[int], object] = generator.seed
        self.salt = salt_of(generator.getstate()) if salt is None else salt
        kind = type(generator)
        own = random.Random
        self._is_twister = (kind.seed, kind.getstate, kind.setstate) == (own.seed, own.getstate, own.setstate)
        self._memory = words_of(generator) if self._is_twister and not lasting else None
        self._bytes = None if self._memory is None else self._memory.data.cast("B")
        # 624 draws change the words among these, and seed() the second
        self._head = None if self._memory is None else self._memory[: HEAD // 4]
        if self._is_twister:
            self._seed = super(own, generator).seed  # skips Python's check of the seed's type
        self._seeded: Any = None

    def state(self) -> Any:
        if self._memory is None:
            return self._generator.getstate()
        return self._memory.tobytes(), self._generator.gauss_next  # type: ignore[attr-defined]

    def restore(self, state: Any) -> None:
        if self._bytes is None:
            self._generator.setstate(state)
        else:
            self._bytes[:] = state[0]
            self._generator.gauss_next = state[1]  # type: ignore[attr-defined]

    def seed(self, key: int) -> None:
        self._seed(key ^ self.salt)
        if self._is_twister:
            self._generator.gauss_next = None  # type: ignore[attr-defined]
        self._seeded = self.state() if self._head is None else self._head.tobytes()

    def drawn(self) -> bool:
        return bool((self.state() if self._head is None else self._head.tobytes()) != self._seeded)

    def in_c(self) -> seeding.Twister | None:
        if self._memory is None or self._head is None or type(self._generator) is not random.Random:
            return None
        return in_c(seeding.PYTHON, self.salt, [self._head], self._memory, self._generator)


class LegacyState:
    """A `np.random.RandomState` over a Mersenne twister, including NumPy's global one.

    NumPy's public calls copy the words one by one (50 us), so the words are read and written at the address that NumPy
    gives (`BitGenerator.ctypes`), and the second number of a normal pair where `place_of_held_back` has found it. They
    are written under NumPy's lock: a thread that draws an array holds that, and not the interpreter's. Words that
    change meanwhile let it read behind them. Each `with` is one line, so none is between the lock and its release.
    """

    def __init__(self, generator: np.random.RandomState, salt: int | None = None) -> None:
        self._generator = generator
        self._bits = generator._bit_generator  # keeps the words alive
        self._lock = self._bits.lock
        self._held = self._lock.acquire, self._lock.release
        words, at = memory_at(self._bits.ctypes.state_address), place_of_held_back()
        self._memory, self._holds_back, self._second = words.copy(), np.zeros(1, np.int32), np.zeros(1)
        self._direct = False
        self._read()
        if at is not None and words.tobytes() == self._memory.tobytes():
            self._direct, self._memory = True, words
            self._holds_back = memory_at(id(generator) + at, ctypes.c_int32, 1)
            self._second = memory_at(id(generator) + at + 8, ctypes.c_double, 1)
        self._words, self._bytes = self._memory[:WORDS], self._memory.data.cast("B")
        # A word and the number of used words: 624 draws change the word, and seed() too
        self._tail = self._memory[WORDS - 1 :]
        self._seeded_tail = self._tail.tobytes()
        self.salt = salt_of(self.state()) if salt is None else salt

    def state(self) -> tuple[bytes, float | None]:
        self._read()
        return self._memory.tobytes(), float(self._second[0]) if self._holds_back[0] else None

    def is_of(self, generator: Any) -> bool:
        """Returns whether `generator` still draws from these words: `np.random.set_bit_generator` changes that."""
        return generator is self._generator and generator._bit_generator is self._bits

    def restore(self, state: tuple[bytes, float | None]) -> None:
        if self.is_of(self._generator):
            values = state[0], state[1] is not None, state[1] or 0.0
            with self._lock: self._bytes[:], self._holds_back[0], self._second[0] = values  # fmt: skip  # noqa: E701
            self._write()

    def seed(self, key: int) -> None:
        if not self.is_of(self._generator):
            return  # replaced by the user, and seeded by the user until the next epoch's search finds it
        key ^= self.salt
        self._generator.seed(key & 0xFFFFFFFF)
        self._read()
        with self._lock: self._words *= np.uint32(key >> 32 | 1)  # fmt: skip  # noqa: E701
        self._seeded_tail = self._tail.tobytes()
        self._write()

    def drawn(self) -> bool:
        self._read()
        return self._tail.tobytes() != self._seeded_tail

    def in_c(self) -> seeding.Twister | None:
        own, bits, held = self._generator, self._bits, self._holds_back
        if not self._direct or type(own) is not np.random.RandomState or not self.is_of(own):
            return None
        return in_c(seeding.NUMPY, self.salt, [self._tail], self._memory, own, bits, held, self._held)

    def _read(self) -> None:
        if not self._direct:
            state: Any = self._generator.get_state(legacy=False)
            self._memory[:WORDS], self._memory[WORDS] = state["state"]["key"], state["state"]["pos"]
            self._holds_back[0], self._second[0] = state["has_gauss"], state["gauss"]

    def _write(self) -> None:
        if not self._direct:
            words = {"key": self._words.copy(), "pos": int(self._memory[WORDS])}
            held_back = {"has_gauss": int(self._holds_back[0]), "gauss": float(self._second[0])}
            self._generator.set_state({"bit_generator": "MT19937", "state": words, **held_back})


class NumpyState:
    """A `np.random.Generator`, or a `np.random.RandomState` that is not a Mersenne twister."""

    def __init__(self, generator: Any, salt: int | None = None) -> None:
        self._bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator._bit_generator
        # PCG64, the default: its 128-bit state need not be hashed for 10 us, and it has no arrays
        self._is_congruential = isinstance(self._bits, np.random.PCG64 | np.random.PCG64DXSM)
        self.is_numpys = type(self._bits).__module__.startswith("numpy.")
        first = self.state()
        self.salt = salt_of(first) if salt is None else salt
        self._inner: dict[str, Any] = {**first["state"]} if self._is_congruential else {}
        self._seeded: dict[str, Any] = first
        if self._is_congruential:
            self._seeded = {**first, "state": self._inner, "has_uint32": 0, "uinteger": 0}

    def state(self) -> dict[str, Any]:
        state = cast("dict[str, Any]", self._bits.state)
        return state if self._is_congruential else _comparable(dict(state))

    def restore(self, state: dict[str, Any]) -> None:
        self._bits.state = state

    def seed(self, key: int) -> None:
        key ^= self.salt
        if self._is_congruential:
            self._inner["state"] = key * 0x9E3779B97F4A7C15F39CC0605CEDC835 & _MASK_128
        else:
            self._seeded = _comparable(dict(type(self._bits)(key).state))
        self._bits.state = self._seeded

    def drawn(self) -> bool:
        return self.state() != self._seeded

    def in_c(self) -> None: ...


def _comparable(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state with arrays as tuples, which NumPy accepts as well."""
    plain: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, dict):
            plain[name] = _comparable(value)
        else:
            plain[name] = tuple(value.tolist()) if isinstance(value, np.ndarray) else value
    return plain


class TorchState:
    """A CPU `torch.Generator`, including the default one. Seeding leaves its `initial_seed()` unchanged.

    `get_state` fills a tensor of 5 kB. While the generator's memory (`mersenne_twister`) is unchanged, `state` returns
    the previous result instead.
    """

    def __init__(self, generator: Any, salt: int | None = None) -> None:
        import torch

        self._generator = generator
        self._twister = TorchTwister.of(generator)
        self._seen: Any = None  # the twister's memory that belongs to `_latest`
        self._latest = b""
        self.salt = salt_of(self.state()) if salt is None else salt
        fresh = torch.Generator().manual_seed(generator.initial_seed())
        self._template = fresh.get_state()
        self._set_state = generator.set_state  # under torch's lock
        slots = self._template.numpy().view(np.uint64)
        self._words = slots[3 : 3 + WORDS]
        # Old checkpoints keep torch from changing this layout. If torch changes it, seeding uses 32 bits.
        self._direct = len(slots) == _TORCH_SLOTS and int(self._words[0]) == generator.initial_seed() % 2**32
        self._seeded: Any = None

    def state(self) -> bytes:
        if self._twister is None:
            return self._public()
        if self._twister.read() != self._seen:
            self._latest = self._public()
            self._seen = _seen_in(self._latest)  # not the present memory: another thread may draw meanwhile
        return self._latest

    def restore(self, state: bytes) -> None:
        self._set_state(_tensor_of(state))
        self._seen, self._latest = _seen_in(state), state

    def seed(self, key: int) -> None:
        key ^= self.salt
        if self._direct:
            np.multiply(TABLE, np.uint64(key), out=self._words)
            np.right_shift(self._words, _HALF, out=self._words)
            self._set_state(self._template)
        else:
            self._generator.manual_seed(key >> 1)
        self._seeded = self._public() if self._twister is None else self._twister.glance()

    def drawn(self) -> bool:
        return bool((self._public() if self._twister is None else self._twister.glance()) != self._seeded)

    def in_c(self) -> seeding.Twister | None:
        if self._twister is None or not self._direct:
            return None
        return in_c(seeding.TORCH, self.salt, self._twister.places, self._words, self._set_state, self._template)

    def _public(self) -> bytes:
        return bytes(self._generator.get_state().numpy())


_seen_in = lru_cache(8)(seen_in)  # states alternate: those of samples, and those of the training loop


@lru_cache(8)
def _tensor_of(state: bytes) -> Any:
    import torch

    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


TABLE = np.array([mix(WORDS, lane) for lane in range(WORDS)], np.uint64)
_HALF = np.uint64(32)


def stream_of(generator: Any, salt: int | None = None, *, lasting: bool = False) -> RandomState | None:
    """Returns the stream of a generator, or None for an object that is not a generator or refuses to be read or seeded.

    By default a global generator has a fixed salt of its own, and any other a salt from its present state. `lasting`
    streams have states that are valid beyond this process.
    """
    for number, common in enumerate(global_generators().values()):
        if generator is common:
            salt = mix(1, number)
    if type(generator) in _PLAIN_KINDS:
        return _stream_of(generator, salt, lasting)
    try:
        stream = _stream_of(generator, salt, lasting)
        if stream is not None and _may_refuse(stream):
            before = stream.state()
            stream.seed(0)
            stream.restore(before)
        return stream
    except Exception:  # a class of the user's may raise anything
        return None


def _may_refuse(stream: RandomState) -> bool:
    return isinstance(stream, PythonState | LegacyState) or (isinstance(stream, NumpyState) and not stream.is_numpys)


_PLAIN_KINDS = (random.Random, random.SystemRandom, np.random.RandomState)


def _stream_of(generator: Any, salt: int | None, lasting: bool) -> RandomState | None:
    if isinstance(generator, random.Random):
        return None if isinstance(generator, random.SystemRandom) else PythonState(generator, salt, lasting)
    if isinstance(generator, np.random.RandomState) and isinstance(generator._bit_generator, np.random.MT19937):
        return LegacyState(generator, salt)
    if isinstance(generator, np.random.RandomState | np.random.Generator):
        return NumpyState(generator, salt)
    torch = loaded_torch()
    if torch is not None and isinstance(generator, torch.Generator) and generator.device.type == "cpu":
        return TorchState(generator, salt)
    return None


def global_generators() -> dict[str, Any]:
    """Returns the global generators by library: Python's, NumPy's, and torch's if torch is imported."""
    generators: dict[str, Any] = {"Python": random._inst, "NumPy": np.random.mtrand._rand}
    if (torch := loaded_torch()) is not None:
        generators["torch"] = torch.default_generator
    return generators


def global_streams(*, lasting: bool = False) -> dict[str, RandomState]:
    """Returns the streams of the global generators."""
    streams = {whose: stream_of(generator, lasting=lasting) for whose, generator in global_generators().items()}
    return {whose: stream for whose, stream in streams.items() if stream is not None}


def torch_unused() -> bytes:
    """Returns the initial state of torch's default generator, as `state()` of its stream returns it."""
    return TorchState(loaded_torch().Generator(), 0).state()


def loaded_torch() -> Any:
    """Returns the torch module if its import is complete, else None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None
