"""The examples are run as programs: they answer Ctrl-C by a handler of their own, so nothing here imports them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDED = ("matplotlib", "PIL", "psutil", "rich", "skimage", "sklearn", "torch", "typer")
WITHIN = 100.0  # seconds for a program that ends by itself


class Program:
    """One of the examples while it runs: its output and its errors are one stream of lines."""

    def __init__(self, script: str, *arguments: object, **environment: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / script), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "80", **environment},
            start_new_session=True,  # and so a process group, which a terminal would send its Ctrl-C to
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()

    def read_until(self, sign: str, times: int = 1) -> None:
        """Reads lines until a given number of them end with `sign`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            times -= line.rstrip().endswith(sign)
            if not times:
                return
        pytest.fail(f"no line ended with {sign!r}:\n" + "\n".join(self.lines))

    def end(self, within: float = WITHIN) -> int:
        """Waits for the end, and returns the exit code."""
        output, _ = self.process.communicate(timeout=within)
        self.lines += output.splitlines()
        return self.process.returncode

    @property
    def output(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture(scope="session", autouse=True)
def packages() -> None:
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        pytest.skip(f"the demo needs {', '.join(missing)}: pip install 'stoker[demo,torch]'")


@pytest.fixture(scope="session")
def program() -> Callable[..., Program]:
    return Program


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty photographs, made by the example."""
    folder = tmp_path_factory.mktemp("demo") / "photos"
    with Program("make_photos.py", "--data", folder, "--images", 40) as making:
        assert making.end() == 0, making.output
    return folder
