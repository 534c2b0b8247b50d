"""Does an epoch end where `/dev/shm` is small, as it is in containers by default?

The benchmark runs itself again in a mount namespace of its own, in which `/dev/shm` is a tmpfs of 64 MB; that needs
root. There four workers make 40 batches of 38 MB. Torch hands batches over in files of `/dev/shm`; Stoker's lie in
memory that has no name. A loader that fails is asked no further.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from typing import Any

import method
from method import Case, Figures, Goal

SIZE_MB = 64
INSIDE = "STOKER_BENCHMARK_SMALL_SHM"


def cases(options: argparse.Namespace) -> list[Case]:
    batches = 8 if options.quick else 40
    return [
        Case(
            f"/dev/shm of {SIZE_MB} MB, batches of 38 MB",
            {rival: {"rival": rival, "batches": batches} for rival in ("stoker", "torch")},
            [Goal("share of the epoch that was delivered", at_least=1)],
        )
    ]


def measure(rival: str, batches: int) -> Figures:
    DataLoader = method.data_loader(rival)
    delivered, how = 0, "complete"
    began = time.perf_counter()
    try:
        for _ in DataLoader(Images(64 * batches), batch_size=64, num_workers=4):
            delivered += 1
    except Exception as error:
        said = str(error).rstrip().splitlines()[-1].partition(". ")[0]
        how = re.sub(r" \(pid.*?\)| <.*?>", "", said if "Error: " in said else f"{type(error).__name__}: {said}")
    seconds = time.perf_counter() - began
    return {"share of the epoch that was delivered": delivered / batches, "seconds": seconds, "end": how}


class Images:
    """Samples of 600 kB."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.full((3, 224, 224), float(index))


def go_inside() -> None:
    """Becomes the same program where `/dev/shm` is small; ends without an error where that is not allowed."""
    mount = f'mount -t tmpfs -o size={SIZE_MB}m tmpfs /dev/shm && exec "$@"'
    inside = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    try:
        subprocess.run([*inside, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{sys.argv[0]}: skipped, because making /dev/shm small needs root: {error}")
        sys.exit()
    os.environ[INSIDE] = "1"
    os.execvp(inside[0], [*inside, sys.executable, *sys.argv])


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    if INSIDE not in os.environ:
        arguments.parse_args()
        go_inside()
    method.main(arguments, cases, measure)
