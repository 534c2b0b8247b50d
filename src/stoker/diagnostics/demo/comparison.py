"""The demo's comparison: its programs by turns, each time in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from stoker.diagnostics.demo.programs import PROGRAMS

LONGEST = 600.0
"""Seconds after which a program is ended."""


class DemoError(RuntimeError):
    """A program of the demo fails: the message has its last line."""


@dataclass(frozen=True)
class ProgramFigures:
    """The medians of a program's runs.

    Attributes:
        program: its name.
        images_per_second: behind the first batch.
        first_batch_seconds: from the loader to its first batch.
        cpu_seconds_per_1000: processor time of all processes for 1,000 images.
        crops: the library that makes the crops.
        equal_pixels: whether all pixels compared are Pillow's; None if the program does not compare them.
    """

    program: str
    images_per_second: float
    first_batch_seconds: float
    cpu_seconds_per_1000: float
    crops: str
    equal_pixels: bool | None

    def as_dict(self) -> dict[str, Any]:
        """Returns the figures as plain values."""
        return asdict(self)


def compare(folder: str, workers: int, rounds: int, on_run: Callable[[str, int], object]) -> list[ProgramFigures]:
    """Runs each program `rounds` times, by turns, and returns their figures.

    Args:
        folder: of the pictures.
        workers: of each loader.
        rounds: the second one runs them in the opposite order, and so on.
        on_run: is called before each run with the program's name and the number of runs done.

    Raises:
        DemoError: a program fails, or takes longer than `LONGEST`.
    """
    runs: dict[str, list[dict[str, Any]]] = {program: [] for program in PROGRAMS}
    for number in range(rounds):
        for program in PROGRAMS[:: -1 if number % 2 else 1]:
            on_run(program, sum(map(len, runs.values())))
            runs[program].append(_run(program, folder, workers))
    return [_figures(program, found) for program, found in runs.items()]


def _run(program: str, folder: str, workers: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "stoker.diagnostics.demo.programs", program, folder, str(workers)]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired as error:
        raise DemoError(
            f"the program {program!r} of the demo took longer than {LONGEST:.0f} s, and was ended"
        ) from error
    if ended.returncode:
        last = (ended.stderr.strip() or f"exit code {ended.returncode}").splitlines()[-1]
        raise DemoError(f"the program {program!r} of the demo failed: {last}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def _figures(program: str, runs: list[dict[str, Any]]) -> ProgramFigures:
    names = "images_per_second", "first_batch_seconds", "cpu_seconds_per_1000"
    rate, first, used = (median(run[name] for run in runs) for name in names)
    equal = [run["equal_pixels"] for run in runs if "equal_pixels" in run]
    return ProgramFigures(program, rate, first, used, runs[0]["crops"], all(equal) if equal else None)
