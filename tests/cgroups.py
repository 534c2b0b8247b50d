"""A real memory cgroup, for programs that move into it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker._core.machine.cgroups import own


def limited_to(mib: int) -> Iterator[Path]:
    """Yields the folder of a cgroup of that size below this process's own, for a fixture."""
    for group in own("memory"):
        directory = Path(group.directory, f"stoker-test-{os.getpid()}")
        try:
            directory.mkdir()
        except OSError:
            continue
        try:
            (directory / ("memory.limit_in_bytes" if group.version == 1 else "memory.max")).write_text(str(mib << 20))
        except OSError:
            directory.rmdir()
            continue
        with contextlib.suppress(OSError):  # where there is no swap there is no such file
            (directory / "memory.swap.max").write_text("0")
        try:
            yield directory
        finally:
            until = time.monotonic() + 2
            while directory.exists() and time.monotonic() < until:  # the kernel may still be at it
                with contextlib.suppress(OSError):
                    directory.rmdir()
                    break
                time.sleep(0.005)
        return
    pytest.skip("no memory cgroup can be made here")
