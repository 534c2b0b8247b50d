"""`RankSlice`: one rank's positions in the rest of an epoch, each computed in constant time."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from stoker.loader._epoch.ranks import World
from stoker.samplers.order import Int64Array

Mode = Literal["pad", "drop", "exact"]


class RankSlice:
    """The positions of one rank, from the common position of all ranks to the end of the epoch.

    The j-th position of rank r of W is `begin + r + W * j`, so that after each batch all ranks together have seen an
    unbroken run of positions, and any number of ranks can continue from its end. If the positions do not divide evenly:

    - "pad": every rank gets one more; positions past the end repeat the epoch's first ones, as in torch's
      `DistributedSampler`. They are the same whether or not the epoch was interrupted.
    - "drop": every rank gets as many as the rank with the fewest; the last positions are left out.
    - "exact": the first ranks get one more, and every position is used once.

    Constant time and memory, except for the result of `positions`. Immutable, so usable by any thread.

    Args:
        n: positions in the epoch, of samples or of batches, up to 2**62.
        begin: number of positions, from the first on, that all ranks have passed.
        world: rank and number of ranks.
        mode: treatment of positions that do not divide evenly.

    Attributes:
        count: number of positions of this rank.

    Raises:
        ValueError: `begin` is not from 0 to `n`, or the mode is unknown.
    """

    def __init__(self, n: int, begin: int, world: World, mode: Mode) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode is {mode!r}, expected one of {', '.join(map(repr, get_args(Mode)))}")
        if not 0 <= begin <= n:
            raise ValueError(f"begin is {begin}, which is not from 0 to the {n} positions of the epoch")
        self.n = n
        self.begin = begin
        self.world = world
        self.mode = mode
        up = {"pad": world.size - 1, "drop": 0, "exact": world.size - 1 - world.rank}[mode]
        self.count = (n - begin + up) // world.size

    def __len__(self) -> int:
        """Returns `count`."""
        return self.count

    def positions(self, start: int, stop: int) -> Int64Array:
        """Returns this rank's positions number `start` to `stop - 1`.

        Raises:
            IndexError: this rank has no such positions.
        """
        if not 0 <= start <= stop <= self.count:
            raise IndexError(
                f"positions {start} to {stop} of a share of {self.count} (rank {self.world.rank} of {self.world.size})"
            )
        size, first = self.world.size, self.begin + self.world.rank
        every = np.arange(first + start * size, first + stop * size, size, dtype=np.int64)
        return every if first + (stop - 1) * size < self.n else every % self.n

    def global_position(self, batches: int, batch_size: int) -> int:
        """Returns the `begin` from which ranks continue after each has delivered `batches`: the same on all ranks.

        The result is `n` after the last batch; it then includes the positions that "drop" leaves out.
        """
        all_ranks = self.n - self.begin
        if self.mode == "drop":
            all_ranks -= all_ranks % self.world.size
        done = batches * batch_size * self.world.size
        return self.begin + done if done < all_ranks else self.n
