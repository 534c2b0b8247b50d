"""The part of the report on the samples in the batches, in a real browser: pictures, bars, phone, dark, names."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.diagnostics.composition.epoch_notes import EpochNotes, SampleColumn
from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.page.report_page import write_report
from tests.diagnostics.chromium import CHROMIUM_MARKS, contrast, hidden_by_first_column, keep, opened, too_wide
from tests.diagnostics.page.test_report_page import measured

pytestmark = CHROMIUM_MARKS

N = 6000


def noted(known: Measurements) -> Measurements:
    """The same run, whose first loader shuffles with classes and lengths, and whose second one does not."""
    draw = random.Random(3)
    labels = [min(39, int(draw.expovariate(0.3))) for _ in range(N)]
    counts = sorted(((label, labels.count(label)) for label in set(labels)), key=lambda one: -one[1])
    names = [f"class {label} " + "x" * (50 if label == 2 else 0) for label in range(40)]
    told = {"source": "dataset.targets", "of": N, "counted": N, "counts": counts, "names": names}
    lengths = SampleColumn([5 + label * 10 for label in labels], "lengths of the sampler")
    for loader, columns in zip(
        known.loaders,
        [
            ({"length": N, "labels": told, "lengths": "Buckets.lengths"}, SampleColumn(labels, "there"), lengths),
            ({"length": N}, None, None),
        ],
        strict=False,
    ):
        for number in range(2):
            notes = EpochNotes(lambda columns=columns: columns)  # type: ignore[misc]
            notes.name(0, number)
            order = list(range(N)) if loader is known.loaders[1] else random.Random(number).choices(range(N), k=N)
            for first in range(0, N, 30):
                notes.asked(order[first : first + 30])
            if loader is known.loaders[0]:
                notes.received({"x": np.zeros((2, 90)), "x_mask": np.arange(90) < np.array([[40], [80]])})
            notes.over()
            notes.is_done = True
            loader.noted += notes.lines()
    return known


@pytest.fixture
def report(tmp_path: Path) -> str:
    path = tmp_path / "report.html"
    write_report(noted(measured()), str(path), "python train.py", "torch")
    assert path.stat().st_size < 500_000
    return f"file://{path}"


def ink(page: Any, number: int) -> int:
    """The pixels of a picture that have about the colour of points."""
    return int(
        page.evaluate(
            "([number, ink]) => { const canvas = document.querySelectorAll('#order-pictures canvas')[number];"
            "const all = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data; let found = 0;"
            "for (let at = 0; at < all.length; at += 4) {"
            "  found += [0, 1, 2].every((part) => Math.abs(all[at + part] - ink[part]) < 30) && all[at + 3] > 128; }"
            "return found; }",
            [number, list(bytes.fromhex(page.evaluate("colour('curve-0')")[1:]))],
        )
    )


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 390), ("dark", 390)])
def test_orders_classes_and_lengths_are_shown(browser: Any, report: str, scheme: str, width: int) -> None:
    page, wrong = opened(browser, report, color_scheme=scheme, viewport={"width": width, "height": 900})
    assert page.locator("#order-pictures canvas").count() == 2
    page.wait_for_function("document.querySelector('#order-pictures canvas').width > 300")
    cloud = ink(page, 0)
    assert cloud > 2000
    words = page.inner_text("#order-pictures figure:first-child")
    assert "Not shuffled" not in words and "had come before" in words
    assert page.inner_text("#order-same") == "The epochs have different orders."
    assert "A batch of 30 has" in page.inner_text("#classes-text")
    assert page.locator("#classes-table tbody tr").count() >= 20 and page.locator(".shares div").count() > 40
    assert "by Buckets.lengths: 5 to" in page.inner_text("#lengths-text")
    assert page.locator("#padding-table tbody tr").count() == 3 and page.locator("#histogram span").count() == 24
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert too_wide(page) == hidden_by_first_column(page) == []
    keep(page, f"composition-{width}-{scheme}")
    page.select_option("#composition-which", "1")
    page.wait_for_timeout(100)
    assert 200 < ink(page, 0) < cloud / 2
    assert page.inner_text("#order-same") == "Both epochs have the same order."
    assert page.inner_text("#order-pictures figure:first-child").startswith("Epoch 0. Not shuffled")
    assert not page.is_visible("#classes") and not page.is_visible("#lengths")
    page.select_option("#composition-which", "0")
    assert page.is_visible("#classes") and page.locator("#classes-table tbody").count() == 1
    assert wrong == []


def test_pictures_follow_the_colours_of_the_system(browser: Any, report: str) -> None:
    page, wrong = opened(browser, report, color_scheme="light")
    page.wait_for_function("document.querySelector('#order-pictures canvas').width > 300")
    light = page.evaluate("colour('curve-0')")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"colour('curve-0') !== '{light}'")
    page.wait_for_timeout(100)
    assert ink(page, 0) > 2000
    assert wrong == []


def test_pictures_have_texts_and_bars_have_contrast(browser: Any, report: str) -> None:
    for scheme in ("light", "dark"):
        page, _ = opened(browser, report, color_scheme=scheme)
        labels = page.evaluate("[...document.querySelectorAll('#composition [role=img]')].map((one) => one.ariaLabel)")
        assert len(labels) == 3 and all("order" in label.lower() or "Samples by length" in label for label in labels)
        assert page.locator("#composition-which").evaluate("(one) => one.labels[0].textContent").startswith("Loader")
        for curve in ("curve-0", "curve-1"):
            assert contrast(*page.evaluate(f"[colour('{curve}'), colour('back')]")) >= 3
        page.close()


def test_without_notes_there_is_no_such_part(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(measured(), str(path), "python train.py", "torch")
    page, wrong = opened(browser, f"file://{path}")
    assert not page.is_visible("#composition")
    assert wrong == []
