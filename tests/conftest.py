"""After every test: no process, thread, descriptor or shared mapping that the test started is left behind.

Endings are asynchronous (a worker has to leave, a finaliser to run), so what is still there is given until a deadline.
Processes are found by descent from this one, by the session (a forked orphan keeps it), and by a mark in their
environment (a program's own orphans keep that). A test that has failed is not checked: its traceback keeps its objects.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest_plugins = ["tests.tiers"]

DEADLINE = 2.0
POLL = 0.005
MARK = f"STOKER_TESTS={os.getpid()}"
os.environ.update([MARK.split("=")])
if "PYTHONPATH" in os.environ:  # programs that tests start elsewhere find the same package
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, os.environ["PYTHONPATH"].split(os.pathsep)))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: programs are sent it
    signal.signal(signal.SIGINT, signal.default_int_handler)
FAILED = pytest.StashKey[bool]()

try:
    import hypothesis
except ImportError:
    pass
else:  # the same examples in every run, more of them in CI, and no clock: the machine may be busy
    EXAMPLES = 30 if os.environ.get("CI") else 15
    hypothesis.settings.register_profile(
        "stoker", deadline=None, derandomize=True, database=None, max_examples=EXAMPLES
    )
    hypothesis.settings.load_profile("stoker")
    hypothesis.settings.register_profile("long", deadline=None, max_examples=2000)  # --hypothesis-profile=long


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    session: int
    state: str

    @classmethod
    def read(cls, pid: int) -> Process | None:
        try:
            state, parent, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[:4]
        except OSError:
            return None
        return cls(pid, int(parent), int(session), state)

    def is_ours(self) -> bool:
        if any(ancestor.pid == os.getpid() for ancestor in self.ancestors()):
            return True
        if self.state == "Z":  # an orphan's corpse is init's business
            return False
        adopter = Process.read(self.parent)
        if self.session == os.getsid(0) and (adopter is None or adopter.session != self.session):
            return True
        return MARK.encode() in _bytes(f"/proc/{self.pid}/environ").split(b"\0")

    def ancestors(self) -> Iterator[Process]:
        parent = Process.read(self.parent)
        while parent is not None:
            yield parent
            parent = Process.read(parent.parent)

    def __str__(self) -> str:
        command = _bytes(f"/proc/{self.pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
        return f"process {self.pid} (state {self.state}, parent {self.parent}): {command[:200] or 'a zombie'}"


class Traces:
    """What exists at one moment. Sets of plain numbers and names, because it is taken twice for every test."""

    def __init__(self) -> None:
        self.processes = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self.threads = set(sys._current_frames())
        self.descriptors = set(_descriptors())
        self.mappings = {line for line in _bytes("/proc/self/maps").splitlines() if b"/memfd:" in line}

    def since(self, before: Traces) -> list[str]:
        processes = [Process.read(pid) for pid in sorted(self.processes - before.processes)]
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        strangers = _of_multiprocessing()
        return [
            *(str(process) for process in processes if process and process.is_ours() and process.pid not in strangers),
            *(f"thread {names.get(ident, ident)}" for ident in sorted(self.threads - before.threads)),
            *(
                f"descriptor {number} -> {target}"
                for number, target in sorted(self.descriptors - before.descriptors)
                if ~number not in strangers
            ),
            *(f"mapping {line.decode()}" for line in sorted(self.mappings - before.mappings)),
        ]


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""


def _descriptors() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc/self/fd"):
        try:
            yield int(name), os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the one of listdir itself
            continue


def _of_multiprocessing() -> set[int]:
    """Helpers that multiprocessing starts once and keeps till the end: their pids, and descriptors as `~number`."""
    found: set[int | None] = set()
    if tracker := sys.modules.get("multiprocessing.resource_tracker"):
        found |= {tracker._resource_tracker._pid, ~(tracker._resource_tracker._fd or 0)}
    if server := sys.modules.get("multiprocessing.forkserver"):
        found |= {server._forkserver._forkserver_pid, ~(server._forkserver._forkserver_alive_fd or 0)}
    return {number for number in found if number is not None}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    """The tests themselves are half a million objects, which each collection would walk: half of the suite's time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def a_small_heap() -> Iterator[None]:
    """Thousands of collected tests are a large heap: each zygote would mark it, for some tenths of a second."""
    from stoker._engine.fork import heap_sharing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heap_sharing, "worth_it", lambda: False)
        yield


@pytest.fixture(autouse=True, scope="session")
def modules_of_one_test() -> Iterator[None]:
    """A folder of tests names all tests in it: each clean worker would import what they import, for seconds."""
    from stoker._engine.serialize import main_module

    variables_of = main_module.variables_of

    def variables(module: ModuleType) -> Mapping[str, Any]:
        found = variables_of(module)
        if str(found.get("__name__")).partition(".")[0] != "tests" or "__path__" not in found:
            return found
        return {name: value for name, value in found.items() if not isinstance(value, ModuleType)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main_module, "variables_of", variables)
        yield


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    exempt = request.node.get_closest_marker("leaves_behind")
    if exempt is not None and not (exempt.args and str(exempt.args[0]).strip()):
        pytest.fail("@pytest.mark.leaves_behind needs a reason: what stays, and why that is right")
    if exempt is not None or not os.path.isdir("/proc/self/fd"):
        yield
        return
    before = Traces()
    yield
    if request.node.stash.get(FAILED, False):
        return
    left = Traces().since(before)
    if left:
        gc.collect()
    deadline = time.monotonic() + DEADLINE
    while left and time.monotonic() < deadline:
        time.sleep(POLL)
        left = Traces().since(before)
    if left:
        pytest.fail(f"left behind {DEADLINE:g} s after the test:\n  " + "\n  ".join(left), pytrace=False)
