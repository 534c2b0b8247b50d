"""The report in a real browser: no network, no errors, zoom and filter, phone, dark mode, and names of all controls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.diagnostics.page.report_page import write_report
from tests.diagnostics.chromium import (
    CHROMIUM_MARKS,
    LONG_NAME,
    contrast,
    hidden_by_first_column,
    keep,
    opened,
    too_wide,
)
from tests.diagnostics.page.test_report_page import measured, on_gpus, restarted
from tests.diagnostics.page.test_what_if import loader_of

pytestmark = CHROMIUM_MARKS


@pytest.fixture
def report(tmp_path: Path) -> str:
    path = tmp_path / "report.html"
    write_report(measured(batches=200), str(path), "python train.py", "torch")
    return f"file://{path}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_shows_the_verdict_first_and_loads_nothing(browser: Any, report: str, scheme: str) -> None:
    page, wrong = opened(browser, report, color_scheme=scheme, viewport={"width": 1200, "height": 900})
    assert page.inner_text("h1").startswith("Data-bound: the loop waits ")
    assert page.inner_text("#change").startswith("Pass num_workers=")
    assert page.locator("#loaders tbody tr").count() == 2
    assert page.locator(".plot canvas").count() == 4
    assert page.evaluate("timeline.drawn") > 300
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")
    keep(page, f"wide-{scheme}")
    assert wrong == []


def test_timeline_zooms_moves_and_filters(browser: Any, report: str) -> None:
    page, wrong = opened(browser, report, viewport={"width": 1200, "height": 900})

    def width() -> float:
        return float(page.evaluate("timeline.view[1] - timeline.view[0]"))

    whole = width()
    page.click("#zoom-in")
    assert width() == pytest.approx(whole / 2)
    page.hover("#timeline")
    page.mouse.wheel(0, -100)
    page.wait_for_function(f"timeline.view[1] - timeline.view[0] < {0.45 * whole}")
    before = page.evaluate("timeline.view[0]")
    page.focus("#timeline")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("timeline.view[0]") < before
    page.click("#zoom-longest")
    assert width() == pytest.approx(3 * 0.6e6, rel=0.01)
    assert "waited 600.0 ms for batch 20 of epoch 0" in page.inner_text("#shown")
    keep(page, "longest")
    page.hover("#timeline")
    assert "waited 600.0 ms for batch 20" in page.inner_text("#shown")
    page.click("#zoom-all")
    assert width() == pytest.approx(whole)
    height = page.evaluate("timeline.canvas.clientHeight")
    page.select_option("#filter", "1")
    assert page.evaluate("timeline.rows()") == [1]
    assert page.evaluate("timeline.canvas.clientHeight") < height
    assert wrong == []


def test_narrow_batches_are_columns_as_high_as_the_share(browser: Any, report: str) -> None:
    page, wrong = opened(browser, report, viewport={"width": 1200, "height": 900})
    wait, step = page.evaluate("[colour('wait'), colour('step')]")

    lane = page.evaluate(  # the colours of the first loader in the middle of its time, from the top of its lane down
        "[...timeline.canvas.getContext('2d').getImageData(timeline.canvas.clientWidth / 4, 16, 1, 18).data]"
    )
    colours = ["#" + bytes(lane[place : place + 3]).hex() for place in range(0, 4 * 18, 4)]
    assert (colours[1], colours[14]) == (step, wait)
    share = page.evaluate("shares([[0, 10, 5], [20, 40, 20]], 0, 40, 4)")
    assert share == pytest.approx([0.5, 0, 1, 1])
    assert wrong == []


def test_report_fits_a_phone(browser: Any, report: str) -> None:
    page, wrong = opened(browser, report, viewport={"width": 360, "height": 740}, device_scale_factor=2, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("timeline.canvas.clientWidth") > 300
    keep(page, "phone")
    assert wrong == []


@pytest.mark.parametrize("width", [390, 1280])
def test_long_names_fit(browser: Any, tmp_path: Path, width: int) -> None:
    known = measured(batches=200)
    for number, loader in enumerate(known.loaders):
        loader.works = loader_of(2).works
        loader.about |= {"site": LONG_NAME, "rank": number, "engine": "torch"}
    path = tmp_path / "report.html"
    write_report(known, str(path), f"python {LONG_NAME}", "torch")
    page, wrong = opened(browser, f"file://{path}", viewport={"width": width, "height": 800})
    keep(page, f"long-{width}")
    assert page.is_visible("#what-if") and too_wide(page) == hidden_by_first_column(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert wrong == []


def test_joined_epochs_are_said(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(restarted(9000), str(path), "python train.py", "torch")
    page, wrong = opened(browser, f"file://{path}", viewport={"width": 1200, "height": 900})
    assert "9,000 epochs are too many to draw each, so 3 neighbours are one here" in page.inner_text("#joined")
    assert page.evaluate("timeline.found(0, 100)").endswith("epochs 0 to 2: waited 9.0 ms for 3 batches")
    keep(page, "joined")
    assert wrong == []


def test_controls_have_names_and_text_has_contrast(browser: Any, report: str) -> None:
    for scheme in ("light", "dark"):
        page, _ = opened(browser, report, color_scheme=scheme)
        names = page.evaluate(
            "[...document.querySelectorAll('button, select, canvas#timeline, [role=region]')].map((one) => "
            "one.ariaLabel || one.textContent.trim() || (one.labels && one.labels[0].textContent) || "
            "one.getAttribute('aria-labelledby'))"
        )
        assert len(names) >= 9 and all(names)
        for text in ("text", "quiet"):
            assert contrast(*page.evaluate(f"[colour('{text}'), colour('back')]")) >= 4.5
        for mark in ("wait", "step"):
            assert contrast(*page.evaluate(f"[colour('{mark}'), colour('card')]")) >= 3
        page.close()


def test_report_without_a_loader_says_so(browser: Any, tmp_path: Path) -> None:
    from stoker.diagnostics.measurements import Measurements

    path = tmp_path / "report.html"
    write_report(Measurements(), str(path), "python train.py", "torch")
    page, wrong = opened(browser, f"file://{path}")
    assert page.inner_text("h1") == "No loader was iterated over."
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_gpus_have_lanes_and_curves(browser: Any, tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "report.html"
    write_report(on_gpus(measured(batches=200)), str(path), "python train.py", "torch")
    page, wrong = opened(browser, f"file://{path}", color_scheme=scheme, viewport={"width": 1200, "height": 900})
    assert page.locator(".plot canvas").count() == 6
    assert page.is_visible("#gpu-key")
    assert "GPU 1 (NVIDIA Z1) busy" in page.inner_text("#run")
    assert "GPU BUSY" in page.inner_text("#loaders thead").upper()
    box = page.locator("#timeline").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 35)
    assert "GPU 1, NVIDIA Z1: busy " in page.inner_text("#shown")
    page.select_option("#filter", "1")
    assert page.evaluate("timeline.gpus().length") == 0
    page.select_option("#filter", "")
    keep(page, f"gpus-{scheme}")
    assert wrong == []
