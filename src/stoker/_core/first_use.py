"""Names of a package that are imported on first use: a program needs few of them.

`stoker/__init__.pyi` lists the public names, one for each line, for type checkers too.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def homes_of(stub: str, former: bool = False) -> dict[str, str]:
    """Returns the names that a stub beside `stoker/__init__.py` lists, with the module that defines each.

    Args:
        stub: name of the file.
        former: of the indented lines, which have names that were public once.
    """
    loader: Any = sys.modules["stoker"].__spec__.loader  # type: ignore[union-attr]  # works in zip archives too
    path = os.path.join(os.path.dirname(os.path.dirname(__file__)), stub)
    begin = "    from " if former else "from "
    lines = (line.split() for line in loader.get_data(path).decode().splitlines() if line.startswith(begin))
    return {words[3]: words[1] for words in lines}  # from HOME import NAME as NAME


HOMES = homes_of("__init__.pyi")
"""From each public name to the module that defines it; "stoker" for a module."""


FORMER_HOMES = homes_of("__init__.pyi", former=True)
"""The same of names that `stoker` exported once: importable from it through 0.1, without a warning."""


def public_names() -> list[str]:
    """Returns the public names, sorted."""
    return sorted(HOMES)


def homes_in(package: str) -> dict[str, str]:
    """Returns the public names that modules of this package define, with their modules."""
    return {name: home for name, home in HOMES.items() if home.startswith(package + ".")}


def loaded(package: str, name: str, homes: Mapping[str, str]) -> Any:
    """Returns a name of a package, imported now and set as an attribute of the package.

    Args:
        package: its name.
        name: an attribute that it does not have yet.
        homes: from each name to the module that defines it.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    home = homes[name]
    # The objects of new modules live on. With torch imported, one full collection between them takes half of the time
    collects = gc.isenabled()
    gc.disable()
    try:
        module = importlib.import_module(f"{home}.{name}" if home == package else home)
    finally:
        if collects:
            gc.enable()
    value = module if home == package else getattr(module, name)
    setattr(sys.modules[package], name, value)
    return value


def loading(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a package's `__getattr__`, which imports each name once.

    Args:
        package: its name.
        homes: from each name to the module of the package that defines it.
    """
    modules = {name: f"{package}.{home}" for name, home in homes.items()}
    return lambda name: loaded(package, name, modules)


class FormerModules:
    """The last finder of `sys.meta_path`: knows the modules of Stoker that moved, by the names that they had.

    From the first such name on it is the first finder too. A package that moved is the same object under both names, so
    others would look for its modules in its folder, and load each a second time.
    """

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("stoker."):
            return None
        spec: ModuleSpec | None = importlib.import_module("stoker._core.moved").spec_of(name)
        if spec is not None and sys.meta_path.count(cls) < 2:
            sys.meta_path.insert(0, cls)
        return spec
