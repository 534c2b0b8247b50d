"""Finds the rank of this process and the number of ranks, and computes the positions of one rank in an epoch
(`RankSlice`).
"""

from __future__ import annotations

import operator
import os
import sys
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from stoker.samplers.order import Int64Array

LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Launchers of ranks, and the variables with rank and number of ranks. Slurm is last: if it starts another launcher on
each node, the ranks inherit its variables, which number the nodes. SLURM_NTASKS is not used, because a batch script and
an interactive shell have it too, and each is one process."""


class World(NamedTuple):
    """The rank of this process among the processes that share an epoch.

    Attributes:
        rank: from 0 to `size - 1`.
        size: number of ranks.
        source: origin of the numbers, for messages; worlds with different sources are not equal.
    """

    rank: int
    size: int
    source: str = "arguments"


def find(rank_and_world: tuple[int, int] | None = None) -> World:
    """Returns the world of this process, determined anew at each call.

    `rank_and_world` comes first, then the default process group of `torch.distributed` if it is initialised (torch is
    not imported for that), then a launcher's environment. Without any of them this process is the only rank.

    Args:
        rank_and_world: rank and size.

    Raises:
        ValueError: rank or size is not an integer, the rank is not below the size, or a launcher's environment has only
            one of them.
    """
    if rank_and_world is not None:
        return _checked(("rank", rank_and_world[0]), ("world size", rank_and_world[1]), "arguments")
    if (group := of_torch()) is not None:
        return group
    for launcher, *names in LAUNCHERS:
        variables = [(name, os.environ[name]) for name in names if name in os.environ]
        if len(variables) == 2:
            return _checked(variables[0], variables[1], f"{names[0]} and {names[1]}, set by {launcher}")
        if variables and variables[0][0] != "SLURM_PROCID":  # alone it is a batch script's
            raise ValueError(_half_told(variables[0], names, launcher))
    return World(0, 1, "no launcher found")


def of_torch() -> World | None:
    """Returns the default process group of `torch.distributed`, or None if it is not initialised."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return World(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _checked(rank: tuple[str, Any], size: tuple[str, Any], source: str) -> World:
    world = World(_integer(*rank, source), _integer(*size, source), source)
    if not 0 <= world.rank < world.size:
        raise ValueError(
            f"{rank[0]} {world.rank} is outside of a world of {world.size} ranks ({size[0]}): ranks are counted from 0 "
            f"to size - 1. Check {source}."
        )
    return world


def _integer(name: str, value: Any, source: str) -> int:
    try:
        return int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}, which is no integer. Check {source}.") from None


def _half_told(variable: tuple[str, str], names: list[str], launcher: str) -> str:
    name, value = variable
    missing = names[names[0] == name]
    return (
        f"{name} is {value!r} in the environment, but {missing} is not set; {launcher} sets both, so this is part "
        f"of an environment that was passed on. Set {missing}, unset {name}, or initialise torch.distributed before "
        "the loader is used: then the environment is not asked."
    )


# `RankSlice`: one rank's positions in the rest of an epoch, each computed in constant time.


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
