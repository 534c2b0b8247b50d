"""The public names: `stoker/__init__.pyi` lists them, and everything else follows from it."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from stoker._core import first_use

STUB = ast.parse((Path(stoker.__file__).parent / "__init__.pyi").read_text())
HOMES = {
    alias.name: str(node.module)
    for node in STUB.body
    if isinstance(node, ast.ImportFrom) and node.module != "stoker"
    for alias in node.names
}
METHODS_OF_THE_LOADER = [
    "batch_indices",
    "close",
    "describe",
    "from_torch",
    "load_state_dict",
    "preview",
    "progress",
    "report",
    "skip",
    "state_dict",
]


def test_stub_is_the_list_of_public_names() -> None:
    assert stoker.__all__ == sorted([*HOMES, "device", "errors", "events", "extend", "images"])
    assert {*stoker.__all__, "__version__"} <= set(dir(stoker))
    public = {name for name in vars(stoker) if not name.startswith("_")}
    assert {name for name in public - set(stoker.__all__) if not inspect.ismodule(getattr(stoker, name))} == set()


def test_stub_exports_each_name_on_its_own_line() -> None:
    typing, *imports, version, former = STUB.body
    assert [ast.unparse(typing), ast.unparse(version)] == ["import typing", "__version__: str"]
    assert isinstance(former, ast.If) and ast.unparse(former.test) == "typing.TYPE_CHECKING"
    for node in [*imports, *former.body]:
        assert isinstance(node, ast.ImportFrom)
        assert [alias.asname for alias in node.names] == [node.names[0].name], "`name as name`, which re-exports it"
    assert len({ast.unparse(node) for node in imports}) == len(stoker.__all__)


@pytest.mark.parametrize("package", ["stoker.datasets", "stoker.samplers"])
def test_packages_offer_the_names_that_their_modules_have(package: str) -> None:
    names = sorted(name for name, home in HOMES.items() if home.startswith(package + "."))
    module = importlib.import_module(package)
    assert module.__all__ == names
    assert all(getattr(module, name) is getattr(stoker, name) for name in names)


def test_each_name_has_its_home() -> None:
    away = [
        name
        for name, home in HOMES.items()
        if getattr(stoker, name) is not getattr(importlib.import_module(home), name)
    ]
    assert not away


def test_each_name_and_method_is_documented() -> None:
    silent = []
    for name in HOMES:
        thing = getattr(stoker, name)
        own = vars(thing) if isinstance(thing, type) else {}
        if not ((own.get("__doc__") if own else thing.__doc__) or "").strip():
            silent.append(name)
        methods = [method for method in own if not method.startswith("_") and callable(own[method])]
        silent += [f"{name}.{method}" for method in methods if not inspect.getdoc(getattr(thing, method))]
    assert not silent


def test_the_loader_offers_what_is_new() -> None:
    for name in METHODS_OF_THE_LOADER:
        assert inspect.getdoc(getattr(stoker.DataLoader, name))


def test_the_version_is_that_of_the_installed_package() -> None:
    try:
        version = importlib.metadata.version("stoker")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("run from the source folder, without an installation")
    assert stoker.__version__ == version


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'stoker' has no attribute 'DataLoder'"):
        _ = stoker.DataLoder


def test_former_names_are_found_but_not_listed() -> None:
    for name, home in first_use.FORMER_HOMES.items():
        assert getattr(stoker, name) is getattr(importlib.import_module(home), name)
    assert not set(first_use.FORMER_HOMES) & {*stoker.__all__, *dir(stoker)}


def test_no_module_hides_a_public_name() -> None:
    """A module of the same name would replace a function as soon as it is imported."""
    program = f"""
import importlib, pkgutil, stoker
for module in pkgutil.walk_packages(stoker.__path__, "stoker."):
    if not module.name.endswith("__main__") and not module.name.startswith("stoker.integrations."):
        importlib.import_module(module.name)
for name, home in {HOMES!r}.items():
    assert getattr(stoker, name) is getattr(importlib.import_module(home), name), name
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
