"""What does a program gain that follows the first suggestion of `stoker run`?

Each program is slow for one known reason. It runs as it is, and with the change that the verdict of `stoker run` names
first; tests/diagnostics/test_first_suggestion.py checks that it names this one. The figure is the samples/s of the
program's loop, from the first `iter(loader)` to the end. The programs sleep or compute for a known time: how much a
real program gains depends on its own times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import method
from method import Case, Figures, Goal


class Program(NamedTuple):
    """A slow program.

    Attributes:
        text: its body, behind `BEGINNING`.
        slow: what is changed.
        quick: the change.
        library: of the loader.
    """

    text: str
    slow: str
    quick: str
    library: str = "torch.utils.data"


BEGINNING = """
import sys, time
from {library} import DataLoader

def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def train(loader, step):
    for batch in loader:
        time.sleep(step)
        train.samples += 4 if len(batch) > 1000 else len(batch)

class Samples:
    def __init__(self, number):
        self.number = number
        self.index = None

    def __len__(self):
        return self.number

    def __getitem__(self, number):
        return number
"""

ENDING = """
train.samples, begun = 0, time.perf_counter()
if __name__ == "__main__":
    main()
    print(train.samples / (time.perf_counter() - begun))
"""

_SAMPLER = """
class Weighted:
    def __init__(self, number):
        self.number = number

    def __len__(self):
        return self.number

    def __iter__(self):
        for index in range(self.number):
            time.sleep(0.0004)
            yield index
"""

_SLOW_SAMPLER = f"""{_SAMPLER}
def main():
    loader = DataLoader(Samples(1600), 32, sampler=Weighted(1600), num_workers=2)
    train(loader, 0.002)
"""

_SLEEPS = """
class Slow(Samples):
    def __getitem__(self, number):
        time.sleep({seconds})
        return number
"""

PROGRAMS = {
    "a slow sampler": Program(_SLOW_SAMPLER, "time.sleep(0.0004)", "pass"),
    "a slow sampler, Stoker's loader": Program(_SLOW_SAMPLER, "time.sleep(0.0004)", "pass", "stoker"),
    "samples that sleep behind a quick sampler": Program(
        f"""{_SLEEPS.format(seconds=0.01)}{_SAMPLER.replace("time.sleep(0.0004)", "pass")}
def main():
    loader = DataLoader(Slow(200), 4, sampler=Weighted(200), num_workers=2)
    train(loader, 0.002)
""",
        "num_workers=2",
        "num_workers=4",
        "stoker",
    ),
    "a loader made in each epoch": Program(
        """
def new():
    return DataLoader(Samples(16), 4, num_workers=2)

def main():
    for epoch in range(12):
        train(new(), 0.005)
""",
        "    for epoch in range(12):\n        train(new(), 0.005)",
        "    loader = DataLoader(Samples(16), 4, num_workers=2, persistent_workers=True)\n"
        "    for epoch in range(12):\n        train(loader, 0.005)",
    ),
    "one loader with persistent workers, samples that sleep": Program(
        f"""{_SLEEPS.format(seconds=0.01)}
def main():
    loader = DataLoader(Slow(40), 4, num_workers=2, persistent_workers=True)
    for epoch in range(5):
        train(loader, 0.002)
""",
        "num_workers=2",
        "num_workers=4",
        "stoker",
    ),
    "spawned workers and short epochs": Program(
        """
def main():
    loader = DataLoader(Samples(16), 4, num_workers=2, multiprocessing_context="spawn")
    for epoch in range(4):
        train(loader, 0.005)
""",
        "num_workers=2",
        "num_workers=2, persistent_workers=True",
        "stoker",
    ),
    "an index that each worker reads": Program(
        """
class Indexed(Samples):
    def __getitem__(self, number):
        if self.index is None:
            time.sleep(0.6)
            self.index = {}
        return number

def main():
    loader = DataLoader(Indexed(40), 4, num_workers=2)
    for epoch in range(4):
        train(loader, 0.005)
""",
        "num_workers=2",
        "num_workers=2, persistent_workers=True",
    ),
    "samples that sleep in several epochs": Program(
        f"""{_SLEEPS.format(seconds=0.01)}
def main():
    loader = DataLoader(Slow(80), 4, num_workers=2)
    for epoch in range(3):
        train(loader, 0.002)
""",
        "num_workers=2",
        "num_workers=4",
    ),
    "more workers and threads than CPUs": Program(
        """
class Computes(Samples):
    def __getitem__(self, number):
        compute(0.005)
        return number

def main():
    cpus = int(sys.argv[1])
    loader = DataLoader(Computes(160 * cpus), 4, num_workers=4 * cpus, threads_per_worker=2)
    train(loader, 0)
""",
        "num_workers=4 * cpus, threads_per_worker=2",
        "num_workers=cpus",
        "stoker",
    ),
    "a worker for each CPU, samples that compute": Program(
        """
class Computes(Samples):
    def __getitem__(self, number):
        compute(0.005)
        return number

def main():
    cpus = int(sys.argv[1])
    loader = DataLoader(Computes(160 * cpus), 4, num_workers=cpus)
    train(loader, 0)
""",
        "compute(0.005)",
        "compute(0.001)",
    ),
    "slow collation": Program(
        """
def padded(samples):
    compute(0.02)
    return samples

def main():
    cpus = int(sys.argv[1])
    loader = DataLoader(Samples(160 * cpus), 4, num_workers=cpus, collate_fn=padded)
    train(loader, 0)
""",
        "compute(0.02)",
        "compute(0.002)",
    ),
    "large batches": Program(
        """
import numpy

def stacked(samples):
    return numpy.empty(2**23, numpy.float32)

def main():
    loader = DataLoader(Samples(100), 4, num_workers=2, collate_fn=stacked)
    train(loader, 0.002)
""",
        "numpy.float32",
        "numpy.uint8",
    ),
    "one slow sample in 320": Program(
        """
class Uneven(Samples):
    def __getitem__(self, number):
        time.sleep(1.0 if number == 160 else 0.001)
        return number

def main():
    loader = DataLoader(Uneven(320), 8, num_workers=2)
    train(loader, 0.03)
""",
        "num_workers=2",
        "num_workers=2, prefetch_factor=17",
    ),
    "samples that sleep, without workers": Program(
        f"""{_SLEEPS.format(seconds=0.01)}
def main():
    loader = DataLoader(Slow(80), 4)
    train(loader, 0.02)
""",
        "Slow(80), 4",
        "Slow(80), 4, num_workers=2",
        "stoker",
    ),
    "a slow step": Program(
        """
def main():
    loader = DataLoader(Samples(80), 4)
    train(loader, 0.05)
""",
        "0.05",
        "0.05",
        "stoker",
    ),
    "an iterator for each batch": Program(
        """
def main():
    loader = DataLoader(Samples(80), 4, num_workers=2)
    for step in range(10):
        train([next(iter(loader))], 0.005)
""",
        "    for step in range(10):\n        train([next(iter(loader))], 0.005)",
        "    batches = iter(loader)\n    for step in range(10):\n        train([next(batches)], 0.005)",
        "stoker",
    ),
}


def text_of(program: Program, is_changed: bool = False) -> str:
    """Returns a whole program, as it is or changed."""
    assert program.text.count(program.slow) == 1, program
    body = program.text.replace(program.slow, program.quick) if is_changed else program.text
    return dedent(BEGINNING).format(library=program.library) + body + ENDING


def cases(options: argparse.Namespace) -> list[Case]:
    return [
        Case(
            name,
            {"changed": {"name": name, "is_changed": True}, "as it is": {"name": name, "is_changed": False}},
            [] if program.slow == program.quick else [Goal("samples/s", at_least=1.1, against="as it is")],
        )
        for name, program in PROGRAMS.items()
    ]


def measure(name: str, is_changed: bool) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(text_of(PROGRAMS[name], is_changed))
        command = [sys.executable, str(path), str(len(os.sched_getaffinity(0)))]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=method.LONGEST)
    return {"samples/s": json.loads(done.stdout)}


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=3), cases, measure)
