"""resume.py: killed and resumed with other workers, it gives the losses of an undisturbed run."""

from __future__ import annotations

import fcntl
import itertools
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "resume.py"
STEPS, SAVED = 174, 7
LINE = re.compile(r"epoch (\d+), step (\d+): loss (\S+)")
PIPE = 4096  # bytes, less than 100 lines: the writer is at most that far ahead of the reader


class Training(subprocess.Popen[bytes]):
    """The example while it runs."""

    def __init__(self, checkpoint: Path, workers: int) -> None:
        arguments = {"--checkpoint": checkpoint, "--workers": workers, "--epochs": 6, "--save-every": SAVED}
        words = [str(word) for pair in arguments.items() for word in pair]
        settings: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "bufsize": 0}
        super().__init__([sys.executable, str(SCRIPT), *words], **settings)
        assert self.stdout is not None
        fcntl.fcntl(self.stdout, fcntl.F_SETPIPE_SZ, PIPE)
        self.lines: list[str] = []

    def read(self, until: int | None = None) -> None:
        """Reads lines until that of a step, or all."""
        assert self.stdout is not None
        for line in self.stdout:
            self.lines.append(line.decode().rstrip())
            found = LINE.match(self.lines[-1])
            if found and int(found[2]) == until:
                return

    def losses(self) -> dict[int, str]:
        return {int(found[2]): found[0] for line in self.lines if (found := LINE.match(line))}


def test_the_losses_are_those_of_a_run_that_was_never_stopped(tmp_path: Path) -> None:
    chance = random.Random(7)
    with Training(tmp_path / "undisturbed.pt", workers=2) as undisturbed:
        checkpoint = tmp_path / "killed.pt"
        runs = [(2, chance.randint(10, 35)), (0, chance.randint(45, 70)), (2, None)]
        told: list[dict[int, str]] = []
        for workers, last in runs:
            with Training(checkpoint, workers) as training:
                training.read(until=last)
                if last is not None:
                    training.send_signal(signal.SIGKILL)
                training.read()  # what it had written before the kill
            assert training.returncode == (0 if last is None else -signal.SIGKILL), "\n".join(training.lines)
            told.append(training.losses())
        undisturbed.read()
    assert undisturbed.returncode == 0, "\n".join(undisturbed.lines)
    model = undisturbed.losses()
    assert list(model) == list(range(1, STEPS + 1))
    for before, after in itertools.pairwise(told):
        killed_at = max(before)  # maybe before it was saved
        assert min(after) - 1 in {step - step % SAVED for step in (killed_at - 1, killed_at)}
    assert max(told[-1]) == STEPS
    for losses in told:
        assert losses == {step: model[step] for step in losses}
