"""The division of this process's CPUs: among the ranks on the host, and among the open loaders."""

from __future__ import annotations

import os
import weakref

from stoker._core.machine import cpus


def ranks() -> int:
    """Returns the ranks on this host that share its visible CPUs; 1 if the environment does not say.

    torchrun and compatible launchers set `LOCAL_WORLD_SIZE` and do not bind ranks to CPUs. MPI and Slurm bind each rank
    to its own CPUs, visible in its affinity.
    """
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(told)) if told.isdigit() else 1


def for_this_rank() -> int:
    """Returns the CPUs of this rank, at least 1."""
    return max(1, cpus.cpus().number // ranks())


class Claim:
    """The workers of one open loader. Ends with `release` or with the object.

    Attributes:
        number: of workers.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        key = id(self)
        _claims[key] = weakref.ref(self, lambda _: _claims.pop(key, None))

    def release(self) -> None:
        """Frees the workers for other loaders. Idempotent."""
        self.number = 0


_claims: dict[int, weakref.ref[Claim]] = {}
"""The claims of this process. A forked worker inherits them, so a loader inside it gets the remaining CPUs."""


def taken() -> int:
    """Returns the workers of all open loaders of this process."""
    claims = [claim() for claim in list(_claims.values())]
    return sum(claim.number for claim in claims if claim is not None)


def claim(wanted: int, most: int) -> Claim:
    """Claims up to `wanted` workers of those left of `most`; at least one, unless `wanted` is 0."""
    return Claim(max(min(1, wanted), min(wanted, most - taken())))
