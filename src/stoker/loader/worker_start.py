"""Chooses how a loader's worker processes start: whether they may use JAX, run only Stoker's code, and unpickle the
dataset.
"""

from __future__ import annotations

import dis
import functools
import itertools
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker._core.protocol import is_ours
from stoker._engine.backends import StartMethod, choose_start_method
from stoker._engine.fork import native_pools
from stoker._engine.serialize.main_module import NAMING, home_of, is_installed, is_module, named_by, variables_of
from stoker.datasets.nesting import unpickled_once
from stoker.loader._random.find_generators import attributes
from stoker.loader._random.generators import loaded_torch

if TYPE_CHECKING:
    from stoker.loader._options.loader_options import LoaderOptions


def birth_of(options: LoaderOptions, tell: Callable[[str], None] = lambda text: None) -> StartMethod:
    """Returns the start method of the next workers; warns by `tell` if threads of native libraries may hang them.

    Unless the user has chosen a start method, workers start in a clean interpreter in three cases: this process is a
    worker of Ray; they run nothing but Stoker's own code while a native pool has threads; or their code names JAX,
    which has started a backend, or Ray, to which this process is connected. Other code may depend on flags, patches and
    open files of the script, which only a fork keeps.
    """
    birth = choose_start_method(options.multiprocessing_context)._replace(once=unpickled_once(options.dataset))
    if not birth.forked:
        return birth
    if options.multiprocessing_context is None and native_pools.is_ray_worker():
        return birth._replace(forked=False, why="this process is a worker of Ray, whose forks hang")
    parts = _sent(options).values()
    free = options.multiprocessing_context is None
    if free and native_pools.ray_has_started() and (named := named_by_parts(parts, "ray")):
        return birth._replace(forked=False, why=f"Ray is connected, which survives no fork; named: {named}")
    if native_pools.jax_has_started() and not is_stokers(parts):
        named = named_by_parts((*parts, options.index_sampler), "jax")
        if named and free:
            return birth._replace(
                forked=False, why=f"JAX has started a backend, which survives no fork; named: {named}"
            )
        if named or free:
            tell(
                "JAX has started a backend in this process, which survives no fork, and workers are forked: one that "
                f"uses JAX waits for it for ever{f', and {named} is named' if named else ''}. Pass "
                "multiprocessing_context='forkserver', which starts workers in a clean interpreter, or 'fork' if no "
                "worker uses JAX."
            )
    if (pools := native_pools.find()) is None:
        return birth
    if free and is_stokers(parts):
        return birth._replace(forked=False, why=f"{pools} does not survive a fork")
    tell(
        f"{pools} does not survive a fork, and workers are forked: one that uses {pools.library} may wait for it for "
        "ever. Pass multiprocessing_context='forkserver', which starts workers in a clean interpreter, or use "
        f"{pools.library} only in the workers."
    )
    return birth


def check_sending(options: LoaderOptions) -> None:
    """Raises CannotSendError if the next workers are clean, torch's would be forked, and a part cannot be sent."""
    by_process = options.capabilities.own_process and options.multiprocessing_context is None
    may_differ = by_process and native_pools.jax_has_started() and choose_start_method(None).forked
    if may_differ and not birth_of(options).forked:
        from stoker._engine.fork.fresh_interpreter import check_parts

        check_parts(_sent(options))


def _sent(options: LoaderOptions) -> dict[str, object]:
    """Returns what clean workers are sent of the user's, by the names under which messages speak of it."""
    names = ("dataset", "collate_fn", "worker_init_fn", "on_error")
    return {**{name: getattr(options, name) for name in names}, "batch_transform": options.worker_transform}


# Whether workers may use JAX. A forked worker that uses it waits for ever if JAX has started a backend before the fork.
# Code names JAX by the globals and imports of its functions, the classes of its objects, or an attribute "jax". An
# installed package that imports JAX counts as JAX; the user's own modules are followed instead.


_LIBRARIES = {"jax": frozenset({"jax", "jaxlib"}), "ray": frozenset({"ray"})}
_NO_USERS = {"numpy", "stoker", "torch", *sys.stdlib_module_names}
"""Packages that import none of these. A function that others have put into them, as a hook, makes them no users."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice)
_CONTAINERS = (list, tuple, set, frozenset, dict)

_MOST_OBJECTS = 10_000
_MOST_ITEMS = 256


def named_by_parts(parts: Iterable[object], library: str) -> str | None:
    """Returns what names a library ("jax", "ray") among all that `parts` can reach, in words; None for nothing.

    Looks at the first 256 items of a container, and at 10,000 objects. Runs no code of the user's.
    """
    users = _packages_that_use(library, len(sys.modules))
    queue: list[Any] = list(parts)
    seen = {id(part) for part in queue}
    for value in queue:  # which grows
        named = value if issubclass(type(value), NAMING) else type(value)
        home = home_of(named)
        if home.partition(".")[0] in users:
            return home if named is not type(value) and is_module(value) else f"{home}.{named.__qualname__}"
        values = [] if named is value else [*attributes(value)]
        if any(type(text) is str and text == library for text in values):
            return f"an attribute '{library}' of a {named.__qualname__}"
        for child in itertools.chain(values, _children(value)):
            if id(child) not in seen and type(child) not in _PLAIN and len(seen) < _MOST_OBJECTS:
                seen.add(id(child))
                queue.append(child)
    return None


@functools.lru_cache(maxsize=2)  # a tenth of a second where thousands of modules are loaded
def _packages_that_use(library: str, loaded: int) -> set[str]:
    """Returns the library's top-level packages, and the installed ones that import it, as their global variables show.

    Args:
        library: "jax" or "ray".
        loaded: number of loaded modules.
    """
    packages = set(_LIBRARIES[library])
    names: dict[str, set[str]] = {}
    for name, module in [*sys.modules.items()]:
        package = name.partition(".")[0]
        if package not in _NO_USERS and is_module(module) and is_installed(name, module):
            homes = {home.partition(".")[0] for home in named_by(variables_of(module))}
            names.setdefault(package, set()).update(homes)
    while more := {package for package in names.keys() - packages if not packages.isdisjoint(names[package])}:
        packages |= more
    return packages


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
        if is_own(base):
            yield from [*vars(base).values()]


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    """Yields what a function holds, and what the code of one of the user's names: globals, and modules it imports."""
    yield from (function.__defaults__, function.__kwdefaults__, *vars(function).values())
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # empty
            continue
    if is_own(function):
        yield from named_in(function)


def named_in(function: types.FunctionType) -> Iterator[Any]:
    """Yields the globals and imported modules that a function's code names, and what it names in the user's modules."""
    codes, seen = [function.__code__], set[int]()
    for code in codes:  # which grows
        codes += [constant for constant in code.co_consts if type(constant) is types.CodeType]
        named = [*_globals_of(code, function.__globals__)]
        yield from named
        for module in named:  # which grows
            if is_module(module) and id(module) not in seen and not is_installed(home_of(module), module):
                inside = variables_of(module)
                parts = [inside[name] for name in code.co_names if name in inside]
                yield from parts
                named += filter(is_module, parts)
                seen.add(id(module))


def _globals_of(code: types.CodeType, around: dict[str, Any]) -> Iterator[Any]:
    """Yields the globals that code reads, and the modules that it imports: an empty one for one not loaded yet."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in around:
            yield around[step.argval]
        elif step.opname == "IMPORT_NAME" and step.argval:
            relative = sys.modules.get(f"{around.get('__package__')}.{step.argval}")
            yield relative or sys.modules.get(step.argval) or types.ModuleType(step.argval)


def is_own(thing: Any) -> bool:
    """Returns whether a class or function is of the user's own modules."""
    home = home_of(thing)
    module = sys.modules.get(home)
    return home.partition(".")[0] not in _NO_USERS and not (is_module(module) and is_installed(home, module))


# Detects loaders whose workers run only Stoker's code, so that no setting of the script affects them.


MOST_OBJECTS = 1000
"""Objects: parts that hold more are not searched, and count as the user's."""

MOST_BYTES = 64 << 20
"""Bytes of arrays and tensors: a clean start copies them, so larger ones are left to the fork."""

_VALUES = (type(None), bool, int, float, complex, str, bytes, range, slice, np.dtype, random.Random)


def is_stokers(parts: Iterable[Any]) -> bool:
    """Returns whether all objects that `parts` can reach are plain values, or of Stoker's classes and functions.

    Arrays and tensors are plain values, up to 64 MiB in all. Runs no code of the user's.
    """
    torch = loaded_torch()
    values = (*_VALUES, np.random.Generator, np.random.RandomState, *(() if torch is None else (torch.Generator,)))
    queue = list(parts)
    seen = {id(part) for part in queue}
    size = 0
    for value in queue:  # which grows
        kind = type(value)
        inside: Iterable[Any] = ()
        if kind is np.ndarray or (torch is not None and kind is torch.Tensor):
            size += value.nbytes
            if size > MOST_BYTES or value.dtype is np.dtype(object):
                return False
        elif kind in _CONTAINERS:
            if len(value) > MOST_OBJECTS:
                return False
            inside = itertools.chain(value, value.values()) if kind is dict else value
        elif kind is functools.partial:
            inside = (value.func, value.args, value.keywords)
        elif kind is types.MethodType:
            inside = (value.__self__, value.__func__)
        elif kind is types.FunctionType or issubclass(kind, type):
            if not is_ours(value) or getattr(value, "__closure__", None):
                return False
        elif is_ours(kind):
            inside = attributes(value)
        elif kind not in values and not issubclass(kind, np.generic):
            return False
        fresh = [inner for inner in inside if id(inner) not in seen]
        seen.update(map(id, fresh))
        queue += fresh
        if len(queue) > MOST_OBJECTS:
            return False
    return True
