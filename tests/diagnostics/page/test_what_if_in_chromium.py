"""The section "What if" in a real browser: sliders, table, curve, several loaders, reports that lack the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.page.report_page import write_report
from tests.diagnostics.chromium import CHROMIUM_MARKS, keep, opened
from tests.diagnostics.page.test_report_page import measured
from tests.diagnostics.page.test_what_if import loader_of

pytestmark = CHROMIUM_MARKS


def report(folder: Path, *workers: int, computing: float = 0.1) -> str:
    known = Measurements()
    known.begun, known.until = 9.0, 30.0
    for number, count in enumerate(workers):
        loader = loader_of(count, computing=computing)
        loader.about |= {"site": f"train.py:{number}", "dataset": "Photos", "pid": 7}
        known._kinds[number,] = loader
    write_report(known, str(folder / "report.html"), "python train.py", "torch")
    return f"file://{folder / 'report.html'}"


def figures(page: Any) -> dict[str, list[str]]:
    rows = [row.split("\t") for row in page.inner_text("#what-if-table").splitlines()]
    return {name: values for name, *values in rows}


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 360)])
def test_sliders_change_the_simulation(browser: Any, tmp_path: Path, scheme: str, width: int) -> None:
    page, wrong = opened(browser, report(tmp_path, 1), color_scheme=scheme, viewport={"width": width, "height": 800})
    before = figures(page)
    _, simulated, now, ratio = before["samples/s"]
    assert simulated == now and ratio == "1.00"
    page.focus("[name=workers]")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.inner_text(".slider:first-child output") == "4"
    assert float(figures(page)["samples/s"][3]) > 1.5
    assert figures(page)["batches in memory at most"][1:3] == ["5", "17"]
    assert figures(page)["their memory"][1:3] == ["20 KiB", "68 KiB"]
    page.focus("[name=work]")
    page.keyboard.press("Home")
    assert page.get_attribute("[name=work]", "aria-valuetext") == "10 times as fast"
    assert page.locator("#what-if-curve canvas").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    keep(page, f"what-if-{scheme}")
    page.click("#what-if-reset")
    assert figures(page) == before
    assert "proportion" in page.inner_text("#what-if-notes")
    assert wrong == []


def test_each_loader_has_its_own_sliders(browser: Any, tmp_path: Path) -> None:
    page, wrong = opened(browser, report(tmp_path, 1, 0, 2))
    page.select_option("#what-if-which", "1")
    assert page.inner_text(".slider:first-child output") == "0"
    page.focus("[name=workers]")
    page.keyboard.press("ArrowRight")
    assert "had no workers" in page.inner_text("#what-if-notes")
    page.select_option("#what-if-which", "2")
    assert page.inner_text(".slider:first-child output") == "2"
    assert page.locator("#what-if-curve canvas").count() == 1
    assert wrong == []


def test_report_without_the_figures_has_no_such_section(browser: Any, tmp_path: Path) -> None:
    write_report(measured(), str(tmp_path / "report.html"), "python train.py", "torch")
    page, wrong = opened(browser, f"file://{tmp_path / 'report.html'}")
    assert not page.is_visible("#what-if")
    assert wrong == []


def test_samples_that_compute_have_no_sliders(browser: Any, tmp_path: Path) -> None:
    page, wrong = opened(browser, report(tmp_path, 2, computing=0.9))
    assert page.is_visible("#what-if") and not page.is_visible("#what-if-figures")
    assert "computes for 90.0% of its time" in page.inner_text("#what-if-notes")
    assert wrong == []
