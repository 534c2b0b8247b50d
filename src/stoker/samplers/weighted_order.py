"""Orders by weight: which index stands at a position follows from the weights, a key and the position alone.

**With replacement** (`Sums`, `DrawnOrder`). Each position has 64 random bits, and looks them up in running sums of the
weights. Sums in float64 lose what is small after something huge (10**8 weights of 1e-17 behind one of 1 vanish
altogether), and the order in which NumPy adds up depends on the processor. So the weights are scaled by a power of two,
which rounds nothing, to a total between 2**61 and 2**63, then rounded to integers and summed exactly. The probability
of an index is off by less than 2**-61 plus n * 2**-62 of itself; where the weights are integers, by less than 2**-64.
Measured over 2,000 weights from 1e-12 to 1: off by 2**-63 or 6e-6 of itself at most; by sums in float64 2**-53, or
2e-3 of itself. Zero stays zero, and a weight may become zero if it is below 2**-62 of the total: no run draws often
enough to see it. An alias table would draw without a search, but takes twice the memory, and its construction is a
chain of n dependent steps.

**Without replacement** (`RacedOrder`). Each index arrives after an exponentially distributed time divided by its
weight; the order of arrival is that of drawing one after the other without putting back (Efraimidis and Spirakis,
"Weighted random sampling with a reservoir", 2006). The logarithm must be the same on every machine, which that of the
C library is not: it is computed by additions, multiplications and divisions of float64, which IEEE 754 rounds
everywhere alike, each in a call of its own so that no compiler fuses two. Times are compared as integers with an
exponent of any size, so that none overflows however small its weight.

**For ever.** Weights, a key and a position give the same on every machine, Python and NumPy. An order that was used
once is never to change; another method would get another `FORMAT_VERSION`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker._hashing import UInt64Array, hashes
from stoker.samplers.order import Int64Array

FORMAT_VERSION = 1

_BLOCK = 16384  # worked on at once: the arrays stay in a core's second cache
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)
_NEVER = np.iinfo(np.int64).max
_TWO_BY_LN_2 = 2.8853900817779268  # written out: another C library might give another last bit
_TERMS = 11  # of the series of the logarithm: the next is below 2**-57 of the sum

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Sums:
    """Running sums of weights as integers: 8 bytes for each, whatever they are. Immutable once made.

    Takes 10 to 40 ns for each weight, most of it where memory is touched for the first time, and no other memory than
    what it keeps.

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
        """Returns the index that each number of 64 bits falls on."""
        heights = _product(bits, self._total)
        ascending = np.argsort(heights)  # neighbours share the cache lines of their search: that halves its time
        found = np.empty(len(bits), np.int64)
        found[ascending] = np.searchsorted(self._ends, heights[ascending], side="right")
        return found


class DrawnOrder:
    """Indices drawn with replacement; position p has the same however many there are.

    Constant memory beside the sums. A position takes 0.2 us with 10**6 weights, 1 us with 10**8 (in blocks of some
    thousand). Nothing changes after it is made: any thread may use it.

    Args:
        sums: of the weights; shared by all orders of a sampler.
        size: how many positions there are.
        key: any integer; those equal modulo 2**64 give the same order.
    """

    def __init__(self, sums: Sums, size: int, key: int) -> None:
        self._sums = sums
        self._size = size
        self._key = key

    def __len__(self) -> int:
        """Returns the number of positions."""
        return self._size

    def take(self, positions: Int64Array) -> Int64Array:
        """Returns the indices at `positions`, in their order.

        Raises:
            IndexError: a position is not between 0 and `len(self) - 1`.
        """
        _check(positions, self._size)
        found = np.empty(len(positions), np.int64)
        for start in range(0, len(positions), _BLOCK):
            block = slice(start, start + _BLOCK)
            found[block] = self._sums.find(hashes(self._key, positions[block]))
        return found


class RacedOrder:
    """Indices drawn without replacement.

    Made by one pass over all weights and a sort of those that are drawn: 0.2 us for each of 10**6 weights, 0.4 us for
    each of 10**8, and up to 32 bytes meanwhile; 0.05 us and 16 bytes where few are drawn. It keeps 8 bytes for each
    position. Nothing changes after it is made: any thread may use it.

    Args:
        weights: finite, not negative.
        size: how many positions there are; at most as many as weights are above zero.
        key: any integer; those equal modulo 2**64 give the same order.
    """

    def __init__(self, weights: Floats, size: int, key: int) -> None:
        arrivals = np.empty(len(weights), np.int64)
        for start in range(0, len(weights), _BLOCK):
            block = slice(start, start + _BLOCK)
            arrivals[block] = _arrivals(weights[block], hashes(key, np.arange(start, start + len(weights[block]))))
        first = np.flatnonzero(arrivals <= np.partition(arrivals, size - 1)[size - 1])
        arrivals = arrivals[first]
        # Stable, and cut afterwards: of those that arrive together, the one of the lower index is first.
        self._indices = first[np.argsort(arrivals, kind="stable")[:size]].astype(np.int64, copy=False)

    def __len__(self) -> int:
        """Returns the number of positions."""
        return len(self._indices)

    def take(self, positions: Int64Array) -> Int64Array:
        """Returns the indices at `positions`, in their order.

        Raises:
            IndexError: a position is not between 0 and `len(self) - 1`.
        """
        _check(positions, len(self))
        return self._indices[positions]


def walk(order: DrawnOrder | RacedOrder) -> Iterator[int]:
    """Yields an order's indices; some are made ahead, a block at a time."""
    for start in range(0, len(order), _BLOCK):
        yield from order.take(np.arange(start, min(start + _BLOCK, len(order)))).tolist()


def _power(weights: Floats) -> int:
    """The power of two to scale by: the sum is then below 2**63 and, up to 2**30 weights, not below 2**61.

    First by the largest weight, which is sure not to overflow, then by the sum that this gives: exact integers again,
    because a rounded sum may lie on one side of a power of two here, on the other elsewhere.
    """
    coarse = 62 - math.frexp(weights.max())[1] - len(weights).bit_length()
    total = len(weights)  # what rounding down leaves out is less
    for start in range(0, len(weights), _BLOCK):
        total += int(np.ldexp(weights[start : start + _BLOCK], coarse).astype(np.uint64).sum())
    return coarse + 63 - total.bit_length()


def _product(bits: UInt64Array, total: int) -> UInt64Array:
    """bits * total // 2**64: numbers below `total`, in halves, because NumPy has no 128 bits."""
    high, low = bits >> _HALF, bits & _LOW
    total_high, total_low = np.uint64(total >> 32), np.uint64(total & 2**32 - 1)
    carry = (low * total_low >> _HALF) + high * total_low
    product: UInt64Array = high * total_high + (carry >> _HALF) + ((carry & _LOW) + low * total_high >> _HALF)
    return product


def _arrivals(weights: Floats, bits: UInt64Array) -> Int64Array:
    """Exponential times divided by weights, as integers that compare as they do; a weight of zero never arrives."""
    mantissas, exponents = np.frexp(np.where(weights > 0, weights, 1.0))
    times = _exponential(bits) / mantissas
    # The bits of positive floats compare as the floats do, and the exponent is the upper 12 of them. Weights have
    # exponents from -1073 to 1024: moved by 1100, the difference lies between -1200 and 1100, far from an overflow.
    arrivals = times.view(np.int64) - (exponents.astype(np.int64) + 1100 << 52)
    return np.where(weights > 0, arrivals, _NEVER)


def _exponential(bits: UInt64Array) -> Floats:
    """-log2(1 - u) for u from 0 to 1 of 63 bits, to a relative error of 2**-50, also where u is tiny."""
    numbers = (bits >> np.uint64(1) | np.uint64(1)).astype(np.int64)  # odd, so neither u nor 1 - u is zero
    mantissas, exponents = np.frexp((2**63 - 1 - numbers + 1).astype(np.float64))
    low = mantissas < math.sqrt(0.5)
    mantissas = np.where(low, mantissas * 2, mantissas)
    halvings = 63 - exponents + low
    # 1 - mantissa; where nothing was halved that is u itself, of which 1 - u has lost the last bits.
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
