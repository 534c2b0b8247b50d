"""Writes and reads the pages of measurements, each one HTML file that needs no network; and the page of a profile.

`base.html`, `page.css` and `base.js` are shared by all pages, with uPlot 1.6.32 (MIT), which draws the curves. A page
adds its own body and script. A content security policy forbids it to load anything.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.diagnostics.profile.loader_profile import LoaderProfile
    from stoker.extend import StackCount


FOLDER = Path(__file__).parent

_PLACE = re.compile(r"{{(\w+)}}")


def write_page(
    path: str,
    name: str,
    command: str,
    what: str,
    title: str,
    data: Mapping[str, Any],
    scripts: Sequence[str] | None = None,
) -> None:
    """Writes a page.

    Args:
        name: of the page: "page" for `page.html` and `page.js`.
        what: the kind of page, for the title of the window.
        data: plain JSON values, which the script reads.
        scripts: names of the scripts, in order; None for the one of the page's name.
    """
    words = {
        "what": html.escape(what),
        "title": html.escape(title),
        "command": html.escape(command),
        "version": html.escape(version("stoker")),
    }
    parts = {
        **words,
        "body": filled(_read(f"{name}.html"), words),
        "style": _read("uPlot.min.css") + _read("page.css"),
        "uplot": _read("uPlot.iife.min.js"),
        "script": "".join(_read(f"{script}.js") for script in ("base", *(scripts or (name,)))),
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }
    text = filled(_read("base.html"), parts)
    Path(path).write_text(text, encoding="utf-8", errors="replace")  # arguments and file names may be other bytes


def filled(text: str, parts: Mapping[str, str]) -> str:
    """Returns a text with each `{{name}}` replaced by the part of that name. Parts are not searched again."""
    return _PLACE.sub(lambda found: parts[found[1]], text)


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


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


MOST_TEXT = 500_000
"""Characters of the stacks in a page."""

OTHERS = "(rarer stacks)"
"""The name of the stacks that are left out."""


def write_profile(profile: LoaderProfile, path: str, title: str, said: Sequence[str] = ()) -> None:
    """Writes the report of a profile, some 100 to 600 kB.

    Args:
        said: sentences about the program and the measurement.
    """
    write_page(path, "profile", "stoker profile", "Profile", title, profile_data(profile, said))


def profile_data(profile: LoaderProfile, said: Sequence[str] = ()) -> Mapping[str, Any]:
    """Returns the contents of the page, as plain JSON values."""
    from stoker.diagnostics.profile.loader_profile import heading

    return {"heading": heading(profile), "said": list(said), **profile.as_dict(), "stacks": cut(profile.stacks)}


def cut(stacks: Sequence[StackCount]) -> list[tuple[str, int]]:
    """Returns the most frequent stacks, up to `MOST_TEXT` characters, and the number of the others as one."""
    shown: list[tuple[str, int]] = []
    left = MOST_TEXT
    for place, (stack, count) in enumerate(stacks):
        left -= len(stack)
        if left < 0:
            shown.append((OTHERS, sum(one.times for one in stacks[place:])))
            break
        shown.append((stack, count))
    return shown
