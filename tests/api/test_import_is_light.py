"""`import stoker` loads nothing that a program did not ask for, and does nothing.

How long it takes is the business of a benchmark, because no clock of a busy machine tells it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

QUIET_NAMES = "StokerError, get_worker_info, WorkerInfo, errors"
MODULES = """
import sys
before = set(sys.modules)
{statement}
print(*set(sys.modules) - before)
"""
STATE = """
import os, signal, sys, threading, warnings
def state():
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "mask": os.umask(18),
        "path": sys.path[:],
        "finders": sys.meta_path[:],
        "hooks": [sys.excepthook, sys.unraisablehook, *sys.path_hooks],
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "threads": threading.enumerate(),
        "filters": warnings.filters[:],
    }
before = state()
import stoker
after = state()
from stoker._core.first_use import FormerModules
before["finders"] += [FormerModules]
print(*(name for name in before if before[name] != after[name]))
"""


def printed_by(program: str) -> set[str]:
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    return set(run.stdout.split())


def newly_loaded(statement: str) -> set[str]:
    """The packages, beside the standard library's, that a statement loads."""
    modules = printed_by(MODULES.format(statement=statement))
    return {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)


def test_importing_does_nothing() -> None:
    """But for one finder of modules, which is asked last."""
    assert printed_by(STATE) == set()


def test_importing_loads_no_other_package_and_no_module_below() -> None:
    modules = printed_by(MODULES.format(statement="import stoker"))
    ours = {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names}
    assert ours == {"stoker", "stoker._core", "stoker._core.first_use"}
    assert not modules & {"multiprocessing", "concurrent.futures", "asyncio", "ctypes", "subprocess", "tempfile"}


def test_names_that_need_no_torch_load_none() -> None:
    assert newly_loaded(f"from stoker import {QUIET_NAMES}") == {"stoker"}
    assert "torch" not in newly_loaded("from stoker import columns, freeze")


def test_a_class_of_torchs_kind_loads_torch_on_first_use() -> None:
    pytest.importorskip("torch")
    assert newly_loaded("import stoker\nassert 'torch' not in sys.modules\nstoker.Dataset") >= {"stoker", "torch"}


def test_a_program_can_stay_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TORCH", "0")
    assert newly_loaded("from stoker import DataLoader, Dataset, RandomSampler, default_collate") >= {"stoker", "numpy"}
    assert "torch" not in newly_loaded("from stoker import *")


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_workers_load_nothing_of_the_command_line(start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its packages are installed with Stoker, and take memory in each process that loads them."""
    monkeypatch.setenv("STOKER_TORCH", "0")  # loads in seconds, and loads none of these
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport stoker\n\n\nclass Modules:\n    def __len__(self):\n        return 1\n\n"
        "    def __getitem__(self, index):\n        return sorted(sys.modules)\n\n\n"
        "if __name__ == '__main__':\n"
        f"    loader = stoker.DataLoader(Modules(), None, num_workers=1, multiprocessing_context={start!r})\n"
        "    print(*{name.partition('.')[0] for name in next(iter(loader))})\n"
    )
    program = [sys.executable, "-W", "error", str(script)]
    run = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True)
    assert "stoker" in (loaded := set(run.stdout.split()))
    assert not loaded & {"typer", "click", "pydantic", "rich"}
