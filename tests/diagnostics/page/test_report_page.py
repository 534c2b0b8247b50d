"""The report's file, by its structure. `test_report_in_chromium.py` opens it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stoker._core.machine.gpu_activity import GpuReading, GpuSample, used_gpus
from stoker.diagnostics import measurements
from stoker.diagnostics.measurements import EpochSpans, MeasuredLoader, Measurements, Span
from stoker.diagnostics.page.html_file import read_report
from stoker.diagnostics.page.report_page import (
    EPOCHS,
    SPANS,
    joined,
    longest,
    over_time,
    page_data,
    stages,
    write_report,
)
from stoker.diagnostics.process_tree import TreeSample


def measured(batches: int = 50, loaders: int = 2, wait: float = 0.06, step: float = 0.04) -> Measurements:
    """A run of some loaders, one after the other, with even waits and steps and one long wait."""
    known = Measurements()
    known.begun, now = 100.0, 100.5
    for number in range(loaders):
        about = {"site": f"</script>train{number}.py:8", "dataset": "Photos", "num_workers": 2, "rank": None, "pid": 7}
        loader = MeasuredLoader(about)
        epoch = EpochSpans(now, now + 0.1)
        now += 0.1
        for batch in range(batches):
            waited = 10 * wait if batch == 20 else wait
            epoch.spans.append(Span(now, now + waited, 1, waited, 32))
            now += waited + step
        loader.epochs.append(epoch)
        known._kinds[number,] = loader
    known.until = now + 0.5
    count = int(now - 100) * 4
    known.samples += [TreeSample(100.0 + n / 4, n * 0.3, (200 + n) << 20, 3) for n in range(count)]
    known.ended(count * 0.3)
    return known


def on_gpus(known: Measurements, number: int = 2) -> Measurements:
    """The same run, on some GPUs that are half busy."""
    for place, sample in enumerate(known.samples):
        readings = [GpuReading("NVIDIA Z1", 0.5 + 0.3 * (place % 3 - 1), place << 30) for _ in range(number)]
        known.gpus.append(GpuSample(sample.time, tuple(readings)))
    return known


def restarted(epochs: int) -> Measurements:
    """A run with an epoch for each batch, each 3 ms of waiting (1 ms in `iter()`) and 1 ms of a step."""
    known = measured(loaders=1)
    loader = known.loaders[0]
    begins = [100.0 + 0.004 * number for number in range(epochs)]
    loader.epochs[:] = [
        EpochSpans(begun, begun + 0.001, [Span(begun + 0.001, begun + 0.003, 1, 0.002, 32)]) for begun in begins
    ]
    known.until = loader.epochs[-1].until
    return known


class Page(HTMLParser):
    """The tags of a page, and what would be loaded from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [(name, value) for name, value in attrs if name in ("src", "href", "srcset", "action")]


def test_report_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(measured(), str(path), "python train.py <b>", "torch")
    text = path.read_text()
    page = Page(text)
    assert page.loaded == []
    assert "default-src 'none'" in text
    assert page.tags.count("script") == 3 and page.tags.count("h1") == 1 and "<html lang=" in text
    assert "python train.py &lt;b&gt;" in text and "{{" not in re.sub(r"(?s)<script>.*?</script>", "", text)
    data = re.search(r'(?s)<script type="application/json" id="data">(.*?)</script>', text)
    assert data is not None
    assert json.loads(data[1])["loaders"][0]["name"] == "</script>train0.py:8"


def test_report_of_many_batches_stays_under_two_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    known = measured(batches=40_000, loaders=4, wait=0.0001, step=0.0001)
    write_report(known, str(path), "python train.py", "torch")
    assert path.stat().st_size < 2_000_000
    spans = [span for epochs in page_data(known, "torch")["spans"] for epoch in epochs for span in epoch["spans"]]
    assert 0.5 * SPANS < len(spans) <= SPANS + 4
    assert sum(span[2] for span in spans) == 160_000


def test_report_of_many_epochs_stays_under_two_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    known = restarted(60_000)
    write_report(known, str(path), "python train.py", "torch")
    assert path.stat().st_size < 1_000_000
    data = read_report(str(path))
    (epochs,), (number,) = data["spans"], data["joined"]
    assert number == 15 and len(epochs) == EPOCHS
    spans = [span for epoch in epochs for span in epoch["spans"]]
    assert sum(span[2] for span in spans) == 60_000 and sum(span[4] for span in spans) == 60_000 * 32
    assert sum(span[3] for span in spans) == pytest.approx(60_000 * 3000, rel=0.001)
    assert epochs[0]["begun"] == 0 and epochs[-1]["until"] == pytest.approx(1e6 * (known.until - known.begun), abs=1)
    assert data["loaders"][0]["epochs"] == 60_000 and data["loaders"][0]["waited"] == pytest.approx(180)


def test_loader_with_few_epochs_is_drawn_in_full() -> None:
    known = restarted(9000)
    known._kinds[1,] = measured(loaders=2).loaders[1]
    data = page_data(known, "torch")
    assert data["joined"] == [5, 1] and len(data["spans"][1][0]["spans"]) > 10


def test_curves_of_an_epoch_for_each_batch_have_its_steps() -> None:
    known = restarted(2000)
    (loader,) = over_time(known.loaders, known.begun, known.until)["loaders"]
    assert loader["share"][50:150] == pytest.approx([0.75] * 100, abs=0.05)


def test_headline_prefers_a_loader_with_a_verdict() -> None:
    known = measured()
    tiny = known.loaders[0].epochs[0]
    tiny.spans[1:] = []
    tiny.spans[0] = tiny.spans[0]._replace(waited=100.0)
    assert known.loaders[0].summary().waited > known.loaders[1].summary().waited
    assert page_data(known, "torch")["main"] == 1
    known._kinds.popitem()
    assert page_data(known, "torch")["main"] == 0


def test_main_verdict_is_of_the_loader_that_waits_most() -> None:
    known = measured()
    second = known.loaders[1].epochs[0]
    second.spans[:] = [span._replace(waited=span.waited / 10) for span in second.spans]
    assert page_data(known, "torch")["main"] == 0
    assert page_data(Measurements(), "torch")["main"] is None


def test_curves_have_the_rate_and_the_share() -> None:
    known = measured(batches=500, loaders=1)
    curves = over_time(known.loaders, known.begun, known.until)
    (loader,) = curves["loaders"]
    width = (known.until - known.begun) / 200
    assert sum(rate * width for rate in loader["rate"] if rate is not None) == pytest.approx(500 * 32, rel=0.01)
    middle = loader["share"][120:180]
    assert sum(middle) / len(middle) == pytest.approx(0.6, abs=0.05)
    assert loader["share"][0] is None and len(curves["times"]) == 200


def test_stages_and_longest_waits() -> None:
    known = measured()
    waits, steps = stages(known.loaders[0])
    assert waits["times"] == pytest.approx([0.06, 0.06, 0.6, 0.6, 50 * 0.06 + 0.54])
    assert steps["times"][:4] == pytest.approx([0.04] * 4)
    first = longest(known.loaders, known.begun)[0]
    assert (first["batch"], first["waited"]) == (20, pytest.approx(0.6))


def test_joined_spans_keep_their_sums() -> None:
    spans = measured(batches=10, loaders=1).loaders[0].epochs[0].spans
    found = joined(spans, 4)
    assert [span.batches for span in found] == [4, 4, 2]
    assert sum(span.waited for span in found) == pytest.approx(sum(span.waited for span in spans))
    assert (found[0].asked, found[-1].got) == (spans[0].asked, spans[-1].got)


def test_page_has_the_curves_of_the_gpus_of_the_program() -> None:
    known = on_gpus(measured())
    page = page_data(known, "torch")
    curves = page["gpu_curves"]
    assert [one["name"] for one in curves["gpus"]] == ["GPU 0, NVIDIA Z1", "GPU 1, NVIDIA Z1"]
    assert curves["times"][1] == pytest.approx(0.25)
    assert curves["gpus"][0]["busy"][:3] == pytest.approx([0.2, 0.5, 0.8])
    assert page["gpus"][1]["busy"] == pytest.approx(0.5, abs=0.02)
    assert page["loaders"][0]["gpu_busy"] == pytest.approx(0.5, abs=0.05)
    assert page_data(measured(), "torch")["gpu_curves"] == {"times": [], "gpus": []}


def test_gpus_are_looked_for_once_for_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def counted(samples: Sequence[GpuSample]) -> list[int]:
        looks.append(samples)
        return used_gpus(samples)

    monkeypatch.setattr(measurements, "used_gpus", counted)
    known = on_gpus(restarted(200))
    assert known.loaders[0].summary(known.samples, known.gpus).gpu is not None
    assert len(looks) == 1
