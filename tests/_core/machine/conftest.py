"""What the tests of this folder share: fake trees of `/proc` and `/sys`, scripts as programs, a real memory cgroup."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.cgroups import limited_to

Tree = Callable[[dict[str, object]], str]
Script = Callable[..., str]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Writes files (path: content) below a new root and returns that root."""

    def write(files: dict[str, object]) -> str:
        for path, content in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(f"{content}\n")
        return str(tmp_path)

    return write


@pytest.fixture
def script() -> Script:
    """Runs lines of Python as a program of one thread, and returns what it printed; it must end well."""

    def run(lines: str) -> str:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-W", "error", "-c", dedent(lines)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def cgroup_of_200_mb() -> Iterator[Path]:
    """A memory cgroup of 200 MiB below this process's own, for programs that move into it."""
    yield from limited_to(200)
