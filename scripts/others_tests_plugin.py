"""A pytest plugin for the tests of others: `stoker.install()` while they run, and a file with what came of each.

    STOKER_OTHERS_RESULTS=FILE [STOKER_OTHERS_INSTALL=1] python -m pytest -p others_tests_plugin ...

The file is JSON: `tests`, the outcome of each by its name; `served`, how many iterators of Stoker were made.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

served = 0
outcomes: dict[str, dict[str, str]] = {}
INSTALLED = os.environ.get("STOKER_OTHERS_INSTALL") == "1"


def pytest_configure() -> None:
    if not INSTALLED:
        return
    import stoker
    from stoker.loader import hidden

    stoker.install()
    make = hidden.HiddenIterator.__init__

    def made(self: Any, *arguments: Any) -> None:
        global served
        served += 1
        make(self, *arguments)

    hidden.HiddenIterator.__init__ = made  # type: ignore[method-assign]


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        why = str(report.longrepr).strip().splitlines()[-1][:300] if report.longrepr else ""
        if outcomes.get(report.nodeid, {}).get("outcome") != "failed":
            outcomes[report.nodeid] = {"outcome": report.outcome, "why": why}


def pytest_sessionfinish() -> None:
    if file := os.environ.get("STOKER_OTHERS_RESULTS"):
        Path(file).write_text(json.dumps({"served": served, "tests": outcomes}, indent=1))
