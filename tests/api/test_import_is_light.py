"""`import stoker` loads nothing that a program did not ask for, and does nothing.

How long it takes is the business of a benchmark, because no clock of a busy machine tells it.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, sys, threading, warnings
{before}
def state():
    return [dict(os.environ), os.getcwd(), sys.path[:], threading.active_count(), repr(warnings.filters), os.umask(18)]
modules, earlier = set(sys.modules), state()
{statement}
assert state() == earlier, (earlier, state())
print(json.dumps(sorted(set(sys.modules) - modules)))
"""
QUIET_NAMES = "StokerError, get_worker_info, WorkerInfo, errors"


def newly_loaded(statement: str, before: str = "") -> set[str]:
    program = PROGRAM.format(before=before, statement=statement)
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, capture_output=True, text=True)
    return set(json.loads(run.stdout))


def test_importing_loads_the_package_alone() -> None:
    loaded = newly_loaded("import stoker")
    assert {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names} == {"stoker"}


@pytest.mark.parametrize("statement", ["import stoker", f"from stoker import {QUIET_NAMES}"])
def test_neither_torch_nor_another_heavy_package_is_loaded(statement: str) -> None:
    roots = {name.partition(".")[0] for name in newly_loaded(statement)}
    assert not roots - set(sys.stdlib_module_names) - {"stoker", "numpy"}
    assert not roots & {"multiprocessing", "concurrent", "asyncio", "ctypes", "subprocess", "tempfile"}


def test_a_class_of_torchs_kind_loads_torch_on_first_use() -> None:
    pytest.importorskip("torch")
    program = "import sys, stoker; assert 'torch' not in sys.modules; stoker.Dataset; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_a_program_can_stay_without_torch() -> None:
    before = "os.environ['STOKER_TORCH'] = '0'"
    assert "torch" not in newly_loaded("from stoker import DataLoader, Dataset, RandomSampler, default_collate", before)
