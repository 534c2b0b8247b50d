"""Small real scripts, run as programs under both births; what they print is what is stated of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

Run = Callable[..., str]


@pytest.fixture(params=["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def birth(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a script and returns what it printed, or the last line of its error. `BIRTH` in it is the start method."""

    def program(birth: str, text: str, how: str = "file", torch: bool = False) -> str:
        text = dedent(text).replace("BIRTH", repr(birth))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PLACE": str(tmp_path)}
        environment.pop("PYTHONUNBUFFERED", None)
        if not torch:
            environment["STOKER_TORCH"] = "0"
        command, sent = [sys.executable], None
        if how == "file":
            path = tmp_path / "script.py"
            path.write_text(text)
            command += [str(path)]
        elif how == "-c":
            command += ["-c", text]
        else:  # typed: a blank line ends each block
            command += ["-i", "-q"] if how == "typed" else ["-"]
            sent = text
        done = subprocess.run(
            command, input=sent, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=110
        )
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
        return done.stdout.strip()

    return program
