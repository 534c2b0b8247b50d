"""The page of `stoker bench` in a real browser: no network, no errors, axes, colours, a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.diagnostics.settings.setting_bench import write_plot
from stoker.diagnostics.settings.setting_trial import LoaderSetting, SettingTrial
from tests.diagnostics.chromium import CHROMIUM_MARKS, contrast, keep, opened

pytestmark = CHROMIUM_MARKS

TRIALS = [
    *(
        SettingTrial(
            LoaderSetting(workers, 2, 1, size), 400.0 + 150 * workers + size, 0.02, 0.5, 0.08, memory=200 << 20
        )
        for size in (8, 16, 64)
        for workers in (0, 1, 2, 4)
    ),
    SettingTrial(LoaderSetting(4, 2, 1, 256), failure="it was killed, because memory ran <short>"),
]


def bench(folder: Path, trials: list[SettingTrial]) -> str:
    path = folder / "bench.html"
    write_plot(trials, str(path), "stoker bench train:make", "Fastest: 1,064 samples/s with num_workers=4.")
    return f"file://{path}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_bench_page_draws_its_curves_and_loads_nothing(browser: Any, tmp_path: Path, scheme: str) -> None:
    view = {"width": 1200, "height": 900}
    page, wrong = opened(browser, bench(tmp_path, TRIALS), color_scheme=scheme, viewport=view)
    assert page.inner_text("h1").startswith("Fastest: 1,064")
    assert page.locator(".plot canvas").count() == 2
    assert page.locator("#settings tbody tr").count() == 12
    assert page.inner_text("#settings tbody tr >> nth=0").split("\t") == [
        *("0", "8", "408 ±2%", "50.0%", "80.0 ms", "0.0", "200 MiB")
    ]
    assert page.inner_text("#failures") == "4 workers, batch size 256: it was killed, because memory ran <short>"
    colours = page.evaluate("[0, 1, 2, 3, 4, 5].map((number) => colour(`curve-${number}`))")
    assert all(contrast(one, page.evaluate("colour('back')")) >= 3 for one in colours)
    keep(page, f"bench-{scheme}")
    page.emulate_media(color_scheme="light" if scheme == "dark" else "dark")
    assert page.locator(".plot canvas").count() == 2
    assert wrong == []


def test_bench_page_fits_a_phone_and_drops_what_has_no_curve(browser: Any, tmp_path: Path) -> None:
    one = [SettingTrial(LoaderSetting(workers, 2, 1, None), 100.0 * (workers + 1)) for workers in (0, 1)]
    page, wrong = opened(browser, bench(tmp_path, one), viewport={"width": 360, "height": 740}, device_scale_factor=2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator(".plot").count() == 1
    assert "batches of the loader" in page.inner_text(".u-legend")
    keep(page, "bench-phone")
    page.goto(bench(tmp_path, one[:1]))
    assert page.locator(".plot").count() == 0 and page.locator("#rates-title").count() == 0
    assert wrong == []
