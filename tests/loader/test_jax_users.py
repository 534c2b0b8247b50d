"""Whether code that workers are given names JAX, which is here a module without content."""

from __future__ import annotations

import functools
import multiprocessing
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

import stoker
from stoker.loader import worker_start
from stoker.loader.record import options_of
from stoker.loader.worker_start import named_by_parts


def jax_named_by(parts: list[Any]) -> str | None:
    return named_by_parts(parts, "jax")


Make = Callable[..., types.ModuleType]
SITE = "/x/site-packages/"

OWN = """
import functools
import jax
import layers
import beside

class Plain:
    def __getitem__(self, index):
        return "jax" if index else beside.harmless(index).layers

class InMethod(Plain):
    def __getitem__(self, index):
        return jax.ones(index)

class InNested(Plain):
    def __getitem__(self, index):
        return [(lambda: layers.dense(index)) for _ in range(1)]

class Imports(Plain):
    def __getitem__(self, index):
        from jax import numpy
        return numpy

class InProperty(Plain):
    @property
    def shape(self):
        return jax.shape

class OfBase(InMethod):
    def __len__(self):
        return 3

class Class(Plain):
    transforms = [functools.partial(layers.dense, 3)]

class Beside(Plain):
    def __getitem__(self, index):
        return beside.harmful(index)

def through(sample):
    return helper(sample)

def helper(sample):
    return jax.asarray(sample)

def closing():
    array = jax.Array()
    return lambda sample: sample + array

@functools.lru_cache
def cached(sample):
    return jax.asarray(sample)

class Holds(Plain):
    def __init__(self, **held):
        self.__dict__.update(held)
"""

BESIDE = """
import jax
def harmless(index): return index
def harmful(index): return jax.ones(index)
"""


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The user's module: it imports JAX and an installed package that does; not everything in it names them."""

    def made(name: str, file: str, source: str = "", **variables: Any) -> types.ModuleType:
        module = types.ModuleType(name)
        vars(module).update(variables, __file__=file)
        monkeypatch.setitem(sys.modules, name, module)
        exec(source, vars(module))
        return module

    jax = made("jax", SITE + "jax/__init__.py", Array=type("Array", (), {"__module__": "jaxlib.arrays"}))
    made("layers", SITE + "layers.py", "def dense(size): ...", jax=jax)
    made("beside", "/home/beside.py", BESIDE)
    return made("own", "/home/own.py", OWN)


@pytest.mark.parametrize("name", ["InMethod", "InNested", "Imports", "InProperty", "OfBase", "Class", "Beside"])
def test_class_that_names_jax_is_found(own: Any, name: str) -> None:
    kind = getattr(own, name)
    assert jax_named_by([kind()])
    assert jax_named_by([own.Holds(inner=[{"key": kind()}])])
    assert jax_named_by([lambda: kind])


def test_functions_and_values_that_name_jax_are_found(own: Any) -> None:
    assert jax_named_by([own.through]) == "jax"
    assert jax_named_by([own.closing()]) == "jaxlib.arrays.Array"
    assert jax_named_by([functools.partial(print, own.through)]) == jax_named_by([own.cached]) == "jax"
    assert jax_named_by([[sys.modules["jax"].Array()] * 1000]) == "jaxlib.arrays.Array"
    assert jax_named_by([own.Holds(format="jax")]) == "an attribute 'jax' of a Holds"


def test_what_stands_beside_jax_does_not_name_it(own: Any) -> None:
    cycle: list[Any] = [own.Plain(), own.Holds(words=["jax"], numbers=range(3)), len, None]
    cycle.append(cycle)
    assert jax_named_by([cycle, stoker.default_collate, stoker.TensorDataset]) is None


@pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="nothing is forked here by default")
def test_workers_are_clean_where_code_names_started_jax(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def how(dataset: Any, context: str | None = None) -> tuple[str, int]:
        loader = stoker.DataLoader(dataset, num_workers=1, output="numpy", multiprocessing_context=context)
        told: list[str] = []
        birth = worker_start.birth_of(options_of(loader), told.append)
        assert birth.forked != ("JAX has started a backend" in birth.why)
        assert all("'forkserver'" in text for text in told)
        return "forked" if birth.forked else "clean", len(told)

    assert how(own.InMethod()) == ("clean", 0)  # it is not known whether this JAX has started
    assert how(own.Plain()) == ("forked", 1)
    assert how([1, 2]) == ("forked", 0)  # nothing but Stoker's own code
    assert how(own.InMethod(), "fork") == ("forked", 1)
    assert how(own.Plain(), "fork") == ("forked", 0)
    bridge = types.ModuleType("jax._src.xla_bridge")
    monkeypatch.setitem(sys.modules, bridge.__name__, bridge)
    vars(bridge)["_backends"] = {}
    assert how(own.InMethod()) == how(own.Plain()) == ("forked", 0)
    vars(bridge)["_backends"]["cpu"] = object()
    assert how(own.InMethod()) == ("clean", 0)


@pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="nothing is forked here by default")
def test_workers_are_clean_where_code_names_connected_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reads(stoker.Dataset[Any]):
        inner: object = None

    modules = {name: types.ModuleType(name) for name in ("ray", "ray._raylet", "ray._private.worker")}
    vars(modules["ray._raylet"])["ObjectRef"] = type("ObjectRef", (), {"__module__": "ray._raylet"})
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    plain, reads = Reads(), Reads()
    reads.inner = [vars(modules["ray._raylet"])["ObjectRef"]()]

    def forked(dataset: Any, context: str | None = None) -> bool:
        loader = stoker.DataLoader(dataset, sampler=[], num_workers=1, multiprocessing_context=context)
        return worker_start.birth_of(options_of(loader)).forked

    assert forked(reads)
    vars(modules["ray._private.worker"])["global_worker"] = types.SimpleNamespace(connected=True, mode=0)
    assert forked(plain) and not forked(reads) and forked(reads, "fork")
