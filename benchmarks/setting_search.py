"""How near to the best number of workers is the setting that `stoker tune` finds, and how long does it search?

Loaders of torch's, with a loop that sleeps 20 ms after each batch: samples that wait for a disk, samples that compute,
and samples that cost nothing. *Tuned* searches as `stoker tune` does, in a time of its own, and then measures what it
has found as the others are measured. The rivals are fixed numbers of workers, of which nobody knows the best before:
*best rule* is the one that was fastest in the round.
"""

from __future__ import annotations

import argparse
import time

import method
from method import Case, Figures, Goal

STEP = 0.02
RATE = "samples/s"
RULES = {"none": 0, "two": 2, "four": 4, "eight": 8}


GOAL = Goal(RATE, "best rule", at_least=0.9, headline=False)
DERIVED = {"best rule": lambda figures: {RATE: max(figures[rule][RATE] for rule in RULES)}}


class MadeRows:
    """Rows of 10 kB, each after some seconds of waiting and of computing."""

    def __init__(self, waits: float, computes: float) -> None:
        self._waits = waits
        self._computes = computes

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> object:
        import torch

        if self._waits:
            time.sleep(self._waits)
        end = time.thread_time() + self._computes
        while time.thread_time() < end:
            pass
        return torch.full((2500,), float(index))


def loader(waits: float, computes: float) -> object:
    from torch.utils.data import DataLoader

    return DataLoader(MadeRows(waits, computes), batch_size=32, shuffle=True)


def waiting() -> object:
    return loader(0.002, 0.0)


def computing() -> object:
    return loader(0.0, 0.001)


def cheap() -> object:
    return loader(0.0, 0.0)


def cases(options: argparse.Namespace) -> list[Case]:
    seconds = 5.0 if options.quick else 60.0
    each = 0.2 if options.quick else 5.0
    rivals = {rival: {"rival": rival, "seconds": seconds, "each": each} for rival in ("tuned", *RULES)}
    return [
        Case(name, {rival: {**given, "kind": kind} for rival, given in rivals.items()}, [GOAL], DERIVED)
        for name, kind in (
            ("samples wait 2 ms", "waiting"),
            ("samples compute 1 ms", "computing"),
            ("samples cost nothing", "cheap"),
        )
    ]


def measure(rival: str, kind: str, seconds: float, each: float) -> Figures:
    from stoker._core.machine import cpus
    from stoker.diagnostics.settings.setting_bench import TargetBench
    from stoker.diagnostics.settings.setting_trial import LoaderSetting
    from stoker.diagnostics.settings.tuning import SearchSpace, SettingSearch, Tuning

    with TargetBench(f"{__file__}:{kind}", "torch", STEP) as bench:
        begun = time.perf_counter()
        about = bench.open()
        figures: Figures = {}
        if rival == "tuned":
            tuning = Tuning(bench, about, 2.5 if each > 1 else each, begun + seconds)
            search = SettingSearch(SearchSpace(about.present, cpus.cpus().number, 8))
            tuning.follow(search, lambda setting, trials: None)
            best = search.best()
            assert best is not None
            setting = best.setting
            figures = {"search s": time.perf_counter() - begun, "workers": setting.workers}
        else:
            setting = LoaderSetting(RULES[rival], 2 if RULES[rival] else None, 1, 32)
        trial = bench.measure(setting, each)
    assert trial.failure is None, trial.failure
    return {RATE: trial.rate, "MiB": trial.memory / 2**20, **figures}


if __name__ == "__main__":
    method.main(method.parser(__doc__, rounds=3), cases, measure)
