"""Pages in a real browser: opened without a network, with what went wrong; pictures for eyes; contrast of colours."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

CHROMIUM_MARKS = [
    pytest.mark.long,
    pytest.mark.leaves_behind("Playwright's driver keeps threads and pipes until the module's end"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt install chromium"),
]


def opened(browser: Any, report: str, **settings: Any) -> tuple[Any, list[str]]:
    """The page, and what went wrong or was loaded beside the file itself."""
    page = browser.new_page(**settings)
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if request.url != report else None)
    page.goto(report)
    return page, wrong


def keep(page: Any, name: str) -> None:
    """Saves a picture for eyes, if a folder for it is named."""
    if folder := os.environ.get("STOKER_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


LONG_NAME = "".join(f"{number:04}" for number in range(50)) + ".py:8"
"""A name of over 200 letters without a place to break a line."""


def too_wide(page: Any) -> list[str]:
    """What is beyond the right edge of the window and cannot be scrolled to: tag, id and first words."""
    return list(
        page.evaluate(
            "[...document.querySelectorAll('main *')].filter((one) => !one.closest('.scroll, #flame, .bar') && "
            "one.getBoundingClientRect().right > innerWidth).map((one) => "
            "`${one.tagName} ${one.id} ${one.textContent.slice(0, 40)}`)"
        )
    )


def hidden_by_first_column(page: Any) -> list[str]:
    """Tables whose first column, which does not scroll, takes more than 70 % of the window."""
    return list(
        page.evaluate(
            "[...document.querySelectorAll('.scroll table')].filter((one) => one.rows.length && "
            "one.rows[0].cells[0].getBoundingClientRect().width > 0.7 * innerWidth).map((one) => one.id)"
        )
    )


def contrast(one: str, other: str) -> float:
    """The contrast of two colours such as "#1b1f24", by WCAG 2."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
