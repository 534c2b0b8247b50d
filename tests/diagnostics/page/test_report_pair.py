"""Two reports: read back, matched, and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.page.html_file import read_report
from stoker.diagnostics.page.report_page import write_report
from stoker.diagnostics.page.report_pair import (
    POINTS,
    as_dict,
    common_curves,
    conclusion,
    figures,
    page_data,
    paired,
    remarks,
)
from tests.diagnostics.page.test_report_page import measured, on_gpus, restarted


def written(folder: Path, name: str, known: Measurements) -> dict[str, Any]:
    write_report(known, str(folder / name), "python train.py", "torch")
    return read_report(str(folder / name))


@pytest.fixture
def reports(tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    slow, fast = measured(batches=200, wait=0.06), measured(batches=400, wait=0.01)
    return written(tmp_path, "before.html", slow), written(tmp_path, "after.html", fast)


def test_report_carries_its_measurements(tmp_path: Path) -> None:
    report = written(tmp_path, "before.html", measured())
    assert report["file"] == "before.html" and report["program"] == "python train.py" and report["engine"] == "torch"
    assert report["loaders"][0]["batches"] == 50


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no report, or a part of one"),
        ("print('train')", "is no report"),
        ('<script type="application/json" id="data">{"report": 1, "program"', "is no report"),
        ('<script type="application/json" id="data">{"report": 1, "progr</script>', "is no report"),
        ('<script type="application/json" id="data">[1]</script>', "is no report"),
        ('<script type="application/json" id="data">{"report": 0}</script>', "made by an earlier version"),
        (
            '<meta name="generator" content="stoker bench 9.1"><script type="application/json" id="data">{}</script>',
            "made by stoker bench 9.1",
        ),
        ('<script type="application/json" id="data">{"report": 1}</script>', "a report of this version"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.html").write_text(text)
    with pytest.raises(ValueError, match=says):
        read_report(str(tmp_path / "x.html"))


def test_cut_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    write_report(measured(), str(path), "python train.py", "torch")
    text = path.read_text()
    path.write_text(text[: text.index('id="data">') + 500])
    with pytest.raises(ValueError, match="is no report"):
        read_report(str(path))


@pytest.mark.parametrize(
    ("rate", "says"),
    [
        (0.5, "gives fewer samples/s in the second report: 0.50 times as many"),
        (0.94, "gives fewer samples/s"),
        (0.96, "No clear difference"),
        (1.04, "No clear difference"),
        (1.06, "gives more samples/s"),
    ],
)
def test_conclusion_of_a_slower_and_of_a_faster_run(tmp_path: Path, rate: float, says: str) -> None:
    before, after = (written(tmp_path, name, measured(loaders=1)) for name in ("a.html", "b.html"))
    after["loaders"][0]["samples_per_second"] = rate * before["loaders"][0]["samples_per_second"]
    assert says in conclusion(paired(before, after))


def test_figures_and_ratios(reports: tuple[dict[str, Any], dict[str, Any]]) -> None:
    known = paired(*reports)
    assert sorted(known.pairs) == [(0, 0), (1, 1)] and known.alone == ([], [])
    found = {one.name: one for one in figures(*known.loaders((0, 0)))}
    assert found["samples/s"].ratio == pytest.approx(2.0, rel=0.1)
    assert found["waited"].before == pytest.approx(0.6, abs=0.03) and found["waited"].after == pytest.approx(
        0.2, abs=0.03
    )
    assert "more samples/s in the second report: 2" in conclusion(known)
    assert as_dict(known)["loaders"][0]["verdicts"][1]["kind"] == "data-bound"


def test_moved_line_is_matched_and_others_are_listed(tmp_path: Path) -> None:
    moved = measured(loaders=3)
    for number, loader in enumerate(moved.loaders):
        loader.about["site"] = f"</script>train{number}.py:80" if number < 2 else "other.py:3"
    known = paired(written(tmp_path, "a.html", measured(loaders=2)), written(tmp_path, "b.html", moved))
    assert sorted(known.pairs) == [(0, 0), (1, 1)] and known.alone == ([], [2])
    said = remarks(known)
    assert "</script>train0.py:8 is matched with </script>train0.py:80: same file, same dataset's class." in said
    assert "other.py:3 Photos is in b.html alone." in said


def test_same_line_with_several_settings_is_matched_in_order(tmp_path: Path) -> None:
    known = measured(loaders=2)
    known.loaders[1].about["site"] = known.loaders[0].about["site"]
    report = written(tmp_path, "a.html", known)
    assert sorted(paired(report, report).pairs) == [(0, 0), (1, 1)]


def test_reports_without_a_common_loader_say_so(tmp_path: Path) -> None:
    known = paired(written(tmp_path, "a.html", Measurements()), written(tmp_path, "b.html", measured(loaders=1)))
    assert conclusion(known) == "No loader is in both reports." and known.alone == ([], [0])
    assert page_data(known)["loaders"] == []


def test_equal_reports_have_no_difference(tmp_path: Path) -> None:
    report = written(tmp_path, "a.html", measured())
    assert conclusion(paired(report, report)).startswith("No clear difference")


def test_parts_add_up_to_the_time(reports: tuple[dict[str, Any], dict[str, Any]]) -> None:
    known = paired(*reports)
    loader = reports[0]["loaders"][0]
    shown = next(one for one in page_data(known)["loaders"] if one["names"][0] == loader["name"])
    assert sum(shown["parts"][0].values()) == pytest.approx(1000 * loader["seconds"] / loader["samples"])
    assert shown["parts"][0]["first batches"] == pytest.approx(1000 * 0.16 / loader["samples"], rel=0.01)
    assert shown["parts"][0]["your step"] > shown["parts"][1]["first batches"]


def test_first_batches_of_many_epochs_are_exact(tmp_path: Path) -> None:
    report = written(tmp_path, "a.html", restarted(9000))
    found = page_data(paired(report, report))["loaders"][0]["parts"][0]
    assert found["first batches"] == pytest.approx(1000 * 9000 * 0.003 / (9000 * 32))
    assert found["waiting"] == pytest.approx(0) and found["your step"] == pytest.approx(1000 * 0.001 / 32, rel=0.01)


def test_curves_begin_together() -> None:
    late = {"times": [0.5, 1.5, 2.5, 3.5], "rate": [None, None, 7, 8], "share": [None, None, 0.1, 0.2]}
    soon = {"times": [0.25, 0.75, 1.25], "rate": [1, None, 3], "share": [0.5, None, 0.5]}
    found = common_curves([late, soon])
    assert len(found["times"]) == POINTS and found["times"][-1] == 1.0
    assert (found["rate"][0][0], found["rate"][0][-1]) == (7, 8)
    assert found["rate"][1][0] == 1 and found["rate"][1][-1] == 3 and found["rate"][1][POINTS // 2] is None
    assert common_curves([{"times": [0.5, 1.5], "rate": [None] * 2, "share": [None] * 2}])["times"] == []


def test_rows_that_one_report_has_are_there(tmp_path: Path) -> None:
    with_gpu = on_gpus(measured(loaders=1))
    death = {"fault": "death", "at": 101.0, "count": 3, "why": "SIGKILL", "text": "died"}
    with_gpu.loaders[0].faults.heed(death)
    before, after = written(tmp_path, "a.html", measured(loaders=1)), written(tmp_path, "b.html", with_gpu)
    after["loaders"][0]["worker_growth"] = {"rate": 2.0 * 2**20}
    found = {one.name: (one.before, one.after) for one in figures(*paired(before, after).loaders((0, 0)))}
    assert found["GPU busy"] == (None, pytest.approx(0.5, abs=0.05))
    assert found["workers' growth, MiB/min"] == (0.0, 120.0) and found["workers replaced"] == (0.0, 3.0)
    assert "samples left out" not in found
    assert [one.name for one in figures(before["loaders"][0], before["loaders"][0])][-1] == "memory"


def test_report_of_an_earlier_version_has_no_findings(tmp_path: Path) -> None:
    before, after = (written(tmp_path, name, measured(loaders=1)) for name in ("a.html", "b.html"))
    for name in ("faults", "worker_growth"):
        del before["loaders"][0][name]
    after["loaders"][0]["faults"]["counts"] = {"sample left out": 2, "sample skipped": 1}
    found = {one.name: (one.before, one.after) for one in figures(*paired(before, after).loaders((0, 0)))}
    assert found["samples left out"] == (None, 3.0) and "workers replaced" not in found
