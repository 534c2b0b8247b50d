"""What becomes of a training job whose container has too little memory?

Each loader runs in a memory cgroup of its own of 512 MB, which needs root, with four workers and samples that are made
anew, as those of a decoder are. What a cgroup cannot give it takes by killing a process in it: the kernel counts that.
Torch's batches lie in files of `/dev/shm`, which count in the cgroup too.

The trainer keeps batches until nothing is left; or meets one that is larger than the cgroup; or lets each go, also
those of a `collate_fn` of the user's, for which each worker holds samples and a batch of its own. A loader that says
that memory does not suffice is asked for its next batch; one that fails otherwise is asked no further. At the end it is
seen whether the batches that were kept are what they were.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import method
from method import Case, Figures, Goal

LIMIT_MB = 512
INSIDE = "--inside"
GOALS = [
    Goal("kills", at_most=0),
    Goal("share of the kept batches that are as they were", at_least=1),
]


def cases(options: argparse.Namespace) -> list[Case]:
    batches = 8 if options.quick else 20
    sizes = {
        "batches of 80 MB, all kept": ([80] * batches, True, False),
        "one of 800 MB behind three of 20 MB": ([20, 20, 20, 800, 20], True, False),
        "batches of 40 MB, none kept": ([40] * batches, False, False),
        "batches of 80 MB of a collate_fn, none kept": ([80] * batches, False, True),
    }
    return [
        Case(
            f"memory cgroup of {LIMIT_MB} MB, {name}",
            {rival: {"rival": rival, "sizes": of, "keep": keep, "own": own} for rival in ("stoker", "torch")},
            GOALS if keep else [*GOALS[:1], Goal("share of the batches that were delivered", at_least=1)],
        )
        for name, (of, keep, own) in sizes.items()
    ]


def measure(**arguments: Any) -> Figures:
    with cgroup() as directory:
        enter = f'echo $$ > {directory}/cgroup.procs; exec "$@"'
        program = [sys.executable, sys.argv[0], INSIDE, json.dumps(arguments)]
        ended = subprocess.run(["sh", "-c", enter, "sh", *program], capture_output=True, text=True)
        kills = killed(directory)
    figures: Figures = {"kills": kills}
    last = ended.stdout.splitlines()[-1:]
    if last:
        return figures | json.loads(last[0])
    how = signal.strsignal(-ended.returncode) if ended.returncode < 0 else f"exit code {ended.returncode}"
    return figures | {"end": f"the trainer ended: {how}"}


def train(rival: str, sizes: list[int], keep: bool, own: bool) -> Figures:
    """What happens inside."""
    DataLoader = method.data_loader(rival)
    kept, delivered, how = [], 0, "complete"
    collate_fn = stack if own else None
    batches = iter(DataLoader(Images(sizes), batch_size=SAMPLES, num_workers=4, collate_fn=collate_fn))
    for _ in sizes:
        try:
            batch = next(batches)
        except MemoryError as error:
            how = "MemoryLimitError: " + re.sub(r"[\d.]+ MiB", "N MiB", needed(error))
            continue
        except Exception as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            how = re.sub(r" \(pid(\(s\))? [\d, ]+\)|, .*", "", said)
            break
        delivered += 1
        if keep:
            kept.append((delivered, batch))
        del batch
    right = [bool((batch == batch[0, 0]).all()) for _, batch in kept]
    return {
        "share of the batches that were delivered": delivered / len(sizes),
        **({"share of the kept batches that are as they were": sum(right) / len(right)} if right else {}),
        "end": how,
    }


def stack(samples: list[Any]) -> Any:
    import torch

    return torch.stack(samples)


def needed(error: Exception) -> str:
    """The words of our error that say what is missing, of all that it says."""
    found = re.search(r"cannot reserve .*?\)", str(error))
    return found[0].partition(" (limited")[0] if found else str(error).splitlines()[0]


SAMPLES = 64
"""In each batch."""


class Images:
    """Batch k is of `sizes[k]` MB."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return SAMPLES * len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        import torch

        batch = index // SAMPLES
        return torch.full((self.sizes[batch] * 10**6 // SAMPLES // 4,), float(batch))


# Cgroups


@contextlib.contextmanager
def cgroup() -> Iterator[Path]:
    """A memory cgroup below this process's own; ends without an error where none can be made."""
    directory = made()
    if directory is None:
        print(f"{sys.argv[0]}: skipped, because making a memory cgroup needs root")
        sys.exit()
    try:
        yield directory
    finally:
        removed(directory)


def made() -> Path | None:
    from stoker._core.machine.cgroups import own

    for group in own("memory"):
        directory = Path(group.directory, f"stoker-benchmark-{os.getpid()}")
        limit = "memory.limit_in_bytes" if group.version == 1 else "memory.max"
        try:
            directory.mkdir()
        except OSError:
            continue
        try:
            (directory / limit).write_text(str(LIMIT_MB << 20))
        except OSError:
            removed(directory)
        else:
            return directory
    return None


def removed(directory: Path, seconds: float = 10) -> None:
    """The cgroup is gone, as soon as the processes that a killed trainer left are gone."""
    until = time.monotonic() + seconds
    while directory.exists():
        try:
            directory.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def killed(directory: Path) -> int:
    """How many processes the kernel has killed there for want of memory."""
    for name in ("memory.oom_control", "memory.events"):
        if (directory / name).exists():
            found = re.search(r"^oom_kill (\d+)", (directory / name).read_text(), re.MULTILINE)
            return int(found[1]) if found else 0
    raise SystemExit(f"{directory} does not say which processes were killed")


if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        print(json.dumps(train(**json.loads(sys.argv[2]))))
    else:
        arguments = method.parser(__doc__, rounds=5)
        if not arguments.parse_args().measure:
            with cgroup():  # or it ends here
                pass
        method.main(arguments, cases, measure)
