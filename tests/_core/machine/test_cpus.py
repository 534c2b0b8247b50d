from __future__ import annotations

import math
import os

import pytest

from stoker._core.machine.cpus import Cpus, _cpus, cpus

V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup ro - cgroup2 cgroup rw"
V1_MOUNT = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct"


@pytest.fixture(autouse=True)
def machine_of_8(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def under_v2(tree, quota, above="max 100000"):
    return tree(
        {
            "proc/self/cgroup": "0::/pod/box",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/pod/box/cpu.max": quota,
            "sys/fs/cgroup/pod/cpu.max": above,
        }
    )


def test_cpu_count_without_limits_is_the_machines(tree):
    assert _cpus(tree({})) == Cpus(8, math.inf, "the machine")


def test_cpu_count_follows_the_affinity(tree, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    assert _cpus(tree({})) == Cpus(2, math.inf, "CPU affinity")


def test_a_system_without_affinity_and_cgroups(tree, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert _cpus(tree({})) == Cpus(8, math.inf, "the machine")


@pytest.mark.parametrize(
    ("quota", "number"), [("150000 100000", 2), ("100000 100000", 1), ("10000 100000", 1), ("20000 10000", 2)]
)
def test_a_quota_is_rounded_up(tree, quota, number):
    granted = math.prod(map(int, quota.split()[:1])) / int(quota.split()[1])
    expected = Cpus(number, granted, f"quota of {granted:g} CPUs of cgroup /pod/box (v2)")
    assert _cpus(under_v2(tree, quota)) == expected


def test_the_tightest_level_counts(tree):
    found = _cpus(under_v2(tree, "400000 100000", above="300000 100000"))
    assert found == Cpus(3, 3.0, "quota of 3 CPUs of cgroup /pod (v2)")


def test_a_quota_beyond_the_affinity_changes_nothing(tree, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    assert _cpus(under_v2(tree, "400000 100000")) == Cpus(1, 4.0, "CPU affinity")


def test_cpu_count_without_a_quota_is_the_machines(tree):
    assert _cpus(under_v2(tree, "max 100000")) == Cpus(8, math.inf, "the machine")


@pytest.mark.parametrize(("quota", "number"), [(-1, 8), (250000, 3)])
def test_cpu_quota_of_cgroup_version_1_is_read(tree, quota, number):
    folder = "sys/fs/cgroup/cpu,cpuacct/box"
    files = {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": 100000}
    membership = {"proc/self/cgroup": "2:cpu,cpuacct:/box\n3:cpuset:/x", "proc/self/mountinfo": V1_MOUNT}
    assert _cpus(tree(files | membership)).number == number


def test_real_affinity_is_seen(script, monkeypatch):
    monkeypatch.undo()
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs Linux and two CPUs")
    out = script(
        """
        import os
        from stoker._core.machine.cpus import cpus

        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        print(cpus().number, cpus().source)
        """
    )
    assert out == "1 CPU affinity"


def test_cpu_count_here_is_at_least_one():
    assert cpus().number >= 1
