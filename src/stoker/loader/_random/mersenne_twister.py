"""Direct access to the memory of Mersenne twisters: the words of Python's generators and of torch's.

The public calls copy the words one by one, or into a tensor, which is too slow for small batches. Neither library gives
the address of the words, so this module probes generators of its own. If the layout is another one, `words_of` and
`TorchTwister.of` return None, and callers use the public calls.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker._core.native import seeding

WORDS = 624

Memory = np.ndarray[Any, np.dtype[Any]]


def memory_at(address: int, kind: Any = ctypes.c_uint32, count: int = WORDS + 1) -> Memory:
    """Returns the memory at an address: by default all words of a twister and the number of used words."""
    return np.frombuffer(memoryview((kind * count).from_address(address)), kind)


def words_of(generator: random.Random) -> Memory | None:
    """Returns the memory of a Python generator: the number of used words, then the words.

    The fields of a subclass lie behind them, as in every C object.
    """
    return memory_at(id(generator) + object.__basicsize__) if _lie_in_objects() else None


@functools.cache
def _lie_in_objects() -> bool:
    """Returns whether the probed generators have their words at CPython's usual offset."""
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


_lie_in_objects()  # once here, instead of once in each worker


@functools.cache
def place_of_held_back() -> int | None:
    """Returns the offset in a `np.random.RandomState` of whether it holds back the second number of a normal pair (4
    bytes); the number lies 8 bytes behind. None if the layout is another one.
    """
    trial = np.random.RandomState(1)
    content = memory_at(id(trial), ctypes.c_uint8, type(trial).__basicsize__)

    def public() -> tuple[int, float]:
        state: Any = trial.get_state(legacy=False)
        return state["has_gauss"], state["gauss"]

    trial.standard_normal()
    at = content.tobytes().find(np.float64(public()[1]).tobytes()) - 8
    if sys.implementation.name != "cpython" or at < object.__basicsize__:
        return None
    flag, number = memory_at(id(trial) + at, ctypes.c_int32, 1), memory_at(id(trial) + at + 8, ctypes.c_double, 1)
    for _ in range(3):
        if (flag[0], number[0]) != public():
            return None
        trial.standard_normal()
    flag[0], number[0] = 1, 2.5
    known = public() == (1, 2.5)
    flag[0] = 0
    return at if known and public()[0] == 0 else None


class TorchTwister:
    """The twister of a CPU `torch.Generator`, read to see whether it has changed. It is never written, because torch
    draws under a lock that is not accessible from Python, also in the user's threads.

    Layout, with gaps of arbitrary content:

    | offset from the words | |
    |---:|---|
    | -20 | the seed (8 bytes), words left (4), whether it was seeded (1) |
    | -4 | the next word (4), the words |
    | 2500 | a cached normal float (4), whether there is one (1) |
    | 2508 | a cached normal double (8), whether there is one (1) |

    Args:
        address: of the words.

    Attributes:
        places: the memory of `glance`.
    """

    def __init__(self, address: int) -> None:
        self._held_back = memory_at(address + 2500, ctypes.c_uint8, 17)
        self._head = memory_at(address - 20, ctypes.c_uint8, 13)
        self._words_from_next = memory_at(address - 4)
        self.places = self._head, self._words_from_next[:2]

    @classmethod
    def of(cls, generator: Any) -> TorchTwister | None:
        """Returns the twister of a generator, which must outlive it."""
        return None if (offset := offset_in_torchs()) is None else cls(generator._cdata + offset)

    def read(self) -> Seen:
        """Returns everything that the next numbers depend on: equal if and only if they are. While another thread
        draws, the value differs from the previous one.
        """
        held_back, head = self._held_back.tobytes(), self._head.tobytes()
        return head, self._words_from_next.tobytes(), _held(held_back[:5], held_back[8:])

    def glance(self) -> tuple[bytes, bytes]:
        """Returns the part that shows whether the generator was drawn from, or seeded, since it was seeded."""
        return self._head.tobytes(), self.places[1].tobytes()


Seen = tuple[bytes, bytes, "tuple[bytes, bytes] | None"]
"""Seed, words left and whether it was seeded; the next word and the words; cached normal numbers."""


def seen_in(public: bytes) -> Seen:
    """Returns the value of `TorchTwister.read` for a generator with this `get_state`."""
    slots = np.frombuffer(public, np.uint64)
    words = slots[2 : 3 + WORDS].astype(np.uint32).tobytes()  # from the next word on
    return public[:13], words, _held(public[-8:-3], public[-32:-24] + public[-16:-15])


def _held(a_float: bytes, a_double: bytes) -> tuple[bytes, bytes] | None:
    """Returns a cached float and double, each with its flag, or None if there is neither."""
    if not (a_float[-1] or a_double[-1]):
        return None
    return a_float[:-1] if a_float[-1] else b"", a_double[:-1] if a_double[-1] else b""


@functools.cache
def offset_in_torchs() -> int | None:
    """Returns the offset of the words in torch's CPU generators, or None if the layout is another one.

    Called before workers are made, because each of them would take longer to probe it.
    """
    try:
        import torch

        generator: Any = torch.Generator().manual_seed(1)
        state = generator.get_state()
        fresh, public = state.numpy().tobytes(), state.numpy()
        memory = os.open("/proc/self/mem", os.O_RDONLY)  # reading this file is harmless at any address
        try:
            content = os.pread(memory, 4096, generator._cdata)
        finally:
            os.close(memory)
        offset = content.find(seen_in(fresh)[1][4:])
        if offset < 20 or len(content) < offset + 2517:
            return None
        twister = TorchTwister(generator._cdata + offset)
        if twister.read() != seen_in(fresh):
            return None
        # An unlikely state: cached normal numbers of both kinds, and an unusual count of words left
        public.view(np.uint32)[2:6:2] = 300, 324
        public[-32:-24], public[-16] = np.frombuffer(np.float64(2.5).tobytes(), np.uint8), 1
        public[-8:-4], public[-4] = np.frombuffer(np.float32(1.5).tobytes(), np.uint8), 1
        generator.set_state(state)
        return offset if twister.read() == seen_in(public.tobytes()) != seen_in(fresh) else None
    except Exception:  # an unknown version of torch: the public calls are used
        return None


def in_c(
    kind: int,
    salt: int,
    looked_at: Sequence[Memory],
    memory: Memory,
    generator: object,
    beside: object = None,
    holds_back: Memory | None = None,
    lock: Sequence[object] = (),
) -> seeding.Twister:
    """Returns a generator for `seeding.c`, which explains the fields. The caller keeps what it consists of.

    Args:
        looked_at: memory that shows whether a number was drawn.
        lock: functions that take a lock, which is held to write the memory, and release it.
    """
    held = None if holds_back is None else holds_back.ctypes.data
    twister = seeding.Twister(kind, salt, memory.ctypes.data, id(generator), id(beside), held, *map(id, lock))
    for place, seen in enumerate(looked_at):
        twister.at[place], twister.sizes[place] = seen.ctypes.data, seen.nbytes
    return twister
