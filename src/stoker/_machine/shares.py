"""How the CPUs of this process are shared: among the ranks on the host, and among the loaders that are open."""

from __future__ import annotations

import os
import weakref

from stoker._machine import cpus


def ranks() -> int:
    """Ranks on this host that share what this process sees of it, 1 if nobody says so.

    torchrun and those who imitate it say so, and bind nobody to CPUs. MPI and Slurm bind each rank to CPUs of its own,
    which its affinity tells.
    """
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(told)) if told.isdigit() else 1


def for_this_rank() -> int:
    """CPUs that are this rank's part, at least 1."""
    return max(1, cpus.cpus().number // ranks())


class Claim:
    """Workers of one loader that is open. Ends with `release`, or when it is garbage.

    Attributes:
        number: how many.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        key = id(self)
        _claims[key] = weakref.ref(self, lambda _: _claims.pop(key, None))

    def release(self) -> None:
        """Others may have them. Idempotent."""
        self.number = 0


_claims: dict[int, weakref.ref[Claim]] = {}
"""A forked worker inherits them: a loader of its own then takes what the others have left."""


def taken() -> int:
    """Workers that open loaders of this process have."""
    claims = [claim() for claim in list(_claims.values())]
    return sum(claim.number for claim in claims if claim is not None)


def claim(wanted: int, most: int) -> Claim:
    """As many of `wanted` as are left of `most`; at least one, unless none is wanted."""
    return Claim(max(min(1, wanted), min(wanted, most - taken())))
