"""The checks of the machine, in a process with other limits, or with other figures of the system."""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from stoker._core.machine.cpus import Cpus
from stoker._core.machine.memory import Available
from stoker.diagnostics.checks import machine


def test_cpus_of_a_container_are_told_from_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(machine.cpus, "cpus", lambda: Cpus(2, 1.5, "quota of 1.5 CPUs of cgroup /docker/ab (v2)"))
    (found,) = machine.cpu()
    assert found.level == "advice"
    assert found.what.startswith("2 CPUs (quota of 1.5 CPUs of cgroup /docker/ab (v2)); the machine has 64")
    assert found.mend.startswith("num_workers=2 at most")
    monkeypatch.setattr(machine.cpus, "cpus", lambda: Cpus(64, math.inf, "the machine"))
    assert [one.level for one in machine.cpu()] == ["fine"]


@pytest.mark.parametrize(("free", "level"), [(8, "fine"), (1, "problem")])
def test_memory_that_is_nearly_gone_is_a_problem(free: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left = Available(free << 30, 16 << 30, "memory cgroup /docker/ab (v2)")
    monkeypatch.setattr(machine.machine_memory, "available", lambda: left)
    (found,) = machine.memory()
    assert (found.level, found.what) == (level, f"{free}.0 GiB free of 16.0 GiB (memory cgroup /docker/ab (v2))")


def test_small_or_missing_shared_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = SimpleNamespace(f_blocks=16384, f_bavail=16000, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: sizes)
    (found,) = machine.shared_memory()
    assert (found.level, found.what) == ("advice", "62 MiB free of 64 MiB")
    sizes.f_bavail = 1 << 20
    assert [one.level for one in machine.shared_memory()] == ["fine"]

    def missing(path: str) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "statvfs", missing)
    assert [one.what for one in machine.shared_memory()] == ["there is none"]


def test_few_descriptors_are_found_where_the_limit_is_low() -> None:
    program = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))
from stoker.diagnostics.checks import machine
(found,) = machine.descriptors()
assert found.level == "advice" and found.what == "up to 256 in a process (1,024 if it asks)", found
assert found.mend.startswith("ulimit -n 1024"), found
"""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 1024
    subprocess.run([sys.executable, "-c", program], check=True)
