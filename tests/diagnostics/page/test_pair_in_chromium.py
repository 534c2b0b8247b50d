"""The page of two reports in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.diagnostics.page.html_file import write_page
from stoker.diagnostics.page.report_pair import page_data, paired
from tests.diagnostics.chromium import CHROMIUM_MARKS, keep, opened
from tests.diagnostics.page.test_report_pair import written
from tests.diagnostics.test_report_page import measured

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
