"""Imports point downward only, those inside functions too: read from the source, nothing is run.

The left side may import the right side, itself, and nothing else of Stoker. Imports for type checkers alone
(`if TYPE_CHECKING:`) are free: they cannot make a cycle.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker

GROUND = {"errors", "_events", "_first_use", "_hashing", "_native", "_nominal", "_stories", "_worker_info", "_machine"}
ENGINE_SIDE = {"_transport", "_supervision", "_engine"}
DATA_SIDE = {"datasets", "samplers", "collate"}

ARROWS: dict[str, set[str]] = {
    # the ground: knows nothing above it
    "errors": set(),
    "_events": set(),
    "_first_use": set(),
    "_hashing": set(),
    "_native": set(),
    "_nominal": set(),
    "_stories": set(),
    "_worker_info": set(),
    "_machine": {"errors"},
    # the data side: strangers to each other and to the engine
    "datasets": GROUND,
    "samplers": GROUND,
    "collate": GROUND,
    # the engine side: receives callables and units of work, knows no dataset
    "_transport": GROUND,
    "_supervision": GROUND,
    "_engine": GROUND | {"_transport", "_supervision"},
    # where both meet
    "_freeze": GROUND | {"_engine"},
    "device": GROUND,
    "loader": GROUND | DATA_SIDE | ENGINE_SIDE | {"device"},
    "testing": GROUND | DATA_SIDE | {"loader"},
    # what users see
    "__init__": GROUND | DATA_SIDE | {"_freeze", "loader"},
}

THIRD_PARTY = {"numpy", "cloudpickle", "torch"}

ROOT = Path(stoker.__file__).parent
FILES = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


def part_of(file: Path) -> str:
    return file.parts[0].removesuffix(".py")


def imports(tree: ast.AST, file: Path, deferred: bool = False) -> Iterator[tuple[str, bool, int]]:
    """Every imported module by its full name, whether a function must be called for it, and its line."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                for other in node.orelse:
                    yield from imports(ast.Module([other], []), file, deferred)
            case ast.Import():
                yield from ((alias.name, deferred, node.lineno) for alias in node.names)
            case ast.ImportFrom(level=0, module=str(module)):
                yield from ((f"{module}.{alias.name}", deferred, node.lineno) for alias in node.names)
            case ast.ImportFrom():
                package = ["stoker", *file.parent.parts]
                base = package[: len(package) - node.level + 1] + ([node.module] if node.module else [])
                yield from ((".".join([*base, alias.name]), deferred, node.lineno) for alias in node.names)
            case ast.Call(func=ast.Name("__import__") | ast.Attribute(attr="import_module"), args=[ast.Constant(name)]):
                yield name, deferred, node.lineno
                yield from imports(node, file, deferred)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                yield from imports(node, file, True)
            case _:
                yield from imports(node, file, deferred)


def stoker_part(module: str) -> str | None:
    root, _, rest = module.partition(".")
    if root != "stoker":
        return None
    first = rest.partition(".")[0]
    return first if (ROOT / first).is_dir() or (ROOT / f"{first}.py").exists() else "__init__"


def wrong_arrows(tree: ast.AST, file: Path) -> list[str]:
    allowed = ARROWS[part_of(file)] | {part_of(file)}
    return [
        f"{file}:{line} imports {module}, but {part_of(file)} may import only {sorted(allowed)}"
        for module, _, line in imports(tree, file)
        if (part := stoker_part(module)) is not None and part not in allowed
    ]


def test_every_part_has_its_arrows_and_every_arrow_its_part() -> None:
    assert {part_of(file) for file in FILES} == set(ARROWS)


def test_arrows_point_downward() -> None:
    """Parts can be laid out so that each imports only earlier ones: there is no cycle to hide inside a function."""
    order = list(ARROWS)
    for part, below in ARROWS.items():
        upward = {other for other in below if order.index(other) >= order.index(part)} - GROUND
        assert not upward, f"{part} points up at {upward}"
    assert not any(ARROWS[part] & {"loader", "testing", "__init__"} for part in GROUND | DATA_SIDE | ENGINE_SIDE)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_keep_to_the_arrows(file: Path) -> None:
    assert not wrong_arrows(FILES[file], file)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_third_parties_are_few_and_torch_waits_until_it_is_needed(file: Path) -> None:
    for module, deferred, line in imports(FILES[file], file):
        root = module.partition(".")[0]
        if root in sys.stdlib_module_names or root == "stoker":
            continue
        assert root in THIRD_PARTY, f"{file}:{line} imports {module}, which is no dependency of the package"
        assert deferred or root != "torch", f"{file}:{line} imports {module} before anybody asks for it"


@pytest.mark.parametrize(
    "source",
    [
        "import stoker.loader.plan",
        "from stoker.loader import plan",
        "from ..loader.plan import Plan",
        "from .. import loader",
        "def late():\n    from stoker import loader",
        "class A:\n    def late(self):\n        if self:\n            import stoker.loader",
        "import importlib\nimportlib.import_module('stoker.loader.plan')",
        "from stoker import DataLoader",
        "try:\n    import stoker.samplers\nexcept ImportError:\n    pass",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import stoker.loader",
    ],
)
def test_the_reader_sees_an_import_that_points_up(source: str) -> None:
    assert wrong_arrows(ast.parse(source), Path("datasets/subset.py"))


@pytest.mark.parametrize(
    "source",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from stoker.loader import plan",
        "from stoker.datasets.base import Dataset",
        "from . import base",
        "from ..errors import BatchError",
        "from stoker import errors",
    ],
)
def test_the_reader_lets_pass_what_is_allowed(source: str) -> None:
    assert not wrong_arrows(ast.parse(source), Path("datasets/subset.py"))
