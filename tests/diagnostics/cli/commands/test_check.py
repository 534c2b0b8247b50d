"""`stoker check`: the exit code, what is printed, and the file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import stoker

pytest.importorskip("typer")

from stoker.diagnostics.cli import main

ROWS = """
    class Rows:
        def __init__(self, bad):
            self.bad = bad

        def __len__(self):
            return 40

        def __getitem__(self, index):
            if index in self.bad:
                raise FileNotFoundError(f"photo-{index}.jpg")
            return {"value": 1.0, "label": index % 4}

    some, good = Rows({7, 30}), Rows(())
    """


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "checked_of_a_test.py").write_text(dedent(ROWS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "checked_of_a_test", raising=False)
    return tmp_path


def test_bad_samples_end_with_code_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "checked_of_a_test:some", "--workers", "0"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("2 of 40 samples are bad.")
    assert "sample 7: FileNotFoundError: photo-7.jpg" in said
    assert 'stoker.quarantine("bad-samples.jsonl").without(dataset)' in said
    assert stoker.quarantine("bad-samples.jsonl").indices == [7, 30]
    assert main(["check", "checked_of_a_test:some", "--workers", "0"]) == 1
    assert "name another file, or delete it" in capsys.readouterr().err


def test_good_samples_end_with_code_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "checked_of_a_test:good", "--workers", "0", "--labels", "4"]) == 0
    assert "40 samples, and none is missing" in capsys.readouterr().out
    assert main(["check", "checked_of_a_test:good", "--workers", "0", "--labels", "3", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["found"] == 10 and told["bad"][0]["index"] == 3


def test_source_that_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "nowhere"]) == 1
    assert "there is no file, no folder and no module:object 'nowhere'" in capsys.readouterr().err
