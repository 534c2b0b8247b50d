"""A pytest plugin for tests of others: `stoker.install()` while they run, and a file with what came of each.

    OTHERS_TESTS_RESULTS=FILE [OTHERS_TESTS_INSTALL=1] python -m pytest -p others_tests_plugin ...

The file is JSON: for each test its `outcome`, the last line that says `why`, and how many iterators of Stoker it used.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

made = 0
results: dict[str, dict[str, Any]] = {}


def pytest_configure() -> None:
    if os.environ.get("OTHERS_TESTS_INSTALL") != "1":
        return
    import stoker
    from stoker.integrations._install import behind

    stoker.install()
    first = behind.HiddenIterator.__init__

    def counted(self: Any, *arguments: Any) -> None:
        global made
        made += 1
        first(self, *arguments)

    behind.HiddenIterator.__init__ = counted  # type: ignore[method-assign]


def pytest_runtest_logreport(report: Any) -> None:
    global made
    result = results.setdefault(report.nodeid, {"outcome": "passed", "why": "", "served": 0})
    if report.outcome != "passed" and result["outcome"] != "failed":
        lines = str(report.longrepr).strip().splitlines()
        result |= {"outcome": report.outcome, "why": lines[-1][:300] if lines else ""}
    result["served"] += made
    made = 0
    results[report.nodeid] = result


def pytest_sessionfinish() -> None:
    Path(os.environ["OTHERS_TESTS_RESULTS"]).write_text(json.dumps(results, indent=1))
