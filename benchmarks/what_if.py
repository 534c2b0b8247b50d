"""Does the simulation in a report of `stoker run` predict the rate of settings that it has not seen?

One program, in one run of `stoker run`, iterates by turns over loaders that differ in workers and prefetching. From the
times that the report has of each of them, the page's own simulation (run by node) predicts the samples/s of every
other one: each pair of a recorded and a predicted setting is one prediction. *Predicted / measured* is the ratio, the
error its distance from 1; *from* a recorded setting are the ratios for all settings in turn. Beside it, for a
comparison, is the error of the guess that the rate does not change.

Samples take a time of the CPU that varies (a gamma distribution, mean 3 ms), or sleep 20 ms; batches have eight of the
former, four of the latter. The step sleeps. These workloads are not those on which the model was made. The workers of
samples that need the CPU are up to four, so more than a machine with two CPUs has. *Stoker's engine* makes each batch
of slow samples by several workers together.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import method
from method import Case, Figures, Goal

SETTINGS = ((0, None), (1, 2), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2))
"""Workers, and batches ahead of each."""

PROGRAM = "--program"


class Samples:
    """Samples that need a CPU, or sleep."""

    def __init__(self, count: int, is_busy: bool) -> None:
        self.count = count
        self.is_busy = is_busy

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if self.is_busy:
            until = time.thread_time() + random.Random(index).gammavariate(4, 0.00075)
            while time.thread_time() < until:
                pass
        else:
            time.sleep(0.02)
        return index


def program(is_busy: bool, step: float, batches: int, epochs: int) -> None:
    """Iterates by turns over a loader of each setting."""
    from torch.utils.data import DataLoader

    size = 8 if is_busy else 4
    for number in range(epochs):
        for workers, prefetch in SETTINGS[:: -1 if number % 2 else 1]:
            loader: Any = DataLoader(
                Samples(batches * size, is_busy),  # type: ignore[arg-type]
                size,
                num_workers=workers,
                prefetch_factor=prefetch,
            )
            for _ in loader:
                time.sleep(step)


def cases(options: argparse.Namespace) -> list[Case]:
    batches, epochs = (16, 1) if options.quick else (40, 1)
    found: list[tuple[str, dict[str, Any]]] = []
    for is_busy in (False, True):
        for step in (0.005, 0.02):
            name = f"samples {'of 3 ms of a CPU' if is_busy else 'that sleep 20 ms'}, step of {1e3 * step:g} ms"
            found.append((name, {"is_busy": is_busy, "step": step, "engine": "torch"}))
    found.append(("samples that sleep 20 ms, step of 5 ms, Stoker's engine", {**found[0][1], "engine": "stoker"}))
    sizes = {"batches": batches, "epochs": epochs}
    goals = [Goal("median error, recorded with workers", at_most=0.1)]
    return [Case(name, {"simulation": arguments | sizes}, goals) for name, arguments in found]


def predicted(known: list[dict[str, Any]]) -> list[list[float]]:
    """Returns, for each recorded setting, the samples/s that the page's simulation gives for each setting."""
    import stoker

    model = Path(stoker.__file__).parent / "diagnostics/page/what_if_model.js"
    script = (
        f"const model = require({json.dumps(str(model))}), runs = {json.dumps(known)};"
        "console.log(JSON.stringify(runs.map((known) => { const fit = model.fitted(known); return runs.map((other) => "
        "model.simulate(known, {...model.asMeasured(known), workers: other.workers, prefetch: other.prefetch}, "
        "fit).rate); })));"
    )
    done = subprocess.run(["node"], input=script, capture_output=True, text=True, timeout=120, check=True)
    return list(json.loads(done.stdout))


def measure(is_busy: bool, step: float, engine: str, batches: int, epochs: int) -> Figures:
    arguments = {"is_busy": is_busy, "step": step, "batches": batches, "epochs": epochs}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        command = [
            sys.executable,
            "-m",
            "stoker",
            "run",
            "--report",
            str(path),
            __file__,
            PROGRAM,
            json.dumps(arguments),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=method.LONGEST)
        found = re.search(r'(?s)<script type="application/json" id="data">(.*?)</script>', path.read_text())
    assert found is not None
    known = [one for one in json.loads(found[1])["what_if"] if one is not None]
    rates = [one["measured"]["rate"] for one in known]
    names = [f"{one['workers']} x {one['prefetch']}" for one in known]
    given = predicted(known)
    pairs = list(itertools.permutations(range(len(known)), 2))
    ratios = {pair: given[pair[0]][pair[1]] / rates[pair[1]] for pair in pairs}
    worst = max(pairs, key=lambda pair: abs(ratios[pair] - 1))
    with_workers = [ratios[pair] for pair in pairs if known[pair[0]]["workers"]]
    return {
        "median error": statistics.median(abs(ratio - 1) for ratio in ratios.values()),
        "median error, recorded with workers": statistics.median(abs(ratio - 1) for ratio in with_workers),
        "worst error": abs(ratios[worst] - 1),
        "predicted / measured, median": statistics.median(ratios.values()),
        "of the setting itself": statistics.median(given[one][one] / rates[one] for one in range(len(known))),
        "median error, if nothing changed": statistics.median(abs(rates[a] / rates[b] - 1) for a, b in pairs),
        "worst pair": f"{names[worst[0]]} to {names[worst[1]]}: {ratios[worst]:.2f}",
        **{
            f"from {name}": ", ".join(f"{one / rate:.2f}" for one, rate in zip(row, rates, strict=True))
            for name, row in zip(names, given, strict=True)
        },
    }


if __name__ == "__main__":
    if PROGRAM in sys.argv:
        program(**json.loads(sys.argv[-1]))
    else:
        method.main(method.parser(__doc__, rounds=3), cases, measure)
