"""`stoker compare`: both engines by turns, and what it says if there is nothing to compare."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.diagnostics.cli import main
from stoker.diagnostics.cli.commands import compare
from stoker.diagnostics.cli.output import console_of
from stoker.diagnostics.settings.engine_comparison import EngineRounds, EngineRun, compared
from stoker.errors import ProgramFailedError

TRAINS = """
    import sys, time
    from torch.utils.data import DataLoader
    if __name__ == "__main__":
        for _ in range(3):
            for batch in DataLoader(list(range(400)), batch_size=4, num_workers=int(sys.argv[1])):
                time.sleep(0.001)
        raise SystemError("it should have been ended before")
    """


@pytest.fixture(autouse=True)
def narrow_and_wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)


def script(text: str) -> None:
    Path("train.py").write_text(dedent(text))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param("0", marks=pytest.mark.long), "2"])
def test_both_engines_give_the_same_batches(workers: str, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    script(TRAINS)
    assert main(["compare", "--batches", "150", "--rounds", "1", "--json", "train.py", workers]) == 0
    result = json.loads(capfd.readouterr().out)
    assert [run["engine"] for run in result["runs"]] == ["torch", "stoker"]
    assert [(run["batches"], run["samples"]) for run in result["runs"]] == [(150, 600)] * 2
    assert result["loader"]["site"] == "train.py:6"
    assert result["figures"]["samples/s"]["ratio"]["median"] > 0


@pytest.mark.slow
def test_first_run_decides_how_many_batches(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    script(TRAINS)
    assert main(["compare", "--seconds", "0.1", "--rounds", "1", "-m", "train", "0"]) == 0
    out = capfd.readouterr().out
    assert out.startswith("train.py:6 list, 0 workers: ") and "batches in each run, 1 round" in out
    assert "times the samples/s in one round" in out


@pytest.mark.slow
def test_engine_that_is_not_used_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    script(
        """
        import stoker
        from torch.utils.data import DataLoader
        loader = DataLoader(list(range(400)), batch_size=4)
        stoker.install().undo()
        for batch in loader:
            pass
        """
    )
    assert main(["compare", "--batches", "20", "--rounds", "1", "train.py"]) == 1
    assert "Stoker's engine was not used for train.py:6" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare"], "stoker compare train.py"),
        (["compare", "trian.py"], "did you mean train.py?"),
        (["compare", "--batches", "1", "train.py"], "--batches"),
        (["compare", "train.py"], "ValueError: no such label"),
    ],
)
def test_refusal_is_one_sentence(arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    script("raise ValueError('no such label')")
    assert main(arguments) in (1, 2)
    out, err = capfd.readouterr()
    assert said in err and err.startswith("stoker: ") and err.count("\n") == 1
    assert not out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('nothing to do')", "no loader was iterated over.*nothing to do"),
        ("from stoker import DataLoader\nlist(DataLoader([1, 2], output='numpy'))", "uses Stoker's engine by itself"),
    ],
)
def test_program_without_torchs_loader(
    text: str, said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_TORCH", "0")
    script(text)
    known = EngineRounds([sys.executable, "train.py"], 2, 1.0, 1)
    with pytest.raises(ProgramFailedError, match=said):
        known.run(lambda state: None)
    assert known.runs == []


def rounds_of(*rates: float) -> EngineRounds:
    known = EngineRounds([], 10, 1.0, 1)
    known.about = {"site": "train.py:3", "dataset": "Photos", "num_workers": 2}
    for number, rate in enumerate(rates):
        known.runs.append(EngineRun(("torch", "stoker")[number % 2], 10, 100, rate, rate, 0.5, 0.1, 1.0, 300 << 20))
    return known


@pytest.mark.parametrize("columns", ["40", "120"])
def test_table_has_medians_and_spreads(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    known = rounds_of(100, 150, 110, 160)
    compare.show(console_of(sys.stdout), known, compared(known.runs))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= int(columns)
    assert "105 (100-110)" in out and "1.48 (1.45-1.50)" in out and "300.0 MiB" in out
    assert "Stoker's engine gives more samples/s" in out


def test_interrupted_comparison_shows_whole_rounds(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script("pass")

    def interrupted(self: EngineRounds, watch: Any) -> None:
        self.__dict__.update(rounds_of(100, 150, 110).__dict__)
        raise KeyboardInterrupt

    monkeypatch.setattr(EngineRounds, "run", interrupted)
    assert main(["compare", "train.py"]) == 130
    assert "10 batches in each run, 1 round" in capfd.readouterr().out
    assert main(["compare", "--json", "train.py"]) == 130
    result = json.loads(capfd.readouterr().out)
    assert (result["interrupted"], len(result["runs"]), result["rounds"]) == (True, 3, 1)


def test_failure_in_a_later_round_keeps_what_was_measured(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script("pass")

    def fails(self: EngineRounds, watch: Any) -> None:
        self.__dict__.update(rounds_of(100, 150).__dict__)
        raise ProgramFailedError("under stoker's engine the program failed: exit code 1")

    monkeypatch.setattr(EngineRounds, "run", fails)
    assert main(["compare", "train.py"]) == 1
    out, err = capfd.readouterr()
    assert "1.50" in out and "the program failed" in err
