"""How much a program's memory grows by a batch that it keeps, as the benchmarks count it: a program of its own.

In a process with large libraries the count moves by itself: of a library's page each of n processes has 1/n, and more
when one of the others ends.
"""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from typing import Any

SIZE = 1 << 24  # bytes


def opened() -> Any:
    descriptor = os.memfd_create("batches")
    os.posix_fallocate(descriptor, 0, SIZE)
    return [open(descriptor, "rb"), open(os.dup(descriptor), "rb")]


def mapped() -> Any:
    """As torch keeps a batch that has arrived: its descriptor is closed."""
    mapping = mmap.mmap(-1, SIZE)
    mapping[::4096] = b"1" * (SIZE // 4096)
    return mapping


def both_ways() -> Any:
    files = opened()
    mapping = mmap.mmap(files[0].fileno(), SIZE, prot=mmap.PROT_READ)
    assert not any(mapping[::4096])
    return [mapping, *files]


WAYS = {keep.__name__: keep for keep in (opened, mapped, both_ways)}

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    import method

    method.memory_of_all()  # what a look needs for itself
    before = method.memory_of_all()
    kept = WAYS[sys.argv[1]]()
    print((method.memory_of_all() - before) / SIZE)
