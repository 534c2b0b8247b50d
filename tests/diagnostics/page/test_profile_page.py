"""The report of a profile: its data, and the page in a real browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker._engine.timings import StackCount, StepSums
from stoker.diagnostics.page.html_file import OTHERS, cut, write_profile
from stoker.diagnostics.profile.batch_sums import StageTimes, WorkerUse
from stoker.diagnostics.profile.loader_profile import LoaderProfile
from stoker.diagnostics.profile.profile_verdict import ProfileVerdict, SlowSample
from tests.diagnostics.chromium import (
    CHROMIUM_MARKS,
    LONG_NAME,
    contrast,
    hidden_by_first_column,
    keep,
    opened,
    too_wide,
)


def times(seconds: float, count: int = 100) -> StageTimes:
    return StageTimes(count, seconds, seconds / count, 2 * seconds / count, 5 * seconds / count)


def profile() -> LoaderProfile:
    return LoaderProfile(
        dataset="Photos",
        num_workers=2,
        batches=100,
        samples=3200,
        errors=0,
        seconds=10.0,
        first=0.35,
        wait=times(4.0, 99),
        step=times(6.0),
        held=times(1.2, 20),
        gain=1.67,
        is_measured=True,
        stages={
            "fetch": times(6.5),
            "collate": times(0.5),
            "write": times(0.2),
            "memory": times(0.0),
            "transport": times(0.1),
        },
        each=times(6.5, 3200),
        cpu_share=0.93,
        slowest=(
            SlowSample(13, "photo-13 </script><b>.jpg", 0.31, 0.3, 4, 2, 1),
            SlowSample(None, None, 0.2, 0.1, 3, 1, 0),
        ),
        steps=(
            StepSums("transform.0 RandomResizedCrop", 3200, 4.1, 0.29),
            StepSums("transform.1 Normalize", 3200, 0.6, 0.004),
        ),
        stacks=(
            StackCount("Photos.__getitem__ (train.py:12);open_image (train.py:30);decode (codec.py:5)", 60),
            StackCount("Photos.__getitem__ (train.py:12);Crop.__call__ (train.py:40)", 30),
            StackCount("default_collate (collate.py:7)", 10),
        ),
        workers=(WorkerUse(0, 52, 0.9, 0.02, 0.08), WorkerUse(1, 48, 0.7, 0.02, 0.28)),
        verdict=ProfileVerdict(
            "data-bound", "fetch", "Data-bound: the loop waits 40% of its time for batches.", "Pass num_workers=4."
        ),
    )


def test_report_is_one_small_file_that_holds_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "profile.html"
    write_profile(profile(), str(path), "python train.py --name '<x>'", ["The loop at train.py:31."])
    text = path.read_text()
    assert len(text) < 200_000 and "&lt;x&gt;" in text and "<b>.jpg" not in text
    found = re.search(r'id="data">(.*?)</script>', text)
    assert found is not None
    data = json.loads(found[1])
    assert data["heading"].startswith("100 batches, 3,200 samples of Photos, 2 workers")
    assert data["said"] == ["The loop at train.py:31."]
    assert LoaderProfile.of_dict(data) == profile()


def test_rare_stacks_are_cut() -> None:
    stacks = [StackCount(f"{number:01000d}", 600 - number) for number in range(600)]
    shown = cut(stacks)
    assert len(shown) == 501 and shown[-1] == (OTHERS, sum(range(1, 101)))
    assert cut(stacks[:3]) == stacks[:3]


class TestInChromium:
    pytestmark = CHROMIUM_MARKS

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_verdict_first_then_all_tables(self, browser: Any, tmp_path: Path, scheme: str) -> None:
        path = tmp_path / "profile.html"
        write_profile(profile(), str(path), "python train.py", ["The loop at train.py:31.", "Interrupted."])
        view = {"width": 1200, "height": 900}
        page, wrong = opened(browser, f"file://{path}", color_scheme=scheme, viewport=view)
        assert page.inner_text("h1") == "Data-bound: the loop waits 40% of its time for batches."
        assert page.inner_text("#change") == "Pass num_workers=4."
        assert page.locator("#said p").count() == 2
        rows = {name: page.locator(f"#{name} tbody tr").count() for name in ("loop", "stages", "steps", "workers")}
        assert rows == {"loop": 3, "stages": 6, "steps": 2, "workers": 2}
        assert page.inner_text("#slowest tbody tr >> nth=0").split("\t")[:2] == [
            *("13 photo-13 </script><b>.jpg", "310.0 ms"),
        ]
        assert page.inner_text("#gain") == (
            "At most 1.7 times as fast without the waits: measured by 20 steps on a held batch."
        )
        widths = page.eval_on_selector_all("#loop-bar span", "all => all.map((one) => one.style.width)")
        assert widths == ["40%", "60%"]
        shares = page.eval_on_selector_all(
            "#stages-bar span", "all => all.map((one) => one.offsetWidth / one.parentElement.offsetWidth)"
        )
        assert shares == pytest.approx([0.89, 0.068, 0.027, 0.0, 0.014], abs=0.003)
        assert " ".join(page.inner_text("#stages-key").split()) == "fetch collate write wait for memory transport"
        assert page.get_attribute("#workers-bars .bar >> nth=1", "aria-label").endswith("idle 28.0%")
        back = page.evaluate("colour('back')")
        assert all(contrast(page.evaluate(f"colour('curve-{number}')"), back) >= 4.5 for number in range(3))
        assert page.inner_text("#flame-count") == "100" and page.locator("#flame button").count() == 6
        assert page.get_attribute("#flame button >> nth=1", "title") == "Photos.__getitem__ (train.py:12): 90.0%"
        page.fill("#flame-find", "CROP")
        assert page.locator("#flame .found").count() == 1
        assert page.inner_text("#flame-found") == "30.0% of the looks"
        page.click("#flame button >> nth=1")
        page.wait_for_function("flame.top.name.startsWith('Photos') && flame.box.children.length === 5")
        page.click("#flame-all")
        page.wait_for_function("flame.top === flame.root && flame.box.children.length === 6")
        keep(page, f"profile-{scheme}")
        assert wrong == []

    def test_phone_and_a_profile_with_little_in_it(self, browser: Any, tmp_path: Path) -> None:
        path = tmp_path / "profile.html"
        stages = {name: StageTimes() for name in profile().stages}
        little = replace(
            profile(), stages=stages, each=StageTimes(), slowest=(), steps=(), workers=(), held=None, stacks=()
        )
        write_profile(replace(little, is_measured=False, cpu_share=None), str(path), "train:make")
        view = {"width": 360, "height": 740}
        page, wrong = opened(browser, f"file://{path}", viewport=view, device_scale_factor=2)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.locator("section").count() == 1
        assert page.inner_text("#gain").endswith("inferred from the waits, not measured.")
        write_profile(profile(), str(path), "train:make")
        page.goto(f"file://{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        keep(page, "profile-phone")
        assert wrong == []

    @pytest.mark.parametrize("width", [390, 1280])
    def test_long_names_fit(self, browser: Any, tmp_path: Path, width: int) -> None:
        path = tmp_path / "profile.html"
        known = profile()
        slow = replace(known.slowest[0], description=LONG_NAME)
        step = StepSums(f"transform.0 {LONG_NAME}", 3200, 4.1, 0.29)
        change = replace(known.verdict, change=f"Change {LONG_NAME}.")
        long = replace(known, dataset=LONG_NAME, slowest=(slow,), steps=(step,), verdict=change)
        write_profile(long, str(path), f"python {LONG_NAME}", [f"The loop at {LONG_NAME}."])
        page, wrong = opened(browser, f"file://{path}", viewport={"width": width, "height": 800})
        keep(page, f"profile-long-{width}")
        assert page.inner_text("#workers thead").split("\t")[1] == "parts"
        assert too_wide(page) == hidden_by_first_column(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert wrong == []
