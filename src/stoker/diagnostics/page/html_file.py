"""Writes a page of measurements: one HTML file that needs no network.

`base.html`, `page.css` and `base.js` are shared by all pages, with uPlot 1.6.32 (MIT), which draws the curves. A page
adds its own body and script. A content security policy forbids it to load anything.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

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
        path: of the HTML file.
        name: of the page: "page" for `page.html` and `page.js`.
        command: that makes it.
        what: the kind of page, for the title of the window.
        title: the measured program.
        data: plain JSON values, which the script reads.
        scripts: names of the scripts, in order; None for the one of the page's name.

    Raises:
        OSError: the file cannot be written.
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
