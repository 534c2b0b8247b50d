"""64 random bits for each number of a key, by SplitMix64 in exact 64-bit integers.

The values never change: the orders of past trainings depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

UInt64Array = np.ndarray[Any, np.dtype[np.uint64]]

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def mixed(number: int) -> int:
    """Returns SplitMix64's finaliser, a bijection of 64 bits: each input bit flips each output bit in half of cases."""
    number &= _MASK
    number = (number ^ number >> 30) * _MIX_1 & _MASK
    number = (number ^ number >> 27) * _MIX_2 & _MASK
    return number ^ number >> 31


def hashes(key: int, numbers: np.ndarray[Any, Any]) -> UInt64Array:
    """Returns 64 random bits for each of `numbers` (integers of any size, taken modulo 2**64): 5 ns each.

    Different numbers of one key get different bits. Keys may be any integers, also consecutive ones.
    """
    if numbers.dtype.hasobject:  # Python's integers may exceed 64 bits
        numbers = numbers & _MASK
    bits = numbers.astype(np.uint64)
    bits *= np.uint64(_STEP)
    bits += np.uint64(mixed(mixed(key + _STEP) + _STEP))
    spare = np.empty_like(bits)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        np.right_shift(bits, np.uint64(shift), out=spare)
        bits ^= spare
        bits *= np.uint64(factor)
    return bits


def bits(seed: int, epoch: int) -> Callable[[int], int]:
    """Returns a function from any integer to 64 bits, in an epoch of a seed (both any integers); 1 us a call."""
    key = mixed(mixed(seed + _STEP) + epoch * _STEP)

    def of(number: int) -> int:
        return mixed(key + number * _STEP)

    return of
