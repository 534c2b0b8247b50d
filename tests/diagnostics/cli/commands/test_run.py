"""`stoker run`: programs as they are, whole, failing, stopped, in several processes; scripts need no torch here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.diagnostics.cli import main
from stoker.diagnostics.cli.commands.run import WITH_VALUES, ended_after_module, options_before_target, show
from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.process_tree import TreeSample

TRAINS = """
    import sys, time
    from stoker import DataLoader
    if __name__ == "__main__":
        print("argv", sys.argv[1:], __name__)
        loader = DataLoader(list(range(40)), batch_size=4, num_workers=int(sys.argv[1]))
        for _ in range(2):
            for batch in loader:
                time.sleep(0.005)
    """


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TORCH", "0")
    monkeypatch.setenv("COLUMNS", "120")


def script(folder: Path, text: str, name: str = "train.py") -> str:
    path = folder / name
    path.write_text(dedent(text))
    return str(path)


def test_run_shows_each_loader(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", script(tmp_path, TRAINS), "1", "--epochs", "3"]) == 0
    out, err = capfd.readouterr()
    assert out == "argv ['1', '--epochs', '3'] __main__\n"
    header, row = (line.split() for line in err.splitlines() if line.startswith(("loader ", "train.py:8 ")))
    shown = dict(zip(header, row[:1] + row[2:], strict=False))
    assert (shown["loader"], shown["workers"], shown["epochs"], shown["batches"]) == ("train.py:8", "1", "2", "20")
    assert "train.py:8, made at train.py:6: " in err and "the program ended after" in err
    assert "\x1b" not in err  # not a terminal: no colour, no live line


def test_option_behind_the_script_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = script(tmp_path, "import sys\nprint(sys.argv[1:])")
    assert main(["run", path, "--report=r.html"]) == 0
    out, err = capfd.readouterr()
    assert out == "['--report=r.html']\n"
    assert f"--report stands behind {path}, so the script gets it" in err
    path = script(tmp_path, "import argparse\nargparse.ArgumentParser().add_argument('--report')", "own.py")
    assert main(["run", path, "--report=r.html"]) == 0
    assert "stands behind" not in capfd.readouterr().err


def test_memory_is_said_after_three_looks(capfd: pytest.CaptureFixture[str]) -> None:
    known = Measurements()
    for looks in range(1, 4):
        known.samples.append(TreeSample(time=0.1 * looks, cpu=0.1, memory=2**24, processes=1))
        show(known, 0)
        assert ("of memory in all its processes" in capfd.readouterr().err) == (looks == 3)


def test_run_as_json_and_trace(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    assert main(["run", "--json", "--trace", str(trace), script(tmp_path, TRAINS), "0"]) == 0
    out, err = capfd.readouterr()
    result = json.loads(out)
    assert err == "argv ['0'] __main__\n"
    (loader,) = result["loaders"]
    assert (loader["batches"], loader["samples"], loader["epochs"]) == (20, 80, 2)
    assert 0.1 <= loader["seconds"] <= result["seconds"]
    assert loader["verdict"] in ("compute-bound", "balanced", "too short")
    assert result["cpu_seconds"] > 0 and result["peak_memory"] > 2**20
    names = [event["name"] for event in json.loads(trace.read_text())["traceEvents"]]
    assert names.count("step") == 20


def test_run_of_a_module(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, TRAINS, "trains.py")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--engine", "torch", "-m", "trains", "0", "--engine", "theirs", "-m"]) == 0
    out, err = capfd.readouterr()
    assert out == "argv ['0', '--engine', 'theirs', '-m'] __main__\n"
    assert "trains.py:8" in err
    assert main(["run", "-m"]) == 2


@pytest.mark.parametrize("option", ["-mtrains", "--module=trains"])
def test_module_may_be_in_the_option(
    option: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path, "import sys\nprint(sys.argv[1:])", "trains.py")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--engine", "torch", option, "a:b", "--engine", "theirs", "-m", "--help"]) == 0
    assert capfd.readouterr().out == "['a:b', '--engine', 'theirs', '-m', '--help']\n"
    words = ["profile", "--trace", "t.json", option, "a:b", "--engine"]
    assert options_before_target(ended_after_module(words)) == [*words[:4], "--", *words[4:]]


def test_options_with_values_are_those_of_the_commands() -> None:
    """The words after such an option are its value, and no script or module."""
    import typer

    from stoker.diagnostics.cli.app import app

    commands: Any = typer.main.get_command(app)
    takes_module = {}
    for name, command in commands.commands.items():
        options = [one for one in command.params if one.param_type_name == "option"]
        if any("--module" in one.opts for one in options):
            values = [one for one in options if not one.is_flag and "--module" not in one.opts]
            takes_module[name] = {text for one in values for text in one.opts}
    assert takes_module == {name: set(options) for name, options in WITH_VALUES.items()}


def test_failing_program_keeps_traceback_and_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    failing = script(tmp_path, "def f():\n    raise ValueError('no such label')\nf()\n")
    assert main(["run", failing]) == 1
    err = capfd.readouterr().err
    own, _, ours = err.partition("\n\n")
    plain = subprocess.run([sys.executable, failing], capture_output=True, text=True).stderr
    assert own + "\n" == plain
    assert "failed with exit code 1" in ours and "It failed before a loader was iterated over" in ours


@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(7)", 7), ("os._exit(3)", 3), ("os.kill(os.getpid(), 9)", 128 + 9)]
)
def test_exit_code_is_the_programs(ending: str, code: int, tmp_path: Path) -> None:
    assert main(["run", script(tmp_path, f"import os, sys\n{ending}")]) == code


def test_programs_that_it_starts_are_measured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script(tmp_path, TRAINS)
    parent = """
        import os, subprocess, sys
        for rank in range(2):
            child = [sys.executable, os.path.join(os.path.dirname(__file__), "train.py"), "0"]
            subprocess.run(child, env={**os.environ, "RANK": str(rank)}, check=True)
        """
    assert main(["run", "--json", script(tmp_path, parent, "launch.py")]) == 0
    loaders = json.loads(capfd.readouterr().out)["loaders"]
    assert [(loader["name"], loader["batches"]) for loader in loaders] == [
        ("train.py:8 rank 0", 20),
        ("train.py:8 rank 1", 20),
    ]


def test_own_sitecustomize_still_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.of_the_user = __file__\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    assert main(["run", script(tmp_path, "import sys\nprint(sys.of_the_user)")]) == 0
    assert capfd.readouterr().out == f"{tmp_path}/site/sitecustomize.py\n"


def interrupted(path: str, *signals: float) -> tuple[int, str, float]:
    """The exit code, what was printed, and the seconds from the last SIGINT to the end."""
    command = [sys.executable, "-m", "stoker", "run", path]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None and run.stderr is not None
        assert run.stdout.readline() == "ready\n"
        for pause in signals:
            time.sleep(pause)
            run.send_signal(signal.SIGINT)
        begun = time.monotonic()
        err = run.stderr.read()
        run.wait(30)
    return run.returncode, err, time.monotonic() - begun


ENDLESS = """
    import signal, sys, time
    from stoker import DataLoader
    for count, batch in enumerate(DataLoader(list(range(1_000_000)))):
        time.sleep(0.001)
        if count == 300:
            print("ready", flush=True)
    """


def test_ctrl_c_shows_what_was_measured(tmp_path: Path) -> None:
    code, err, took = interrupted(script(tmp_path, ENDLESS), 0)
    assert code == 128 + signal.SIGINT
    assert "KeyboardInterrupt" in err and "the program was interrupted" in err
    row = next(line.split() for line in err.splitlines() if line.startswith("train.py:4 list "))
    assert row[2:4] == ["0", "1"] and int(row[4].replace(",", "")) >= 300
    assert took < 5  # a second, on a machine that is not busy


def test_second_ctrl_c_ends_a_deaf_program(tmp_path: Path) -> None:
    deaf = ENDLESS.replace("from stoker", "signal.signal(signal.SIGINT, signal.SIG_IGN)\n    from stoker", 1)
    code, err, _ = interrupted(script(tmp_path, deaf), 0, 0.3)
    assert code == 128 + signal.SIGKILL
    assert "train.py:5 list" in err


SIGNALLED = """
    import os, signal, sys

    def heed(number, frame):
        print(signal.Signals(number).name, flush=True)
        sys.exit(5)

    for kind in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(kind, heed)
    os.kill(os.getppid(), getattr(signal, sys.argv[1]))
    while True:
        signal.pause()
    """

HEEDS = """if True:
    import os, signal, sys
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever the caller of this test has set, as by nohup
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    """


@pytest.mark.parametrize("kind", ["SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_signals_reach_the_program(kind: str, tmp_path: Path) -> None:
    """As Slurm sends them to the process that it has started."""
    command = [sys.executable, "-c", HEEDS, "-m", "stoker", "run", script(tmp_path, SIGNALLED), kind]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, start_new_session=True)
    assert (run.returncode, run.stdout) == (5, f"{kind}\n")
    assert ("was interrupted" if kind == "SIGHUP" else "failed with exit code 5") in run.stderr


@pytest.mark.parametrize("option", ["", "--json"])
def test_closed_standard_error_costs_the_table_only(option: str, tmp_path: Path) -> None:
    path = script(tmp_path, TRAINS)
    line = f'exec "$0" -m stoker run {option} --report r.html "$1" 0 2>&-'
    run = subprocess.run(["sh", "-c", line, sys.executable, path], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert run.returncode == 0
    assert json.loads(run.stdout)["exit_code"] == 0 if option else run.stdout == "argv ['0'] __main__\n"
    assert (tmp_path / "r.html").stat().st_size > 10_000


CLEANS = """
    import glob, os, shutil, sys, tempfile, time
    from stoker import DataLoader

    def clean():
        for folder in glob.glob(os.path.join(tempfile.gettempdir(), "*")):
            shutil.rmtree(folder)

    if sys.argv[1] == "0":
        clean()
    for count, batch in enumerate(DataLoader(list(range(300))), 1):
        if count == int(sys.argv[1]):
            clean()
        time.sleep(0.003)
    """


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "temporary"


@pytest.mark.parametrize("count", ["0", "150"])
def test_program_that_cleans_temporary_files(
    count: str, temporary: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", script(tmp_path, CLEANS), count]) == 0
    err = capfd.readouterr().err
    assert "records of the measurement were deleted" in err and err.count("is no longer measured") == 1
    assert "Traceback" not in err and "No loader was iterated over" not in err
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("command", ["profile", "tune"])
def test_other_commands_on_a_program_that_cleans(
    command: str, temporary: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([command, script(tmp_path, CLEANS), "0"]) == 1
    out, err = capfd.readouterr()
    assert err.startswith("stoker: ") and err.count("\n") == 1 and "have it delete its own files only" in err
    assert not out and not list(temporary.iterdir())


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no device that is always full")
@pytest.mark.parametrize(("ending", "code"), [("", 1), ("sys.exit(7)", 7)])
def test_files_that_cannot_be_written_cost_no_table(
    ending: str, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path, dedent(TRAINS) + ending)
    report = tmp_path / "report.html"
    assert main(["run", "--report", str(report), "--trace", str(FULL), path, "0"]) == code
    assert report.stat().st_size > 10_000  # the other file is written
    err = capfd.readouterr().err
    shown, _, said = err.rpartition("stoker: ")
    assert "train.py:8 list" in shown
    assert said == "--trace /dev/full: it cannot be written (No space left on device): name another file\n"
    assert main(["run", "--json", "--report", str(FULL), path, "0"]) == code
    assert json.loads(capfd.readouterr().out)["exit_code"] == (7 if ending else 0)


def test_report_of_arguments_that_are_no_text_and_secret(tmp_path: Path) -> None:
    """In the measured process: it gets them as they are."""
    path = script(tmp_path, "import os, sys\nsys.exit(os.fsencode(sys.argv[1]) != b'\\xff' or sys.argv[3] != 'abc')")
    assert main(["run", "--report", str(tmp_path / "r.html"), path, "\udcff", "--token", "abc"]) == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "--token &#x27;***&#x27;" in text and "abc" not in text.partition("<script>")[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--report", "train.py"], "--report train.py would replace the script that is run"),
        (["--trace", "./train.py"], "--trace train.py would replace the script that is run"),
        (["--report", "notes.txt"], "--report notes.txt would replace a file that is no HTML"),
        (["--trace", "before.html"], "--trace before.html would replace a file that is no JSON"),
    ],
)
@pytest.mark.parametrize("command", ["run", "profile"])
def test_files_of_the_user_are_not_replaced(
    command: str,
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path, "print('it ran')")
    Path("notes.txt").write_text("buy milk")
    Path("before.html").write_text("\n<!DOCTYPE html><p>before")
    assert main([command, *arguments, "train.py"]) == 1
    out, err = capfd.readouterr()
    assert said in err and err.count("\n") == 1 and not out
    assert Path("notes.txt").read_text() == "buy milk" and "it ran" in Path("train.py").read_text()


def test_an_earlier_report_is_replaced(tmp_path: Path) -> None:
    path = script(tmp_path, "")
    Path(tmp_path / "r.html").write_text("\n<!DOCTYPE html><p>before")
    Path(tmp_path / "empty.json").touch()
    assert main(["run", "--report", str(tmp_path / "r.html"), "--trace", str(tmp_path / "empty.json"), path]) == 0
    assert len(Path(tmp_path / "r.html").read_text()) > 10_000
    assert "traceEvents" in json.loads(Path(tmp_path / "empty.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "name the script to run"),
        (["run", "trian.py"], "there is no script trian.py: did you mean train.py?"),
        (["run", "http.server"], "stoker run -m http.server"),
        (["run", "a.ipynb"], "jupyter nbconvert --to script a.ipynb"),
        (["run", "--trace", "nowhere/trace.json", "train.py"], "nowhere does not exist"),
        (["run", "--trace", ".", "train.py"], "it cannot be written"),
        (["run", "--engine", "trch", "train.py"], "'torch'"),
        (["run", "--enigne", "torch", "train.py"], "--engine"),
        (["rn"], "Did you mean 'run'?"),
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script(tmp_path, TRAINS)
    monkeypatch.chdir(tmp_path)
    assert main(arguments) in (1, 2)
    out, err = capfd.readouterr()
    assert said in err and err.startswith("stoker: ") and err.count("\n") == 1
    assert not out


def test_engine_stoker_puts_the_engine_in_place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    import stoker

    os.environ.pop("STOKER_TORCH")
    torch_script = script(tmp_path, TRAINS.replace("from stoker", "from torch.utils.data"))
    if "install" not in stoker.__all__:
        assert main(["run", "--engine", "stoker", torch_script, "1"]) == 1
        assert "this version lacks" in capfd.readouterr().err
        return
    assert main(["run", "--engine", "stoker", "--json", torch_script, "1"]) == 0
    (loader,) = json.loads(capfd.readouterr().out)["loaders"]
    assert loader["settings"]["made_at"] == "train.py:6"
    assert (loader["settings"]["engine"], loader["batches"], loader["samples"]) == ("stoker", 20, 80)


WRAPS = """
    from torch.utils.data import DataLoader

    before = DataLoader.__init__
    DataLoader.__init__ = lambda self, *args, **kwargs: before(self, *args, **kwargs)  # as Lightning does, for a call
    loader = DataLoader(list(range(8)), batch_size=4)
    DataLoader.__init__ = before
    for kept in loader, DataLoader(list(range(8)), batch_size=4):
        list(kept)
    """


@pytest.mark.slow
def test_engine_stoker_under_a_wrapped_constructor(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    os.environ.pop("STOKER_TORCH")
    assert main(["run", "--engine", "stoker", "--json", script(tmp_path, WRAPS)]) == 0
    loaders = json.loads(capfd.readouterr().out)["loaders"]
    assert {loader["settings"]["engine"] for loader in loaders} == {"stoker"}


def test_torch_script_is_measured_as_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    torch_script = script(tmp_path, TRAINS.replace("from stoker", "from torch.utils.data"))
    assert main(["run", "--json", torch_script, "1"]) == 0
    (loader,) = json.loads(capfd.readouterr().out)["loaders"]
    assert (loader["settings"]["engine"], loader["batches"], loader["samples"]) == ("torch", 20, 80)


def test_narrow_terminal_shows_a_list(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["run", script(tmp_path, TRAINS), "0"]) == 0
    err = capfd.readouterr().err
    assert max(map(len, err.splitlines())) <= 40
    assert re.search(r"^batches +20$", err, re.MULTILINE)
    assert "\n\n\n" not in err
