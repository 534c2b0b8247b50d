"""Random generators of every kind behind one small interface: read the state, put it back, seed it from 64 bits.

Seeding happens before each sample, so it is written for speed. Two generators need more than their `seed` functions:
NumPy's legacy one takes 64 bits only by a slow way (11 us), and torch's ignores all but the lowest 32, with which two
of some 65,000 samples would share their numbers. Both are Mersenne twisters, whose words can be written directly.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

from stoker.loader.twisters import WORDS, TorchTwister, memory_at, seen_in, words_of

GLOBALS = ("Python", "NumPy", "torch")
"""Whose global generators are known."""

_MASK = 2**64 - 1
_TORCH_SLOTS = 632


def mix(*words: int) -> int:
    """A 64-bit hash of integers (each taken modulo 2**64). Pure; its values never change between versions."""
    key = 0
    for word in words:
        key = step(key, word)
    return key


def step(key: int, word: int) -> int:
    """`mix(*words, word)`, given `key = mix(*words)`."""
    key = ((key ^ word) + 0x9E3779B97F4A7C15) & _MASK
    key = ((key ^ key >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    key = ((key ^ key >> 27) * 0x94D049BB133111EB) & _MASK
    return key ^ key >> 31


class Stream(Protocol):
    """A random generator. Not thread safe, as no generator is.

    `state()` gives a value that stays equal as long as nothing is drawn, and that `restore()` puts back. `seed()` takes
    any 64-bit key; streams of the same kind but another `salt` give other numbers for the same key. `drawn()` says
    whether anything was drawn since the latest `seed()`, more cheaply than two states do.
    """

    @property
    def state(self) -> Any: ...

    @property
    def restore(self) -> Any: ...

    def seed(self, key: int) -> None: ...

    def drawn(self) -> bool: ...


def salt_of(state: object) -> int:
    """A salt from a generator's own state, so that generators with different initial seeds stay different."""
    return int.from_bytes(blake2b(repr(state).encode(), digest_size=8).digest(), "little")


class PythonStream:
    """A `random.Random`, the module's own one included.

    `getstate` makes 625 integers (14 us), and `setstate` takes as many (20), so the words are read and written in place
    where that is known (`twisters`). A state is then good in this process alone.

    Args:
        generator: the generator.
        salt: see `Stream`.
        lasting: whether states are to be kept: then they are what `getstate` gives, wherever and whenever.
    """

    def __init__(self, generator: random.Random, salt: int | None = None, lasting: bool = False) -> None:
        self._generator = generator
        self._seed: Callable[[int], object] = generator.seed
        self._salt = salt_of(generator.getstate()) if salt is None else salt
        kind = type(generator)
        own = random.Random
        self._is_twister = (kind.seed, kind.getstate, kind.setstate) == (own.seed, own.getstate, own.setstate)
        self._memory = words_of(generator) if self._is_twister and not lasting else None
        # How many are used up, and two words: 624 draws change these, and seed() the second
        self._head = None if self._memory is None else self._memory[:3]
        if self._is_twister:
            self._seed = super(own, generator).seed  # Python's own part of it asks what kind of seed it is
        self._seeded: Any = None

    def state(self) -> Any:
        if self._memory is None:
            return self._generator.getstate()
        return self._memory.tobytes(), self._generator.gauss_next  # type: ignore[attr-defined]

    def restore(self, state: Any) -> None:
        if self._memory is None:
            self._generator.setstate(state)
        else:
            self._memory[:] = np.frombuffer(state[0], np.uint32)
            self._generator.gauss_next = state[1]  # type: ignore[attr-defined]

    def seed(self, key: int) -> None:
        self._seed(key ^ self._salt)
        if self._is_twister:
            self._generator.gauss_next = None  # type: ignore[attr-defined]
        self._seeded = self.state() if self._head is None else self._head.tobytes()

    def drawn(self) -> bool:
        return bool((self.state() if self._head is None else self._head.tobytes()) != self._seeded)


class LegacyStream:
    """A `np.random.RandomState` over a Mersenne twister, NumPy's global one included.

    NumPy's public calls copy the words one by one (50 us), so they are read and written where NumPy says that they lie
    (`BitGenerator.ctypes`). The second of a pair of normal numbers, which the generator may hold back, lies elsewhere;
    it can't appear without a draw, so it is asked for only after one, and seeding drops it.
    """

    def __init__(self, generator: np.random.RandomState, salt: int | None = None) -> None:
        self._generator = generator
        self._bits = generator._bit_generator  # keeps the words
        public = self._public()
        memory = memory_at(self._bits.ctypes.state_address)
        words, used = public["state"]["key"].astype(np.uint32), public["state"]["pos"]
        self._direct = memory[:WORDS].tobytes() == words.tobytes() and memory[WORDS] == used
        self._memory = memory if self._direct else memory.copy()
        self._words = self._memory[:WORDS]
        self._held_back: float | None = public["gauss"] if public["has_gauss"] else None
        self._seen = self._seeded = self._read()
        self._salt = salt_of(self.state()) if salt is None else salt

    def state(self) -> tuple[bytes, float | None]:
        seen = self._read()
        if seen != self._seen or self._held_back is not None:
            public = self._public()
            self._seen, self._held_back = seen, public["gauss"] if public["has_gauss"] else None
        return seen, self._held_back

    def is_of(self, generator: Any) -> bool:
        """Whether this is still where it draws from: `np.random.set_bit_generator` changes that."""
        return generator is self._generator and generator._bit_generator is self._bits

    def restore(self, state: tuple[bytes, float | None]) -> None:
        if not self.is_of(self._generator):
            return
        if self._read() != self._seeded:
            self._generator.seed(0)  # the one cheap call that drops what is held back; only a draw leaves anything
        self._memory[:] = np.frombuffer(state[0], np.uint32)
        self._seen, self._held_back = state
        if self._held_back is not None or not self._direct:
            self._publish()

    def seed(self, key: int) -> None:
        if not self.is_of(self._generator):
            return  # who has put another there seeds it, until it is found in the next epoch
        key ^= self._salt
        self._generator.seed(key & 0xFFFFFFFF)
        if not self._direct:
            self._read()
        self._words *= np.uint32(key >> 32 | 1)
        self._seen, self._held_back = self._memory.tobytes(), None
        self._seeded = self._seen
        if not self._direct:
            self._publish()

    def drawn(self) -> bool:
        return self._read() != self._seeded

    def _read(self) -> bytes:
        if not self._direct:
            inner = self._public()["state"]
            self._words[:], self._memory[WORDS] = inner["key"], inner["pos"]
        return self._memory.tobytes()

    def _public(self) -> dict[str, Any]:
        state: Any = self._generator.get_state(legacy=False)
        return dict(state)

    def _publish(self) -> None:
        inner = {"key": self._words.copy(), "pos": int(self._memory[WORDS])}
        held_back = {"has_gauss": int(self._held_back is not None), "gauss": self._held_back or 0.0}
        self._generator.set_state({"bit_generator": "MT19937", "state": inner, **held_back})


class NumpyStream:
    """A `np.random.Generator`, or a `np.random.RandomState` that is no Mersenne twister."""

    def __init__(self, generator: Any, salt: int | None = None) -> None:
        self._bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator._bit_generator
        first = self.state()
        self._salt = salt_of(first) if salt is None else salt
        self._congruential = first if isinstance(self._bits, np.random.PCG64 | np.random.PCG64DXSM) else None
        self._seeded: dict[str, Any] = first

    def state(self) -> dict[str, Any]:
        return _comparable(dict(self._bits.state))

    def restore(self, state: dict[str, Any]) -> None:
        self._bits.state = state

    def seed(self, key: int) -> None:
        key ^= self._salt
        if self._congruential is None:
            self._seeded = dict(type(self._bits)(key).state)
        else:  # PCG64, the default: its state is one number of 128 bits, which need not be hashed for 10 us
            number = key * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128
            inner = {"state": number, "inc": self._congruential["state"]["inc"]}
            self._seeded = {**self._congruential, "state": inner, "has_uint32": 0, "uinteger": 0}
        self._bits.state = self._seeded

    def drawn(self) -> bool:
        return self.state() != _comparable(self._seeded)


def _comparable(state: dict[str, Any]) -> dict[str, Any]:
    """The state with tuples for arrays; NumPy takes it back as it is."""
    plain: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, dict):
            plain[name] = _comparable(value)
        else:
            plain[name] = tuple(value.tolist()) if isinstance(value, np.ndarray) else value
    return plain


class TorchStream:
    """A CPU `torch.Generator`, the default one included. Seeding leaves its `initial_seed()` as it is.

    `get_state` fills a tensor of 5 kB. As long as the generator has not moved since, which is looked at where it lies
    (`twisters`), the state is what it gave the last time.
    """

    def __init__(self, generator: Any, salt: int | None = None) -> None:
        import torch

        self._generator = generator
        self._twister = TorchTwister.of(generator)
        self._seen: Any = None  # what the twister is while the state is `_latest`
        self._latest = b""
        self._salt = salt_of(self.state()) if salt is None else salt
        fresh = torch.Generator().manual_seed(generator.initial_seed())
        self._template = fresh.get_state()
        slots = self._template.numpy().view(np.uint64)
        self._words = slots[3 : 3 + WORDS]
        # Old checkpoints keep torch from changing this layout. If it did all the same, 32 bits would have to do.
        self._direct = len(slots) == _TORCH_SLOTS and int(self._words[0]) == generator.initial_seed() % 2**32
        self._seeded: Any = None

    def state(self) -> bytes:
        if self._twister is None:
            return self._public()
        if self._twister.read() != self._seen:
            self._latest = self._public()
            self._seen = seen_in(self._latest)  # not what is there now: another thread may draw meanwhile
        return self._latest

    def restore(self, state: bytes) -> None:
        import torch

        self._generator.set_state(torch.from_numpy(np.frombuffer(bytearray(state), np.uint8)))

    def seed(self, key: int) -> None:
        key ^= self._salt
        if self._direct:
            np.multiply(_TABLE, np.uint64(key), out=self._words)
            np.right_shift(self._words, _HALF, out=self._words)
            self._generator.set_state(self._template)
        else:
            self._generator.manual_seed(key >> 1)
        self._seeded = self._public() if self._twister is None else self._twister.glance()

    def drawn(self) -> bool:
        return bool((self._public() if self._twister is None else self._twister.glance()) != self._seeded)

    def _public(self) -> bytes:
        return bytes(self._generator.get_state().numpy())


_TABLE = np.array([mix(WORDS, lane) for lane in range(WORDS)], np.uint64)
_HALF = np.uint64(32)


def stream_of(generator: Any, salt: int | None = None, *, lasting: bool = False) -> Stream | None:
    """The stream of a generator; None for what is none, or can't be seeded.

    By default a global generator has a salt of its own, and any other the one that follows from its present state.
    States that are to be kept, beyond this process, are those of a `lasting` one.
    """
    for number, common in enumerate(global_generators().values()):
        if generator is common:
            salt = mix(1, number)
    if isinstance(generator, random.Random):
        return None if isinstance(generator, random.SystemRandom) else PythonStream(generator, salt, lasting)
    if isinstance(generator, np.random.RandomState) and isinstance(generator._bit_generator, np.random.MT19937):
        return LegacyStream(generator, salt)
    if isinstance(generator, np.random.RandomState | np.random.Generator):
        return NumpyStream(generator, salt)
    torch = loaded_torch()
    if torch is not None and isinstance(generator, torch.Generator) and generator.device.type == "cpu":
        return TorchStream(generator, salt)
    return None


def global_generators() -> dict[str, Any]:
    """The global generators by whose they are: Python's, NumPy's, and torch's if torch is imported by now."""
    generators: dict[str, Any] = {"Python": random._inst, "NumPy": np.random.mtrand._rand}
    if (torch := loaded_torch()) is not None:
        generators["torch"] = torch.default_generator
    return generators


def global_streams(*, lasting: bool = False) -> dict[str, Stream]:
    """The streams of the global generators."""
    streams = {whose: stream_of(generator, lasting=lasting) for whose, generator in global_generators().items()}
    return {whose: stream for whose, stream in streams.items() if stream is not None}


def torch_unused() -> bytes:
    """The state in which torch's default generator starts, as `state()` of its stream gives it."""
    return TorchStream(loaded_torch().Generator(), 0).state()


def loaded_torch() -> Any:
    """The torch module if somebody has imported it, and has done so to the end."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None
