"""All public names of Stoker: of the package, of its public modules, and those that the documentation imports."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker._core import first_use

DOCS = Path(__file__).parents[2] / "docs"
MODULES = [
    *("stoker.errors", "stoker.events", "stoker.images"),
    *("stoker.testing.backends", "stoker.testing.datasets", "stoker.testing.gather", "stoker.testing.streams"),
]
"""Modules of which all names are public."""


def public_names() -> list[str]:
    """Full names, each object once."""
    of_modules = [f"{module}.{name}" for module in MODULES for name in _names_of(importlib.import_module(module))]
    of_package = [f"stoker.{name}" for name, home in first_use.HOMES.items() if home not in ("stoker", *MODULES)]
    others = sorted({*_members(), *_imports()})
    here = {id(resolve(name)) for name in of_package + of_modules}
    return [*of_package, *of_modules, *(name for name in others if not (is_here(name) and id(resolve(name)) in here))]


def is_here(name: str) -> bool:
    """Whether a name needs no framework, which may not be installed."""
    return not name.startswith("stoker.integrations.")


def resolve(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _names_of(module: Any) -> list[str]:
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__)
    return list(getattr(module, "__all__", None) or (name for name in own if not name.startswith("_")))


def _members() -> Iterator[str]:
    """Names that a page of the reference lists under a module."""
    for page in sorted(DOCS.glob("reference/*.md")):
        for module, names in re.findall(r"^::: (\S+)\n +options:\n +members: \[(.*)\]", page.read_text(), re.MULTILINE):
            yield from (f"{module}.{name}" for name in names.split(", "))


def _imports() -> Iterator[str]:
    """Names that programs in the documentation import from modules below the package."""
    for page in sorted(DOCS.rglob("*.md")):
        for module, names in re.findall(r"^from (stoker\.[\w.]+) import ([\w, ]+)", page.read_text(), re.MULTILINE):
            yield from (f"{module}.{name.strip()}" for name in names.split(","))
