"""Random numbers for samplers: the same sequence as torch draws from its generators, or numbers of NumPy's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from stoker._core import nominal
from stoker.samplers.permutation import Permutation

if TYPE_CHECKING:
    import torch

AnyGenerator: TypeAlias = "torch.Generator | np.random.Generator | None"
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

_BLOCK = 65536


class Draws(Protocol):
    """Random draws of samplers. Each method draws when it is called, not when its result is read."""

    def permutation(self, n: int) -> Iterator[int]:
        """Returns 0 to n - 1 in random order."""

    def below(self, n: int, size: int) -> list[int]:
        """Returns `size` integers from 0 to n - 1."""


class TorchDraws:
    """Draws from a `torch.Generator`; None is torch's global one."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def permutation(self, n: int) -> Iterator[int]:
        import torch

        return in_blocks(torch.randperm(n, generator=self.generator))

    def below(self, n: int, size: int) -> list[int]:
        import torch

        return torch.randint(high=n, size=(size,), dtype=torch.int64, generator=self.generator).tolist()


class NumpyDraws:
    """Draws from a `numpy.random.Generator`."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def permutation(self, n: int) -> Iterator[int]:
        # Not NumPy's own permutation: this one takes no memory and is the same in every version of NumPy.
        return iter(Permutation(n, int(self.generator.integers(2**63))))

    def below(self, n: int, size: int) -> list[int]:
        return self.generator.integers(n, size=size).tolist()  # type: ignore[no-any-return]


def draws_from(generator: AnyGenerator) -> TorchDraws | NumpyDraws:
    """Returns the draws of this generator.

    None is torch's global generator or, if torch is not wanted, a new one of NumPy's, seeded from NumPy's global state,
    so that `numpy.random.seed(0)` fixes its draws.
    """
    if isinstance(generator, np.random.Generator):
        return NumpyDraws(generator)
    if generator is None and not nominal.torch_is_wanted():
        return NumpyDraws(np.random.default_rng(np.random.randint(2**63 - 1, dtype=np.int64)))
    if generator is not None and "torch" not in sys.modules:
        raise TypeError(
            f"generator is a {type(generator).__name__}, expected a numpy.random.Generator (or a torch.Generator)"
        )
    return TorchDraws(generator)


def in_blocks(numbers: Any) -> Iterator[int]:
    """Yields the numbers of an array or tensor as Python's, converted block by block to save memory."""
    for start in range(0, len(numbers), _BLOCK):
        yield from numbers[start : start + _BLOCK].tolist()
