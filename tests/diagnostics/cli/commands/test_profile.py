"""`stoker profile` measures a loader named by a module, and says where its time goes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.diagnostics.cli import main

MODULE = """
import time
from stoker import DataLoader, Dataset

class Chain:
    def __init__(self, *steps): self.transforms = list(steps)
    def __call__(self, value):
        for step in self.transforms: value = step(value)
        return value

def double(value):
    time.sleep(0.003)
    return 2 * value

class Photos(Dataset):
    stoker_protocol = True
    def __init__(self): self.transform = Chain(double)
    def __len__(self): return 80
    def __getitem__(self, index): return self.transform(index)
    def describe(self, index): return f"photo-{index}.jpg"

def make(): return DataLoader(Photos(), batch_size=4, seed=1, output="numpy")
photos = Photos()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiled_by_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "profiled_by_a_test", raising=False)
    monkeypatch.setenv("COLUMNS", "120")


def test_loader_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "profiled_by_a_test:make"]) == 0
    text = capsys.readouterr().out
    for part in (
        "20 batches, 80 samples of Photos, no workers",
        "The loader alone makes",
        "transform.0 double",
        "Slowest samples",
        ".jpg",
    ):
        assert part in text
    assert "held batch" not in text


@pytest.mark.parametrize("columns", ["40", "120"])
def test_with_a_step(columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["profile", "profiled_by_a_test:make", "--batches", "20", "--step-ms", "2"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Data-bound" in text and "steps on a held batch have shown" in text


def test_json_and_other_workers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", "profiled_by_a_test:make", "--batches", "6", "--step-ms", "0", "--workers", "1", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_workers"], found["batches"], found["held"]["count"]) == (1, 6, 5)
    assert found["slowest"][0]["description"].endswith(".jpg")
    assert {step["name"] for step in found["steps"]} == {"transform.0 double"}


def test_trace_has_loop_and_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "profiled_by_a_test:make", "--trace", "trace.json"]) == 0
    names = [event["name"] for event in json.loads(Path("trace.json").read_text())["traceEvents"]]
    assert "wait for batch 19" in names and names.count("batch") == 2 * 20  # both ends of the arrows
    Path("train.py").touch()
    assert main(["profile", "--trace", "trace.json", "train.py"]) == 1
    assert "--trace is for module:loader" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("option", ["--trace", "--report"])
def test_a_file_that_cannot_be_written_costs_no_table(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "profiled_by_a_test:make", "--batches", "5", option, "/dev/full"]) == 1
    out, err = capsys.readouterr()
    assert "5 batches, 20 samples of Photos" in out
    assert err == f"stoker: {option} /dev/full: it cannot be written (No space left on device): name another file\n"


def test_a_loader_of_torch(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    with open("profiled_by_a_test.py", "a") as file:
        file.write("import torch.utils.data\ndef torchs(): return torch.utils.data.DataLoader(photos, batch_size=4)\n")
    assert main(["profile", "profiled_by_a_test:torchs", "--batches", "5"]) == 0
    assert "5 batches, 20 samples of Photos" in capsys.readouterr().out


def test_a_dataset_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "profiled_by_a_test:photos"]) == 1
    assert "is a dataset: name the loader" in capsys.readouterr().err


def test_interrupt_shows_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with open("profiled_by_a_test.py", "a") as file:
        file.write(
            "class Interrupts(Photos):\n"
            "    def __getitem__(self, index):\n"
            "        if index == 42: raise KeyboardInterrupt\n"
            "        return index\n"
            "def interrupts(): return DataLoader(Interrupts(), batch_size=4, output='numpy')\n"
        )
    assert main(["profile", "profiled_by_a_test:interrupts"]) == 0
    said = capsys.readouterr()
    assert "interrupted; this was measured until then" in said.err and "10 batches" in said.out


SCRIPT = """
import sys, time
from profiled_by_a_test import Photos, DataLoader
if __name__ == "__main__":
    print("hello", *sys.argv[1:])
    for epoch in range(2):
        for batch in DataLoader(Photos(), batch_size=4, output="numpy"):
            time.sleep(0.02)
    if "--fail" in sys.argv: raise ValueError("no good")
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STOKER_TORCH", "0")
    Path("train.py").write_text(SCRIPT)
    return "train.py"


@pytest.mark.parametrize("columns", ["40", "120"])
def test_a_script(
    columns: str, script: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["profile", "--batches", "20", script, "--epochs", "3"]) == 0
    out, err = capfd.readouterr()
    text = " ".join(out.split())
    assert not err and "hello" not in text and max(map(len, out.splitlines())) <= int(columns)
    for part in (
        "15 batches, 60 samples of Photos, no workers",
        "steps on a held batch have shown",
        "The loop at train.py:7, measured on Stoker's engine.",
        "transform.0 double",
        ".jpg",
    ):
        assert part in text
    assert "inferred" not in text


def test_a_module_that_ends_early_and_fails(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "-m", "train", "--fail"]) == 1
    out, err = capfd.readouterr()
    assert "40 batches, 160 samples of Photos" in out
    assert "inferred from the waits, and not measured: the loader gave 40 of 100 batches." in " ".join(out.split())
    assert err == "stoker: the program failed: it ended with exit code 1: ValueError: no good\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("arguments", [[], ["--fail"]])
def test_a_script_keeps_its_table(arguments: list[str], script: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--report", "/dev/full", script, *arguments]) == 1
    out, err = capfd.readouterr()
    assert "40 batches, 160 samples of Photos" in out and "--report /dev/full: it cannot be written" in err
    assert err.count("\n") == 1 + len(arguments) and ("no good" in err) == bool(arguments)


def test_a_script_as_json(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["profile", "--json", "--report", "profile.html", "--batches", "60", "--loader", "train.py:7", script]
    assert main(words) == 0
    assert 'id="data">{"heading":"40 batches' in Path("profile.html").read_text()
    found = json.loads(capfd.readouterr().out)
    assert (found["batches"], found["epochs"], found["held"]) == (40, 2, None)
    program = found["program"]
    assert (program["site"], program["is_over"], found["error"], found["interrupted"]) == (
        *("train.py:7", False, None, False),
    )


def test_ctrl_c_shows_what_a_script_gave(script: str) -> None:
    """The script sends it, to the process that measures it."""
    text = SCRIPT.replace(
        "time.sleep(0.02)",
        "time.sleep(0.02); count = globals().get('count', 0) + 1\n"
        + " " * 12
        + "if count == 15: os.kill(os.getppid(), 2)",
    )
    Path(script).write_text(f"import os\n{text}")
    arguments = [sys.executable, "-m", "stoker", "profile", script]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=100)
    assert run.returncode == 128 + signal.SIGINT, run.stderr
    assert "Interrupted: this was measured until then." in run.stdout and " samples of Photos" in run.stdout
    assert not run.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name the script to run: stoker profile train.py"),
        (["trian.py"], "did you mean train.py?"),
        (["--step-ms", "3", "train.py"], "--step-ms is for module:loader"),
        (["--workers", "3", "train.py"], "--workers is for module:loader"),
        (["profiled_by_a_test:make", "--loader", "train.py:3"], "--loader is for a script"),
        (["--report", "nowhere/p.html", "train.py"], "the folder"),
        (["profiled_by_a_test:make", "more"], "more is left over: profiled_by_a_test:make takes no arguments"),
        (["--loader", "train.py:3", "train.py"], "no loader is iterated over at train.py:3: there are train.py:7"),
    ],
)
def test_refusal_is_one_sentence(
    arguments: list[str], said: str, script: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *arguments]) in (1, 2)
    out, err = capfd.readouterr()
    assert said in err and err.startswith("stoker: ") and err.count("\n") == 1 and not out
