"""Samples drawn by weight."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stoker._core import nominal
from stoker.errors import SamplerError
from stoker.samplers.base import Sampler
from stoker.samplers.draws import AnyGenerator, TorchDraws, draws_from, in_blocks
from stoker.samplers.passes import WalkedInEpochs
from stoker.samplers.weighted_order import DrawnOrder, Floats, RacedOrder, Sums, walk

_TORCH_TAKES = 2**24  # weights; torch.multinomial refuses more


class WeightedRandomSampler(WalkedInEpochs, Sampler[int], nominal.base("WeightedRandomSampler")):  # type: ignore[misc]
    """Yields indices drawn with probabilities proportional to their weights; any number of weights.

    A loader uses `order`, unless a generator is given. Iterating over the sampler, with up to 2**24 weights and a
    `torch.Generator` or torch's global one, yields the draws of `torch.multinomial`; otherwise the `order` of a key
    drawn from the generator at the first index.

    Args:
        weights: one for each index, not necessarily with a sum of one. Kept as float64, without a copy if they are
            float64 already.
        num_samples: number of indices.
        replacement: whether an index may come again.
        generator: draws the indices; it advances with each iteration. If torch is not wanted, None is a generator
            seeded from NumPy's global state.

    Attributes:
        weights: a float64 tensor; an array if torch is not wanted. May be changed between epochs.

    Raises:
        ValueError: `num_samples` is no positive integer, `replacement` no bool, `weights` not one-dimensional, or a
            weight is negative, infinite or NaN (the message names it), or all are zero. Changed weights are checked at
            their next use.
        SamplerError: without replacement, fewer than `num_samples` weights are above zero.
    """

    weights: Any
    num_samples: int
    replacement: bool

    def __init__(
        self, weights: Sequence[float], num_samples: int, replacement: bool = True, generator: AnyGenerator = None
    ) -> None:
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={num_samples}")
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement should be a boolean value, but got replacement={replacement}")
        self.weights = _float64(weights)
        if len(self.weights.shape) != 1:
            raise ValueError(
                f"weights should be a 1d sequence but given weights have shape {tuple(self.weights.shape)}"
            )
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator
        self._sums: tuple[tuple[int, int], Sums] | None = None
        self._check(_array(self.weights))

    def __iter__(self) -> Iterator[int]:
        """Yields the indices."""
        return self._drawn() if self._passes is None else self._passes.indices(self)

    def _drawn(self) -> Iterator[int]:
        draws = draws_from(self.generator)
        if isinstance(draws, TorchDraws) and len(self.weights) <= _TORCH_TAKES:
            import torch

            self._check(_array(self.weights))
            weights = torch.as_tensor(self.weights)  # an array if torch was imported only with the generator
            yield from in_blocks(
                torch.multinomial(weights, self.num_samples, self.replacement, generator=draws.generator)
            )
        else:
            yield from walk(self.order(draws.below(2**63 - 1, 1)[0]))

    def __len__(self) -> int:
        """Returns `num_samples`."""
        return self.num_samples

    def order(self, key: int) -> DrawnOrder | RacedOrder:
        """Returns the order that belongs to `key`, a function of the key and the weights only.

        With replacement, running sums of 8 bytes for each weight are made once, in 10 to 40 ns each, and cached until
        the weights change; they are never pickled. To detect changes, each call reads the weights (2 ns each). Without
        replacement, each call sorts all weights (0.2 to 0.4 us each). Later changes of the weights do not affect an
        existing order.

        Raises:
            ValueError, SamplerError: the weights were changed and are invalid.
        """
        weights = _array(self.weights)
        if not self.replacement:
            self._check(weights)
            return RacedOrder(weights, self.num_samples, key)
        mark = len(weights), zlib.crc32(weights.data)
        kept = self._sums
        if kept is None or kept[0] != mark:
            self._check(weights)
            kept = self._sums = mark, Sums(weights)
        return DrawnOrder(kept[1], self.num_samples, key)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sums": None}

    def _check(self, weights: Floats) -> None:
        if not (weights.min(initial=0.0) >= 0 and weights.max(initial=0.0) < np.inf):
            bad = np.flatnonzero(~((weights >= 0) & (weights < np.inf)))
            raise ValueError(
                f"weights should be finite and not negative, but weights[{bad[0]}] is {weights[bad[0]]}"
                + (f", and {len(bad) - 1} more are wrong" if len(bad) > 1 else "")
            )
        with np.errstate(over="ignore"):
            total = weights.sum()
        if not 0 < total < np.inf:
            raise ValueError(
                f"weights should have a positive, finite sum, but the {len(weights)} weights sum up to {total}: "
                "no index can be drawn. Look at how they were computed, or scale them."
            )
        if not self.replacement and (possible := np.count_nonzero(weights)) < self.num_samples:
            raise SamplerError(
                f"cannot draw {self.num_samples} different indices: only {possible} of {len(weights)} weights are "
                "above zero. Lower num_samples, or draw with replacement=True."
            )


def _float64(weights: Any) -> Any:
    if not nominal.torch_is_wanted():
        return np.asarray(weights, np.float64)
    import torch

    return torch.as_tensor(weights, dtype=torch.double)


def _array(weights: Any) -> Floats:
    """Returns the weights as a contiguous CPU array; without a copy if they are contiguous and on the CPU."""
    return np.ascontiguousarray(weights if isinstance(weights, np.ndarray) else weights.detach().cpu().numpy())
