"""The method that all benchmarks share.

A *case* is one situation in which rivals are compared; a *measurement* is one rival in one case. Each measurement runs
in a fresh process that prints its figures as JSON and ends. A round measures every rival of every case once, one rival
directly after the other; the next round takes them in the opposite order, so that none always runs on the warmer
machine. A ratio is that of two measurements of the same round, which saw the same machine. Shown are medians, and in
brackets the smallest and the largest.

The other loaders that a user could pick are in rivals.py, and the limits are in bare.py or beside what they limit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import table

Figures = dict[str, Any]
"""What a measurement gives: numbers by their names, which hold the unit; a text where there is no number."""

RIVALS = (
    *("torchdata", "grain", "spdl", "simplejpeg", "webdataset", "lightning", "transformers", "accelerate"),
    "dataloader_rs",
)
"""Packages, beside those that every measurement needs, on whose versions some depend."""

OTHERS = (
    *("torch", "nodes", "Grain", "SPDL", "tf.data", "DALI", "turboloader", "webdataset", "dataloader-rs"),
    *("s3torchconnector", "MosaicML", "LitData", "Ray Data"),
)
"""How the names of rivals begin that are not ours. Of ours, no failure is forgiven."""

LONGEST = 180.0
"""Seconds after which a measurement is given up."""
IN_MEMORY = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")
"""How the paths of files begin that lie in memory alone: anonymous ones, unlinked ones, shared mappings without one."""
STILL, FULL = 1.0, 10.0
"""Seconds without growth after which memory is said to grow no more, and after which it is taken as it is."""
TRIES = 3
"""How often one is begun that was given up: among the rivals are some that hang now and then, or fail as they end."""


@dataclass(frozen=True)
class Goal:
    """What a figure of the first rival has to reach: itself, or its ratio to that of the rival `against`.

    One that is no headline has no bar in the picture; all are counted.
    """

    figure: str
    against: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    headline: bool = True


@dataclass(frozen=True)
class Case:
    """One situation: for each rival the arguments of its measurement.

    An argument named `python` is not handed on: it is the interpreter that runs the measurement. `derived` are figures
    that follow from those of one round: the best of several rivals.
    """

    name: str
    rivals: dict[str, dict[str, Any]]
    goals: list[Goal] = field(default_factory=list)
    derived: dict[str, Callable[[dict[str, Figures]], Figures]] = field(default_factory=dict)


def parser(about: str | None, rounds: int) -> argparse.ArgumentParser:
    """The arguments that all benchmarks take."""
    result = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--rounds", type=int, help=f"how often everything is measured; without it {rounds}, quick 1")
    result.add_argument("--quick", action="store_true", help="smaller and shorter: to see that it works")
    result.add_argument("--case", default="", help="only cases whose name has this in it")
    result.add_argument(
        "--json", type=Path, help="file to write the results to; with --case, among those that are in it"
    )
    result.add_argument("--measure", help=argparse.SUPPRESS)
    result.set_defaults(usual_rounds=rounds)
    return result


def main(
    arguments: argparse.ArgumentParser,
    cases: Callable[[argparse.Namespace], list[Case]],
    measure: Callable[..., Figures],
) -> None:
    """Runs a benchmark: as the program that was called, or as the process of one measurement."""
    options = arguments.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(**json.loads(options.measure))))
        return
    earlier = _earlier(options.json) if options.case else None  # before anything is measured that would be lost
    chosen = [case for case in cases(options) if options.case in case.name]
    rounds = options.rounds or (1 if options.quick else options.usual_rounds)
    before, began = environment(), time.monotonic()
    measured = list(_rounds(chosen, rounds))
    results = {
        "name": Path(sys.argv[0]).stem,
        "question": arguments.description,
        "quick": options.quick,
        "rounds": rounds,
        "seconds": round(time.monotonic() - began),
        "environment": {**before, "load average after": load_average()},
        "cases": [summary(case, [a_round[place] for a_round in measured]) for place, case in enumerate(chosen)],
    }
    table.show(results)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        if earlier is not None:
            results = among(earlier, results)
        options.json.write_text(json.dumps(results, indent=1) + "\n")


CIRCUMSTANCES = ("quick", "rounds", "seconds", "environment")


def _earlier(path: Path | None) -> dict[str, Any] | None:
    """The results that are in a file of this benchmark.

    Raises:
        SystemExit: it holds something else.
    """
    if path is None or not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        name = found["name"]
    except (ValueError, TypeError, KeyError) as error:
        raise SystemExit(f"{path}: no results of a benchmark ({error!r}): name another file for --json") from error
    if name != Path(sys.argv[0]).stem:
        raise SystemExit(f"{path}: results of {name}: name another file for --json")
    return found


def among(earlier: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """Earlier results with some cases measured anew, or new. Each of these says when and where that was."""
    measured = {name: results[name] for name in CIRCUMSTANCES}
    by_name = {case["name"]: case for case in earlier["cases"]}
    by_name |= {case["name"]: {**case, "measured": measured} for case in results["cases"]}
    return {**earlier, "question": results["question"], "cases": list(by_name.values())}


def _rounds(cases: list[Case], rounds: int) -> Iterator[list[dict[str, Figures]]]:
    """For each round and case: the figures of each rival."""
    for number in range(rounds):
        this_round: list[dict[str, Figures]] = []
        for case in cases:
            figures = {}
            for rival in list(case.rivals)[:: -1 if number % 2 else 1]:
                figures[rival] = _measurement(case.rivals[rival])
                first = next(iter(figures[rival].items()), ("nothing", ""))
                print(f"round {number + 1} of {rounds}: {case.name}: {rival}: {first[0]} {first[1]}", file=sys.stderr)
            this_round.append({rival: figures[rival] for rival in case.rivals})
        yield this_round


def _measurement(arguments: dict[str, Any]) -> Figures:
    """Runs one measurement in a process of its own."""
    arguments = dict(arguments)
    command = [arguments.pop("python", sys.executable), sys.argv[0], "--measure", json.dumps(arguments)]
    # Else every process would compile Stoker's modules anew, which lie compiled where it is installed as torch is
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    is_ours = not str(arguments.get("rival", arguments.get("kind"))).startswith(OTHERS)
    for tries_left in reversed(range(TRIES)):
        status, told, errors = _run(command, kept)
        if status is None:
            print(f"given up after {LONGEST:.0f} s, and begun again: {command}", file=sys.stderr)
            continue
        figures = _figures(told)
        if status < 0 and figures and not is_ours:
            # Some rivals' threads outlive the interpreter now and then: that is theirs, and the figures are there
            print(f"died of signal {-status} when it had its figures: {command}\n{errors}", file=sys.stderr)
            status = 0
        if (status or not figures) and not is_ours and tries_left:
            print(f"ended with status {status}, and begun again: {command}\n{errors}", file=sys.stderr)
            continue
        if status or not figures:
            raise SystemExit(f"a measurement ended with status {status}: {command}\n{told}{errors}")
        return figures
    if not is_ours:
        print(f"given up {TRIES} times, and left out of this round: {command}", file=sys.stderr)
        return {}
    raise SystemExit(f"a measurement was given up {TRIES} times: {command}")


def _figures(told: str) -> Figures:
    """What a measurement said last; nothing if it did not come so far."""
    last = told.splitlines()[-1:]
    return json.loads(last[0]) if last and last[0].startswith("{") else {}


def _run(command: list[str], environment: dict[str, str]) -> tuple[int | None, str, str]:
    """Runs a program: its status, and what it said. No status if it took too long, and was ended with its processes."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes) as running:
        try:
            told, errors = running.communicate(timeout=LONGEST)
        except BaseException as error:
            os.killpg(running.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return None, "", ""
            raise
    return running.returncode, told, errors


# What rounds say together


def summary(case: Case, rounds: list[dict[str, Figures]]) -> dict[str, Any]:
    """Medians and spread of the figures, and of their ratios within the same round; which goals are met.

    That a rival was not measured, and said so by a text in the place of its figure, is neither met nor missed.
    """
    rounds = [{**a_round, **{name: of(a_round) for name, of in case.derived.items()}} for a_round in rounds]
    rivals = [*case.rivals, *case.derived]
    first, *others = rivals
    names = list(dict.fromkeys(name for a_round in rounds for figures in a_round.values() for name in figures))
    figures = {name: {rival: _spread([r[rival].get(name) for r in rounds]) for rival in rivals} for name in names}
    ratios = {
        name: {other: _spread([_ratio(r[first].get(name), r[other].get(name)) for r in rounds]) for other in others}
        for name in names
    }
    goals = []
    for goal in case.goals:
        spread = ratios[goal.figure][goal.against] if goal.against else figures[goal.figure][first]
        theirs = figures[goal.figure][goal.against] if goal.against else None
        unknown = theirs is not None and isinstance(theirs["median"], str)
        met = None if unknown else spread is not None and _met(goal, spread["median"])
        goals.append({**asdict(goal), "met": met})
    return {"name": case.name, "rivals": rivals, "figures": figures, "ratios": ratios, "goals": goals}


def _met(goal: Goal, value: float) -> bool:
    return (goal.at_least is None or value >= goal.at_least) and (goal.at_most is None or value <= goal.at_most)


def _ratio(ours: Any, theirs: Any) -> float | None:
    numbers = isinstance(ours, (int, float)) and isinstance(theirs, (int, float))
    return ours / theirs if numbers and theirs else None


def _spread(values: list[Any]) -> dict[str, Any] | None:
    """Median, smallest and largest, of texts the most frequent, over the rounds that have it; None if none has."""
    values = [value for value in values if value is not None]
    if not values:
        return None
    if isinstance(values[0], str):
        return {"median": statistics.mode(values), "all": values}
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "all": values}


# What measurements need


def cpu_seconds() -> float:
    """Processor time of this process and of all its descendants: those that live, and those that were waited for.

    It is exact for those that were waited for, and told in steps of 10 ms by those that live.
    """
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ticks = 0
    for pid in family() - {os.getpid()}:
        fields = _read(f"/proc/{pid}/stat").rpartition(") ")[2].split()
        ticks += sum(map(int, fields[11:15]))  # its own, and that of those it has waited for
    return sum(usage.ru_utime + usage.ru_stime for usage in used) + ticks / os.sysconf("SC_CLK_TCK")


def memory_of_all() -> int:
    """Bytes of this process and its descendants. A page that n processes share counts 1/n in each (PSS).

    Batches on their way lie in anonymous or unlinked files in memory. Each of these is counted once, by what it holds:
    a batch that no process has mapped at this moment is there too, and so is one whose descriptor is closed.
    """
    private, files = 0, {}
    for pid in family():
        totals = dict.fromkeys(("Pss:", "Pss_Shmem:"), 0)
        for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
            name, *numbers = line.split()
            if name in totals:
                totals[name] = 1024 * int(numbers[0])
        private += totals["Pss:"] - totals["Pss_Shmem:"]
        for file, size in (*_mapped_in_memory(pid), *_files_in_memory(pid)):
            files[file] = max(size, files.get(file, 0))
    return private + sum(files.values())


def memory_when_full() -> int:
    """The same when all that may be made ahead is there: the trainer pauses until nothing grows any more.

    A look takes a tenth of a second, in which workers go on; threads in the trainer's process do so too. So what a
    look finds in between would depend on how far each rival came meanwhile.
    """
    most, since = 0, time.perf_counter()
    began = since
    while time.perf_counter() - since < STILL and time.perf_counter() - began < FULL:
        memory = memory_of_all()
        if memory > 1.005 * most:
            since = time.perf_counter()
        most = max(most, memory)
    return most


def family() -> set[int]:
    """This process and its descendants."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        text = _read(f"/proc/{name}/stat")
        if text:
            parents[int(name)] = int(text.rpartition(") ")[2].split()[1])
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def _files_in_memory(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """For each file in memory that a process has open: which it is, and its bytes."""
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(path).startswith(IN_MEMORY):
                status = path.stat()
                yield (status.st_dev, status.st_ino), 512 * status.st_blocks


def _mapped_in_memory(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """For each file in memory that a process has mapped: which it is, and how much of it the process has touched."""
    touched: dict[tuple[int, int], int] = {}
    file = None
    for line in _read(f"/proc/{pid}/smaps").splitlines():
        name, *rest = line.split(maxsplit=5)
        if not name.endswith(":"):  # a mapping: addresses, rights, offset, device, inode, path
            device, inode, path = [*rest[2:], ""][:3]
            major, minor = (int(part, 16) for part in device.split(":"))
            file = (os.makedev(major, minor), int(inode)) if path.startswith(IN_MEMORY) else None
        elif name == "Rss:" and file is not None:
            touched[file] = touched.get(file, 0) + 1024 * int(rest[0])
    yield from touched.items()


def data_loader(rival: str) -> Any:
    """The `DataLoader` of stoker or of torch."""
    if rival == "stoker":
        import stoker

        return stoker.DataLoader
    import torch.utils.data

    return torch.utils.data.DataLoader


# The machine


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "CPUs": f"{len(os.sched_getaffinity(0))} x {_field('/proc/cpuinfo', 'model name') or platform.machine()}",
        "memory": f"{int(_field('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.0f} GiB",
        **_gpus(),
        "kernel": platform.release(),
        "Python": platform.python_version(),
        **{package: _version(package) for package in ("stoker", "torch", "numpy", "pillow")},
        **{package: _version(package) for package in RIVALS if find_spec(package)},
        "commit": _commit(),
        "on": time.strftime("%Y-%m-%d"),
        "load average before": load_average(),
    }


def _gpus() -> dict[str, str]:
    """The models of the GPUs; nothing without a driver."""
    from stoker._core.machine.gpu_activity import Nvml  # here: a measurement of a rival should not load Stoker

    if (nvml := Nvml.opened()) is None:
        return {}
    names = [reading.name for reading in nvml.readings()]
    nvml.close()
    return {"GPUs": ", ".join(names)} if names else {}


def _commit() -> str:
    """Of these scripts, and of the product where it is installed from here."""
    command = ["git", "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
        return found.stdout.strip() or "unknown"
    return "unknown"


def load_average() -> str:
    """Processes that wanted to run in the last minute, on average."""
    return f"{os.getloadavg()[0]:.1f}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed as a package"


def _field(path: str, name: str) -> str:
    lines = (line.partition(":") for line in _read(path).splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # the process has ended
        return ""
