"""The page of two reports in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.diagnostics.page.html_file import write_page
from stoker.diagnostics.page.report_pair import page_data, paired
from tests.diagnostics.chromium import CHROMIUM_MARKS, LONG_NAME, hidden_by_first_column, keep, opened, too_wide
from tests.diagnostics.page.test_report_page import measured
from tests.diagnostics.page.test_report_pair import written

pytestmark = CHROMIUM_MARKS


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 360)])
def test_both_reports_are_side_by_side(browser: Any, tmp_path: Path, scheme: str, width: int) -> None:
    before = written(tmp_path, "before.html", measured(batches=200))
    after = written(tmp_path, "after.html", measured(batches=400, loaders=3, wait=0.01))
    path = tmp_path / "both.html"
    write_page(str(path), "pair", "stoker compare", "Comparison", "before.html", page_data(paired(before, after)))
    page, wrong = opened(browser, f"file://{path}", color_scheme=scheme, viewport={"width": width, "height": 800})
    assert "more samples/s in the second report" in page.inner_text("h1")
    assert "is in after.html alone" in page.inner_text("#remarks")
    assert page.locator("#loaders section").count() == 2
    assert page.locator(".plot canvas").count() == 4
    assert page.inner_text("#loaders table >> nth=0").splitlines()[0].split("\t") == [
        *("figure", "before.html", "after.html", "ratio")
    ]
    longer, shorter = page.evaluate(
        "[...document.querySelectorAll('.bar')].slice(0, 2).map((bar) => "
        "[...bar.children].reduce((sum, part) => sum + part.getBoundingClientRect().width, 0))"
    )
    assert shorter < 0.6 * longer
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    keep(page, f"pair-{scheme}")
    assert wrong == []


@pytest.mark.parametrize("width", [390, 1280])
def test_long_names_fit(browser: Any, tmp_path: Path, width: int) -> None:
    reports = []
    for name, number in (("a", 0), ("b", 1)):
        known = measured(batches=200, loaders=2)
        for loader in known.loaders:
            loader.about["site"] = f"{LONG_NAME}{number}"
        reports.append({**written(tmp_path, f"{name}.html", known), "file": f"{name}{LONG_NAME}", "program": LONG_NAME})
    path = tmp_path / "both.html"
    write_page(str(path), "pair", "stoker compare", "Comparison", LONG_NAME, page_data(paired(*reports)))
    page, wrong = opened(browser, f"file://{path}", viewport={"width": width, "height": 800})
    keep(page, f"pair-long-{width}")
    assert too_wide(page) == hidden_by_first_column(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert wrong == []
