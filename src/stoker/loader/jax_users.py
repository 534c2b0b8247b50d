"""Finds out whether a loader's workers may use JAX: whether code that they are given names it.

A forked worker that uses JAX waits for ever where JAX has started a backend before the fork. Code names JAX by the
globals and imports of its functions, by the classes of its objects, and by an attribute "jax", as a format or a
backend. A package counts as JAX if it is installed and imports it. The user's own modules are followed instead:
importing JAX beside a dataset does not make the dataset use it.
"""

from __future__ import annotations

import dis
import functools
import itertools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from stoker._engine.serialize.preimported_modules import (
    NAMING,
    home_of,
    is_installed,
    is_module,
    named_by,
    variables_of,
)
from stoker.loader._random.find_generators import attributes

_JAX = frozenset({"jax", "jaxlib"})
_NO_USERS = {"numpy", "stoker", "torch", *sys.stdlib_module_names}
"""Packages that import no JAX. A function that others have put into them, as a hook, does not make them users."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice)
_CONTAINERS = (list, tuple, set, frozenset, dict)

_MOST_OBJECTS = 10_000
_MOST_ITEMS = 256


def jax_named_by(parts: Iterable[object]) -> str | None:
    """Returns what names JAX among all that `parts` can reach, in words; None for nothing.

    Looks at the first 256 items of a container, and at 10,000 objects. Runs no code of the user's.
    """
    users = _packages_that_use_jax(len(sys.modules))
    queue: list[Any] = list(parts)
    seen = {id(part) for part in queue}
    for value in queue:  # which grows
        named = value if issubclass(type(value), NAMING) else type(value)
        home = home_of(named)
        if home.partition(".")[0] in users:
            return home if named is not type(value) and is_module(value) else f"{home}.{named.__qualname__}"
        held = [] if named is value else [*attributes(value)]
        if any(type(text) is str and text == "jax" for text in held):
            return f"an attribute 'jax' of a {named.__qualname__}"
        for child in itertools.chain(held, _children(value)):
            if id(child) not in seen and type(child) not in _PLAIN and len(seen) < _MOST_OBJECTS:
                seen.add(id(child))
                queue.append(child)
    return None


@functools.lru_cache(maxsize=1)  # a tenth of a second where thousands of modules are loaded
def _packages_that_use_jax(loaded: int) -> set[str]:
    """Returns JAX's top-level packages, and the installed ones that import it, as their global variables show.

    Args:
        loaded: number of loaded modules.
    """
    found = set(_JAX)
    names: dict[str, set[str]] = {}
    for name, module in [*sys.modules.items()]:
        package = name.partition(".")[0]
        if package not in _NO_USERS and is_module(module) and is_installed(name, module):
            homes = {home.partition(".")[0] for home in named_by(variables_of(module))}
            names.setdefault(package, set()).update(homes)
    while more := {package for package in names.keys() - found if not found.isdisjoint(names[package])}:
        found |= more
    return found


def _children(value: Any) -> Iterator[Any]:
    """Yields what an object holds beside its attributes, and what its class is made of."""
    kind = type(value)
    if issubclass(kind, dict):
        yield from itertools.islice(itertools.chain(dict.__iter__(value), dict.values(value)), _MOST_ITEMS)
    elif issubclass(kind, _CONTAINERS):
        plain = next(base for base in _CONTAINERS if issubclass(kind, base))
        yield from itertools.islice(plain.__iter__(value), _MOST_ITEMS)
    if kind is types.FunctionType:
        yield from _of_function(value)
    elif kind is types.MethodType:
        yield from (value.__self__, value.__func__)
    elif kind is functools.partial:
        yield from (value.func, value.args, value.keywords)
    elif kind is property:
        yield from (value.fget, value.fset)
    elif kind in (staticmethod, classmethod):
        yield value.__func__
    elif issubclass(kind, type):
        yield from _of_class(value)
    elif kind is not types.ModuleType:
        yield from _of_class(kind)


def _of_class(kind: type) -> Iterator[Any]:
    """Yields the bases of a class, and what stands in those of the user's own modules."""
    for base in kind.__mro__:
        yield base
        if _is_own(base):
            yield from [*vars(base).values()]


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    """Yields what a function holds, and what the code of one of the user's names: globals, and modules it imports."""
    yield from (function.__defaults__, function.__kwdefaults__, *vars(function).values())
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # empty
            continue
    codes = [function.__code__] if _is_own(function) else []
    for code in codes:  # which grows
        codes += [constant for constant in code.co_consts if type(constant) is types.CodeType]
        named = [*_globals_of(code, function.__globals__)]
        yield from named
        for module in named:
            if is_module(module) and not is_installed(home_of(module), module):
                yield from (variables_of(module)[name] for name in code.co_names if name in variables_of(module))


def _globals_of(code: types.CodeType, around: dict[str, Any]) -> Iterator[Any]:
    """Yields the globals that code reads, and the modules that it imports: an empty one for one not loaded yet."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in around:
            yield around[step.argval]
        elif step.opname == "IMPORT_NAME" and step.argval:
            relative = sys.modules.get(f"{around.get('__package__')}.{step.argval}")
            yield relative or sys.modules.get(step.argval) or types.ModuleType(step.argval)


def _is_own(thing: Any) -> bool:
    """Returns whether a class or function is of the user's own modules."""
    home = home_of(thing)
    module = sys.modules.get(home)
    return home.partition(".")[0] not in _NO_USERS and not (is_module(module) and is_installed(home, module))
