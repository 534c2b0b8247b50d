"""Runs programs in processes forked from one that has imported torch and Stoker: `python server.py`.

Each line of standard input is a request, JSON: a list of {"folder", "fresh", "timeout", "grace"}. The folder holds
`program.py`. The programs of one request run at the same time. Each line of standard output is the list of outcomes:
{"exit", "timed out", "processes left"}; "exit" is negative where a signal ended the program.

A keeper is forked for each program, and the program from the keeper. The keeper adopts the orphans of its program, so
processes that have left their session are found too.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
POLL = 0.005


def main() -> dict[str, Any]:
    """Serves requests until standard input ends. Returns in each forked program, with its request."""
    import torch.utils.data  # noqa: F401

    import stoker

    _ = stoker.DataLoader
    for line in sys.stdin:
        request = json.loads(line)
        keepers = []
        for program in request:
            keeper = os.fork()
            if not keeper:
                return keep(program)
            keepers.append(keeper)
        for keeper in keepers:
            os.waitpid(keeper, 0)
        print(json.dumps([json.loads(Path(p["folder"], "outcome").read_text()) for p in request]), flush=True)
    os._exit(0)


def keep(program: dict[str, Any]) -> dict[str, Any]:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if not child:
        return program
    status: int | None = None
    deadline = time.monotonic() + program["timeout"]
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == child:
            status = ended
            deadline = time.monotonic() + program["grace"]
        elif not pid and time.monotonic() > deadline:
            break
        elif not pid:
            time.sleep(POLL)
    left = end_descendants()
    outcome = {
        "exit": None if status is None else os.waitstatus_to_exitcode(status),
        "timed out": status is None,
        "processes left": 0 if status is None else left,
    }
    Path(program["folder"], "outcome").write_text(json.dumps(outcome))
    os._exit(0)


def end_descendants() -> int:
    """Kills the processes below this one; those that are orphaned by it become its children. Returns their number."""
    ended = 0
    while True:
        children = [int(pid) for pid in Path("/proc/thread-self/children").read_text().split()]
        if not children:
            return ended
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            ended += 1


def begin(program: dict[str, Any]) -> str:
    """Gives this process its own folder, streams and session. Returns the path of its program."""
    folder = Path(program["folder"])
    os.setsid()
    os.chdir(folder / "cwd")
    os.environ["TMPDIR"] = str(folder / "tmp")
    for number, name in enumerate(("/dev/null", folder / "stdout", folder / "stderr")):
        descriptor = os.open(name, (os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY), 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    return str(folder / "program.py")


def be_main(path: str) -> dict[str, Any]:
    module = ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = module
    sys.argv = [path]
    sys.path[0] = os.path.dirname(path)
    return module.__dict__


def execute(path: str) -> None:
    os.execv(sys.executable, [sys.executable, path])


if __name__ == "__main__":
    request = main()
    path = begin(request)
    if request["fresh"]:
        execute(path)
    exec(compile(Path(path).read_text(), path, "exec"), be_main(path))
