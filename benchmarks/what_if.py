"""Does the simulation in a report of `stoker run` predict the rate of settings that it has not seen?

One program, in one run of `stoker run`, iterates by turns over loaders that differ in workers and prefetching. From the
times that the report has of each of them, the page's own simulation (run by node) predicts the samples/s of every
other one: each pair of a recorded and a predicted setting is one prediction. *Predicted / measured* is the ratio, the
error its distance from 1; *from* a recorded setting are the ratios for all settings in turn. Beside it, for a
comparison, is the error of the guess that the rate does not change.

Samples sleep 20 ms, and a batch has four; the step sleeps. These workloads are not those on which the model was made.
*Stoker's engine* makes each batch of slow samples by several workers together. Samples that compute have no simulation:
its error was 0.13 to 0.62.
"""

from __future__ import annotations

import argparse
import itertools
import json
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
    """Samples that sleep."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        time.sleep(0.02)
        return index


def program(step: float, batches: int, epochs: int) -> None:
    """Iterates by turns over a loader of each setting."""
    from torch.utils.data import DataLoader

    for number in range(epochs):
        for workers, prefetch in SETTINGS[:: -1 if number % 2 else 1]:
            loader: Any = DataLoader(
                Samples(4 * batches),  # type: ignore[arg-type]
                4,
                num_workers=workers,
                prefetch_factor=prefetch,
            )
            for _ in loader:
                time.sleep(step)


def cases(options: argparse.Namespace) -> list[Case]:
    batches, epochs = (16, 1) if options.quick else (40, 1)
    found: list[tuple[str, dict[str, Any]]] = [
        (f"samples that sleep 20 ms, step of {1e3 * step:g} ms", {"step": step, "engine": "torch"})
        for step in (0.005, 0.02)
    ]
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
        "console.log(JSON.stringify(runs.map((known) => runs.map((other) => model.simulate("
        "known, {...model.asMeasured(known), workers: other.workers, prefetch: other.prefetch}).rate))));"
    )
    done = subprocess.run(["node"], input=script, capture_output=True, text=True, timeout=120, check=True)
    return list(json.loads(done.stdout))


def measure(step: float, engine: str, batches: int, epochs: int) -> Figures:
    arguments = {"step": step, "batches": batches, "epochs": epochs}
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
    known = [one for one in json.loads(found[1])["what_if"] if one is not None and "work" in one]
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
