"""How many CPUs there are to use."""

from __future__ import annotations

import os


def cpus() -> int:
    """Returns how many CPUs this process may use; on systems that do not say, how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
