"""Ctrl-C at any stage of an example: within a second it is over, one line says how far it came, and nothing is left.

That no process is left is what the fixture sees to that runs after every test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

WITHIN = 1.5  # seconds: what is promised, and half of it for a machine that is busy
EPOCHS = 1000
IMPORTING = {"PYTHONPROFILEIMPORTTIME": "1"}  # each module is a line when it has been imported


def by_terminal(program: Any) -> None:
    """Sends the signal to all processes of the program, as a terminal does."""
    os.killpg(program.process.pid, signal.SIGINT)


def by_kill(program: Any) -> None:
    """Sends the signal to the process alone that was started, as `kill -INT` does."""
    program.process.send_signal(signal.SIGINT)


def ends(program: Any, said: str) -> None:
    pressed = time.monotonic()
    code = program.end(within=30)
    took = time.monotonic() - pressed
    output = "\n".join(line for line in program.lines if not line.startswith("import time:"))
    assert code == 130, output
    assert "Traceback" not in output
    assert "Exception" not in output
    assert f"Stopped by Ctrl-C {said}" in output
    assert took < WITHIN, f"{took:.2f} s\n{output}"


@pytest.mark.parametrize("script", ["make_photos.py", "train_images.py"])
def test_while_it_is_being_imported(script: str, tmp_path: Path, program: Callable[..., Any]) -> None:
    with program(script, "--data", tmp_path / "photos", **IMPORTING) as running:
        running.read_until("| PIL" if script == "make_photos.py" else "| numpy")
        running.process.send_signal(signal.SIGINT)
        ends(running, "before it had begun.")
    assert not list(tmp_path.iterdir())


def test_interrupted_pool_prints_no_traceback() -> None:
    """A pool of processes that has not begun, for instance."""
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2] / "examples")!r})
import ctrl_c
with ctrl_c.answered(lambda: "here"):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        raise RuntimeError("cannot join thread before it is started")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (130, "Stopped by Ctrl-C here.\n")


@pytest.mark.parametrize("press", [by_terminal, by_kill])
def test_while_photographs_are_made(tmp_path: Path, press: Callable[[Any], None], program: Callable[..., Any]) -> None:
    with program("make_photos.py", "--data", tmp_path / "photos", "--images", 2000) as making:
        making.read_until("processes")
        press(making)
        ends(making, "after ")
    assert "of 2,000 photographs. They are kept" in making.output
    assert [path.name for path in tmp_path.iterdir()] == [".photos.2000.unfinished"]


@pytest.mark.parametrize("press", [by_terminal, by_kill])
def test_while_workers_start(photos: Path, press: Callable[[Any], None], program: Callable[..., Any]) -> None:
    with program("train_images.py", "--data", photos, "--loader", "stoker", "--epochs", EPOCHS) as training:
        training.read_until("to validate")
        press(training)
        ends(training, "before the first batch.")


@pytest.mark.parametrize(
    ("loader", "backend", "press"),
    [
        ("stoker", "serial", by_terminal),
        ("stoker", "thread", by_terminal),
        ("stoker", "process", by_terminal),
        ("stoker", "process", by_kill),
        ("torch", "process", by_terminal),
    ],
)
def test_ctrl_c_ends_training(
    photos: Path, loader: str, backend: str, press: Callable[[Any], None], program: Callable[..., Any]
) -> None:
    arguments = ["--loader", loader, "--backend", backend, "--epochs", EPOCHS, "--batch-size", 4]
    with program("train_images.py", "--data", photos, *arguments) as training:
        training.read_until("%")  # of the first epoch
        press(training)
        ends(training, "in epoch ")
    assert training.lines[-1].endswith("of 9 batches.")


def test_while_the_first_run_is_imported(photos: Path, program: Callable[..., Any]) -> None:
    with program("train_images.py", "--data", photos, **IMPORTING) as comparing:
        comparing.read_until("| numpy", times=2)  # by the program, and by the run
        by_terminal(comparing)
        ends(comparing, "in run 1 of 3.")


def test_ctrl_c_ends_the_second_run(photos: Path, program: Callable[..., Any]) -> None:
    with program("train_images.py", "--data", photos, "--epochs", 1) as comparing:
        comparing.read_until("to validate", times=2)
        by_terminal(comparing)
        ends(comparing, "in run 2 of 3.")
