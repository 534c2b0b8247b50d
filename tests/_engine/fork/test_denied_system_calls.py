"""Loaders under filters of system calls (seccomp), as containers and sandboxes have them: real filters, in programs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

NUMBERS = {
    "x86_64": {"memfd_create": 319, "timerfd_create": 283, "epoll_create1": 291},
    "aarch64": {"memfd_create": 279, "timerfd_create": 85, "epoll_create1": 20},
}.get(platform.machine(), {})

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not NUMBERS, reason="the filter is Linux's, by number")

PROGRAM = """
import ctypes, errno, json, os, select, struct, sys
import numpy as np
import stoker
from stoker.diagnostics.checks import machine

NUMBERS, ERROR = json.loads(sys.argv[1]), getattr(errno, sys.argv[2])

def deny(names):
    load, equal, leave = 0x20, 0x15, 0x06
    words = [(load, 0, 0, 0)]
    for name in names:
        words += [(equal, 0, 1, NUMBERS[name]), (leave, 0, 0, 0x50000 | ERROR)]
    words.append((leave, 0, 0, 0x7FFF0000))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *word) for word in words))
    program = ctypes.create_string_buffer(struct.pack("HL", len(words), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    if prctl(38, 1, 0, 0, 0) or prctl(22, 2, ctypes.addressof(program), 0, 0):
        os._exit(77)

class Images:
    def __init__(self):
        self.table = np.arange(100_000)
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return np.full((100, 100), self.table[index], np.float32)

def check(names):
    deny(names)
    for method in ("fork", "forkserver"):
        loader = stoker.DataLoader(
            Images(), batch_size=8, num_workers=2, output="numpy", multiprocessing_context=method
        )
        iterator = iter(loader)
        batches = [next(iterator)[:, 0, 0].tolist() for _ in range(3)]
        assert batches == [list(range(start, start + 8)) for start in (0, 8, 16)], batches
        arena = os.readlink(f"/proc/self/fd/{iterator._backend._life.arena[0]}")
        assert arena.startswith(os.environ["TMPDIR"]) == ("memfd_create" in names), arena
        assert ("unlinked file in " in loader.describe()) == ("memfd_create" in names), loader.describe()
        del iterator
    (found,) = machine.system_calls()
    for name in names:
        assert name in found.what, found
    assert found.level == ("advice" if "memfd_create" in names else "fine")
    assert os.listdir(os.environ["TMPDIR"]) == []

for names in [[name] for name in NUMBERS] + [[*NUMBERS]]:
    pid = os.fork()
    if not pid:
        try:
            check(names)
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    print(names, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_loaders_work_where_system_calls_are_denied(error: str, tmp_path: Path) -> None:
    script, folder = tmp_path / "program.py", tmp_path / "temporary"
    script.write_text(PROGRAM)
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(NUMBERS), error],
        env={**os.environ, "TMPDIR": str(folder), "STOKER_TORCH": "0"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    codes = [line.rpartition(" ")[2] for line in done.stdout.splitlines()]
    if set(codes) == {"77"}:
        pytest.skip("this machine allows no filter")
    assert codes == ["0"] * (len(NUMBERS) + 1), done.stdout + done.stderr
