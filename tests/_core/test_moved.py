"""Modules that moved are found by the names that they had, and the table of these names is in order."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Iterator

import pytest

import stoker
from stoker._core import first_use
from stoker._core import moved as table

MOVED = {
    "stoker._former": "stoker.samplers",
    "stoker._former.split": "stoker.datasets.subset",
    "stoker.samplers._once": "stoker.samplers.permutation",
}


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The table of modules that moved, with three more."""
    finders, modules = sys.meta_path[:], set(sys.modules)
    for former, today in MOVED.items():
        monkeypatch.setitem(table.MODULES, former, today)
    yield
    sys.meta_path[:] = finders
    for name in set(sys.modules) - modules:
        if name.startswith(tuple(MOVED)):
            module, (parent, _, attribute) = sys.modules.pop(name), name.rpartition(".")
            parent = table.name_today(parent) or parent
            if module.__name__ != f"{parent}.{attribute}":  # the import has set it
                delattr(importlib.import_module(parent), attribute)


def same(former: str, today: str) -> bool:
    return importlib.import_module(former) is importlib.import_module(today)


@pytest.mark.usefixtures("moved")
def test_former_names_give_the_modules_of_today() -> None:
    assert same("stoker._former.batch", "stoker.samplers.batch")
    assert same("stoker._former", "stoker.samplers")
    assert same("stoker._former.split", "stoker.datasets.subset")
    assert same("stoker.samplers._once", "stoker.samplers.permutation")


@pytest.mark.usefixtures("moved")
def test_modules_that_moved_keep_what_python_says_of_them() -> None:
    batch = importlib.import_module("stoker.samplers.batch")
    before = batch.__name__, batch.__spec__, batch.__package__, batch.__loader__
    assert importlib.import_module("stoker._former.batch") is batch
    assert (batch.__name__, batch.__spec__, batch.__package__, batch.__loader__) == before


@pytest.mark.usefixtures("moved")
def test_names_that_no_module_ever_had_are_not_found() -> None:
    for name in ("stoker._formerly", "stoker._former.none", "stoker.samplers._once_more", "stoker.none.at.all"):
        with pytest.raises(ModuleNotFoundError, match=r"No module named 'stoker\."):
            importlib.import_module(name)
    assert importlib.util.find_spec("stoker._formerly") is None


@pytest.mark.usefixtures("moved")
def test_reference_in_a_pickle_gives_the_class_of_today() -> None:
    assert pickle.loads(b"cstoker._former.batch\nBatchSampler\n.") is stoker.BatchSampler
    assert sys.meta_path.count(first_use.FormerModules) == 2  # first too, and no more often than that
    assert sys.meta_path[0] is first_use.FormerModules


def test_fresh_interpreter_knows_former_names() -> None:
    program = f"""
import pickle
import stoker._core.moved
stoker._core.moved.MODULES.update({MOVED!r})
found = pickle.loads(b"cstoker._former.batch\\nBatchSampler\\n.")
import stoker._former.base as base
from stoker.samplers.base import Sampler
assert found is stoker.BatchSampler and base.Sampler is Sampler
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_table_is_of_modules_that_moved_to_ones_that_exist() -> None:
    for former, today in table.MODULES.items():
        found = importlib.import_module(former)
        assert found is importlib.import_module(today)
        assert found.__name__ == today, f"{former} is now {found.__name__}, so say that"


def test_table_hides_no_public_name() -> None:
    """The import of a former name sets it as an attribute of the package above, which may be today's."""
    program = """
import importlib, stoker
from stoker._core import first_use
from stoker._core import moved as table
for former in table.MODULES:
    importlib.import_module(former)
for name, home in first_use.HOMES.items():
    assert home == "stoker" or getattr(stoker, name) is getattr(importlib.import_module(home), name), name
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
