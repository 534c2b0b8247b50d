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


def with_machines(known: Measurements, number: int) -> Measurements:
    """The same run, whose loaders had workers on other machines with long names."""
    for place, loader in enumerate(known.loaders):
        loader.about |= {"engine": "stoker", "remote_workers": number, "on_demand": bool(place)}
        name = f"ip-10-0-0-{{}}.{'region-of-a-cloud.' * 3}compute.internal (10.0.0.{{}})"
        counts = {one: {"batches": 2 + one, "bytes": (2 + one) * 38_000_000} for one in range(number)}
        pool = {"name": "train", "ranks": 8, "own_seconds": 30.0, "all_seconds": 240.0}
        store = {"own": 3 << 20, "used": 1 << 30, "room": 4 << 30}
        loader.machines = {"batches": 3000, "seconds": 60.0, "object_store": store, "pool": pool}
        loader.machines["machines"] = {name.format(one, one): made for one, made in counts.items()}
    return known


@pytest.mark.parametrize(("scheme", "width", "number"), [("light", 1200, 60), ("dark", 360, 60), ("dark", 1200, 2)])
def test_other_machines_are_listed(browser: Any, tmp_path: Path, scheme: str, width: int, number: int) -> None:
    path = tmp_path / "report.html"
    write_report(with_machines(measured(batches=200), number), str(path), "python train.py", "stoker")
    page, wrong = opened(browser, f"file://{path}", color_scheme=scheme, viewport={"width": width, "height": 800})
    assert [page.inner_text(f"#loaders tbody tr >> nth={row} >> td >> nth=0") for row in range(2)] == [
        *(f"2 + {number}", f"2 + 0-{number}")
    ]
    assert page.locator("#machines tbody tr").count() == 2 * (number + 1)
    if number == 60:
        first = page.inner_text("#machines tbody tr >> nth=1").split("\t")
        assert first[0] == "ip-10-0-0-59 (10.0.0.59)" and first[2:] == ["61", "2.0%", "1.02", "2.2 GiB", "38.6"]
    assert page.inner_text("#machines tbody tr >> nth=0").split("\t")[0] == "this machine"
    assert "pool 'train', shared by 8 rank(s); this one has had 12%" in page.inner_text("#machines-notes")
    assert page.evaluate("document.querySelector('#machines').parentElement.clientHeight") <= 0.7 * 800
    assert too_wide(page) == hidden_by_first_column(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    keep(page, f"machines-{scheme}-{width}-{number}")
    assert wrong == []
