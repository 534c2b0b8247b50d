"""Which modules a clean interpreter imports before it forks: those of installed packages, that the workers share.

The main module and the user's own modules are left to each worker, because they may open files and connections when
they are imported. A module is of an installed package if its file lies below the paths of the standard library or
below a `site-packages` or `dist-packages`; a built-in one, and Stoker's, always. A package that was installed in its
source folder ("editable") is the user's own.

Needed are the modules that the pickle names, and those that the user's own modules among them name by their global
variables, as do the own modules that these name.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeGuard

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
