"""A main module is imported only if it is guarded, and a name goes by reference only if the import binds it alike."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from stoker._engine.fork.fresh_interpreter import start
from stoker._engine.serialize.main_module import names_after_import
from stoker._engine.spawn.worker_processes import WorkerPayload
from stoker.errors import WorkerStartError

SCRIPT = """
import os
from json import loads

LIMIT = 3
first, (second, *rest) = 1, (2, 3)
with open(os.devnull) as handle:
    inside = [hidden for hidden in "ab"]
for number in range(3):
    def looped(): local = 1
try:
    class Tried: attribute = 1
except ImportError:
    Tried = None
if LIMIT > 2:
    typed: int = 5
twice = 1
counter = 0

def count():
    global counter
    counter += 1

{guard}
    twice = 2
    class Guarded: ...
else:
    opposite = 1
"""
BOUND = {
    "os", "loads", "LIMIT", "first", "second", "rest", "handle", "inside", "number", "looped", "Tried", "typed", "count"
}  # fmt: skip


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


def names(main: types.ModuleType, path: Path, script: str, **preparation: str) -> frozenset[str] | None:
    path.write_text(script)
    main.__file__ = str(path)
    return names_after_import(preparation or {"init_main_from_path": str(path)})


@pytest.mark.parametrize(
    "guard",
    [
        'if __name__ == "__main__":',
        "if '__main__' == __name__:",
        'if __name__ == "__main__" and not os.environ.get("X"):',
    ],
)
def test_names_bound_outside_the_guard_alone(main: types.ModuleType, tmp_path: Path, guard: str) -> None:
    assert names(main, tmp_path / "script.py", SCRIPT.format(guard=guard)) == BOUND


@pytest.mark.parametrize(
    "guard", ["if os.name:", 'if __name__ != "__main__":', 'if __name__ == "script":', "while not __name__:"]
)
def test_a_script_without_a_guard_is_not_imported(main: types.ModuleType, tmp_path: Path, guard: str) -> None:
    assert names(main, tmp_path / "script.py", SCRIPT.format(guard=guard)) is None


def test_a_guard_inside_a_function_guards_nothing(main: types.ModuleType, tmp_path: Path) -> None:
    script = "def main():\n    if __name__ == '__main__':\n        pass\nmain()\n"
    assert names(main, tmp_path / "script.py", script) is None


@pytest.mark.parametrize("script", ["%matplotlib inline\n", "x = '\\x00'\x00", ""])
def test_main_file_that_is_no_python_is_not_imported(main: types.ModuleType, tmp_path: Path, script: str) -> None:
    assert names(main, tmp_path / "script.py", script) is None


def test_module_run_by_name_is_imported_but_no_package_main(main: types.ModuleType, tmp_path: Path) -> None:
    script = "x = 1\nif __name__ == '__main__':\n    pass\n"
    assert names(main, tmp_path / "script.py", script, init_main_from_name="package.script") == {"x"}
    assert names(main, tmp_path / "script.py", script, init_main_from_name="package.__main__") is None
    assert names(main, tmp_path / "script.py", script, init_main_from_name="__main__") is None


def test_a_session_without_a_file_is_not_imported(main: types.ModuleType) -> None:
    assert names_after_import({}) is None
    main.__file__ = "/nowhere/script.py"
    assert names_after_import({"init_main_from_path": "/nowhere/script.py"}) is None


def test_a_working_directory_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean worker would begin there."""
    (tmp_path / "gone").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        with pytest.raises(WorkerStartError, match=r"working directory of this program was removed: os\.chdir\(\)"):
            start("module:function", {}, [])
        with pytest.raises(WorkerStartError, match="working directory"):
            WorkerPayload({})
