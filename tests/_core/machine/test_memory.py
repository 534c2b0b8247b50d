from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stoker._core.machine.memory import Available, _available, available

MB = 1 << 20
MACHINE = {"proc/meminfo": f"MemTotal: {8000 << 10} kB\nMemFree: 5 kB\nMemAvailable: {4000 << 10} kB"}
V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's own files")


def group_v2(path, limit, current, cache=0, high="max"):
    folder = f"sys/fs/cgroup{path}"
    return {
        f"{folder}/memory.max": limit,
        f"{folder}/memory.high": high,
        f"{folder}/memory.current": current,
        f"{folder}/memory.stat": f"anon 7\nfile {cache + 5}\nshmem 5\ninactive_file {cache}\nactive_file 0",
    }


def group_v1(folder, limit, usage, cache=0):
    stat = f"cache 1\ninactive_file 1\nhierarchical_memory_limit {limit}\ntotal_inactive_file 0"
    return {
        f"{folder}/memory.limit_in_bytes": limit,
        f"{folder}/memory.usage_in_bytes": usage,
        f"{folder}/memory.stat": f"{stat}\ntotal_active_file {cache}",
    }


def test_memory_without_cgroups_is_the_machines(tree):
    assert _available(tree(MACHINE)) == Available(4000 * MB, 8000 * MB, "the machine")


def test_the_tightest_level_of_version_2_counts(tree):
    root = tree(
        MACHINE
        | {"proc/self/cgroup": "0::/pod/box", "proc/self/mountinfo": V2_MOUNT}
        | group_v2("/pod/box", 900 * MB, 100 * MB)
        | group_v2("/pod", 1000 * MB, 700 * MB)
    )
    assert _available(root) == Available(300 * MB, 1000 * MB, "memory cgroup /pod (v2)")


def test_the_machine_counts_where_it_has_less_than_the_cgroup(tree):
    root = tree(
        MACHINE
        | {"proc/self/cgroup": "0::/box", "proc/self/mountinfo": V2_MOUNT}
        | group_v2("/box", 7000 * MB, 100 * MB)
    )
    assert _available(root).source == "the machine"


def test_file_cache_is_free_and_shared_memory_is_not(tree):
    base = MACHINE | {"proc/self/cgroup": "0::/", "proc/self/mountinfo": V2_MOUNT}
    assert _available(tree(base | group_v2("", 500 * MB, 450 * MB, cache=150 * MB))).bytes == 200 * MB


def test_a_soft_limit_of_version_2_is_a_limit(tree):
    base = MACHINE | {"proc/self/cgroup": "0::/box", "proc/self/mountinfo": V2_MOUNT}
    assert _available(tree(base | group_v2("/box", "max", MB, high=100 * MB))).limit == 100 * MB


def test_no_limit_of_version_2(tree):
    base = MACHINE | {"proc/self/cgroup": "0::/box", "proc/self/mountinfo": V2_MOUNT}
    assert _available(tree(base | group_v2("/box", "max", MB))).source == "the machine"


def test_cgroup_hidden_by_namespace_is_read_from_the_mount(tree):
    for path in ("/docker/ab", "/../ab"):
        base = MACHINE | {"proc/self/cgroup": f"0::{path}", "proc/self/mountinfo": V2_MOUNT}
        root = tree(base | group_v2("", 500 * MB, 100 * MB) | group_v2("/ab", MB, MB))  # another's, of the same name
        assert _available(root) == Available(400 * MB, 500 * MB, "memory cgroup / (v2)")


def test_version_1_in_a_container_that_sees_its_own_group_alone(tree):
    mount = r"36 31 0:32 /docker/a\040b /sys/fs/cgroup/memory\040here ro - cgroup cgroup rw,memory"
    root = tree(
        MACHINE
        | {"proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/a b\n0::/", "proc/self/mountinfo": mount}
        | group_v1("sys/fs/cgroup/memory here", 300 * MB, 250 * MB, cache=50 * MB)
    )
    assert _available(root) == Available(100 * MB, 300 * MB, "memory cgroup /docker/a b (v1)")


def test_version_1_without_a_limit(tree):
    mount = "36 31 0:32 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"
    base = MACHINE | {"proc/self/cgroup": "4:memory:/box", "proc/self/mountinfo": mount}
    root = tree(base | group_v1("sys/fs/cgroup/memory/box", 9223372036854771712, 5 * MB))
    assert _available(root).source == "the machine"


@pytest.mark.parametrize("step", [1, -1])
def test_cgroup_mount_with_more_levels_is_read(tree, step):
    both = ["1 1 0:28 /pod/box /own rw - cgroup2 c rw", "2 1 0:28 / /sys/fs/cgroup rw - cgroup2 c rw"]
    mounts = "\n".join(both[::step])
    root = tree(
        MACHINE
        | {"proc/self/cgroup": "0::/pod/box", "proc/self/mountinfo": mounts, "own/memory.max": "max"}
        | group_v2("/pod/box", "max", 0)
        | group_v2("/pod", 600 * MB, 0)
    )
    assert _available(root).limit == 600 * MB


def test_a_group_that_is_over_its_limit_has_nothing_left(tree):
    base = MACHINE | {"proc/self/cgroup": "0::/", "proc/self/mountinfo": V2_MOUNT}
    assert _available(tree(base | group_v2("", 500 * MB, 501 * MB))).bytes == 0


def test_a_process_that_moves_is_seen(tree):
    base = MACHINE | {"proc/self/mountinfo": V2_MOUNT}
    root = tree(
        base | {"proc/self/cgroup": "0::/wide"} | group_v2("/wide", 900 * MB, 0) | group_v2("/narrow", 100 * MB, 0)
    )
    assert _available(root).bytes == 900 * MB
    tree({"proc/self/cgroup": "0::/narrow"})
    assert _available(root).bytes == 100 * MB


def test_unreadable_numbers_are_left_out(tree):
    files = {"proc/self/cgroup": "0::/", "proc/self/mountinfo": V2_MOUNT, "sys/fs/cgroup/memory.max": "?"}
    assert _available(tree(MACHINE | files)).source == "the machine"


def test_without_proc_the_whole_machine_counts_as_free(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}[name], raising=False)
    assert _available(str(tmp_path)) == Available(4_096_000, 4_096_000, "the machine")


def test_without_proc_and_sysconf_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sysconf", raising=False)
    assert _available(str(tmp_path)) == Available(sys.maxsize, sys.maxsize, "unknown")


def test_windows_says_itself_what_is_free(tmp_path, monkeypatch):
    def told(status):
        assert ctypes.cast(status, ctypes.POINTER(ctypes.c_uint32))[0] == ctypes.sizeof(status) == 64
        status[1], status[2] = 8 << 30, 3 << 30

    kernel = SimpleNamespace(kernel32=SimpleNamespace(GlobalMemoryStatusEx=told))
    monkeypatch.setattr(ctypes, "windll", kernel, raising=False)
    assert _available(str(tmp_path)) == Available(3 << 30, 8 << 30, "the machine")


@LINUX
def test_here_something_is_available():
    now = available()
    assert 0 < now.bytes <= now.limit and now.source != "unknown"


@LINUX
def test_real_cgroup_counts_shared_memory_as_taken(cgroup_of_200_mb: Path, script):
    out = script(
        f"""
        import os
        from stoker._core.machine.memory import available

        before = available()
        open("{cgroup_of_200_mb}/cgroup.procs", "w").write(str(os.getpid()))
        inside = available()
        assert before.limit > inside.limit == 200 << 20, (before, inside)
        assert 150 << 20 < inside.bytes <= 200 << 20, inside
        held = os.memfd_create("held")
        os.posix_fallocate(held, 0, 100 << 20)
        assert 98 << 20 < inside.bytes - available().bytes < 105 << 20, available()
        print(inside.source)
        """
    )
    assert cgroup_of_200_mb.name in out and out.startswith("memory cgroup /")


@LINUX
def test_real_file_cache_counts_as_free(cgroup_of_200_mb: Path, tmp_path: Path, script):
    script(
        f"""
        import os
        from stoker._core.machine.memory import available

        open("{cgroup_of_200_mb}/cgroup.procs", "w").write(str(os.getpid()))
        before = available().bytes
        with open("{tmp_path}/cached", "wb") as file:
            file.write(bytes(20 << 20))
        assert before - available().bytes < 5 << 20, (before, available())
        """
    )
