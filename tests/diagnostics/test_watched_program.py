"""Programs that are watched: ended at their limit, at once, or for want of memory, with all that they have started."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from stoker._core.machine.memory import Available
from stoker.diagnostics import watched_program
from stoker.diagnostics.settings.batch_limit import BatchLimit
from stoker.diagnostics.settings.setting_trial import LoaderSetting, Override
from stoker.diagnostics.watched_program import TOO_LATE, WatchedProgram, run_to_limit

ENDLESS = """
    import sys, time
    from stoker import DataLoader
    print("begun", flush=True)
    try:
        for batch in DataLoader(list(range(1_000_000)), batch_size=4, num_workers=1, output="numpy"):
            time.sleep(0.001)
    finally:
        print("finally", flush=True)
    """


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TORCH", "0")


def command(folder: Path, text: str) -> list[str]:
    path = folder / "train.py"
    path.write_text(dedent(text))
    return [sys.executable, str(path)]


def test_program_ends_itself_at_its_limit(tmp_path: Path) -> None:
    with WatchedProgram(command(tmp_path, ENDLESS), limit=BatchLimit(25)) as program:
        assert run_to_limit(program) is None
        assert (program.code, program.last_words()) == (0, "finally")
        (loader,) = program.measurements.loaders
        assert (loader.summary().batches, loader.about["num_workers"]) == (25, 1)
        folder = os.path.dirname(program.log)
    assert not os.path.exists(folder)


def test_loaders_get_the_setting(tmp_path: Path) -> None:
    override = Override(LoaderSetting(0, batch_size=10), "train.py:6", "list")
    with WatchedProgram(command(tmp_path, ENDLESS), limit=BatchLimit(5), override=override) as program:
        assert run_to_limit(program) is None
        (loader,) = program.measurements.loaders
        assert (loader.about["num_workers"], loader.summary().samples) == (0, 50)


def test_program_that_swallows_the_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_program, "GRACE", 0.2)
    deaf = ENDLESS.replace("finally:", "except BaseException:\n        time.sleep(600)\n    finally:")
    with WatchedProgram(command(tmp_path, deaf), limit=BatchLimit(5)) as program:
        assert run_to_limit(program) is None  # it was measured
        assert program.code == 128 + 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('no such label')", "exit code 1: ValueError: no such label"),
        ("import sys; sys.exit(7)", "exit code 7: it printed nothing"),
        ("input()", "exit code 1: EOFError: EOF when reading a line"),
    ],
)
def test_failure_is_told_with_its_last_line(text: str, said: str, tmp_path: Path) -> None:
    with WatchedProgram(command(tmp_path, text), limit=BatchLimit(5)) as program:
        assert run_to_limit(program) == f"it ended with {said}"


def test_late_program_is_killed_with_its_children(tmp_path: Path) -> None:
    text = """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        print(child.pid, flush=True)
        time.sleep(600)
        """
    with WatchedProgram(command(tmp_path, text), limit=BatchLimit(5)) as program:
        while program.last_words() == "it printed nothing":
            program.look()
        child = int(program.last_words())
        assert run_to_limit(program, seconds=0.1) == TOO_LATE
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{child}") and time.monotonic() < deadline:  # init reaps it
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{child}") or b"Z" in Path(f"/proc/{child}/stat").read_bytes()


def test_program_is_killed_before_memory_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_program, "shortage", lambda: "12 MiB of memory were left, limited by the machine")
    with WatchedProgram(command(tmp_path, "import time\ntime.sleep(600)"), limit=BatchLimit(5)) as program:
        assert run_to_limit(program) == "12 MiB of memory were left, limited by the machine"
        assert program.code == 128 + 9


@pytest.mark.parametrize(
    ("left", "limit", "is_short"),
    [(60, 1024, True), (70, 1024, False), (400, 16384, True), (600, 16384, False), (30, 128, False), (10, 128, True)],
)
def test_memory_is_short(left: int, limit: int, is_short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    available = Available(left << 20, limit << 20, "memory cgroup /a (v2)")
    monkeypatch.setattr(watched_program.memory, "available", lambda: available)
    said = watched_program.shortage()
    assert (said is not None) is is_short
    assert said is None or said == f"{left} MiB of memory were left, limited by memory cgroup /a (v2)"


def test_an_exception_ends_the_program_at_once(tmp_path: Path) -> None:
    began = 0.0
    with pytest.raises(KeyboardInterrupt), WatchedProgram(command(tmp_path, ENDLESS)) as program:
        while not program.measurements.loaders:
            program.look()
        began = time.monotonic()
        raise KeyboardInterrupt
    assert time.monotonic() - began < 5  # a second, on a machine that is not busy


def test_output_is_searched_for_a_warning(tmp_path: Path) -> None:
    with WatchedProgram(command(tmp_path, "print('a')\nprint('a loader stays on torch: why')")) as program:
        assert run_to_limit(program) is None
        assert program.said("stays on torch") == "a loader stays on torch: why"
        assert program.said("no such text") is None
