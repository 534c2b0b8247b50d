"""`stoker compare before.html after.html`: the table, the page, and files that cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.diagnostics.cli import main
from stoker.diagnostics.page.report_page import write_report
from tests.diagnostics.page.test_report_page import measured


@pytest.fixture(autouse=True)
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    write_report(measured(batches=200), "before.html", "python train.py", "torch")
    write_report(measured(batches=400, wait=0.01, loaders=3), "after.html", "python train.py", "stoker")


def test_table_has_the_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "before.html", "after.html"]) == 0
    out = capsys.readouterr().out
    assert "train0.py:8 Photos, 2 and 2 workers, torch and stoker" in out
    assert "figure" in out and "before.html" in out and "CPU-s / 1,000 samples" in out
    assert "before.html: Data-bound: the loop waits 61% of its time" in out
    assert "train2.py:8 Photos is in after.html alone." in out
    assert "more samples/s in the second report" in out


@pytest.mark.parametrize(
    "words",
    [
        ["before.html", "after.html", "--report", "both.html", "--json"],
        ["--json", "--report", "both.html", "before.html", "after.html"],
        ["before.html", "--report=both.html", "after.html", "--json"],
    ],
)
def test_page_is_written_and_json_printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loaders"][0]["figures"][0]["ratio"] > 1.5
    assert "before.html and after.html" in Path("both.html").read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_page_that_cannot_be_written_costs_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--report", "/dev/full", "before.html", "after.html"]) == 1
    out, err = capsys.readouterr()
    assert "more samples/s in the second report" in out
    assert err == "stoker: --report /dev/full: it cannot be written (No space left on device): name another file\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["before.html"], "two reports are compared, not 1"),
        (["before.html", "after.html", "after.html"], "not 3"),
        (["before.html", "before.html"], "are the same file"),
        (["before.html", "missing.html"], "missing.html cannot be read (No such file or directory)"),
        (["before.html", "notes.html"], "notes.html is no report"),
        (["before.html", "train.py"], "train.py is no report"),
        (["before.html", "after.html", "--rounds", "2"], "--rounds is for a script"),
        (["--batches", "3", "before.html", "after.html"], "--batches is for a script"),
        (["--rounds", "3", "before.html", "after.html"], "--rounds is for a script"),
        (["--seconds", "5", "before.html", "after.html"], "--seconds is for a script"),
        (["--loader", "a.py:3", "before.html", "after.html"], "--loader is for a script"),
        (["before.html", "after.html", "--report"], "--report needs the name of a file"),
        (["before.html", "after.html", "--report", "after.html"], "would replace a report"),
        (["before.html", "after.html", "--report", "no/both.html"], "does not exist"),
        (["before.html", "after.html", "--report", "train.py"], "would replace a file that is no HTML"),
        (["--report", "both.html", "train.py"], "--report is for two reports"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("notes.html").write_text("<p>notes</p>")
    Path("train.py").write_text("pass")
    assert main(["compare", *words]) == 1
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
