"""Finds the random generators that a dataset can reach through its attributes and transforms, in all or for one
sample's part.

Class attributes count (MONAI's transforms share one generator), and so do module globals that the dataset's code names,
such as `rng = np.random.default_rng(7)` at the top of a script. Every worker would otherwise have the same copy.
"""

from __future__ import annotations

import functools
import itertools
import random
import types
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from stoker.loader._random.generators import loaded_torch

_MOST_OBJECTS = 10_000
_MOST_ITEMS = 256
_MOST_STEPS = 16
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_WITHOUT_ANY = ("builtins", "stoker", "torch", "typing")
"""Packages whose classes hold no generators of their own and name only the global ones."""
_PLAIN = ("builtins", "functools", "numpy", "types", "typing", "typing_extensions")
"""Packages whose callable objects lead to no generator: type aliases, ufuncs."""
_CLOSED = (
    *(str, bytes, bytearray, memoryview, int, float, complex, type(None), range),
    *(type, types.ModuleType, types.BuiltinFunctionType, np.ndarray, np.generic),
)


def find_generators(holder: object) -> list[Any]:
    """Returns the random generators of Python, NumPy and torch that `holder` can reach, the nearest first, each once.

    The search follows attributes (slots too), dictionaries, lists, tuples, sets, closures, partial functions and bound
    methods. Of a class and its bases, it follows generators and methods. Of the module globals that a function names,
    it follows generators, functions of the same module, and other callable objects such as transforms. It skips
    containers of more than 256 items, arrays, modules and classes, and everything more than 16 steps or 10,000 objects
    away. It runs none of the user's properties, `__getattr__`, `__iter__` or `__len__`.
    """
    return _found(holder, _Search())


def find_objects(holder: object, kinds: tuple[type, ...], closed: tuple[str, ...]) -> list[Any]:
    """Returns the objects of some classes that `holder` can reach, found as generators are.

    Args:
        holder: where the search begins.
        kinds: the classes.
        closed: packages whose other objects are not searched.
    """
    return _found(holder, _Search(kinds, closed))


def _found(holder: object, search: _Search) -> list[Any]:
    generators: list[Any] = []
    seen = {id(holder): holder}  # keeps the objects alive, so that no id is reused
    ring = [holder]
    for _ in range(_MOST_STEPS):
        next_ring: list[Any] = []
        for parent in ring:
            for child in itertools.chain(search.children(parent), search.of_class(type(parent))):
                if id(child) in seen or issubclass(type(child), search.closed):
                    continue
                if search.closed_packages and search.is_closed(type(child)):
                    continue
                if len(seen) == _MOST_OBJECTS:
                    return generators
                seen[id(child)] = child
                (generators if issubclass(type(child), search.generators) else next_ring).append(child)
        ring = next_ring
    return generators


class _Search:
    """Lists the objects that an object refers to, within one search."""

    def __init__(self, kinds: tuple[type, ...] | None = None, closed_packages: tuple[str, ...] = ()) -> None:
        self.generators: tuple[type, ...] = _GENERATORS if kinds is None else kinds
        self.closed: tuple[type, ...] = _CLOSED
        self.closed_packages = closed_packages
        if (torch := loaded_torch()) is not None:
            self.closed = (*_CLOSED, *(() if torch.Tensor in self.generators else (torch.Tensor,)))
            if kinds is None:
                self.generators = (*_GENERATORS, torch.Generator)
        self._classes: set[type] = set()
        self._modules: dict[int, dict[str, Any]] = {}

    def is_closed(self, kind: type) -> bool:
        """Returns whether objects of a class are not searched: it is of a closed package, and not looked for."""
        return _package(kind) in self.closed_packages and not issubclass(kind, self.generators)

    def children(self, parent: Any) -> Iterator[Any]:
        """Yields the objects that `parent` holds itself."""
        for kind in (list, tuple, set, frozenset, dict):
            if issubclass(type(parent), kind) and kind.__len__(parent) <= _MOST_ITEMS:
                yield from list(dict.values(parent) if kind is dict else kind.__iter__(parent))
        if type(parent) is types.FunctionType:
            for cell in parent.__closure__ or ():
                yield from _read(cell, types.CellType.cell_contents)
            yield from self._named(parent)
        elif type(parent) is types.MethodType:
            yield from (parent.__self__, parent.__func__)
        elif type(parent) is functools.partial:
            yield from (parent.func, parent.args, parent.keywords)
        yield from attributes(parent)

    def of_class(self, kind: type) -> Iterator[Any]:
        """Yields the generators of a class not seen before, and its methods whose module holds generators."""
        for base in kind.__mro__:
            if base in self._classes or _package(base) in _WITHOUT_ANY:
                continue
            self._classes.add(base)
            for value in list(vars(base).values()):
                if type(value) in (staticmethod, classmethod):
                    value = value.__func__
                is_method = type(value) is types.FunctionType
                if issubclass(type(value), self.generators) or (is_method and self._of_module(value.__globals__)):
                    yield value

    def _named(self, function: types.FunctionType) -> Iterator[Any]:
        """Yields the module globals that the code of a function names, if the module holds any of interest."""
        there = self._of_module(function.__globals__)
        codes = [function.__code__] if there else []
        for code in codes:
            codes += [constant for constant in code.co_consts if type(constant) is types.CodeType]  # lambdas
            for name in code.co_names:
                value = function.__globals__.get(name)
                if name in there or (type(value) is types.FunctionType and value.__globals__ is function.__globals__):
                    yield value

    def _of_module(self, names: dict[str, Any]) -> dict[str, Any]:
        """Returns the generators and callable objects of a module by name. Most modules have none."""
        if id(names) not in self._modules:
            self._modules[id(names)] = {
                name: value
                for name, value in list(names.items())
                if issubclass(kind := type(value), self.generators)
                or (
                    callable(value)
                    and not issubclass(kind, (types.FunctionType, *self.closed))
                    and (kind is functools.partial or _package(kind) not in _PLAIN)
                )
            }
        return self._modules[id(names)]


def _package(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]  # None for some classes made at run time


def attributes(parent: Any) -> Iterator[Any]:
    """Yields the values in an object's dictionary and slots, without running the user's code."""
    try:
        attributes = object.__getattribute__(parent, "__dict__")
    except AttributeError:
        attributes = None
    if type(attributes) is dict:
        yield from list(attributes.values())
    for member in _slots(type(parent)):
        yield from _read(parent, member)


# Weak: a user's class keeps the globals of its module, and with them open files, which are flushed when they are freed
_WITHOUT_SLOTS: weakref.WeakSet[type] = weakref.WeakSet()


def _slots(kind: type) -> list[Any]:
    if kind in _WITHOUT_SLOTS:
        return []
    own = [vars(base).values() for base in kind.__mro__ if "__slots__" in vars(base)]
    slots = [member for members in own for member in members if type(member) is types.MemberDescriptorType]
    if not slots:
        _WITHOUT_SLOTS.add(kind)
    return slots


def _read(holder: Any, member: Any) -> Iterator[Any]:
    """Yields the value of a slot or a closure cell, unless it is empty."""
    try:
        yield member.__get__(holder)
    except (AttributeError, ValueError):
        return


# The part of a dataset that a sample hangs on: of a concatenation, one of its datasets.


HeldBy = Callable[[Any], "list[Any] | None"]
"""Returns the datasets to which a wrapper of Stoker's or torch's forwards, or None."""

Route = Callable[[int], int]
"""Returns the number of the part that has a sample."""

_SAME_INDEX = ("MapDataset", "RetryDataset", "RateLimitDataset")
_INDICES = (list, tuple, range, np.ndarray)


class SampleParts:
    """The parts of a dataset below its concatenations, subsets and wrappers.

    Args:
        dataset: map-style.
        held_by: tells wrappers from other datasets.

    Attributes:
        parts: the innermost datasets, each once; only `dataset` itself if it is no wrapper.
    """

    def __init__(self, dataset: Any, held_by: HeldBy) -> None:
        self.parts: list[Any] = []
        self._numbers: dict[int, int] = {}  # by the `id` of the part: a concatenation may name a dataset several times
        self._held_by = held_by
        self._route = self._routed(dataset)

    def of(self, index: Any) -> int | None:
        """Returns the number of a sample's part, or None for an index that is no place in the dataset."""
        try:
            return self._route(index)
        except (TypeError, LookupError, ValueError):  # it is the dataset's to complain
            return None

    def _routed(self, dataset: Any) -> Route:
        inner = self._held_by(dataset)
        kind = next((base.__name__ for base in type(dataset).__mro__ if "__getitem__" in vars(base)), "")
        if inner is not None and kind == "ConcatDataset":
            return _in_concatenation(list(dataset.cumulative_sizes), [self._routed(part) for part in inner])
        if inner is not None and kind == "Subset" and type(dataset.indices) in _INDICES:
            indices, route = dataset.indices, self._routed(dataset.dataset)
            return lambda index: route(indices[index])
        if inner is not None and kind in _SAME_INDEX:
            return self._routed(inner[0])
        number = self._numbers.setdefault(id(dataset), len(self.parts))
        if number == len(self.parts):
            self.parts.append(dataset)
        return lambda index: number


def _in_concatenation(ends: list[int], routes: list[Route]) -> Route:
    def route(index: int) -> int:
        if index < 0:
            index += ends[-1]
        place = bisect_right(ends, index)
        return routes[place](index - ends[place - 1] if place else index)

    return route
