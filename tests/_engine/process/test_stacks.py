"""The stacks of workers, and of those that cannot be asked for theirs."""

from __future__ import annotations

import os
import subprocess

from stoker._engine.process.stacks import Stacks


def test_who_would_die_of_the_question_is_not_asked() -> None:
    """As a worker whose sample has reset the handlers of all signals."""
    stacks = Stacks(1)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        told = stacks.read([(0, process.pid)])
    assert told.startswith(f"Worker 0 (pid {process.pid}):\n(cannot be asked") and process.returncode == 0
    os.close(stacks.descriptor(0))
