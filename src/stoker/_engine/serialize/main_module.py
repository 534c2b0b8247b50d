"""The modules that a clean interpreter imports: whether it may import the main module, and which it imports before it
forks.

multiprocessing imports a script again in each new interpreter, under the name `__mp_main__`. That is right for a
script with a main guard (`if __name__ == "__main__":`), and wrong for one without: everything would run once more
there. A notebook, a REPL and `python -c` have no file to import. So only a guarded main module is imported; where it is
not, and for what the guard or a function made, classes and functions travel by value.
"""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
import tokenize
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from multiprocessing import spawn
from typing import Any, TypeGuard

from stoker._engine.serialize.causes import SHARING
from stoker.errors import WorkerStartError

_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def preparation_of(name: str) -> dict[str, Any]:
    """Returns multiprocessing's data for a new process of this name, such as the path of the main module.

    Raises:
        WorkerStartError: the working directory, in which the new process would run as well, is gone.
    """
    try:
        return spawn.get_preparation_data(name)
    except FileNotFoundError as error:
        raise WorkerStartError(
            "a clean worker cannot be started, because the working directory of this program was removed: os.chdir() "
            f"to one that is there, or {SHARING}."
        ) from error


def names_after_import(preparation: Mapping[str, Any]) -> frozenset[str] | None:
    """The names of the main module that importing it binds to what they are bound to here, None where it is not to be.

    Args:
        preparation: the data that multiprocessing would send.
    """
    module = preparation.get("init_main_from_name", "")
    if module == "__main__" or module.endswith(".__main__"):
        return None  # multiprocessing imports no package's or archive's __main__.py: those run unguarded
    path = preparation.get("init_main_from_path") or (module and getattr(sys.modules["__main__"], "__file__", None))
    source = _source(path)
    if source is None:
        return None
    guards = [statement for statement in source.body if _is_guard(statement)]
    if not guards:
        return None
    others = [statement for statement in source.body if statement not in guards]
    return frozenset(_bound(others)) - frozenset(_bound(guards)) - frozenset(_rebound_by_functions(source))


def _source(path: str | None) -> ast.Module | None:
    """Returns the parsed script, or None without readable source, as in a zip archive."""
    try:
        with tokenize.open(path or "") as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return None


def _is_guard(statement: ast.stmt) -> bool:
    """Whether it is `if __name__ == "__main__":`, in whatever company (`... and not interactive`)."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.Eq)
        and {ast.unparse(node.left), ast.unparse(node.comparators[0])} == {"__name__", "'__main__'"}
        for node in ast.walk(statement.test)
    )


def _bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the names that these statements bind, not inside their functions, classes or comprehensions."""
    for node in nodes:
        if isinstance(node, _DEFINITIONS):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif not isinstance(node, _SCOPES):
            yield from _bound(ast.iter_child_nodes(node))


def _rebound_by_functions(source: ast.Module) -> Iterator[str]:
    """Yields the names declared `global` in functions: their values depend on the code that has run."""
    for node in ast.walk(source):
        if isinstance(node, ast.Global):
            yield from node.names


# The modules that a clean interpreter imports before it forks: those that the pickle names, and those that the user's
# own modules among them name by global variables, and so on. Only modules of installed packages are imported (below
# the standard library, `site-packages` or `dist-packages`; built-in; Stoker's). The main module and the user's own
# modules are left to each worker, because their import may open files and connections.


NAMING = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
"""Types of objects that have a module, or are one."""

_LIBRARIES = tuple(
    {os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_PACKAGES = ("site-packages", "dist-packages")


def home_of(value: Any) -> str:
    """The name of the module of an object of `NAMING`; of a module its own."""
    name = variables_of(value).get("__name__") if is_module(value) else getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""


def of_installed_packages(named: Iterable[str], main: Collection[str] | None) -> list[str]:
    """The modules of installed packages that are needed where the pickle is read, in the order of their import here.

    Args:
        named: the modules that the pickle names.
        main: the names of the main module that importing it binds; None where it is not imported.
    """
    needed, seen = set(), set()
    waiting = [*named, *(["__main__"] if main else [])]
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name in seen or not is_module(module):
            continue
        seen.add(name)
        if name == "__main__":
            variables = variables_of(module)
            waiting += named_by({name: variables[name] for name in main or () if name in variables})
        elif is_installed(name, module):
            needed.add(name)
        else:
            waiting += named_by(variables_of(module))
            waiting.append(name.rpartition(".")[0])
    return [name for name in [*sys.modules] if name in needed]


def is_installed(name: str, module: types.ModuleType) -> bool:
    """Whether a module is of an installed package, and not the user's own."""
    package = name.partition(".")[0]
    if package == "stoker":
        return True
    file = variables_of(module).get("__file__")
    if not isinstance(file, str):
        return package in sys.stdlib_module_names
    return file.startswith(_LIBRARIES) or any(part in _PACKAGES for part in file.split(os.sep))


def named_by(variables: Mapping[str, Any]) -> Iterator[str]:
    """The modules that a module names by its global variables: themselves, or classes and functions of theirs."""
    return (home_of(value) for value in [*variables.values()] if issubclass(type(value), NAMING))


def is_module(value: Any) -> TypeGuard[types.ModuleType]:
    """Without a look at its attributes: other objects may stand in for modules, and import them when they are used."""
    return issubclass(type(value), types.ModuleType)


def variables_of(module: types.ModuleType) -> Mapping[str, Any]:
    return object.__getattribute__(module, "__dict__")  # type: ignore[no-any-return]
