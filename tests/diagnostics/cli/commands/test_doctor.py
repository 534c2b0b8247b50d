"""`stoker doctor`: text, JSON and exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.diagnostics import checks
from stoker.diagnostics.checks.finding import Finding
from stoker.diagnostics.cli import main


def test_doctor_finds_what_is_wrong_with_a_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "doctored_of_a_test.py").write_text(
        "import random\nclass Own(list):\n    rng = random.Random(0)\ndataset = Own(range(5))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["doctor", "--json", "--dataset", "doctored_of_a_test:dataset"]) == 0
    result = json.loads(capsys.readouterr().out)
    levels = {finding["name"]: finding["level"] for finding in result["findings"]}
    assert levels["random numbers"] == "problem"
    assert {"CPUs", "memory", "/dev/shm", "open files", "start method", "packages"} <= levels.keys()
    assert result["problems"] == sum(level == "problem" for level in levels.values())
    assert main(["doctor", "--json", "--check", "--dataset", "doctored_of_a_test:dataset"]) == 1
    capsys.readouterr()
    assert main(["doctor", "--dataset", "doctored_of_a_test:datset"]) == 1
    assert capsys.readouterr().err == "stoker: doctored_of_a_test has no datset: did you mean dataset?\n"


@pytest.mark.parametrize("columns", [40, 100])
def test_findings_fit_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    wrong = Finding("disk", "problem", "it is very slow " * 8, "Because it matters. " * 8, "buy another one")
    monkeypatch.setattr(checks, "findings", lambda target: iter([wrong, Finding("CPU", "fine", "2 of them")]))
    assert main(["doctor", "--check"]) == 1
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert "PROBLEM disk: it is very slow" in out and "        -> buy another one" in out
    assert out.endswith("1 problems, 0 pieces of advice, 1 fine\n")
    monkeypatch.setattr(checks, "findings", lambda target: iter([Finding("CPU", "fine", "2 of them")]))
    assert main(["doctor", "--check"]) == 0
