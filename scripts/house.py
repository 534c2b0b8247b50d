"""Measures the source: how large each house is, and what joins the houses.

    python scripts/house.py           a row for each house, and the reads and cycles by name
    python scripts/house.py --folders     a row for each folder
    python scripts/house.py --walk    the files that run for an epoch of two batches, by two forked workers
    python scripts/house.py --map     writes the map of the houses into `CONTRIBUTING.md`: a line for each folder
    python scripts/house.py --record  writes the figures into `tests/api/house.json`, above which a test fails

Every import counts: within functions, under `TYPE_CHECKING`, by `import_module`, and those of a stub beside a file. A
private read is `x._y` where `_y` belongs to another module of the package: `x` is such a module, or the name is defined
in another one and not in this. A file with a single importer has at most 120 lines, and only one other file imports it.
An import goes through a wall if it goes from one house into a private module of another. All may import the core, and
the door of the loader, `stoker.extend`, whose names its stub lists.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "stoker"
BUDGET = Path(__file__).parents[1] / "tests" / "api" / "house.json"
GUIDE = Path(__file__).parents[1] / "CONTRIBUTING.md"
MAP = re.compile(r"(?<=<!-- map of the houses: begin -->\n).*?(?=<!-- map of the houses: end -->)", re.DOTALL)
"""Where `CONTRIBUTING.md` has the map."""
SMALL = 120
"""Lines of the largest file that counts as one with a single importer."""
SHOWN = 12
"""Files of a cycle, and files with private reads, that are printed at most."""

HOUSES = {
    "loader": {"_engine", "datasets", "samplers", "collate", "loader", "device", "extend"},
    "readers": {"sources", "images", "packing"},
    "diagnosis": {"diagnostics", "__main__"},
    "integrations": {"integrations"},
    "testing": {"testing"},
}
"""The houses, by the first part of a module's name. All else is the core."""

CIRCLE = ("datasets.base", "datasets.chain")
"""The one import that may close a circle: a dataset gives a chain or a concatenation by `+`, as torch's does."""

NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
"""Names with an underscore that are public."""


class Module:
    """A file of the package.

    Args:
        path: of the file.
        root: of the package.

    Attributes:
        name: with dots, below the package; empty for the package itself.
        nodes: of the syntax tree.
        summary: the first sentence of its docstring.
        code: lines that are neither blank, nor comments, nor docstrings.
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
        tree = ast.parse(text)
        self.summary = (ast.get_docstring(tree) or "").partition("\n\n")[0].partition(". ")[0].rstrip(".")
        stub = path.with_suffix(".pyi")  # names that are imported on first use; of the package itself, all public names
        lazy = ast.walk(ast.parse(stub.read_text())) if self.name and stub.exists() else ()
        self.nodes = [*ast.walk(tree), *lazy]
        self.code = code_lines(text, self.nodes)
        self.defined = set(_defined(self.nodes))


def code_lines(text: str, nodes: list[ast.AST]) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = {line for token in tokens if token.type not in layout for line in range(token.start[0], token.end[0] + 1)}
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLES


def _defined(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name("self" | "cls"), attr=name, ctx=ast.Store()):
                yield name


def imports(module: Module, modules: dict[str, Module], package: str) -> Iterator[tuple[str, str | None]]:
    """Yields each module that is imported, and the name under which the file has the module itself, if it has."""
    for node in module.nodes:
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
            case ast.Call(
                func=ast.Name("__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(str(name)), *_],
            ) if name.startswith(f"{package}."):
                yield name.partition(".")[2], None


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
    for node in module.nodes:
        match node:
            case ast.Import(names=names):
                yield from (alias.asname or alias.name.split(".")[0] for alias in names)
            case ast.ImportFrom(level=0, module=str(base), names=names) if base.split(".")[0] != package:
                yield from (alias.asname or alias.name for alias in names)


def private_reads(
    module: Module, modules: dict[str, Module], package: str, defined: set[str]
) -> Iterator[tuple[int, str]]:
    """Yields line and text of each private read across modules, whose names are all `defined`."""
    aliases = {alias for _, alias in imports(module, modules, package) if alias}
    foreign = set(_foreign(module, package))
    for node in module.nodes:
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
        if owner in aliases or (node.attr in defined and node.attr not in module.defined):
            yield node.lineno, ast.unparse(node)


def house_of(name: str) -> str:
    """Returns the house of a module."""
    first = name.partition(".")[0]
    return next((house for house, parts in HOUSES.items() if first in parts), "core")


def through_walls(module: Module, modules: dict[str, Module], package: str) -> Iterator[str]:
    """Yields the private modules of other houses that a file imports."""
    for other, _ in imports(module, modules, package):
        house = house_of(other)
        if house not in ("core", house_of(module.name)) and any(map(_is_private, other.split("."))):
            yield other


class House:
    """The source, read.

    Attributes:
        modules: by name.
        importers: of each module, the files that import it.
        cycles: groups of modules that import each other, the largest first, without the import of `CIRCLE`.
        reads: private reads across modules, as line and text, by module.
        walls: private modules of other houses that a module imports, by module.
    """

    def __init__(self, root: Path = ROOT) -> None:
        package = root.name
        self.modules = {module.name: module for module in (Module(path, root) for path in sorted(root.rglob("*.py")))}
        known = self.modules
        graph = {
            name: {other for other, _ in imports(module, known, package) if other in known and other != name and other}
            for name, module in known.items()
            if name
        }
        low, high = CIRCLE
        self.cycles = cycles({name: others - {high} if name == low else others for name, others in graph.items()})
        self.importers = {name: {one for one, others in graph.items() if name in others} for name in known}
        defined = {name for module in known.values() for name in module.defined}
        self.reads = {name: list(private_reads(module, known, package, defined)) for name, module in known.items()}
        self.walls = {name: sorted(set(through_walls(module, known, package))) for name, module in known.items()}

    def figures(self) -> dict[str, dict[str, int]]:
        """Returns the figures of each house, and of all."""
        rows: dict[str, dict[str, int]] = {}
        for house in ("core", *HOUSES, "all"):
            group = [one for name, one in self.modules.items() if house in (house_of(name), "all")]
            rows[house] = {
                "files": len(group),
                "lines": sum(one.lines for one in group),
                "code": sum(one.code for one in group),
                "single importer": sum(self.is_single(one) for one in group),
                "through walls": sum(len(self.walls[one.name]) for one in group),
                "private reads": sum(len(self.reads[one.name]) for one in group),
            }
        rows["all"]["cycles"] = len(self.cycles)
        rows["all"]["in cycles"] = sum(map(len, self.cycles))
        rows["all"]["top folders"] = len({path.parent for path in ROOT.glob("*/*.py")})
        rows["all"]["public names"] = len(public_names())
        return rows

    def is_single(self, module: Module) -> bool:
        """Returns whether a file is small, and has one importer."""
        return not module.is_package and module.lines <= SMALL and len(self.importers[module.name]) == 1


def public_names() -> list[str]:
    """Returns the names that `stoker` exports: those of its stub."""
    tree = ast.parse((ROOT / "__init__.pyi").read_text())
    return [
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]


def house_map(house: House) -> str:
    """Returns a row for each folder of the package, by house: the first sentence of its docstring."""
    rows = ["| house | folder | holds |", "|---|---|---|"]
    for name in ("core", *HOUSES):
        for module in house.modules.values():
            if module.is_package and module.name and house_of(module.name) == name:
                rows.append(f"| {name} | `src/{module.folder}` | {module.summary} |")
    return "\n".join(rows) + "\n"


WALK = """
import os, sys, torch
from stoker import DataLoader

root, folder = sys.argv[1:]
walked = set()

def note(frame, event, argument):
    code = frame.f_code
    if code.co_filename not in walked and code.co_filename.startswith(root) and code.co_name != "<module>":
        walked.add(code.co_filename)
        with open(os.path.join(folder, str(os.getpid())), "a") as file:
            file.write(f"{len(walked)} {code.co_filename[len(root) + 1:]}\\n")

loader = DataLoader(torch.arange(8), batch_size=4, num_workers=2, multiprocessing_context="fork")
sys.setprofile(note)
batches = sum(1 for _ in loader)
sys.setprofile(None)
assert batches == 2
"""


def walk() -> list[str]:
    """Returns the files of which a function runs, in any process, for an epoch of a map-style dataset."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", WALK, str(ROOT), folder], check=True)
        lines = [line.split() for path in Path(folder).iterdir() for line in path.read_text().splitlines()]
    return sorted({file for _, file in lines})


def _print_folders(house: House) -> None:
    print(f"{'folder':<36}{'files':>6}{'lines':>8}{'longest':>9}")
    folders: dict[str, list[Module]] = {}
    for module in house.modules.values():
        folders.setdefault(module.folder, []).append(module)
    for folder, group in sorted(folders.items()):
        longest = max(group, key=lambda module: module.lines)
        total = sum(module.lines for module in group)
        print(f"{folder:<36}{len(group):>6}{total:>8}{longest.lines:>9}  {longest.path.name}")


def _print_houses(house: House) -> None:
    rows = house.figures()
    columns = list(rows["core"])
    print(f"{'house':<14}" + "".join(f"{name:>17}" for name in columns))
    for name, row in rows.items():
        print(f"{name:<14}" + "".join(f"{row[column]:>17}" for column in columns))
    print(", ".join(f"{name}: {count}" for name, count in rows["all"].items() if name not in columns))
    for circle in house.cycles:
        print(f"\ncycle of {len(circle)}: {', '.join(circle[:SHOWN])}{' …' if len(circle) > SHOWN else ''}")
    print("\nprivate reads")
    for name, lines in sorted(house.reads.items(), key=lambda item: -len(item[1]))[:SHOWN]:
        if lines:
            print(f"  {len(lines):>3}  {name}: {', '.join(sorted({text for _, text in lines})[:6])}")
    print("\nthrough walls")
    for name, others in sorted(house.walls.items()):
        if others:
            print(f"  {name}: {', '.join(others)}")


def main() -> None:
    sys.setrecursionlimit(10_000)
    match sys.argv[1:]:
        case []:
            _print_houses(House())
        case ["--folders"]:
            _print_folders(House())
        case ["--map"]:
            rows = house_map(House())
            GUIDE.write_text(MAP.sub(lambda _: rows, GUIDE.read_text()))
        case ["--record"]:
            BUDGET.write_text(json.dumps(House().figures(), indent=4) + "\n")
        case ["--walk"]:
            files = walk()
            print("\n".join([*files, f"{len(files)} files"]))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
