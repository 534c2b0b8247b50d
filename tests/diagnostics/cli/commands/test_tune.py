"""`stoker tune` and `stoker bench`: the table, the line to paste, JSON, and refusals in one sentence."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.diagnostics.cli import main

MODULE = """
    import time
    from stoker import DataLoader, Dataset

    class Rows(Dataset):
        def __len__(self): return 4000
        def __getitem__(self, index):
            time.sleep(0.001)
            return index

    def make(): return DataLoader(Rows(), batch_size=8, output="numpy")
    def fails(): return DataLoader([1 / 0], output="numpy")

    if __name__ == "__main__":
        for batch in make():
            pass
    """


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_TORCH", "0")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tuned_of_a_test.py"
    path.write_text(dedent(MODULE))
    return path


def test_tune_prints_the_curve_and_the_line(capfd: pytest.CaptureFixture[str]) -> None:
    command = ["tune", "--each", "0.05", "--seconds", "20", "--max-workers", "2", "--step-ms", "1"]
    assert main([*command, "tuned_of_a_test:make"]) == 0
    out, err = capfd.readouterr()
    assert not err
    assert out.startswith("tuned_of_a_test:make Rows, on Stoker's engine\n")
    assert out.rstrip().splitlines()[-1].startswith("DataLoader(..., num_workers=")
    assert "█" in out or "#" in out
    assert "\x1b" not in out


def test_tune_of_a_script_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    command = ["tune", "--json", "--each", "0.05", "--seconds", "3", "--max-workers", "1"]
    assert main([*command, "tuned_of_a_test.py", "--epochs", "3"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["loader"] == {"name": "tuned_of_a_test.py:15", "dataset": "Rows", "engine": "stoker"}
    assert result["present"] == {"batch_size": 8, "num_workers": 0}
    assert result["best"]["samples_per_second"] > 0 and result["settings"][0]["failure"] is None
    assert result["line"].startswith("DataLoader(...")


def test_bench_shows_each_setting_and_draws(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    command = ["bench", "tuned_of_a_test:make", "--each", "0.05", "--workers", "0,1", "--batch-sizes", "4,8"]
    assert main([*command, "--plot", "b.html"]) == 0
    out = capfd.readouterr().out
    assert max(map(len, out.splitlines())) <= 40
    assert [line.split()[-4:-2] or line for line in out.splitlines() if "/s " in line]
    assert sum(line.count(" b4 ") + line.count(" b8 ") for line in out.splitlines()) == 4
    assert "Fastest: " in out
    assert "samples/s over" in (tmp_path / "b.html").read_text()


def test_plot_that_cannot_be_written_keeps_the_table(capfd: pytest.CaptureFixture[str]) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("there is no folder in which even root may not write")
    command = ["bench", "tuned_of_a_test:make", "--each", "0.05", "--workers", "0"]
    assert main([*command, "--plot", "/proc/b.html"]) == 1
    out, err = capfd.readouterr()
    assert "Fastest: " in out and "--plot /proc/b.html: it cannot be written" in err


@pytest.mark.parametrize("command", [["bench"], ["tune", "--grid"]])
def test_grid_as_json(command: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--each", "0.05", "--workers", "0", "--json", "tuned_of_a_test:make"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert [one["num_workers"] for one in result["settings"]] == [0]
    assert result["fastest"]["batch_size"] == 8


@pytest.mark.parametrize("command", [["tune"], ["bench", "--workers", "0,1"]])
def test_ctrl_c_shows_what_was_measured(command: list[str], module: Path) -> None:
    """The first sample that a worker makes, with the second setting, sends it."""
    interrupts = """
        if stoker.get_worker_info() is not None:
            os.kill(PARENT, 2)
            time.sleep(600)
        time.sleep(0.001)
    """.strip()
    text = dedent(MODULE).replace("time.sleep(0.001)", interrupts)
    module.write_text(f"import os, stoker\nPARENT = os.getppid()\n{text}")
    arguments = [sys.executable, "-m", "stoker", *command, "--each", "0.05", "tuned_of_a_test:make"]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=100)
    assert run.returncode == 128 + signal.SIGINT, run.stderr
    assert "samples/s" in run.stdout and run.stdout.count("█") + run.stdout.count("#") == 20
    assert not run.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tune"], "name the script to run: stoker tune train.py"),
        (["tune", "tuned_of_a_tset.py"], "did you mean tuned_of_a_test.py?"),
        (["tune", "tuned_of_a_tset:make"], "did you mean tuned_of_a_test?"),
        (["tune", "tuned_of_a_test:mkae"], "did you mean make?"),
        (["tune", "tuned_of_a_test:fails"], "ZeroDivisionError: division by zero"),
        (["tune", "tuned_of_a_test:make", "--each", "1"], "options stand before tuned_of_a_test:make"),
        (["tune", "--loader", "train.py:3", "tuned_of_a_test:make"], "--loader is for a script"),
        (["tune", "--step-ms", "3", "tuned_of_a_test.py"], "a script has steps of its own"),
        (["tune", "--batch-sizes", "3,x", "tuned_of_a_test.py"], "numbers from 1 on"),
        (["tune", "--engine", "trch", "tuned_of_a_test.py"], "'torch'"),
        (["bench", "tuned_of_a_test.py"], "write module:object"),
        (["tune", "--grid", "tuned_of_a_test.py"], "write module:object"),
        (["tune", "--grid", "-m", "tuned_of_a_test"], "--grid measures one module:object"),
        (["tune", "--plot", "b.html", "tuned_of_a_test:make"], "add --grid"),
        (["bench", "tuned_of_a_test:make", "--workers", "-1"], "numbers from 0 on"),
        (["bench", "tuned_of_a_test:make", "--plot", "nowhere/b.html"], "does not exist"),
        (["bench", "tuned_of_a_test:make", "--plot", ".html"], "it cannot be written"),
        (["bench", "tuned_of_a_test:make", "--plot", "b.gif"], "b.gif: the curves are written as .html, .png, .svg or"),
        (["bench", "tuned_of_a_test:make", "--plot", "notes.html"], "would replace a file that is no HTML"),
    ],
)
def test_refusal_is_one_sentence(arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path(".html").mkdir()
    Path("notes.html").write_text("buy milk")
    assert main(arguments) in (1, 2)
    out, err = capfd.readouterr()
    assert said in err and err.startswith("stoker: ") and err.count("\n") == 1
    assert not out
