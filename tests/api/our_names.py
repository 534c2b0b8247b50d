"""What a name of ours leads to, read from the source: modules, their names, and the attributes of their classes."""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import stoker
from stoker._core import first_use

PACKAGE = Path(stoker.__file__).parent


def _modules() -> dict[str, Path]:
    files = {path.relative_to(PACKAGE.parent).with_suffix(""): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(file.parts).removesuffix(".__init__"): path for file, path in files.items()}


MODULES = _modules()
"""Modules and packages by their full names."""
STEMS: dict[str, list[str]] = defaultdict(list)
"""The same by the last part of their names."""
for _module in MODULES:
    STEMS[_module.rpartition(".")[2]].append(_module)


@cache
def names_in(module: str) -> dict[str, ast.AST | None]:
    """The names that a module binds, and what binds each: a definition, an import, or None for a value."""
    names = dict(_bound(ast.parse(MODULES[module].read_text()).body))
    if (stub := MODULES[module].with_suffix(".pyi")).exists():  # names that are imported on first use
        names |= dict(_bound(ast.parse(stub.read_text()).body))
    for name, home in first_use.HOMES.items():  # packages that offer what their modules have
        if home.startswith(f"{module}.") and "first_use.homes_in" in MODULES[module].read_text():
            names[name] = ast.ImportFrom(home, [ast.alias(name)], 0)
    return names


def _bound(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST | None]]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:
                    yield (alias.asname or alias.name).partition(".")[0], node
            case ast.Assign() | ast.AnnAssign():
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    yield from ((part.id, None) for part in ast.walk(target) if isinstance(part, ast.Name))
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                for part in ("body", "orelse", "finalbody"):
                    yield from _bound(getattr(node, part, []))
                for handler in getattr(node, "handlers", []):
                    yield from _bound(handler.body)


def problem_of(name: str) -> str | None:
    """Why a full name leads to nothing; None if it leads somewhere."""
    parts = name.split(".")
    length = next(n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in MODULES)
    return _problem_in(".".join(parts[:length]), parts[length:])


def _problem_in(module: str, parts: list[str]) -> str | None:
    if not parts or parts[0].startswith("__"):
        return None
    if f"{module}.{parts[0]}" in MODULES:
        return _problem_in(f"{module}.{parts[0]}", parts[1:])
    names = names_in(module)
    if parts[0] not in names:
        return f"{module} has no {parts[0]}"
    if len(parts) == 1:
        return None
    match names[parts[0]]:
        case ast.ImportFrom(module=home, names=aliases) if home is not None and home in MODULES:
            original = next(alias.name for alias in aliases if parts[0] in (alias.asname, alias.name))
            return _problem_in(home, [original, *parts[1:]])
        case ast.ClassDef() as node if not has_attribute(module, node, parts[1]):
            return f"the class {parts[0]} has no {parts[1]}"
        case ast.FunctionDef(decorator_list=[]) if not parts[1].startswith("__"):
            return f"{parts[0]} is a function"
    return None


def has_attribute(module: str, node: ast.ClassDef, name: str) -> bool:
    """Whether a class has an attribute, or may have it from a base that is not ours."""
    if name.startswith("__") or name in _attributes(node):
        return True
    for base in node.bases:
        match base.value if isinstance(base, ast.Subscript) else base:
            case ast.Call(func=ast.Attribute(value=ast.Name("nominal"))):  # torch's class: what ours adds is in ours
                continue
            case ast.Name(base_name):
                own = class_of(module, base_name)
                if _is_others(module, base_name, name) if own is None else has_attribute(*own, name):
                    return True
            case _:
                return True
    return False


def _is_others(module: str, base: str, name: str) -> bool:
    """Whether a base that is not ours has an attribute, as far as it can be known without a library."""
    node = names_in(module).get(base)
    if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in sys.stdlib_module_names:
        return hasattr(getattr(importlib.import_module(str(node.module)), base), name) or base == "NamedTuple"
    return node is not None or hasattr(getattr(builtins, base, None), name)


def class_of(module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """The class of ours that a module knows by a name, with the module that defines it."""
    match names_in(module).get(name):
        case ast.ClassDef() as node:
            return module, node
        case ast.ImportFrom(module=home, names=aliases) if home is not None and home in MODULES:
            original = next(alias.name for alias in aliases if name in (alias.asname, alias.name))
            return class_of(home, original)
    return None


@cache
def _attributes(node: ast.ClassDef) -> set[str]:
    found = {name for name, _ in _bound(node.body)}
    for part in ast.walk(node):
        match part:
            case ast.Attribute(value=ast.Name("self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.Constant(str(text)) if text.isidentifier():  # of `__slots__` and `setattr`
                found.add(text)
    return found


@cache
def classes() -> dict[str, tuple[str, ast.ClassDef]]:
    """All classes by their names, which are unique, with their modules."""
    found = {}
    for module in MODULES:
        for name, node in names_in(module).items():
            if isinstance(node, ast.ClassDef):
                found[name] = module, node
    return found
