"""Random faults, loaders, settings and resumes, for as long as wished: `make soak`, or `python tests/soak --help`.

Each run makes a dataset, lets a calm loader read it (without workers, or threads where several share a stream), and
reads it again among faults: loaders of other backends, births and settings, each going on where the last one stopped,
while workers and zygotes are killed, stopped and frozen, and samples raise, crash and hang. Every batch must be that of
the calm run. After each run no process, descriptor, thread or mapping may be left; over the whole time this process may
not grow. What a run does follows from the seed and its number (but for the moment at which a signal arrives), so it can
be done again: `--seed 7 --run 123`.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import resource
import statistics
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import run
from residue import Held, become_marked, give_memory_back, settled

LONG = 30
"""Runs from which on it is asked whether the process grows: what it needs once is there then."""

GROWTH = 16
"""MiB by which it may have grown from the first half to the second, in the median: the allocator keeps something."""

OBJECTS = 500
"""Python's objects by which it may have grown likewise."""

HANGS = 100
"""Seconds after which a run hangs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800, help="how long")
    parser.add_argument("--seed", type=int, help="of all that is drawn; without it another one each time")
    parser.add_argument("--run", type=int, help="only the run of this number")
    parser.add_argument("--times", type=int, default=1, help="how often that one")
    options = parser.parse_args()
    become_marked()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"soak of {options.seconds:g} s, seed {seed}", flush=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    give_memory_back()
    warnings.simplefilter("ignore")  # each fault is told
    numbers = iter(range(sys.maxsize)) if options.run is None else iter([options.run] * options.times)
    with tempfile.TemporaryDirectory() as folder:
        soak(seed, numbers, options.seconds, Path(folder))


def soak(seed: int, numbers: object, seconds: float, folder: Path) -> None:
    """Runs until the time is over. Exits at the first thing that is not as it should be."""
    began = said = time.monotonic()
    counts: Counter[str] = Counter()
    watch = Watch()
    watch.start()
    before = now = Held()
    memory: list[float] = []  # numbers alone: what is kept here would be counted
    objects: list[float] = []
    for number in numbers:  # type: ignore[attr-defined]
        if time.monotonic() - began > seconds:
            break
        where = f"run {number} of seed {seed} (again: python tests/soak --seed {seed} --run {number} --times 20)"
        watch.begins(where)
        diary: list[str] = []
        try:
            run.run(random.Random(f"{seed}/{number}"), folder, counts, diary)
        except BaseException:
            traceback.print_exc()
            sys.exit("\n".join(["", *diary, f"{where}: see above"]))
        for path in folder.iterdir():
            path.unlink()
        now, left = settled(before)
        if left:
            sys.exit("\n".join([*diary, f"{where} has left behind:", *left]))
        memory.append(now.memory / 2**20)
        objects.append(now.objects)
        if time.monotonic() - said > 20:
            said = time.monotonic()
            print(f"{said - began:5.0f} s: {len(objects)} runs, {now.memory / 2**20:.0f} MiB", flush=True)
    print(f"seed {seed}: {len(objects)} runs in {time.monotonic() - began:.0f} s, all batches those of the calm runs")
    for name, number in sorted(counts.items()):
        print(f"  {name}: {number:,}")
    print(f"  left behind: nothing (descriptors {len(now.descriptors)}, threads {now.threads}, as before)")
    check_growth("MiB of memory", memory, GROWTH)
    check_growth("objects", objects, OBJECTS)


def check_growth(what: str, found: list[float], most: float) -> None:
    """Exits where there is more of it in the last third than in the second; in the first one modules are imported."""
    third = len(found) // 3
    first, second = (statistics.median(part or [0]) for part in (found[third:-third], found[-third:]))
    print(f"  {what} of this process, in the median of the second and the last third: {first:,.0f}, {second:,.0f}")
    if len(found) >= LONG and second - first > most:
        sys.exit(f"this process grows: {[round(value) for value in found]} {what}")


class Watch(threading.Thread):
    """Ends the program when a run hangs, and says which. A loader's user has threads as well."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.begins("")

    def begins(self, where: str) -> None:
        self._where, self._until = where, time.monotonic() + HANGS

    def run(self) -> None:
        while time.monotonic() < self._until:
            time.sleep(1)
        faulthandler.dump_traceback(all_threads=True)
        print(f"{self._where} hangs: see above", flush=True)
        os._exit(1)


if __name__ == "__main__":
    if not os.path.isdir("/proc/self/fd"):
        sys.exit("the soak looks into /proc, and there is none here")
    main()
