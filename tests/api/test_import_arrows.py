"""Imports point downward only, those inside functions too: read from the source, nothing is run.

The left side may import the right side, itself, and nothing else of Stoker. Imports for type checkers alone
(`if TYPE_CHECKING:`) are free: they cannot make a cycle.
"""

from __future__ import annotations

import ast
import fnmatch
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker

GROUND = {"errors", "events", "_core", "_core.machine", "_core.native"}
ENGINE_SIDE = {"_engine", "_engine.transport", "_engine.supervision"}
DATA_SIDE = {"datasets", "samplers", "collate"}
EPOCH_SIDE = {
    *("loader._accounting.observer", "loader._random", "loader._state", "loader._job", "loader._options"),
    *("loader._epoch", "loader._accounting", "loader._autotune"),
}

ARROWS: dict[str, set[str]] = {
    # the ground: knows nothing above it
    "errors": set(),
    "events": set(),
    "_core": set(),
    "_core.machine": {"errors"},
    "_core.native": set(),
    # the data side: strangers to each other and to the engine
    "datasets": GROUND,
    "samplers": GROUND,
    "collate": GROUND,
    # the engine side: receives callables and units of work, knows no dataset
    "_engine.transport": GROUND,
    "_engine.supervision": GROUND | {"_engine.transport"},
    "_engine": GROUND | {"_engine.transport", "_engine.supervision"},
    # where both meet
    # an epoch of a loader, from its random numbers to its reports
    "loader._accounting.observer": GROUND,
    "loader._random": GROUND | {"_engine"},
    "device": GROUND | {"_engine.transport", "loader._random"},  # operations on batches draw for each sample
    "loader._state": GROUND | {"datasets", "loader._random"},
    "loader._job": GROUND
    | DATA_SIDE
    | ENGINE_SIDE
    | {"loader._accounting.observer", "loader._random", "loader._state"},
    "loader._options": GROUND | DATA_SIDE | {"_engine.supervision", "_engine", "loader._job", "device"},
    "loader._epoch": GROUND
    | DATA_SIDE
    | {"_engine.supervision", "_engine"}
    | {"loader._random", "loader._state", "loader._job", "loader._options"},
    "loader._accounting": GROUND
    | {"datasets", "_engine", "loader._accounting.observer", "loader._options", "loader._epoch"},
    "loader._autotune": GROUND
    | DATA_SIDE
    | {"_engine", "loader._job", "loader._options", "loader._epoch", "loader._accounting"},
    "loader": GROUND | DATA_SIDE | ENGINE_SIDE | EPOCH_SIDE | {"device"},
    # the door between the houses: what those below use of the loader beside its public modules
    "extend": GROUND | DATA_SIDE | ENGINE_SIDE | EPOCH_SIDE | {"loader"},
    # datasets that read files, and images
    "images": GROUND | {"extend"},
    "sources": GROUND | {"datasets", "images", "extend"},
    # what changes other packages, on top of a loader
    "integrations": GROUND | DATA_SIDE | {"loader", "images", "extend"},
    "testing": GROUND | DATA_SIDE | {"loader", "sources", "extend"},
    "packing": GROUND | {"datasets", "loader", "sources", "extend"},
    # what users see
    "__init__": GROUND | DATA_SIDE | {"loader", "images", "sources", "integrations", "packing"},
    # measurements of loaders, and the command line, which nothing imports
    "diagnostics": GROUND | {"datasets", "loader", "extend", "__init__", "sources", "images", "integrations"},
    "diagnostics.cli": GROUND | {"loader", "extend", "sources", "packing", "diagnostics", "__init__"},
    "__main__": {"diagnostics.cli"},
}
"""By the first parts of a module's name: the longest that is here counts."""

ABOVE = {"loader.dataloader": "stoker.diagnostics.profile.profiling.*", "loader._job.jpeg_reader": "stoker"}
"""What needs a thing that stands above it imports it when it is called: `DataLoader.profile`, and the worker that calls
`stoker.images.register`."""

LAZY = {
    *("PIL", "av", "backports", "compression", "confluent_kafka", "duckdb", "google_crc32c", "h5py", "lmdb", "obstore"),
    *("psycopg", "pyarrow", "ray", "soundfile", "sqlalchemy", "torch", "torchcodec", "zarr"),
    *("PIL", "backports", "compression", "confluent_kafka", "duckdb", "google_crc32c", "h5py", "isal", "lmdb"),
    *("obstore", "psycopg", "pyarrow", "sqlalchemy", "torch", "zarr"),
    *("PIL", "backports", "compression", "confluent_kafka", "duckdb", "google_crc32c", "h5py", "lmdb", "obstore"),
    *("huggingface_hub", "psycopg", "pyarrow", "sqlalchemy", "torch", "zarr"),
}
"""Packages that a program may lack: they are imported in functions alone."""
THIRD_PARTY = {"numpy", "cloudpickle", *LAZY}
OF_ONE_FILE = {
    "PIL": Path("images/pillow.py"),
    "boto3": Path("sources/aws_profile.py"),
    "botocore": Path("sources/aws_profile.py"),
    "zarr": Path("sources/arrays/zarr_in_store.py"),
}
"""Packages of extras that one file imports at once: it raises `MissingExtraError`."""
OF_AN_EXTRA = {"diagnostics.cli": {"typer", "rich"}, "diagnostics": {"cv2", "matplotlib", "torchvision"}}
"""Packages that a part of Stoker imports where they are installed, and nothing else does."""

FRAMEWORKS = {
    "accelerate": {"accelerate", "torch"},
    "lightning": {"lightning", "torch"},
    "prometheus": {"prometheus_client"},
    "titan": {"torchtitan", "torch"},
    "transformers": {"transformers", "torch"},
}
"""What the files of `integrations` import, beside the dependencies, when they are imported themselves."""

ROOT = Path(stoker.__file__).parent
FILES = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
FILES[Path("extend.py")].body += ast.parse((ROOT / "extend.pyi").read_text()).body  # imported on first use


def name_of(file: Path) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def part_of(name: str) -> str | None:
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in ARROWS), None)


def imports(tree: ast.AST, file: Path, deferred: bool = False, typed: bool = False) -> Iterator[tuple[str, bool, int]]:
    """Every imported module by its full name, whether a function must be called for it, and its line."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")) if not typed:
                for other in node.orelse:
                    yield from imports(ast.Module([other], []), file, deferred, typed)
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
                yield from imports(node, file, deferred, typed)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                yield from imports(node, file, True, typed)
            case _:
                yield from imports(node, file, deferred, typed)


def stoker_part(module: str) -> str | None:
    root, _, rest = module.partition(".")
    return (part_of(rest) or "__init__") if root == "stoker" else None


def wrong_arrows(tree: ast.AST, file: Path) -> list[str]:
    name = name_of(file)
    own = part_of(name)
    assert own is not None
    allowed = ARROWS[own] | {own}
    return [
        f"{file}:{line} imports {module}, but {own} may import only {sorted(allowed)}"
        for module, deferred, line in imports(tree, file)
        if (part := stoker_part(module)) is not None and part not in allowed
        if not (deferred and fnmatch.fnmatch(module, ABOVE.get(name, "")))
    ]


def test_every_part_has_its_arrows_and_every_arrow_its_part() -> None:
    assert {part_of(name_of(file)) for file in FILES} == set(ARROWS)


def test_arrows_point_downward() -> None:
    """Parts can be laid out so that each imports only earlier ones: there is no cycle to hide inside a function."""
    order = list(ARROWS)
    for part, below in ARROWS.items():
        upward = {other for other in below if order.index(other) >= order.index(part)} - GROUND
        assert not upward, f"{part} points up at {upward}"
    assert not any(
        ARROWS[part] & ({"loader", "testing", "__init__"} | EPOCH_SIDE) for part in GROUND | DATA_SIDE | ENGINE_SIDE
    )


def test_imports_keep_to_the_arrows() -> None:
    assert [line for file, tree in FILES.items() for line in wrong_arrows(tree, file)] == []


def wrong_packages(tree: ast.AST, file: Path) -> Iterator[str]:
    offered = THIRD_PARTY | OF_AN_EXTRA.get(str(part_of(name_of(file))), set())
    for module, deferred, line in imports(tree, file):
        root = module.partition(".")[0]
        if root in sys.stdlib_module_names or root == "stoker":
            continue
        if OF_ONE_FILE.get(root) == file:
            continue
        if file == Path("loader/_display/progress_bar.py") and root == "IPython":  # in its kernel
            continue
        if file == Path("loader/_display/progress_bar.py") and root == "rich":  # at the first bar
            continue
        if file.parts[0] == "integrations" and root in FRAMEWORKS.get(file.stem, ()):
            continue
        if root not in offered:
            yield f"{file}:{line} imports {module}, which is no dependency of the package"
        elif root in LAZY and not deferred:
            yield f"{file}:{line} imports {module} before anybody asks for it"


def test_third_party_imports_are_few_and_torch_is_lazy() -> None:
    assert [line for file, tree in FILES.items() for line in wrong_packages(tree, file)] == []


@pytest.mark.parametrize("source", ["import pandas", "import torch", "def late():\n    import pandas"])
def test_import_of_a_wrong_package_is_found(source: str) -> None:
    assert list(wrong_packages(ast.parse(source), Path("datasets/subset.py")))


@pytest.mark.parametrize(
    "source",
    [
        "import stoker.loader._epoch.plan",
        "from stoker.loader._epoch import plan",
        "from ..loader.plan import Plan",
        "from .. import loader",
        "def late():\n    from stoker import loader",
        "class A:\n    def late(self):\n        if self:\n            import stoker.loader",
        "import importlib\nimportlib.import_module('stoker.loader._epoch.plan')",
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
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from stoker.loader._epoch import plan",
        "from stoker.datasets.base import Dataset",
        "from . import base",
        "from ..errors import BatchError",
        "from stoker import errors",
    ],
)
def test_the_reader_lets_pass_what_is_allowed(source: str) -> None:
    assert not wrong_arrows(ast.parse(source), Path("datasets/subset.py"))


CIRCLES = {
    # a dataset gives a chain or a concatenation of itself and another by `+`, as torch's does
    ("datasets.base", "datasets.chain"),
}
"""The import that is left out of the test of circles: it closes the only one that there is."""


def imported_files() -> dict[str, set[str]]:
    """Files by name, and the files that each imports: in functions and for type checkers too."""
    names = {name_of(file): file for file in FILES}
    found: dict[str, set[str]] = {}
    for name, file in names.items():
        found[name] = set()
        for module, _, _ in imports(FILES[file], file, typed=True):
            inner = module.removeprefix("stoker.")
            for other in (inner, inner.rpartition(".")[0]):
                if module.startswith("stoker.") and other in names:
                    found[name] |= {other} - {name}
                    break
    return found


def test_files_import_each_other_in_no_circle() -> None:
    below = {
        name: {other for other in all_of if (name, other) not in CIRCLES} for name, all_of in imported_files().items()
    }
    while free := {name for name, others in below.items() if not others}:
        below = {name: others - free for name, others in below.items() if name not in free}
    assert not below, f"these files import each other in a circle: {sorted(below)}"


def test_exempted_import_cycles_exist() -> None:
    found = imported_files()
    assert [pair for pair in sorted(CIRCLES) if pair[1] not in found.get(pair[0], ())] == []
