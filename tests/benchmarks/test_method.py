"""Every benchmark still runs, in its smallest form, and what it says follows from what it measured."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("torch")
if sys.platform != "linux":
    pytest.skip("the figures come from /proc", allow_module_level=True)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    """A module of the benchmarks, which are programs beside each other and no package."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def table() -> ModuleType:
    return load("table")


@pytest.fixture
def method(table: ModuleType) -> ModuleType:
    return load("method")


def run(name: str, *arguments: object, results: Path) -> dict[str, Any]:
    """What a benchmark has measured in its smallest form."""
    command = [BENCHMARKS / f"{name}.py", "--quick", "--rounds", 1, "--json", results, *arguments]
    ended = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if not results.exists():
        pytest.skip(ended.stdout)
    found: dict[str, Any] = json.loads(results.read_text())
    return found


# Those that are not long are one of each kind; test_rivals.py runs rows.py as well
@pytest.mark.parametrize(
    ("name", "case", "rivals"),
    [
        ("transport", "128 kB, read", ["stoker", "torch", "bare threads"]),
        pytest.param(
            "transport", "in process: batches of 128 kB", ["stoker", "torch", "bare thread"], marks=pytest.mark.long
        ),
        ("overhead", "64 integers", ["stoker", "torch", "stoker, threads"]),
        ("start", "forked, a small", ["stoker", "torch, fork"]),
        pytest.param("start", "import", ["stoker"], marks=pytest.mark.long),
        pytest.param(
            "rows",
            "trainer's process",
            ["stoker", "torch", "torch, best", "gather alone", "bare"],
            marks=pytest.mark.long,
        ),
        pytest.param(
            "tokens",
            "tokens",
            ["stoker", "torch", "torch, 2 workers", "gather alone", "bare, own memory", "bare"],
            marks=pytest.mark.long,
        ),
        pytest.param("tokens", "Megatron", ["Megatron", "Megatron, bare"], marks=pytest.mark.long),
        pytest.param("arrays", "npz", ["stoker", "bare", "torch"], marks=pytest.mark.long),
        pytest.param("dicts", "dicts, collation alone", ["stoker", "general", "torch"], marks=pytest.mark.long),
        pytest.param("ragged", "ragged texts, 2 workers", ["stoker", "torch"], marks=pytest.mark.long),
        pytest.param(
            "streams", "noise, 2 workers", ["stoker", "stoker, seeding='worker'", "torch"], marks=pytest.mark.long
        ),
        pytest.param("order_cost", "one worker, nothing drawn", ["stoker"], marks=pytest.mark.long),
        pytest.param("memory", "array of 1 GB, forked", ["stoker", "torch fork"], marks=pytest.mark.long),
        pytest.param("columns", "tuples", ["columns", "list"], marks=pytest.mark.long),
        ("small_shm", "", ["stoker", "torch"]),
        ("order", "10^10 samples, all", ["stoker", "torch", "torchdata"]),
        ("resume", "which both walk", ["stoker", "torchdata"]),
        pytest.param("workloads", "rows at once", ["stoker", "torch"], marks=pytest.mark.long),
        ("supervisor", "one unit at a time", ["1,000 workers", "2 workers"]),
        ("bridge", "one bridge", ["20 workers", "2 workers"]),
        ("pools", "half of the ranks", ["one pool", "8 alone"]),
        pytest.param("latency", "uneven", ["stoker", "torch", "bare"], marks=pytest.mark.long),
        pytest.param("where", "ready batches", ["stoker", "stoker, hot"], marks=pytest.mark.long),
    ],
)
def test_a_benchmark_runs(name: str, case: str, rivals: list[str], tmp_path: Path) -> None:
    results = run(name, "--case", case, results=tmp_path / "results.json")
    (measured,) = results["cases"]
    assert measured["rivals"] == rivals
    for by_rival in measured["figures"].values():
        assert all(by_rival[rival] is not None for rival in rivals)
    assert results["environment"]["kernel"] == os.uname().release


@pytest.mark.long
def test_trainers_epochs_are_measured_under_both_engines(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    results = run("trainers", "--case", "plain", "--data", tmp_path / "pictures", results=tmp_path / "results.json")
    (measured,) = results["cases"]
    assert measured["rivals"] == ["install()", "torch"]
    found = {name: [by[rival]["median"] for rival in by] for name, by in measured["figures"].items()}
    assert all(0 < value < 100 for value in found["waited, %"]) and min(found["CPU-s per epoch"]) > 0
    assert min(found["seconds per epoch"]) > 0 and min(found["MB, all processes"]) > 50


def test_missing_framework_is_named() -> None:
    if importlib.util.find_spec("accelerate") is not None:
        pytest.skip("it is installed")
    given = {"rival": "torch", "script": "transformers", "slow": False, "folder": "none", "batches": 2, "epochs": 1}
    command = [sys.executable, str(BENCHMARKS / "trainers.py"), "--measure", json.dumps(given)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert set(json.loads(ended.stdout.splitlines()[-1]).values()) == {"not installed"}


@pytest.mark.long
def test_an_image_folder_beside_torchvisions(tmp_path: Path) -> None:
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("the rival is not installed")
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "photos" / "a").mkdir(parents=True)
    image.new("RGB", (80, 60), (200, 100, 50)).save(tmp_path / "photos" / "a" / "1.jpg")
    options = ("--data", tmp_path / "photos", "--files", 300, "--case", "cached listing")
    (case,) = run("image_folder", *options, results=tmp_path / "results.json")["cases"]
    assert case["rivals"] == ["stoker, cached listing", "torchvision and torch"]
    assert all(by_rival[rival] is not None for by_rival in case["figures"].values() for rival in case["rivals"])
    assert not list(tmp_path.glob("image_folder.*"))


@pytest.mark.long
def test_shuffled_epochs_from_an_object_store_are_complete(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    if shutil.which("nginx") is None:
        pytest.importorskip("moto")
        pytest.importorskip("flask")
    (case,) = run("shuffled_epochs", "--samples", 200, "--data", tmp_path, results=tmp_path / "results.json")["cases"]
    assert len(case["rivals"]) == 5
    assert all(case["figures"]["samples missing or twice"][rival]["median"] == 0 for rival in case["rivals"])
    assert all(case["figures"]["samples/s, first epoch"][rival]["median"] > 0 for rival in case["rivals"])


def test_a_job_with_too_little_memory(tmp_path: Path) -> None:
    (case,) = run("small_memory", "--case", "800 MB", results=tmp_path / "results.json")["cases"]
    assert case["figures"]["kills"]["stoker"]["median"] == 0 < case["figures"]["kills"]["torch"]["median"]
    assert case["figures"]["end"]["stoker"]["median"].startswith("MemoryLimitError: cannot reserve")
    assert all(goal["met"] for goal in case["goals"])


def test_the_parts_of_a_batch_are_the_batch(tmp_path: Path) -> None:
    (case,) = run("where", "--case", "tokens", results=tmp_path / "results.json")["cases"]
    medians = {name: by_rival["stoker"]["median"] for name, by_rival in case["figures"].items()}
    whole, _ = medians.pop("us, all, with the clocks"), medians.pop("us, all")
    assert medians.pop("us, the order, mean") > 0
    assert len(medians) == 5
    assert 0.5 * whole < sum(medians.values()) < 1.5 * whole  # medians of parts, on any machine


IMAGES = [
    *("images/s", "seconds to the first batch", "CPU-s per 1,000 images"),
    *("MB, all processes", "MB, all processes, after a pause"),
]


@pytest.mark.parametrize(
    ("name", "case", "figures"),
    [
        pytest.param("images", "no step", IMAGES, marks=pytest.mark.long),
        pytest.param(
            "images",
            "fast decoder",
            IMAGES,
            marks=pytest.mark.long,  # the same but for the decoder
        ),
        ("first_batch", "photographs", ["seconds to the first batch"]),
        pytest.param(
            "order_cost",
            "photograph",
            ["CPU-us for a photograph", "% for order and rng", "% for order and all three"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_benchmark_with_photographs_runs(name: str, case: str, figures: list[str], tmp_path: Path) -> None:
    for package in ("PIL", "psutil", "rich", "typer"):
        pytest.importorskip(package)
    if case == "fast decoder":
        pytest.importorskip("simplejpeg")
    from PIL import Image

    for label in ("dark", "light"):
        for number in range(8):
            path = tmp_path / "photos" / label / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (320, 240), label + "gray").save(path)
    results = run(name, "--case", case, "--data", tmp_path / "photos", results=tmp_path / "results.json")
    assert list(results["cases"][0]["figures"]) == figures


def test_a_ratio_is_that_of_two_measurements_of_the_same_round(method: ModuleType) -> None:
    case = method.Case("c", {"ours": {}, "theirs": {}}, [method.Goal("rate", "theirs", at_least=2)])
    rounds = [{"ours": {"rate": ours}, "theirs": {"rate": theirs}} for ours, theirs in [(10, 1), (4, 2), (3, 3)]]
    found = method.summary(case, rounds)
    assert found["figures"]["rate"]["theirs"] == {"median": 2, "min": 1, "max": 3, "all": [1, 2, 3]}
    assert found["ratios"]["rate"]["theirs"]["all"] == [10, 2, 1]
    assert found["goals"][0]["met"]


def test_a_rival_that_was_given_up_is_left_out_of_its_round(method: ModuleType) -> None:
    case = method.Case("c", {"ours": {}, "theirs": {}}, [method.Goal("rate", "theirs", at_least=2)])
    rounds = [{"ours": {"rate": 10}, "theirs": {}}, {"ours": {"rate": 4}, "theirs": {"rate": 1}}]
    found = method.summary(case, rounds)
    assert found["figures"]["rate"]["theirs"]["all"] == [1]
    assert found["ratios"]["rate"]["theirs"]["all"] == [4]


def test_goal_is_missed_by_a_worse_or_absent_figure(method: ModuleType) -> None:
    goals = [method.Goal("seconds", at_most=1), method.Goal("rate", "theirs", at_least=2)]
    found = method.summary(
        method.Case("c", {"ours": {}, "theirs": {}}, goals),
        [{"ours": {"seconds": 1.5, "rate": 4}, "theirs": {"seconds": 1.5, "end": "SIGBUS"}}],
    )
    assert [goal["met"] for goal in found["goals"]] == [False, False]
    assert found["figures"]["end"] == {"ours": None, "theirs": {"median": "SIGBUS", "all": ["SIGBUS"]}}


def test_goal_against_an_unmeasured_rival_is_neither(method: ModuleType, table: ModuleType) -> None:
    goals = [method.Goal("rate", "theirs", at_least=2)]
    found = method.summary(
        method.Case("c", {"ours": {}, "theirs": {}}, goals),
        [{"ours": {"rate": 4}, "theirs": {"rate": "not installed"}}],
    )
    assert found["goals"][0]["met"] is None
    assert table.goal_text(found["goals"][0], found, 1) == ">= 2: not measured"


def test_goal_met_in_some_rounds_lies_within_the_spread(method: ModuleType, table: ModuleType) -> None:
    goals = [method.Goal("rate", "theirs", at_least=2), method.Goal("rate", at_least=3)]
    rounds = [{"ours": {"rate": ours}, "theirs": {"rate": 2}} for ours in (3.5, 4.5, 5)]
    found = method.summary(method.Case("c", {"ours": {}, "theirs": {}}, goals), rounds)
    assert table.goal_text(found["goals"][0], found, 1) == ">= 2: met, within the spread"
    assert table.goal_text(found["goals"][1], found, 1) == ">= 3: met"


def test_the_best_of_each_round_is_no_rival_that_runs(method: ModuleType) -> None:
    derived = {"the best": lambda found: {"rate": max(found["a"]["rate"], found["b"]["rate"])}}
    case = method.Case("c", {"ours": {}, "a": {}, "b": {}}, [method.Goal("rate", "the best", at_least=1)], derived)
    rates = [(10, 9, 11), (10, 11, 9)]
    found = method.summary(case, [{"ours": {"rate": o}, "a": {"rate": a}, "b": {"rate": b}} for o, a, b in rates])
    assert found["rivals"] == ["ours", "a", "b", "the best"]
    assert found["figures"]["rate"]["the best"]["all"] == [11, 11] and not found["goals"][0]["met"]


def test_many_rivals_have_a_row_each(method: ModuleType, table: ModuleType) -> None:
    rivals = ["ours", "a", "b", "c", "d"]
    case = method.Case("c", {rival: {} for rival in rivals}, [method.Goal("rate", "b", at_least=2)])
    rows = table.rows_of(method.summary(case, [{rival: {"rate": 2**-place} for place, rival in enumerate(rivals)}]))
    assert rows[0] == ["", "rate", "ours / it"]
    assert [row[0] for row in rows[1:]] == rivals
    assert rows[3] == ["b", "0.25", "4, >= 2: met"]


def test_a_measurement_that_hangs_is_begun_again(method: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method, "LONGEST", 0.5)
    sleeps = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    assert method._run([sys.executable, "-c", sleeps], dict(os.environ)) == (None, "", "")
    monkeypatch.setattr(method, "_run", lambda *_: answers.pop())
    answers = [(0, '{"rate": 1}', ""), (None, "", "")]
    assert method._measurement({}) == {"rate": 1}


def test_a_rival_that_fails_is_begun_again_and_ours_is_not(
    method: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rival, goes_on in {"torch": True, "stoker": False}.items():
        answers = iter([(1, "", "lost sys.stderr"), (0, '{"rate": 1}', "")])
        monkeypatch.setattr(method, "_run", lambda *_, answers=answers: next(answers))
        if goes_on:
            assert method._measurement({"rival": rival}) == {"rate": 1}
            assert "lost sys.stderr" in capsys.readouterr().err
        else:
            with pytest.raises(SystemExit, match="status 1"):
                method._measurement({"rival": rival})


def test_rival_that_dies_after_its_figures_is_measured(
    method: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(method, "_run", lambda *_: (-6, 'a word\n{"rate": 1}\n', "terminated"))
    assert method._measurement({"rival": "nodes, threads"}) == {"rate": 1}
    assert "died of signal 6" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="status -6"):
        method._measurement({"rival": "stoker, threads"})
    monkeypatch.setattr(method, "_run", lambda *_: (-6, "a word\n", "terminated"))
    with pytest.raises(SystemExit, match="status -6"):
        method._measurement({"rival": "nodes, threads"})


def test_cpu_seconds_of_living_processes_are_measured(method: ModuleType) -> None:
    burns = "import sys\nfor _ in range(10**7): pass\nprint(flush=True)\nsys.stdin.read()"
    before = method.cpu_seconds()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", burns], **pipes) as burning:
        assert burning.stdout is not None
        burning.stdout.readline()
        living = method.cpu_seconds() - before
    assert living > 0.05
    assert method.cpu_seconds() - before >= living - 0.03


@pytest.mark.parametrize("way", ["opened", "mapped", "both_ways"])
def test_memory_in_files_without_a_name_is_counted_once(way: str) -> None:
    program = [sys.executable, str(Path(__file__).parent / "kept_memory.py"), way]
    grown = float(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    assert 0.9 < grown < 1.3


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01234, "0.0123"), (1.5, "1.5"), (12.345, "12.3"), (123.4, "123"), (12345.6, "12,346"), (0, "0")],
)
def test_numbers_have_three_digits_that_say_something(table: ModuleType, value: float, text: str) -> None:
    assert table.number(value) == text


def test_the_pages_are_what_the_results_give() -> None:
    check = [sys.executable, str(BENCHMARKS / "report.py"), "--check"]
    ended = subprocess.run(check, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_remeasured_cases_are_dated_and_replace_the_old(method: ModuleType) -> None:
    def results(rounds: int, *names: str) -> dict[str, Any]:
        told = {"quick": False, "rounds": rounds, "seconds": 1, "environment": {"CPUs": f"{rounds} x some"}}
        return {
            "name": "n",
            "question": f"q{rounds}",
            **told,
            "cases": [{"name": name, "of": rounds} for name in names],
        }

    found = method.among(method.among(results(3, "a", "b", "c"), results(5, "b")), results(7, "d"))
    assert [(case["name"], case["of"]) for case in found["cases"]] == [("a", 3), ("b", 5), ("c", 3), ("d", 7)]
    assert [case.get("measured", {}).get("rounds") for case in found["cases"]] == [None, 5, None, 7]
    assert found["rounds"] == 3 and found["environment"] == {"CPUs": "3 x some"} and found["question"] == "q7"


@pytest.mark.parametrize("there", ["{", "[]", '{"cases": []}', '{"name": "tokens", "cases": []}'])
def test_unknown_files_are_refused_before_measuring(tmp_path: Path, there: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(there)
    command = [sys.executable, str(BENCHMARKS / "rows.py"), "--case", "rows", "--json", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "name another file for --json" in ended.stderr
    assert path.read_text() == there
