"""`stoker.extend`: the door between the houses is small, documented, and loads nothing before a name is used."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from stoker import DataLoader, extend
from stoker.extend import BatchTimings, Observer, find_generators, observe, pickled_size, time_batches

STUB = ast.parse((Path(stoker.__file__).parent / "extend.pyi").read_text())
HOMES = {alias.name: str(node.module) for node in STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names}
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "extend.md"
ALIASES = {"Indices", "State", "TimingSink"}
"""Types without a docstring of their own."""
LOADED = """
import sys
before = set(sys.modules)
import stoker.extend
print(*(name for name in set(sys.modules) - before if name.partition(".")[0] not in sys.stdlib_module_names))
"""


def test_importing_the_door_loads_nothing_below() -> None:
    run = subprocess.run([sys.executable, "-c", LOADED], stdout=subprocess.PIPE, text=True, check=True)
    assert set(run.stdout.split()) == {"stoker", "stoker._core", "stoker._core.first_use", "stoker.extend"}


def test_door_is_small_and_of_the_loader_alone() -> None:
    assert extend.__all__ == sorted(HOMES) and set(HOMES) <= set(dir(extend))
    assert len(HOMES) < 40
    parts = {home.split(".")[1] for home in HOMES.values()}
    assert parts <= {"_engine", "datasets", "samplers", "collate", "loader", "device"}


def test_stub_of_the_door_exports_each_name() -> None:
    for node in STUB.body:
        assert isinstance(node, ast.ImportFrom)
        assert [alias.asname for alias in node.names] == [node.names[0].name], "`name as name`, which re-exports it"


def test_names_of_the_door_lead_home_and_are_documented() -> None:
    silent = []
    for name, home in HOMES.items():
        thing = getattr(extend, name)
        assert thing is getattr(importlib.import_module(home), name)
        is_value = isinstance(thing, float)
        if name not in ALIASES and not is_value and not (vars(thing).get("__doc__") or thing.__doc__ or "").strip():
            silent.append(name)
    assert silent == []


def test_reference_shows_the_names_of_the_door() -> None:
    shown = re.findall(r"^::: stoker\.extend\.(\w+)$", PAGE.read_text(), re.MULTILINE)
    assert len(shown) == len(set(shown))
    of_stoker = set(HOMES) & set(stoker.__all__)  # the pages of `stoker` show them
    assert sorted({*shown, *of_stoker}) == extend.__all__ and not of_stoker & set(shown)
    assert all(f"[`{name}`]" in PAGE.read_text() for name in of_stoker)


def test_unknown_name_of_the_door_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'stoker\.extend' has no attribute 'Observed'"):
        _ = extend.Observed


def test_observer_sees_each_batch_until_it_is_removed() -> None:
    class Seen(Observer):
        batches = 0

        def next(self, iterator, take):
            batch = take(iterator)
            self.batches += 1
            return batch

    seen = Seen()
    before = observe(seen)
    try:
        list(DataLoader(range(6), batch_size=2))
    finally:
        assert observe(before) is seen
    list(DataLoader(range(6), batch_size=2))
    assert seen.batches == 3


def test_time_batches_returns_the_sink_before() -> None:
    loader, times = DataLoader(range(6), batch_size=2), []
    assert time_batches(loader, times.append) is None
    list(loader)
    assert [type(one) for one in times] == [BatchTimings] * 3
    assert time_batches(loader, None) == times.append
    list(loader)
    assert len(times) == 3


def test_pickled_size_counts_bytes_or_names_the_object() -> None:
    assert 1_000_000 <= pickled_size({"dataset": bytes(1_000_000)}) < 1_001_000
    with pytest.raises(stoker.CannotSendError, match=r"dataset\[1\]"):
        pickled_size({"dataset": [0, (number for number in range(3))]})


def test_find_generators_looks_into_a_dataset() -> None:
    import random

    generator = random.Random(0)
    assert find_generators({"inside": [generator]}) == [generator]
