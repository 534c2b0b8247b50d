"""`stoker demo`: a table of its programs, or one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stoker.diagnostics import demo
from stoker.diagnostics.cli import main
from stoker.diagnostics.demo import PROGRAMS

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("torch")
pytest.importorskip("PIL.Image")


@pytest.mark.slow
def test_all_programs_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["demo", "--images", "128", "--workers", "1", "--rounds", "1", "--keep", str(tmp_path), "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["program"] for each in found["programs"]] == list(PROGRAMS)
    assert all(each["images_per_second"] > 0 and each["cpu_seconds_per_1000"] > 0 for each in found["programs"])
    assert found["programs"][2]["equal_pixels"] is True
    assert sum(len(files) for _, _, files in os.walk(tmp_path)) == 128


FIGURES = {"first_batch_seconds": 0.5, "cpu_seconds_per_1000": 2.0, "crops": "Pillow"}


@pytest.fixture
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "stoker.diagnostics.cli.commands.demo.make_pictures", lambda folder, count, on_progress: 1024 * count
    )


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("columns", ["40", "120"])
@pytest.mark.parametrize("equal", [True, False])
def test_table(columns: str, equal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(program: str, folder: str, workers: int) -> dict[str, Any]:
        rate = {"torch": 100.0, "install": 200.0, "stoker": 290.0}[program]
        return {"images_per_second": rate, **FIGURES} | ({"equal_pixels": equal} if program == "stoker" else {})

    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(demo, "_run", run)
    assert main(["demo", "--rounds", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2.00" in shown and "2.90" in shown and ("THEY DIFFER" in shown) != equal


@pytest.mark.usefixtures("few_pictures")
def test_program_that_fails_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 1  # there are no pictures
    assert "the program 'torch' of the demo failed: " in capsys.readouterr().err


def test_folders_that_do_not_fit_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    assert main(["demo", "--keep", str(tmp_path)]) == 1
    assert "it holds 'mine', which is no picture of the demo" in capsys.readouterr().err
    assert main(["demo", "--keep", str(tmp_path / "mine" / "new")]) == 1
    assert "the pictures cannot be written to" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_missing_package_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.diagnostics.cli.commands.demo.importlib.util.find_spec", lambda name: None)
    assert main(["demo"]) == 1
    assert "pip install 'stoker[torch]'" in capsys.readouterr().err
