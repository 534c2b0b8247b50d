"""A pytest plugin for CI (`-p tests.unsteady`): a test that failed runs again alone, twice.

If it passes both times, and at most three tests failed, the run passes, and prints these tests as UNSTEADY with their
output. Whoever sees one mends it, or adds a line to `unsteady.txt`. A hang, something left behind, an error of a
fixture, a worker of pytest that died, and a test in a folder of `NEVER`, which look for lost or repeated samples, fail
the run as ever.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

MOST = 3
"""Tests that may have failed."""

SECONDS = 300
"""Of one test alone, after which it counts as failed."""

NEVER = tuple(
    f"tests/{name}/"
    for name in ("same_data", "conformance", "faults", "pinned", "births", "loader/_state", "loader/_epoch")
)
KEY = "unsteady"


def may_repeat(report: Any) -> bool:
    """Whether a failure may be one of a busy machine."""
    hangs = "Timeout (>" in report.longreprtext
    return report.when == "call" and not hangs and not report.nodeid.startswith(NEVER)


def passes_alone(test: str, config: pytest.Config) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", test]
    for _ in range(2):
        try:
            subprocess.run(command, cwd=config.rootpath, check=True, capture_output=True, timeout=SECONDS)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return False
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if hasattr(config, "workerinput") or reporter is None or exitstatus != pytest.ExitCode.TESTS_FAILED:
        return
    failed = reporter.stats.get("failed", [])
    if reporter.stats.get("error") or len(failed) > MOST or not all(map(may_repeat, failed)):
        return
    if all(passes_alone(report.nodeid, config) for report in failed):
        reporter.stats[KEY] = reporter.stats.pop("failed")
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in terminalreporter.stats.get(KEY, []):
        terminalreporter.write_sep("=", f"UNSTEADY: {report.nodeid}", yellow=True)
        terminalreporter.write_line("It failed once, and passed twice alone: mend it, or add it to tests/unsteady.txt.")
        terminalreporter.write_line(report.longreprtext)
