"""Samples drawn by weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stoker import _nominal
from stoker.samplers.base import Sampler
from stoker.samplers.draws import AnyGenerator, Draws, Floats, TorchDraws, draws_from, in_blocks

_TORCH_TAKES = 2**24  # weights; torch.multinomial refuses more


class WeightedRandomSampler(Sampler[int], _nominal.base("WeightedRandomSampler")):  # type: ignore[misc]
    """Yields indices drawn with probabilities in proportion to their weights; any number of weights.

    A `torch.Generator`, or torch's global one, gives up to 2**24 weights what `torch.multinomial` draws from it. Beyond
    that, and from a NumPy generator, indices come from a binary search in the sums of the weights (O(log n) each), or
    without replacement from a race of exponential times (O(n) in all), in float64 throughout. All are drawn when the
    first is asked for.

    Args:
        weights: one for each index; they need not sum up to one.
        num_samples: how many indices to yield.
        replacement: an index may come again.
        generator: draws the indices; it moves on with each iteration. Where torch is not wanted, None is a generator
            seeded from NumPy's global state.

    Attributes:
        weights: a float64 tensor; an array where torch is not wanted.

    Raises:
        ValueError: `num_samples` is no positive integer, `replacement` no bool, `weights` not in one dimension, or a
            weight is negative, infinite or NaN (the message names it), or all are zero.
    """

    weights: Any
    num_samples: int
    replacement: bool

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: AnyGenerator = None,
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
        _checked(self.weights)
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        """Yields the indices.

        Raises:
            RuntimeError: without replacement, fewer weights than `num_samples` are above zero.
        """
        draws = draws_from(self.generator)
        if isinstance(draws, TorchDraws) and len(self.weights) <= _TORCH_TAKES:
            import torch

            weights = torch.as_tensor(self.weights)  # an array where torch came in only with the generator
            drawn: Any = torch.multinomial(weights, self.num_samples, self.replacement, generator=draws.generator)
        elif self.replacement:
            drawn = _with_replacement(_checked(self.weights), self.num_samples, draws)
        else:
            drawn = _without_replacement(_checked(self.weights), self.num_samples, draws)
        yield from in_blocks(drawn)

    def __len__(self) -> int:
        """Returns `num_samples`."""
        return self.num_samples


def _float64(weights: Any) -> Any:
    if not _nominal.torch_is_wanted():
        return np.asarray(weights, np.float64)
    import torch

    return torch.as_tensor(weights, dtype=torch.double)


def _checked(given: Any) -> Floats:
    weights: Floats = given if isinstance(given, np.ndarray) else given.detach().cpu().numpy()
    bad = np.flatnonzero(~((weights >= 0) & (weights < np.inf)))
    if len(bad):
        raise ValueError(
            f"weights should be finite and not negative, but weights[{bad[0]}] is {weights[bad[0]]}"
            + (f", and {len(bad) - 1} more are wrong" if len(bad) > 1 else "")
        )
    total = weights.sum()
    if not 0 < total < np.inf:
        raise ValueError(
            f"weights should have a positive, finite sum, but the {len(weights)} weights sum up to {total}: "
            "no index can be drawn. Look at how they were computed, or scale them."
        )
    return weights


def _with_replacement(weights: Floats, size: int, draws: Draws) -> Any:
    ends = np.cumsum(weights)
    last = np.searchsorted(ends, ends[-1])  # the last weight above zero, should rounding reach the total
    return np.minimum(np.searchsorted(ends, draws.uniform(size) * ends[-1], side="right"), last)


def _without_replacement(weights: Floats, size: int, draws: Draws) -> Any:
    possible = int(np.count_nonzero(weights))
    if possible < size:
        raise RuntimeError(
            f"cannot draw {size} different indices: only {possible} of {len(weights)} weights are above zero. Lower "
            "num_samples, or draw with replacement=True."
        )
    with np.errstate(divide="ignore", over="ignore"):
        arrivals = draws.exponential(len(weights)) / weights
    first = np.argpartition(arrivals, size - 1)[:size]
    return first[np.argsort(arrivals[first])]
