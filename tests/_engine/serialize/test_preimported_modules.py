"""Which modules a clean interpreter imports once, for all workers that it forks."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker._engine.serialize import main_module
from stoker._engine.serialize.main_module import of_installed_packages

Make = Callable[..., types.ModuleType]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a module that this process has imported from a file."""

    def made(name: str, file: str | None, **variables: Any) -> types.ModuleType:
        module = types.ModuleType(name)
        vars(module).update(variables, **({} if file is None else {"__file__": file}))
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return made


@pytest.mark.parametrize(
    ("file", "is_installed"),
    [
        ("/venv/lib/python3.11/site-packages/thing.py", True),
        ("/usr/lib/python3/dist-packages/thing/__init__.py", True),
        (str(Path(json.__file__).parent.with_name("thing.py")), True),
        ("/home/user/project/thing.py", False),
        ("/home/user/site-packages-of-mine/thing.py", False),
        (None, False),
    ],
)
def test_a_module_is_installed_by_its_file(module: Make, file: str | None, is_installed: bool) -> None:
    module("thing", file)
    assert of_installed_packages(["thing"], None) == ["thing"] * is_installed


def test_builtin_modules_and_stokers_own_are_installed() -> None:
    assert of_installed_packages(["time", main_module.__name__], None) == [
        "time",
        main_module.__name__,
    ]


def test_a_module_that_is_not_loaded_is_left_out() -> None:
    assert of_installed_packages(["no_such_module", ""], None) == []


def test_the_order_is_that_of_the_imports_here(module: Make) -> None:
    first, second = module("first", "/x/site-packages/first.py"), module("second", "/x/site-packages/second.py")
    assert of_installed_packages([second.__name__, first.__name__], None) == ["first", "second"]


def test_own_modules_are_followed_to_installed_ones(module: Make) -> None:
    """Through modules, classes and functions that they name, and the packages that they are in."""
    installed = module("installed", "/x/site-packages/installed.py")
    module("package", "/home/package/__init__.py", installed=installed)
    helper = module("package.helper", "/home/package/helper.py", Path=Path, loads=json.loads, dot=np.dot)
    module("own", "/home/own.py", helper=helper, value=3)
    found = of_installed_packages(["own"], None)
    assert {"installed", Path.__module__, "json"} <= {*found}
    assert not {"own", "package", "package.helper"} & {*found}


def test_only_names_that_the_import_of_main_binds_are_followed(module: Make) -> None:
    outside = module("outside", "/x/site-packages/outside.py")
    guarded = module("guarded", "/x/site-packages/guarded.py")
    module("__main__", "/home/script.py", outside=outside, guarded=guarded)
    assert of_installed_packages([], frozenset({"outside"})) == ["outside"]
    assert of_installed_packages(["__main__"], None) == []


def test_lazy_module_is_not_loaded_by_the_search(module: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lazy.py"
    path.write_text("raise RuntimeError('loaded')")
    spec = importlib.util.spec_from_file_location("lazy", path)
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    spec.loader.exec_module(lazy)
    module("own", "/home/own.py", lazy=lazy)
    assert of_installed_packages(["own"], None) == []
