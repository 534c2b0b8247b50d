"""Mersenne twisters where they lie: the words of Python's generators, and of torch's.

Their public calls copy the words one by one, or into a tensor, and for each small batch that is too long. Neither
library says where the words are, so it is tried out on generators of our own; where they lie elsewhere, `words_of` and
`TorchTwister.of` give None, and the public calls must do.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
import sys
from typing import Any

import numpy as np

WORDS = 624

Memory = np.ndarray[Any, np.dtype[Any]]


def memory_at(address: int, kind: Any = ctypes.c_uint32, count: int = WORDS + 1) -> Memory:
    """The memory there: by default all words of a twister, and how many of them are used up."""
    return np.frombuffer(memoryview((kind * count).from_address(address)), kind)


def words_of(generator: random.Random) -> Memory | None:
    """Python's: how many of its words are used up, then the words.

    What a subclass adds lies behind them, as for every object of C's.
    """
    return memory_at(id(generator) + object.__basicsize__) if _lie_in_objects() else None


@functools.cache
def _lie_in_objects() -> bool:
    """Whether generators of our own have their words where CPython has always had them."""
    trial, size = random.Random(0), object.__basicsize__ + 4 * (WORDS + 1)
    if sys.implementation.name != "cpython" or type(trial).__basicsize__ < size:
        return False
    memory = memory_at(id(trial) + object.__basicsize__)
    for draws in (0, 1, 700):
        for _ in range(draws):
            trial.random()
        _, words, _ = trial.getstate()
        if memory.tolist() != [words[-1], *words[:-1]]:
            return False
    written, memory[:] = memory.copy(), 0
    memory[:] = written
    return bool(trial.getstate()[1] == words)


_lie_in_objects()  # found out now, and not by each worker


class TorchTwister:
    """The twister of a CPU `torch.Generator`, to look whether it has moved. It is never written: torch draws under a
    lock that nobody else can take, also in threads of the user's.

    Its parts lie one behind the other, all but gaps, which may have anything in them:

    | offset from the words | |
    |---:|---|
    | -20 | the seed (8 bytes), words left (4), whether it was seeded (1) |
    | -4 | the next word (4), the words |
    | 2500 | a float of normal numbers that is held back (4), whether there is one (1) |
    | 2508 | a double (8), whether there is one (1) |

    Args:
        address: of the words.
    """

    def __init__(self, address: int) -> None:
        self._held_back = memory_at(address + 2500, ctypes.c_uint8, 17)
        self._head = memory_at(address - 20, ctypes.c_uint8, 13)
        self._words_from_next = memory_at(address - 4)
        self._start = self._words_from_next[:2]

    @classmethod
    def of(cls, generator: Any) -> TorchTwister | None:
        """The generator's, which must outlive it."""
        return None if (offset := offset_in_torchs()) is None else cls(generator._cdata + offset)

    def read(self) -> Seen:
        """All that what is drawn depends on; equal if and only if that is. While another thread draws, anything that is
        not what it was before."""
        held_back, head = self._held_back.tobytes(), self._head.tobytes()
        return head, self._words_from_next.tobytes(), _held(held_back[:5], held_back[8:])

    def glance(self) -> tuple[bytes, bytes]:
        """Enough of it to see whether it was drawn from, or seeded, since it was seeded."""
        return self._head.tobytes(), self._start.tobytes()


Seen = tuple[bytes, bytes, "tuple[bytes, bytes] | None"]
"""Seed, words left and whether it was seeded; the next word and the words; numbers that are held back."""


def seen_in(public: bytes) -> Seen:
    """What `TorchTwister.read` gives of a generator with this state, as `get_state` gives it."""
    slots = np.frombuffer(public, np.uint64)
    words = slots[2 : 3 + WORDS].astype(np.uint32).tobytes()  # from the next one on
    return public[:13], words, _held(public[-8:-3], public[-32:-24] + public[-16:-15])


def _held(a_float: bytes, a_double: bytes) -> tuple[bytes, bytes] | None:
    """Of a float and a double, each with whether there is one behind it."""
    if not (a_float[-1] or a_double[-1]):
        return None
    return a_float[:-1] if a_float[-1] else b"", a_double[:-1] if a_double[-1] else b""


@functools.cache
def offset_in_torchs() -> int | None:
    """Where the words lie in torch's generators of the CPU; None where it is not as above.

    Who makes workers asks before: each of them would take longer to find out.
    """
    try:
        import torch

        generator: Any = torch.Generator().manual_seed(1)
        state = generator.get_state()
        fresh, public = state.numpy().tobytes(), state.numpy()
        memory = os.open("/proc/self/mem", os.O_RDONLY)  # whatever there is, reading it does no harm
        try:
            found = os.pread(memory, 4096, generator._cdata)
        finally:
            os.close(memory)
        offset = found.find(seen_in(fresh)[1][4:])
        if offset < 20 or len(found) < offset + 2517:
            return None
        twister = TorchTwister(generator._cdata + offset)
        if twister.read() != seen_in(fresh):
            return None
        # As none comes to stand by itself: with numbers of either kind held back, and other words left
        public.view(np.uint32)[2:6:2] = 300, 324
        public[-32:-24], public[-16] = np.frombuffer(np.float64(2.5).tobytes(), np.uint8), 1
        public[-8:-4], public[-4] = np.frombuffer(np.float32(1.5).tobytes(), np.uint8), 1
        generator.set_state(state)
        return offset if twister.read() == seen_in(public.tobytes()) != seen_in(fresh) else None
    except Exception:  # a torch of another kind: then its public calls must do
        return None
