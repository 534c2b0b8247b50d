"""Finds the random generators that a dataset holds: in its attributes, its transforms, and so on inwards.

Also those that a class holds for all its objects, as MONAI's transforms have one, and those of a module that the
dataset's code names, `rng = np.random.default_rng(7)` at the top of a script: each worker would have the same copy.
"""

from __future__ import annotations

import functools
import itertools
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker.loader.generators import loaded_torch

_MOST_OBJECTS = 10_000
_MOST_ITEMS = 256
_MOST_STEPS = 16
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_WITHOUT_ANY = ("builtins", "stoker", "torch", "typing")
"""Packages whose classes hold no generators of their own, and name none but the global ones."""
_CLOSED = (
    *(str, bytes, bytearray, memoryview, int, float, complex, type(None), range),
    *(type, types.ModuleType, types.BuiltinFunctionType, np.ndarray, np.generic),
)


def held_generators(holder: object) -> list[Any]:
    """The generators that `holder` can reach, the nearest first, each once.

    Looks into attributes (slots too), dictionaries, lists, tuples, sets, closures, partial functions and bound methods.
    Of a class and its bases, generators and methods count; of what a function names in its module, generators,
    functions of the same module, and other callable objects, as transforms are. Data is left alone: containers of more
    than 256 items, arrays, modules and classes; so is what lies more than 16 steps or 10,000 objects away. Runs no
    properties and no `__getattr__`, `__iter__` or `__len__` of the user's.
    """
    generators: tuple[type, ...] = _GENERATORS
    closed: tuple[type, ...] = _CLOSED
    if (torch := loaded_torch()) is not None:
        generators, closed = (*generators, torch.Generator), (*closed, torch.Tensor)
    found: list[Any] = []
    seen = {id(holder): holder}  # holds what it names, so that no id is used twice
    classes: set[type] = set()
    ring = [holder]
    for _ in range(_MOST_STEPS):
        next_ring: list[Any] = []
        for parent in ring:
            new = [kind for kind in type(parent).__mro__ if kind not in classes]
            classes.update(new)
            for child in itertools.chain(_children(parent, generators), _of_classes(new, generators)):
                if id(child) in seen or issubclass(type(child), closed):
                    continue
                if len(seen) == _MOST_OBJECTS:
                    return found
                seen[id(child)] = child
                (found if issubclass(type(child), generators) else next_ring).append(child)
        ring = next_ring
    return found


def _of_classes(kinds: list[type], generators: tuple[type, ...]) -> Iterator[Any]:
    for kind in kinds:
        if kind.__module__.partition(".")[0] in _WITHOUT_ANY:
            continue
        for value in list(vars(kind).values()):
            if type(value) in (staticmethod, classmethod):
                value = value.__func__
            if type(value) is types.FunctionType or issubclass(type(value), generators):
                yield value


def _named(function: types.FunctionType, generators: tuple[type, ...]) -> Iterator[Any]:
    """What the code of a function names in its module."""
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if type(constant) is types.CodeType]  # lambdas in it
        for name in code.co_names:
            value = function.__globals__.get(name)
            if type(value) is types.FunctionType:
                if value.__globals__ is function.__globals__:
                    yield value
            elif issubclass(type(value), generators) or hasattr(type(value), "__call__"):  # noqa: B004 - of the class
                yield value


def _children(parent: Any, generators: tuple[type, ...]) -> Iterator[Any]:
    for kind in (list, tuple, set, frozenset, dict):
        if issubclass(type(parent), kind) and kind.__len__(parent) <= _MOST_ITEMS:
            yield from list(dict.values(parent) if kind is dict else kind.__iter__(parent))
    if type(parent) is types.FunctionType:
        for cell in parent.__closure__ or ():
            yield from _read(cell, types.CellType.cell_contents)
        yield from _named(parent, generators)
    elif type(parent) is types.MethodType:
        yield from (parent.__self__, parent.__func__)
    elif type(parent) is functools.partial:
        yield from (parent.func, parent.args, parent.keywords)
    yield from _attributes(parent)


def _attributes(parent: Any) -> Iterator[Any]:
    try:
        attributes = object.__getattribute__(parent, "__dict__")
    except AttributeError:
        attributes = None
    if type(attributes) is dict:
        yield from list(attributes.values())
    kind: Any = type(parent)
    for member in _slots(kind):
        yield from _read(parent, member)


@functools.lru_cache
def _slots(kind: type) -> list[Any]:
    own = [vars(base).values() for base in kind.__mro__ if "__slots__" in vars(base)]
    return [member for members in own for member in members if type(member) is types.MemberDescriptorType]


def _read(holder: Any, member: Any) -> Iterator[Any]:
    """What a slot or a closure's cell holds, if it holds anything yet."""
    try:
        yield member.__get__(holder)
    except (AttributeError, ValueError):
        return
