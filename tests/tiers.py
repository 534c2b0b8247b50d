"""A pytest plugin: which tests a run takes.

`make test` takes the quick tier, `make test-slow` (`--tier=slow`) all others but those marked `long`. Slow are tests
marked `slow`, and those that this plugin marks `thorough`: cases that start a clean interpreter, as their parameters
say, and functions that a recorded run found costly (`tiers.json`; `make test-tiers` records anew). Where the
parameters of a slow function multiply, CI takes cases in which each value of each parameter occurs, and the others are
marked `long`. A file without a test of the tier is not imported. What the command line names, a file or a test, runs
whatever its tier. An expression after `-m` stands in the place of the tier.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
RECORD = TESTS / "tiers.json"

CLEAN = re.compile(r"(?<![a-z])(spawn|forkserver|program)(?![a-z])")
"""Parameters of cases that start a clean interpreter."""

QUICK_ANYWAY = {  # a program for each way to end
    f"tests/faults/test_endings.py::{name}"
    for name in ("test_interpreter_exit", "test_ctrl_c", "test_trainer_is_killed")
}
"""Functions that are quick whatever they cost, but for cases that start a clean interpreter."""

DEAR_METHODS = {"test_workers_of_each_birth_give_all_samples", "test_torchs_loader_reads_it"}
"""Of `DatasetSuite`: the others start workers by fork alone, if any."""

EXACT = tuple(f"tests/{name}/" for name in ("same_data", "conformance", "pinned", "loader/_state", "loader/_epoch"))
"""Folders that look for samples that are lost, repeated or different: there each value occurs twice."""

SLOW_FILE = re.compile(r"^pytestmark = .*\bmark\.slow\b", re.MULTILINE)
HINT = re.compile(r"\bslow\b|spawn|forkserver|program|DatasetSuite|faults\.matrix")
"""What a file, or a conftest.py beside or above it, contains that may have a slow test unknown to the record."""

COSTLY = 0.17
"""Seconds of the processor from which on a function's cases, on average, are thorough."""

WAIT = 0.6
"""What a second costs in which a case waits, beside one of the processor: three cases run at once on two processors."""

WHOLE = "all"
"""In the record, in the place of names of functions and classes: the file has no quick test."""

Record = dict[str, "str | list[str]"]
LOADED = pytest.StashKey[Record]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption(
        "--tier", choices=["quick", "slow", "all"], default="quick", help="tests to run, if -m does not say"
    )
    group.addoption("--record-tiers", metavar="FOLDER", help="write what each case costs, for `python -m tests.tiers`")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thorough: costs more than the quick tier allows; given by tests/tiers.py")
    config.stash[LOADED] = json.loads(RECORD.read_text())
    if folder := config.option.record_tiers:
        config.pluginmanager.register(Recorder(Path(folder)))


def function_of(nodeid: str) -> tuple[str, str]:
    """Returns the file of a case, and its function or method without parameters."""
    file, _, name = nodeid.partition("::")
    return file, name.partition("[")[0]


def is_ruled(nodeid: str) -> bool:
    """Whether a case is thorough whatever the record says."""
    method = function_of(nodeid)[1].partition("::")[2]
    return method in DEAR_METHODS or CLEAN.search(nodeid.partition("[")[2]) is not None


def is_thorough(nodeid: str, record: Record) -> bool:
    file, name = function_of(nodeid)
    names = record.get(file, ())
    recorded = names == WHOLE or name in names or name.partition("::")[0] in names
    return is_ruled(nodeid) or (recorded and f"{file}::{name}" not in QUICK_ANYWAY)


def is_left_out(path: Path, file: str, tier: str, record: Record) -> bool:
    """Whether a file has no test of this tier."""
    if tier == "all" or not path.name.startswith("test_"):
        return False
    if tier == "quick":
        return record.get(file) == WHOLE or SLOW_FILE.search(path.read_text(encoding="utf-8")) is not None
    fixtures = [folder / "conftest.py" for folder in path.parents if folder.is_relative_to(TESTS) and folder != TESTS]
    texts = (text.read_text(encoding="utf-8") for text in [path, *fixtures] if text.exists())
    return file not in record and not any(map(HINT.search, texts))


def is_named(config: pytest.Config, path: Path, name: str = "") -> bool:
    """Whether the command line names a file, or a test of it (`name`), and not only a folder above."""
    for argument in config.args:
        file, _, named = argument.partition("::")
        if Path(config.invocation_params.dir, file) != path:
            continue
        if not name or not named or name == named or name.startswith((f"{named}[", f"{named}::")):
            return True
    return False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.option.markexpr or collection_path.suffix != ".py" or is_named(config, collection_path):
        return None
    if not collection_path.is_relative_to(config.rootpath):
        return None
    file = collection_path.relative_to(config.rootpath).as_posix()
    return is_left_out(collection_path, file, config.option.tier, config.stash[LOADED]) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if is_thorough(item.nodeid, config.stash[LOADED]):
            item.add_marker("thorough")
    for item in beyond_each_value([item for item in items if tier_of(item) == "slow"]):
        item.add_marker("long")
    if config.option.markexpr:
        return
    tiers = {"quick", "slow"} if config.option.tier == "all" else {config.option.tier}
    kept, others = [], []
    for item in items:
        chosen = tier_of(item) in tiers or is_named(config, item.path, item.nodeid.partition("::")[2])
        (kept if chosen else others).append(item)
    if config.option.tier == "quick":  # no test may fall between two runs
        slow = {(item.path, function_of(item.nodeid)[0]) for item in others if tier_of(item) == "slow"}
        lost = [file for path, file in sorted(slow) if is_left_out(path, file, "slow", config.stash[LOADED])]
        if lost:
            raise pytest.UsageError(
                f"--tier=slow leaves out {lost}, which have slow tests: extend HINT in tests/tiers.py"
            )
    items[:] = kept
    config.hook.pytest_deselected(items=others)


def beyond_each_value(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Cases of a function beyond those in which each value of each parameter occurs."""
    functions: dict[tuple[str, str], list[tuple[set[tuple[int, str]], pytest.Item]]] = defaultdict(list)
    for item in items:
        names = item.callspec._idlist if hasattr(item, "callspec") else ()  # one for each list of values
        functions[function_of(item.nodeid)].append((set(enumerate(names)), item))
    for (file, _), cases in functions.items():
        occur = Counter(value for values, _ in cases for value in values)
        missing = {value: min(times, 1 + file.startswith(EXACT)) for value, times in occur.items()}
        while any(missing.values()):
            chosen = max(cases, key=lambda case: sum(missing[value] > 0 for value in case[0]))
            cases.remove(chosen)
            missing.update((value, max(0, missing[value] - 1)) for value in chosen[0])
        yield from (item for values, item in cases if values)


def tier_of(item: pytest.Item) -> str:
    marks = {mark.name for mark in item.iter_markers()}
    if "long" in marks:
        return "long"
    return "slow" if marks & {"slow", "thorough"} else "quick"


# A recorded run


class Recorder:
    """Writes a line for each case: its name, seconds, those of processors, and births."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{os.getpid()}.jsonl"
        self._births: Counter[str] = Counter()
        sys.addaudithook(self._count)

    def _count(self, event: str, arguments: object) -> None:
        if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty"):
            self._births[event] += 1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._births.clear()
        began, used = time.monotonic(), _cpu_seconds()
        result = yield
        costs = (round(time.monotonic() - began, 3), round(_cpu_seconds() - used, 3))
        with self._path.open("a") as file:
            file.write(json.dumps([item.nodeid, *costs, self._births]) + "\n")
        return result


def _cpu_seconds() -> float:
    """Returns the processor time of this process and of the children that it has waited for."""
    both = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def costs_of(folder: Path) -> dict[tuple[str, str], list[float]]:
    """Returns the cost of each case that no rule sends away, by function."""
    costs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for path in sorted(folder.glob("*.jsonl")):
        for nodeid, duration, used, _ in map(json.loads, path.read_text().splitlines()):
            costs[function_of(nodeid)] += [] if is_ruled(nodeid) else [max(used, WAIT * duration)]
    return costs


def record_of(costs: dict[tuple[str, str], list[float]]) -> Record:
    """Returns the costly functions by file. A function without a cost has only cases that a rule sends away."""
    files: dict[str, dict[str, bool]] = defaultdict(dict)
    for (file, name), used in sorted(costs.items()):
        costly = not used or sum(used) / len(used) >= COSTLY
        files[file][name] = costly and f"{file}::{name}" not in QUICK_ANYWAY
    return {
        file: WHOLE if all(names.values()) else [name for name, costly in names.items() if costly]
        for file, names in files.items()
        if any(names.values())
    }


def recorded_anew(record: Record, costs: dict[tuple[str, str], list[float]]) -> Record:
    """Returns a record with the files of a run in the place of what it said of them, without those that are gone."""
    ran = {file for file, _ in costs}
    others = {file: names for file, names in record.items() if file not in ran and (TESTS.parent / file).exists()}
    return dict(sorted({**others, **record_of(costs)}.items()))


if __name__ == "__main__":
    lines = json.dumps(recorded_anew(json.loads(RECORD.read_text()), costs_of(Path(sys.argv[1]))), indent=0)
    RECORD.write_text(lines + "\n")
