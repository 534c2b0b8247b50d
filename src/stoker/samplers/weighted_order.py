"""Orders by weight: the index at a position depends only on the weights, a key and the position.

**With replacement** (`Sums`, `DrawnOrder`). Each position has 64 random bits, which are looked up in running sums of
the weights. Sums in float64 lose small weights behind huge ones (10**8 weights of 1e-17 behind one of 1 vanish
altogether), and NumPy's order of summation depends on the processor. So the weights are scaled by a power of two, which
rounds nothing, to a total between 2**61 and 2**63, then rounded to integers and summed exactly. The error of an index's
probability is below 2**-61 plus n * 2**-62 of itself; with integer weights, below 2**-64. Measured over 2,000 weights
from 1e-12 to 1, the error is at most 2**-63 or 6e-6 of the probability; with sums in float64, 2**-53 or 2e-3. Zero
stays zero, and a weight below 2**-62 of the total may become zero: no run draws often enough to detect this. An alias
table would need no search, but takes twice the memory, and is built in a chain of n dependent steps.

**Without replacement** (`RacedOrder`). Each index arrives after an exponentially distributed time divided by its
weight; the order of arrival has the distribution of successive draws without replacement (Efraimidis and Spirakis,
"Weighted random sampling with a reservoir", 2006). The logarithm must be the same on every machine, unlike the C
library's: it is computed by additions, multiplications and divisions of float64, which IEEE 754 rounds equally
everywhere, each in a separate call so that no compiler fuses two. Times are compared as integers with an exponent of
any size, so that none overflows even for the smallest weights.

**Stability.** Weights, a key and a position give the same index on every machine, Python and NumPy. Orders in use must
never change; another method would get another `FORMAT_VERSION`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker._core.hashing import UInt64Array, hashes
from stoker.samplers.order import Int64Array

FORMAT_VERSION = 1

_BLOCK = 16384  # positions processed at once: the arrays of a block stay in a core's L2 cache
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)
_NEVER = np.iinfo(np.int64).max
_TWO_BY_LN_2 = 2.8853900817779268  # a literal, since the last bit of a computed value depends on the C library
_TERMS = 11  # of the series of the logarithm: the next term is below 2**-57 of the sum

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Sums:
    """Running sums of weights as integers: 8 bytes for each weight. Immutable.

    Takes 10 to 40 ns for each weight, mostly for first touches of memory, and no temporary memory.

    Args:
        weights: finite, not negative, not all zero.
    """

    def __init__(self, weights: Floats) -> None:
        self._ends = np.empty(len(weights), np.uint64)
        power = _power(weights)
        self._total = 0
        for start in range(0, len(weights), _BLOCK):
            counts = np.rint(np.ldexp(weights[start : start + _BLOCK], power)).astype(np.uint64)
            ends = np.cumsum(counts, out=self._ends[start : start + _BLOCK])
            ends += np.uint64(self._total)
            self._total = int(ends[-1])

    def find(self, bits: UInt64Array) -> Int64Array:
        """Returns, for each number of 64 bits, the index whose interval it falls into."""
        heights = _product(bits, self._total)
        ascending = np.argsort(heights)  # neighbours share cache lines of their searches, which halves the time
        found = np.empty(len(bits), np.int64)
        found[ascending] = np.searchsorted(self._ends, heights[ascending], side="right")
        return found


class DrawnOrder:
    """Indices drawn with replacement; the index at a position does not depend on the number of positions.

    Takes constant memory beside the sums. A position takes 0.2 us with 10**6 weights, 1 us with 10**8 (in blocks of
    some thousand). Immutable and thread safe.

    Args:
        sums: of the weights; shared by all orders of a sampler.
        key: any integer; keys equal modulo 2**64 give the same order.
    """

    def __init__(self, sums: Sums, size: int, key: int) -> None:
        self._sums = sums
        self._size = size
        self._key = key

    def __len__(self) -> int:
        return self._size

    def take(self, positions: Int64Array) -> Int64Array:
        _check(positions, self._size)
        found = np.empty(len(positions), np.int64)
        for start in range(0, len(positions), _BLOCK):
            block = slice(start, start + _BLOCK)
            found[block] = self._sums.find(hashes(self._key, positions[block]))
        return found


class RacedOrder:
    """Indices drawn without replacement.

    Made by one pass over all weights and a sort of the drawn ones: 0.2 us for each of 10**6 weights, 0.4 us for each of
    10**8, and up to 32 bytes of temporary memory; 0.05 us and 16 bytes if few are drawn. Keeps 8 bytes for each
    position. Immutable and thread safe.

    Args:
        weights: finite, not negative.
        size: number of positions, at most the number of weights above zero.
        key: any integer; keys equal modulo 2**64 give the same order.
    """

    def __init__(self, weights: Floats, size: int, key: int) -> None:
        arrivals = np.empty(len(weights), np.int64)
        for start in range(0, len(weights), _BLOCK):
            block = slice(start, start + _BLOCK)
            arrivals[block] = _arrivals(weights[block], hashes(key, np.arange(start, start + len(weights[block]))))
        first = np.flatnonzero(arrivals <= np.partition(arrivals, size - 1)[size - 1])
        arrivals = arrivals[first]
        # A stable sort, cut afterwards: among equal arrivals, the lower index comes first.
        self._indices = first[np.argsort(arrivals, kind="stable")[:size]].astype(np.int64, copy=False)

    def __len__(self) -> int:
        return len(self._indices)

    def take(self, positions: Int64Array) -> Int64Array:
        _check(positions, len(self))
        return self._indices[positions]


def walk(order: DrawnOrder | RacedOrder) -> Iterator[int]:
    """Yields an order's indices, computed block by block."""
    for start in range(0, len(order), _BLOCK):
        yield from order.take(np.arange(start, min(start + _BLOCK, len(order)))).tolist()


def _power(weights: Floats) -> int:
    """Returns the power of two to scale by: the sum is then below 2**63 and, up to 2**30 weights, at least 2**61.

    Scales by the largest weight first, which cannot overflow, then by the resulting sum. That is an exact integer, as a
    rounded sum could lie on different sides of a power of two on different machines.
    """
    coarse = 62 - math.frexp(weights.max())[1] - len(weights).bit_length()
    total = len(weights)  # more than rounding down loses
    for start in range(0, len(weights), _BLOCK):
        total += int(np.ldexp(weights[start : start + _BLOCK], coarse).astype(np.uint64).sum())
    return coarse + 63 - total.bit_length()


def _product(bits: UInt64Array, total: int) -> UInt64Array:
    """Returns bits * total // 2**64, numbers below `total`; in halves, because NumPy has no 128-bit integers."""
    high, low = bits >> _HALF, bits & _LOW
    total_high, total_low = np.uint64(total >> 32), np.uint64(total & 2**32 - 1)
    carry = (low * total_low >> _HALF) + high * total_low
    product: UInt64Array = high * total_high + (carry >> _HALF) + ((carry & _LOW) + low * total_high >> _HALF)
    return product


def _arrivals(weights: Floats, bits: UInt64Array) -> Int64Array:
    """Returns exponential times divided by weights, as integers of the same order; a weight of zero never arrives."""
    mantissas, exponents = np.frexp(np.where(weights > 0, weights, 1.0))
    times = _exponential(bits) / mantissas
    # The bits of positive floats have the order of the floats; the upper 12 are the exponent. Weights have exponents
    # from -1073 to 1024: moved by 1100, the difference lies between -1200 and 1100, far from an overflow.
    arrivals = times.view(np.int64) - (exponents.astype(np.int64) + 1100 << 52)
    return np.where(weights > 0, arrivals, _NEVER)


def _exponential(bits: UInt64Array) -> Floats:
    """Returns -log2(1 - u) for u from 0 to 1 of 63 bits, with a relative error of 2**-50 even for tiny u."""
    numbers = (bits >> np.uint64(1) | np.uint64(1)).astype(np.int64)  # odd, so neither u nor 1 - u is zero
    mantissas, exponents = np.frexp((2**63 - 1 - numbers + 1).astype(np.float64))
    low = mantissas < math.sqrt(0.5)
    mantissas = np.where(low, mantissas * 2, mantissas)
    halvings = 63 - exponents + low
    # 1 - mantissa; without halvings this is u itself, whose last bits are lost in 1 - u.
    gaps = np.where(halvings == 0, numbers * 2.0**-63, 1 - mantissas)
    # -ln(1 - gap) = 2 artanh(z), and |z| < 0.172
    z = gaps / (2 - gaps)
    square = z * z
    series = np.full_like(z, 1 / (2 * _TERMS - 1))
    for term in range(_TERMS - 2, -1, -1):
        series *= square
        series += 1 / (2 * term + 1)
    times: Floats = halvings + z * series * _TWO_BY_LN_2
    return times


def _check(positions: Int64Array, size: int) -> None:
    outside = (positions < 0) | (positions >= size)
    if outside.any():
        raise IndexError(f"position {positions[outside.argmax()]} is outside of an order of {size} indices")
