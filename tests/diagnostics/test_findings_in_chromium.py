"""Faults and growth of workers in the report, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.diagnostics.batch_making import MadeBatch
from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.page.report_page import write_report
from stoker.diagnostics.process_tree import MemoryReading, ProcessHistory
from tests.diagnostics.chromium import CHROMIUM_MARKS, hidden_by_first_column, keep, opened, too_wide
from tests.diagnostics.page.test_report_page import measured

pytestmark = CHROMIUM_MARKS


def with_findings(known: Measurements) -> Measurements:
    """The same run, whose first loader has faults, and two workers that grow."""
    loader = known.loaders[0]
    loader.about["engine"] = "stoker"
    loader.works = [[MadeBatch(101.0, 0.1, 0.1, pid) for pid in (71, 72)]]
    for pid in (71, 72):
        readings = [MemoryReading(100.5 + n / 2, (100 + 4 * n) << 20, (100 + 4 * n) << 20, 8 << 30) for n in range(40)]
        known.memory._alive[pid] = ProcessHistory(pid, readings)
    death = {"fault": "death", "at": 104.0, "count": 1, "worker": 1, "batch": 7, "why": "SIGKILL"}
    loader.faults.heed(
        {**death, "text": "DataLoader worker (pid 71) is killed by signal: Killed. " + "It was replaced. " * 9}
    )
    for number in range(25):
        sample = f"photos/{number:04}.jpg"
        about = {"outcome": "skipped", "at": 105.0 + number, "worker": 0, "batch": number, "sample": sample}
        text = f"sample {number} ({sample}) of batch {number} failed, and was left out: OSError: <b>truncated"
        loader.faults.heed({"fault": "error", "count": 1, "text": text, **about})
    known.faults.heed({"fault": "ended", "at": 110.0, "count": 1, "text": "ValueError: the loss is NaN"})
    return known


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 360)])
def test_faults_are_listed_and_growth_is_marked(browser: Any, tmp_path: Path, scheme: str, width: int) -> None:
    path = tmp_path / "report.html"
    write_report(with_findings(measured(batches=200)), str(path), "python train.py", "stoker")
    page, wrong = opened(browser, f"file://{path}", color_scheme=scheme, viewport={"width": width, "height": 800})
    assert "1 worker was replaced (SIGKILL), 25 samples were left out" in page.inner_text("#findings")
    assert "The 2 workers of </script>train0.py:8 grow steadily: 16 MiB per second" in page.inner_text("#growth")
    assert "stoker.DataLoader can replace workers" in page.inner_text("#growth")
    assert page.locator("#faults tbody tr").count() == 22
    assert page.inner_text("#faults tbody tr >> nth=0").split("\t")[:5] == [
        *("4.00 s", "</script>train0.py:8", "worker replaced", "1", "7")
    ]
    assert "photos/0003.jpg" in page.inner_text("#faults") and "the program" in page.inner_text("#faults")
    assert "And 5 more" in page.inner_text("#faults-more")
    assert "workers of </script>train0.py:8, which grow" in page.inner_text("#memory")
    assert page.get_attribute("#faults-section .scroll", "aria-labelledby") == "faults-title"
    assert too_wide(page) == hidden_by_first_column(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    keep(page, f"findings-{scheme}")
    assert wrong == []


def test_nothing_is_shown_of_torchs_loaders_without_findings(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    known = measured()
    write_report(known, str(path), "python train.py", "torch")
    page, wrong = opened(browser, f"file://{path}")
    assert not page.is_visible("#faults-section") and page.inner_text("#growth") == page.inner_text("#findings") == ""
    known.loaders[0].about["engine"] = "stoker"
    write_report(known, str(path), "python train.py", "stoker")
    page, others = opened(browser, f"file://{path}")
    assert page.inner_text("#faults-none") == "No worker was replaced, no sample was left out."
    assert not page.is_visible("#faults") and wrong == others == []
