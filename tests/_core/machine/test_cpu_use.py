"""The use of the CPUs by all programs, as the kernel tells it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker._core.machine.cpus import UNKNOWN, cpu_use

STAT = """\
cpu  1000 0 0 9000 0 0 0 0 0 0
cpu0 100 20 30 400 50 5 6 7 90 0
cpu1 1 1 1 1000 0 0 0 0 0 0
cpu5 900 0 0 100 0 0 0 0 0 0
intr 1 2 3
"""


def test_use_is_that_of_the_cpus_that_may_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "stat").write_text(STAT)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    tick = os.sysconf("SC_CLK_TCK")
    for priority, nice in ((0, 0), (19, 20 + 1)):
        monkeypatch.setattr(os, "getpriority", lambda which, who, priority=priority: priority, raising=False)
        used = 100 + 30 + 5 + 6 + 7 + 2 + nice
        assert cpu_use(str(tmp_path)) == pytest.approx((used / tick, (450 + 1000 + 21 - nice) / tick))


def test_use_may_be_unknown(tmp_path: Path) -> None:
    assert cpu_use(str(tmp_path)) == UNKNOWN


def test_use_grows() -> None:
    if cpu_use() == UNKNOWN:
        pytest.skip("the system does not tell")
    before = cpu_use()
    sum(range(2_000_000))
    after = cpu_use()
    assert after.used >= before.used and after.idle >= before.idle
