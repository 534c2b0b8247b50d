"""Measures the layout of the source: files and lines per folder, import cycles, private reads across modules.

    python scripts/house.py [FOLDER]

Every import counts, within functions and under `TYPE_CHECKING` too. A private read is `x._y` where `_y` belongs to
another module of the package: `x` is such a module, or the name is defined in another one and not in this.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

DEFAULT = Path(__file__).parents[1] / "src" / "stoker"
SHOWN = 12
"""Files of a cycle, and files with private reads, that are printed at most."""

NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
"""Names with an underscore that are public."""


class Module:
    """A file of the package.

    Args:
        path: of the file.
        root: of the package.

    Attributes:
        name: with dots, below the package; empty for the package itself.
        defined: private names that the file defines: of modules, classes and instances.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.folder = path.parent.relative_to(root.parent).as_posix()
        parts = path.relative_to(root).with_suffix("").parts
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        text = path.read_text()
        self.lines = len(text.splitlines())
        self.tree = ast.parse(text)
        self.defined = set(_defined(self.tree))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLES


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name("self" | "cls"), attr=name, ctx=ast.Store()):
                yield name


def imports(module: Module, modules: dict[str, Module], package: str) -> Iterator[tuple[str, str | None]]:
    """Yields each module that is imported, and the name under which the file has the module itself, if it has."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    root, _, rest = alias.name.partition(".")
                    if root == package:
                        yield rest, alias.asname
            case ast.ImportFrom(level=level, module=base):
                if level:
                    parts = module.name.split(".") if module.name else []
                    parts = parts[: len(parts) - level + module.is_package]
                    home = ".".join([*parts, *([base] if base else [])])
                else:
                    root, _, home = (base or "").partition(".")
                    if root != package:
                        continue
                for alias in node.names:
                    full = f"{home}.{alias.name}" if home else alias.name
                    if full in modules:
                        yield full, alias.asname or alias.name
                    elif home in modules:
                        yield home, None


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the groups of modules that import each other in a circle, the largest first (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        path.append(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in path:
                lowest[name] = min(lowest[name], number[other])
        if lowest[name] == number[name]:
            group = path[path.index(name) :]
            del path[-len(group) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in number:
            visit(name)
    return sorted(found, key=lambda group: (-len(group), group))


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _foreign(module: Module, package: str) -> Iterator[str]:
    """Yields what the file imports from other packages."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.asname or alias.name.split(".")[0] for alias in names)
            case ast.ImportFrom(level=0, module=str(base), names=names) if base.split(".")[0] != package:
                yield from (alias.asname or alias.name for alias in names)


def private_reads(module: Module, modules: dict[str, Module], package: str) -> Iterator[tuple[int, str]]:
    """Yields line and text of each private read across modules."""
    aliases = {alias for _, alias in imports(module, modules, package) if alias}
    foreign = set(_foreign(module, package))
    elsewhere = {name for other in modules.values() if other is not module for name in other.defined}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == package):
            for alias in node.names:
                full = f"{node.module}.{alias.name}".removeprefix(package).lstrip(".")
                if _is_private(alias.name) and full not in modules and alias.name not in modules:
                    yield node.lineno, f"import {alias.name}"
        if not isinstance(node, ast.Attribute) or not _is_private(node.attr):
            continue
        owner = node.value.id if isinstance(node.value, ast.Name) else None
        if owner in ("self", "cls") or _root(node) in foreign:
            continue
        if owner in aliases or (node.attr in elsewhere and node.attr not in module.defined):
            yield node.lineno, ast.unparse(node)


def main() -> None:
    sys.setrecursionlimit(10_000)
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else DEFAULT
    package = root.name
    modules = {module.name: module for module in (Module(path, root) for path in sorted(root.rglob("*.py")))}

    print(f"{'folder':<36}{'files':>6}{'lines':>8}{'longest':>9}")
    folders: dict[str, list[Module]] = {}
    for module in modules.values():
        folders.setdefault(module.folder, []).append(module)
    for folder, group in sorted(folders.items()):
        longest = max(group, key=lambda module: module.lines)
        total = sum(module.lines for module in group)
        print(f"{folder:<36}{len(group):>6}{total:>8}{longest.lines:>9}  {longest.path.name}")
    print(f"{'all':<36}{len(modules):>6}{sum(module.lines for module in modules.values()):>8}")

    graph = {
        name: {other for other, _ in imports(module, modules, package) if other in modules and other != name and other}
        for name, module in modules.items()
        if name
    }
    found = cycles(graph)
    print(f"\nlargest import cycle: {len(found[0]) if found else 1} files; cycles: {len(found)}")
    for circle in found:
        print(f"  {len(circle):>3}  {', '.join(circle[:SHOWN])}{' …' if len(circle) > SHOWN else ''}")

    reads = {name: list(private_reads(module, modules, package)) for name, module in modules.items()}
    print(f"\nprivate reads across modules: {sum(map(len, reads.values()))}")
    for name, lines in sorted(reads.items(), key=lambda item: -len(item[1]))[:SHOWN]:
        if lines:
            print(f"  {len(lines):>3}  {name}: {', '.join(sorted({text for _, text in lines})[:6])}")


if __name__ == "__main__":
    main()
