"""A real memory cgroup, for programs that move into it."""

from __future__ import annotations

import os
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
            limit = directory / ("memory.limit_in_bytes" if group.version == 1 else "memory.max")
            limit.write_text(str(mib << 20))
            yield directory
        except OSError:
            continue
        else:
            return
        finally:
            directory.rmdir()
    pytest.skip("no memory cgroup can be made here")
