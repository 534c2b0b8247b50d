"""The figures of a simulation, and the simulation, which node runs: rates that are known, and recorded runs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from stoker.diagnostics.batch_making import MadeBatch
from stoker.diagnostics.measurements import EpochSpans, MeasuredLoader, Span
from stoker.diagnostics.page.html_file import FOLDER
from stoker.diagnostics.page.report_page import handing_over, in_order, kept, what_if
from stoker.diagnostics.process_tree import TreeSample

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="there is no node")

RECORDED = json.loads(Path(__file__).with_name("recorded_runs.json").read_text())


def loader_of(
    workers: int, batches: int = 100, work: float = 0.06, step: float = 0.02, computing: float = 0.1
) -> MeasuredLoader:
    """A loader whose workers make batches one after the other, each ready when the loop has done with its last."""
    about = {"site": "a.py:1", "engine": "torch", "num_workers": workers, "prefetch_factor": 4, "rank": None}
    epoch, works, now = EpochSpans(10.0, 10.2), [], 10.2
    for _ in range(batches):
        works.append(MadeBatch(now, work, computing * work))
        epoch.spans.append(Span(now, now + work + 0.002, 1, work + 0.002, 32))
        now += work + 0.002 + step
    epoch.spans.append(Span(now, now + 0.01, 0, 0.01, 0))
    return MeasuredLoader(about, [epoch], 1, [works], [4096] * 4)


def test_figures_of_a_measured_loader() -> None:
    known = what_if(loader_of(2), [], 4)
    assert known is not None
    assert (known["workers"], known["prefetch"], known["batch_size"], known["cpus"]) == (2, 4, 32, 4)
    assert fmean(known["work"]) == pytest.approx(0.06) and known["work_cpu"] == pytest.approx(0.1)
    assert fmean(known["step"]) == pytest.approx(0.02)
    assert known["hand"] + known["take"][0] == pytest.approx(0.002)
    assert known["start"] == pytest.approx(0.2) and known["start_each"] == pytest.approx(0.1)
    assert known["end"] == pytest.approx(0.01) and known["batches"] == 100 and known["batch_bytes"] == 4096
    assert known["measured"]["share"] == pytest.approx((0.2 + 6.2 + 0.01) / 8.41)
    json.dumps(known)


def test_parts_of_batches_are_averaged_to_whole_ones() -> None:
    loader = loader_of(4)
    loader.about["engine"] = "stoker"
    (works,) = loader.works
    works[:] = [
        MadeBatch(work.begun, seconds, 0.0, pid)
        for work in works
        for pid, seconds in enumerate((0.05, 0.06, 0.09, 0.04))
    ]
    known = what_if(loader, [], 4)
    assert known is not None and known["parts"] == 4
    assert known["work"] == pytest.approx([0.06] * 100)
    assert (known["hand"], known["take"]) == (0.0, [0.0])
    plain = what_if(loader_of(4), [], 4)
    assert plain is not None and plain["parts"] == 1


def test_samples_that_compute_have_no_simulation() -> None:
    elsewhere = loader_of(2)
    elsewhere.machines = {"machines": {"b (10.0.0.2)": {"batches": 9, "bytes": 9}}}
    assert what_if(elsewhere, [], 4) is None
    assert what_if(loader_of(2, computing=0.5), [], 4) == {"computing": pytest.approx(0.5), "in_use": 0.0, "cpus": 4}
    seen = [TreeSample(time, 3.6 * time, 0, 1) for time in (9.0, 11.0, 17.0, 19.0)]
    busy = what_if(loader_of(2), seen, 4)
    assert busy is not None and busy["in_use"] == pytest.approx(3.6) and "work" not in busy
    sleeping = what_if(loader_of(2), seen, 8)
    assert sleeping is not None and sleeping["measured"]["cpus"] == pytest.approx(3.6)


def test_too_little_is_known() -> None:
    few = loader_of(2, batches=8)
    assert what_if(few, [], 4) is None
    unseen = loader_of(2)
    unseen.works.clear()
    assert what_if(unseen, [], 4) is None
    assert what_if(MeasuredLoader(loader_of(2).about), [], 4) is None


def test_kept_times_have_the_mean_of_all() -> None:
    values = [float(number % 7) for number in range(1234)]
    found = kept(values, 6.0)
    assert len(found) == 300 and fmean(found) == pytest.approx(6.0, rel=0.001)
    assert found[2] == pytest.approx(2 * found[1], rel=0.001)
    assert kept([0.0], 4.0) == kept([], 4.0) == [4.0]


def test_handing_over_is_told_from_making() -> None:
    loader = loader_of(2)
    hand, takes = handing_over(loader)  # the loop waits for each batch
    assert hand == pytest.approx(0.001) and takes == pytest.approx([0.001] * 100)
    spans = loader.epochs[0].spans
    loader.works[0][50:] = [MadeBatch(span.asked - 0.07, 0.06, 0.01) for span in spans[50:100]]  # these are ready
    spans[50:] = [span._replace(got=span.asked + 0.0005, waited=0.0005) for span in spans[50:]]
    hand, takes = handing_over(loader)
    assert hand == pytest.approx(0.0015) and takes == pytest.approx([0.0005] * 100, rel=0.001)


def test_batches_of_torchs_workers_are_made_in_turn() -> None:
    works = [
        MadeBatch(0.0, 1.0, 0, 7),
        MadeBatch(0.0, 5.0, 0, 8),
        MadeBatch(1.0, 1.5, 0, 7),
        MadeBatch(2.5, 1.0, 0, 7),
        MadeBatch(5.0, 1.0, 0, 8),
    ]
    assert [work.seconds for work in in_order(works, 2, True)] == [1.0, 5.0, 1.5, 1.0]
    assert [work.pid for work in in_order(works, 2, False)] == [7, 7, 7, 8, 8]


def simulated(known: dict[str, Any], *settings: dict[str, Any]) -> list[dict[str, Any]]:
    """What the model gives for each setting, which differs from the measured one in what is named."""
    script = (
        f"const model = require({json.dumps(str(FOLDER / 'what_if_model.js'))});"
        f"const known = {json.dumps(known)};"
        f"console.log(JSON.stringify({json.dumps(settings)}.map((one) => "
        "model.simulate(known, {...model.asMeasured(known), ...one}))));"
    )
    assert NODE is not None
    done = subprocess.run([NODE, "-e", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


PLAIN = {
    **{"workers": 1, "prefetch": 2, "batch_size": 10, "in_turn": True, "work": [0.06], "work_cpu": 0.0, "step": [0.02]},
    **{"step_cpu": 0.0, "hand": 0.0, "take": [0.0], "start": 0.0, "start_each": 0.0, "end": 0.0, "batches": 1000},
    **{"cpus": 2, "batch_bytes": 1000, "measured": {"cpus": 0.1}},
}


@needs_node
def test_rates_that_are_known() -> None:
    none, one, two, four, small, faster = simulated(
        PLAIN, {"workers": 0}, {}, {"workers": 2}, {"workers": 4}, {"batch_size": 5}, {"work": 0.1}
    )
    assert none["rate"] == pytest.approx(10 / 0.08, rel=0.01) and none["share"] == pytest.approx(0.75, abs=0.01)
    assert one["rate"] == pytest.approx(10 / 0.06, rel=0.01) and one["share"] == pytest.approx(2 / 3, abs=0.01)
    assert two["rate"] == pytest.approx(10 / 0.03, rel=0.01)
    assert four["rate"] == pytest.approx(10 / 0.02, rel=0.01) and four["share"] < 0.01
    assert small["rate"] == pytest.approx(one["rate"], rel=0.02)
    assert faster["rate"] == pytest.approx(10 / 0.02, rel=0.01)
    assert (one["slots"], four["slots"], none["slots"]) == (3, 9, 1)
    assert (one["memory"], small["memory"]) == (3000, 1500)


@needs_node
def test_start_of_workers() -> None:
    slow = {**PLAIN, "workers": 2, "start": 1.0, "start_each": 0.4}
    assert [one["first"] for one in simulated(slow, {}, {"workers": 4}, {"workers": 1})] == pytest.approx(
        [1.06, 1.86, 0.66]
    )
    (any_order,) = simulated({**slow, "in_turn": False}, {"workers": 4})
    assert any_order["first"] == pytest.approx(1.06)


@needs_node
def test_cpus_bound_the_rate() -> None:
    busy = {**PLAIN, "work_cpu": 1.0}
    two, eight = simulated(busy, {"workers": 2}, {"workers": 8})
    assert two["rate"] == pytest.approx(10 / 0.03, rel=0.01)
    assert eight["rate"] == pytest.approx(10 / 0.03, rel=0.02) and eight["cpus"] == pytest.approx(2, abs=0.05)


@needs_node
def test_idle_worker_takes_what_a_slow_one_would_have_got() -> None:
    uneven = {**PLAIN, "workers": 2, "work": [0.01, 0.01, 0.01, 0.21], "step": [0.0], "prefetch": 8}
    (in_turn,), (idle,) = simulated(uneven, {}), simulated({**uneven, "in_turn": False}, {})
    assert idle["rate"] >= 0.99 * in_turn["rate"]


@needs_node
@pytest.mark.parametrize("name", RECORDED)
def test_measured_setting_is_met(name: str) -> None:
    known = RECORDED[name]
    (found,) = simulated(known, {})
    assert found["rate"] == pytest.approx(known["measured"]["rate"], rel=0.15)
    assert found["share"] == pytest.approx(known["measured"]["share"], abs=0.12)


@needs_node
def test_no_settings_break_the_model() -> None:
    settings = [
        {"workers": workers, "prefetch": prefetch, "batch_size": size, "work": factor, "step": 1 / factor}
        for workers in (0, 1, 3, 64)
        for prefetch in (1, 16)
        for size in (1, 1000, 100_000)
        for factor in (0.1, 4)
    ]
    for found in simulated({**PLAIN, "work_cpu": 0.7, "step_cpu": 1.5}, *settings):
        assert found["rate"] > 0 and 0 <= found["share"] <= 1 and found["cpus"] <= 2.001
