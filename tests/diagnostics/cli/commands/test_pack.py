"""`stoker pack` names what it wrote, and its errors are sentences."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.diagnostics.cli import main
from stoker.diagnostics.cli.commands.pack import bytes_of
from stoker.diagnostics.cli.output import CommandError


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packed_of_a_test.py").write_text("rows = [{'y': number} for number in range(7)]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "packed_of_a_test", raising=False)


def test_command_packs_and_verifies(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["pack", "packed_of_a_test:rows", "to", "--max-count", "3", "--workers", "0", "--verify"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert said.startswith("7 samples in 3 files, ") and said.endswith("read back and equal\n")
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["samples"], result["began_at"], len(result["files"])) == (7, 7, 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-folder", "to"], "there is no folder no-such-folder"),
        (["packed_of_a_test:row", "to"], "did you mean rows?"),
        (["packed_of_a_test:rows", "."], "which `stoker pack` has not written"),
        (["packed_of_a_test:rows", "to", "--max-size", "big"], "'big' is no size"),
    ],
)
def test_errors_are_one_sentence(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", *arguments]) == 1
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_sizes() -> None:
    assert [bytes_of(text) for text in ("100", "5kB", "1.5MB", "1GiB")] == [100, 5000, 1_500_000, 2**30]
    for text in ("", "GB", "0", "-1MB"):
        with pytest.raises(CommandError):
            bytes_of(text)
