"""The samples of each rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from stoker._core import nominal
from stoker.samplers.base import Sampler
from stoker.samplers.draws import in_blocks
from stoker.samplers.permutation import Permutation

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True, default=int)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)


class DistributedSampler(Sampler[int], nominal.base("DistributedSampler"), Generic[T_co]):  # type: ignore[misc]
    """Yields every `num_replicas`-th index of an order common to all ranks, beginning with the `rank`-th.

    All ranks get the same number of indices: the first indices are repeated at the end, or with `drop_last` the last
    ones are left out. The order depends only on `seed` and epoch: it is torch's own if torch is wanted, else a
    `Permutation`. `set_epoch` changes it; without it, all epochs have the same order.

    Args:
        dataset: any object with a constant length.
        num_replicas: number of ranks; by default that of `torch.distributed`.
        rank: the rank of this process; by default that of `torch.distributed`.
        shuffle: random order, else ascending.
        seed: the same on all ranks.
        drop_last: leave out the indices that do not divide evenly, instead of repeating some.

    Attributes:
        num_samples: number of indices of this rank.
        total_size: number of indices of all ranks.
        epoch: as set by `set_epoch`, from 0.

    Raises:
        RuntimeError: `num_replicas` or `rank` is left out, and `torch.distributed` is not available.
        ValueError: `rank` is not below `num_replicas`, or one of them is left out before
            `torch.distributed.init_process_group`.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None:
            num_replicas = int(_distributed().get_world_size())
        if rank is None:
            rank = int(_distributed().get_rank())
        if not 0 <= rank < num_replicas:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.drop_last = drop_last
        self.num_samples = len(dataset) // num_replicas if drop_last else math.ceil(len(dataset) / num_replicas)
        self.total_size = self.num_samples * num_replicas
        self.shuffle = shuffle
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        """Returns the indices of this epoch's share; the order is fixed now, not at the first index.

        Raises:
            AssertionError: the dataset's length has changed, so that the shares are wrong.
        """
        n = len(self.dataset)
        if n < self.total_size if self.drop_last else n > self.total_size:
            raise AssertionError(
                f"Number of indices ({n}) does not match total_size ({self.total_size}): the dataset had another "
                "length when this sampler was made. Make a new one."
            )
        positions = np.arange(self.rank, self.total_size, self.num_replicas) % max(n, 1)
        return in_blocks(self._order(n, positions) if self.shuffle else positions)

    def _order(self, n: int, positions: Any) -> Any:
        seed = self.seed + self.epoch
        if not nominal.torch_is_wanted():
            return Permutation(n, seed).take(positions)
        import torch

        return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()[positions]

    def __len__(self) -> int:
        """Returns `num_samples`."""
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch whose order the next iteration has; call it on every rank before each iteration."""
        self.epoch = epoch


def _distributed() -> Any:
    if nominal.torch_is_wanted():
        import torch.distributed

        if torch.distributed.is_available():
            return torch.distributed
    raise RuntimeError("Requires distributed package to be available: give num_replicas and rank.")
