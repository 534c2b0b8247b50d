"""`Ray`: the cluster in which a loader has workers on other machines, as the user describes it. Imports no Ray."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from stoker.errors import MissingExtraError

LEAST = 2, 40
"""The first version of Ray with which the tests pass."""


@dataclass(frozen=True)
class Ray:
    """Workers on other machines, for `DataLoader(remote=...)`: placed by Ray, and used like the others.

        loader = stoker.DataLoader(dataset, 256, num_workers=4, remote=stoker.Ray(num_workers=60))

    The names are Ray's own. Needs the extra `stoker[ray]` here, and Stoker of the same version on all machines; this
    process runs on a node of the cluster. The object is plain and does nothing: Ray is imported when an epoch begins,
    and in a process beside this one.

    Attributes:
        num_workers: workers on other machines, on top of those of this one (`DataLoader(num_workers=)`). Each is a
            process with a copy of the dataset. Ray spreads them over the nodes that have room.
        num_cpus: CPUs that Ray reserves for each worker.
        address: of the cluster, as in `ray.init`; "auto" is the one that this program uses, that of `RAY_ADDRESS`, or
            the one that runs on this machine.
        resources: further resources for each worker, such as `{"loader": 1}`, by names that nodes were started with.
        runtime_env: Ray's, such as `{"working_dir": "."}`, which sends the modules of a program. It adds to that
            of this program, by `ray.init` or as a job of Ray.
        port: of this machine, to which the workers connect; 0 for any free one. Name it where a firewall stands between
            the machines: each loader that is in use, and each rank of a host, needs one of its own.
        start_timeout: seconds after which workers for which Ray has found no room are reported. Without any other
            worker the run ends then.
        pool: a name under which the ranks of one job share their workers; None for workers of this loader alone. Ranks
            that name the same pool and send the same dataset use the same processes, by turns, so that a job of 8
            ranks with `num_workers=60` has 60 workers in the cluster, and not 480. Another dataset under the same name
            is an error. The pool ends by itself, within 30 s after its last rank.
        classes: that batches and states of streams of these workers contain beside containers, numbers, texts, dates,
            arrays and tensors: classes, or texts such as "my_package.samples:Sample", as which they are kept. The
            classes of the first batch of a local worker need no name. Any other is an error that lists what to name.

    Raises:
        TypeError, ValueError: an argument that cannot be meant.
    """

    num_workers: int
    num_cpus: float = 1
    address: str = "auto"
    resources: Mapping[str, float] | None = None
    runtime_env: Mapping[str, object] | None = None
    port: int = 0
    start_timeout: float = 60.0
    pool: str | None = None
    classes: Sequence[type | str] = ()

    # A test places agents without Ray
    launcher: ClassVar[object] = None

    def __post_init__(self) -> None:
        if not isinstance(self.address, str) or not self.address:
            raise TypeError(f'address should be "auto" or HOST:PORT, but got address={self.address!r}')
        if self.address.startswith("ray://"):
            raise ValueError(
                f"address={self.address!r} is that of Ray's client, which has no object store of its own. Start a node "
                "of the cluster on this machine (`ray start --address=HEAD:6379 --num-cpus=0`), and leave out address "
                "and RAY_ADDRESS."
            )
        host, _, port = self.address.rpartition(":")
        if self.address not in ("auto", "local") and not (
            host and "/" not in host and port.isdecimal() and int(port) <= 65535
        ):
            raise ValueError(f'address should be "auto" or HOST:PORT, but got address={self.address!r}')
        for name, least, most in (("num_workers", 1, math.inf), ("port", 0, 65535)):
            try:
                number = operator.index(getattr(self, name))
            except TypeError:
                raise TypeError(f"{name} should be an integer, but got {name}={getattr(self, name)!r}") from None
            if not least <= number <= most:
                bound = f"at least {least}" if number < least else f"at most {most}"
                raise ValueError(f"{name} should be {bound}, but got {name}={number}")
        for name in ("num_cpus", "start_timeout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} should be a number, but got {name}={value!r}")
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} should be 0 or more, but got {name}={value!r}")
        if self.pool is not None and (not isinstance(self.pool, str) or not self.pool):
            raise TypeError(f"pool should be a name or None, but got pool={self.pool!r}")
        for name in ("resources", "runtime_env"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(f"{name} should be a mapping or None, but got {name}={value!r}")
        for name, amount in {"num_cpus": self.num_cpus, **(self.resources or {})}.items():
            _check_amount(name, amount)
        if isinstance(self.classes, (str, type)):
            raise TypeError(f"classes should be a list, but got classes={self.classes!r}")
        object.__setattr__(self, "classes", tuple(map(_name_of, self.classes)))

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update({"pool": None, "classes": (), **state})  # a pickle of before has neither

    def check_installed(self) -> None:
        """Raises MissingExtraError where Ray is not installed, or is too old. Does not import it."""
        if (ray := importlib.util.find_spec("ray")) is None or ray.origin is None:  # a folder, as Ray's own in /tmp
            raise MissingExtraError(
                "remote=stoker.Ray(...) needs Ray, which is not installed: pip install 'stoker[ray]'. Ray has no "
                "wheels for free-threaded builds, nor for CPython from 3.15 on."
            )
        from importlib import metadata

        with contextlib.suppress(metadata.PackageNotFoundError, ValueError):  # a build of one's own
            version = metadata.version("ray")
            if [int(number) for number in version.split(".")[:2]] < [*LEAST]:
                least = ".".join(map(str, LEAST))
                raise MissingExtraError(
                    f"remote=stoker.Ray(...) needs Ray {least} or later, and {version} is installed: pip install "
                    "--upgrade ray, the same version on all machines."
                )


_NO_RESOURCES = {
    "CPU": "pass num_cpus=",
    "GPU": "workers on other machines get no GPU; to have them on nodes with one, give these a resource of your own "
    """(`ray start --resources='{"loader": 8}'`)""",
    "memory": "with more num_cpus, fewer workers share the memory of a machine",
    "object_store_memory": "the dataset is put there once for all workers",
}
"""Resources that Ray or Stoker reserves for itself, and what to do."""


def _check_amount(name: str, amount: object) -> None:
    """Raises TypeError or ValueError for an amount of a resource that Ray would refuse, late and in other words."""
    if (advice := _NO_RESOURCES.get(name)) is not None:
        raise ValueError(f"resources should have names of your own, but got {name!r}: {advice}.")
    if not isinstance(name, str) or not name or isinstance(amount, bool) or not isinstance(amount, (int, float)):
        raise TypeError(f"resources should map names to numbers, but got {{{name!r}: {amount!r}}}")
    if not 0 <= amount < math.inf or (amount > 1 and amount % 1) or 0 < amount < 1e-4:
        raise ValueError(f"{name} should be a whole number, or a fraction of 1, as Ray counts, but got {amount!r}")


def _name_of(kind: type | str) -> str:
    """Returns a class as "module:Class"."""
    name = f"{kind.__module__}:{kind.__qualname__}" if isinstance(kind, type) else kind
    if not isinstance(name, str) or name.count(":") != 1 or not all(name.split(":")):
        raise TypeError(f'classes should contain classes, or texts "module:Class", but got {name!r}')
    if "<locals>" in name:
        raise ValueError(f"classes contains {name!r}, which a function makes: move it to the top of a module.")
    return name
