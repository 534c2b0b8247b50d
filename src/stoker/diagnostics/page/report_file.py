"""Reads the measurements back that a report carries."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

Report = dict[str, Any]

VERSION = 2
"""Of the measurements in a report. It changes when a figure that is read back changes its name or meaning."""

_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
_MAKER = re.compile(r'<meta name="generator" content="([^"]*)">')
_NEEDED = {"program", "engine", "seconds", "cpus", "loaders", "spans", "over_time"}


def read_report(path: str) -> Report:
    """Returns the measurements of a report: the value of `page_data`, with `program` and the name of the `file`.

    Args:
        path: of a file that `stoker run --report` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no report, or one of another version.
    """
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    found = _DATA.search(text)
    try:
        data = json.loads(found[1]) if found is not None else None
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise ValueError(f"{path} is no report, or a part of one: make one by stoker run --report FILE.html train.py")
    if data.get("report") != VERSION or not data.keys() >= _NEEDED:
        maker = _MAKER.search(text)
        made = f"made by {maker[1]}" if maker is not None else "made by an earlier version of Stoker"
        raise ValueError(
            f"{path} was {made}, and a report of this version's stoker run is needed: "
            "make one by stoker run --report FILE.html train.py"
        )
    return {**data, "file": os.path.basename(path)}
