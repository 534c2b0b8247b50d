"""The checks of packages and settings."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from stoker._core import native
from stoker.diagnostics.checks import machine
from tests.nvml_driver import FakeDriver


@pytest.mark.parametrize(("method", "level"), [("fork", "fine"), ("spawn", "advice"), ("forkserver", "advice")])
def test_start_method_says_what_it_means(method: str, level: str) -> None:
    program = f"""
import multiprocessing
multiprocessing.set_start_method({method!r})
from stoker.diagnostics.checks import machine
(found,) = machine.start_method()
assert found.level == {level!r} and found.what.startswith({method!r}), found
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_compiled_part_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "functions", None)
    monkeypatch.setattr(native, "why", "STOKER_NATIVE=0")
    (found,) = machine.compiled_part()
    assert found.level == "advice" and "STOKER_NATIVE=0" in found.what


def test_threads_are_advice_until_a_limit_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(machine.cpus, "cpus", lambda: type("Usable", (), {"number": 8}))
    for name in machine.THREADS:
        monkeypatch.delenv(name, raising=False)
    (found,) = machine.threads()
    assert found.level == "advice" and "up to 8 threads in each worker" in found.what
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert [(one.level, one.what[:17]) for one in machine.threads()] == [("fine", "OMP_NUM_THREADS=1")]


def test_hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    assert [one.level for one in machine.hash_seed()] == ["advice"]
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert [one.level for one in machine.hash_seed()] == ["fine"]


def test_packages_are_those_that_are_installed() -> None:
    import numpy

    assert f"numpy {numpy.__version__}" in next(machine.packages()).what


def test_gpu_is_described_and_the_library_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    (found,) = machine.utilisation()
    assert (found.name, found.what) == ("GPU 0", "NVIDIA Z1, busy 37% of the last moment, 20.0 GiB free of 80.0 GiB")
    assert not driver.is_open


def test_driver_that_does_not_start_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(9))
    assert [(one.level, "code 9" in one.what) for one in machine.utilisation()] == [("problem", True)]
