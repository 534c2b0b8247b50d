"""How long does an epoch take under a framework's own trainer, and how much of it does the trainer wait for batches?

Unchanged training scripts (trainer_scripts.py): Lightning's `Trainer`, transformers' `Trainer`, a loop of Accelerate's,
and a plain loop. They train on JPEG files of 500 x 375 pixels, made as `stoker demo` makes them, with two workers and
batches of 32. Each runs with torch's engine and behind `stoker.install()`, as `stoker compare` runs scripts; the same
hooks measure both.

Seconds, waiting and processor time are of whole epochs: from one begin to the next, the start of the workers included.
The first epoch is not counted. "Waited" is the share of that time that the trainer spent inside the loader. Processor
time and memory are those of all processes of the script. With the *slow* network a step takes longer than its batch:
there a loader has little to give.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

import method
import rivals
from method import Case, Figures, Goal

SECONDS, WAITED, CPU, MEMORY = "seconds per epoch", "waited, %", "CPU-s per epoch", "MB, all processes"
FIGURES = (SECONDS, WAITED, CPU, MEMORY)
RIVALS = {"install()": "stoker", "torch": "torch"}
TRAINERS = {
    "Lightning's Trainer": "lightning",
    "transformers' Trainer": "transformers",
    "Accelerate's loop": "accelerate",
    "a plain loop": "plain",
}
NEEDS = {"transformers": ("transformers", "accelerate"), "plain": ("torch",)}
"""Packages that a script needs, where they are not the one of its name."""
BATCH = 32
method.LONGEST = 400.0
LONGEST = method.LONGEST - 20
"""Seconds that a script may take: it has to be ended before its measurement is."""


def cases(options: argparse.Namespace) -> list[Case]:
    from stoker.diagnostics.demo import make_pictures

    pictures = 64 if options.quick else 512
    folder = options.data / str(pictures)
    make_pictures(folder, pictures, lambda *_: None)
    how = {"folder": str(folder), "batches": pictures // BATCH, "epochs": 1 if options.quick else 2}

    def case(name: str, script: str, slow: bool = False) -> Case:
        given = {"script": script, "slow": slow, **how}
        goals = [Goal(SECONDS, "torch", at_most=1), Goal(MEMORY, "torch", at_most=1, headline=False)]
        return Case(name, {rival: {"rival": rival, **given} for rival in RIVALS}, goals)

    slow = case("Lightning's Trainer, a slow network", "lightning", slow=True)
    return [*(case(f"{name}, a small network", script) for name, script in TRAINERS.items()), slow]


def measure(rival: str, script: str, slow: bool, folder: str, batches: int, epochs: int) -> Figures:
    if not all(map(find_spec, NEEDS.get(script, (script,)))):
        return dict.fromkeys(FIGURES, rivals.NOT_INSTALLED)
    from stoker.diagnostics.measurements import cpu_between, peak_between
    from stoker.diagnostics.settings.batch_limit import BatchLimit
    from stoker.diagnostics.settings.engine_comparison import main_loader
    from stoker.diagnostics.watched_program import WatchedProgram, run_to_limit

    counted = 1 + epochs
    program = str(Path(__file__).with_name("trainer_scripts.py"))
    command = [sys.executable, "-W", "ignore", program, script, folder, "--epochs", str(counted + 1)]
    limit = BatchLimit(batches=counted * batches + 1)  # the epoch behind the last has begun
    with WatchedProgram([*command, *(["--slow"] if slow else [])], RIVALS[rival], limit) as run:
        failure = run_to_limit(run, LONGEST)
        found = main_loader(run.measurements.loaders)
        samples = list(run.measurements.samples)
    if failure is not None or found is None:
        raise SystemExit(f"{script} under {rival}: {failure or 'no loader was iterated over'}")
    assert found.about["engine"] == RIVALS[rival], found.about
    assert all(sum(s.batches for s in epoch.spans) == batches for epoch in found.epochs[:counted])
    begun, until = found.epochs[1].begun, found.epochs[counted].begun
    waited = sum(
        epoch.ready - epoch.begun + sum(span.waited for span in epoch.spans) for epoch in found.epochs[1:counted]
    )
    return {
        SECONDS: (until - begun) / epochs,
        WAITED: 100 * waited / (until - begun),
        CPU: cpu_between(samples, begun, until) / epochs,
        MEMORY: peak_between(samples, begun, until) / 1e6,
    }


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=3)
    arguments.add_argument("--data", type=Path, default=Path("build/trainer-pictures"), help="where to make the files")
    method.main(arguments, cases, measure)
