"""Runs train_images.py in each of its three ways to load, and sets the figures side by side.

It takes the arguments of train_images.py, which starts it when no `--loader` is named. Each run is a process of its
own, watched from this one, which has no torch in it: so the processor time and the memory of a run are its own.
"""

from __future__ import annotations

import ctrl_c  # first, so that Ctrl-C is answered while the rest is imported

# isort: split

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
from figures import Figures, table
from rich.console import Console

LOADERS = ("images", "stoker", "torch")  # in this order, so that it is ours that reads a cold disk
SAMPLE_EVERY = 0.5  # seconds
# With the C library's defaults it is luck whether a training step's memory is mapped anew in each step, or never, which
# is worth up to a tenth of the processor time, with either loader. So it is kept.
KEPT = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
PATIENCE = 0.9  # seconds; more than a run has, which so can say itself how far it came


def run(loader: str, arguments: list[str]) -> Figures:
    """Trains once, and returns the run's own figures with the memory that was seen from outside."""
    program = Path(__file__).with_name("train_images.py")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        with ctrl_c.held_back():
            process = psutil.Popen(
                [sys.executable, str(program), *arguments, "--loader", loader, "--json", str(file)],
                env={**KEPT, **os.environ},
            )
        peak_memory = 0
        try:
            while process.poll() is None:
                peak_memory = max(peak_memory, memory(process))
                with suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired):
                    process.wait(SAMPLE_EVERY)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        if process.returncode:
            raise SystemExit(process.returncode)
        return Figures(**{**json.loads(file.read_text()), "peak_memory": peak_memory})


def memory(program: psutil.Process) -> int:
    """Returns the bytes of a process and its descendants; a page that n processes share counts 1/n in each."""
    total = 0
    for process in [program, *program.children(recursive=True)]:
        with suppress(psutil.Error):  # it ended meanwhile
            info = process.memory_full_info()
            total += getattr(info, "pss", info.uss)  # what only Linux knows, else what belongs to it alone
    return total


def main() -> None:
    runs: list[Figures] = []
    with ctrl_c.answered(lambda: f"in run {len(runs) + 1} of {len(LOADERS)}", PATIENCE):
        for loader in LOADERS:
            runs.append(run(loader, sys.argv[1:]))
        Console().print(table(runs))


if __name__ == "__main__":
    main()
