"""Curves of a grid: an HTML file that loads nothing, or an image."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from stoker.diagnostics.settings.setting_bench import check_plot, curves, write_plot
from stoker.diagnostics.settings.setting_trial import LoaderSetting, SettingTrial
from stoker.errors import MissingExtraError

TRIALS = [
    *(
        SettingTrial(LoaderSetting(workers, 2, 1, size), 10.0 * size + workers)
        for size in (8, 16)
        for workers in (0, 2)
    ),
    SettingTrial(LoaderSetting(4, 2, 1, 16), failure="out of <memory>"),
]


def test_curves_are_over_one_argument() -> None:
    assert curves(TRIALS, over_workers=True) == {
        "values": [0, 2],
        "lines": [{"name": "batch size 8", "rates": [80, 82]}, {"name": "batch size 16", "rates": [160, 162]}],
    }
    sizes = curves(TRIALS[1:], over_workers=False)
    assert sizes["values"] == [8, 16]
    assert sizes["lines"][0] == {"name": "0 workers", "rates": [None, 160]}


def test_page_loads_nothing_and_names_failures(tmp_path: Path) -> None:
    write_plot(TRIALS, str(tmp_path / "b.html"), "stoker bench </script>train:make", "Fastest: 162 samples/s.")
    text = (tmp_path / "b.html").read_text()
    assert not re.search(r'(src|href)="', text) and "default-src 'none'" in text
    assert "{{" not in text.split("<script>")[0] and text.count("<script") == 3
    assert "&lt;/script&gt;train:make" in text
    data = re.search(r'id="data">(.*?)</script>', text)
    assert data is not None
    known = json.loads(data[1])
    assert known["over_workers"]["values"] == [0, 2]
    assert known["settings"][-1]["failure"] == "out of <memory>"


def test_loader_without_batch_size_is_named_in_words() -> None:
    trials = [SettingTrial(LoaderSetting(workers, 2, 1, None), 10.0) for workers in (0, 1)]
    assert curves(trials, over_workers=True)["lines"][0]["name"] == "batches of the loader"


@pytest.mark.leaves_behind("matplotlib keeps the files of its fonts open")
@pytest.mark.parametrize("name", ["b.png", "b.svg"])
def test_image_is_drawn_by_matplotlib(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_plot(TRIALS, str(tmp_path / name), "stoker bench train:make", "Fastest")
    assert (tmp_path / name).read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_image_without_matplotlib_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"name an \.html file"):
        check_plot("curve.PNG")
    check_plot("curve.html")
