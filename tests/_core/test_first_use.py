from __future__ import annotations

import gc
import importlib
import sys

import pytest

import stoker.collate
import stoker.datasets
import stoker.samplers
from stoker._core import first_use

PACKAGES = (stoker.collate, stoker.datasets, stoker.samplers)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_stays_what_it_is(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is getattr(package, name)
        assert name in vars(package), "it is loaded once"


@pytest.mark.parametrize("package", PACKAGES)
def test_unknown_name_of_the_package_is_an_attribute_error(package: object) -> None:
    with pytest.raises(AttributeError, match=r"module 'stoker\.\w+' has no attribute 'Nothing'"):
        package.Nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_function_is_not_hidden_by_its_module() -> None:
    from stoker.datasets.columnar import columns

    assert stoker.datasets.columns is columns
    assert "stoker.datasets.columnar" in sys.modules


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_as_before_behind_an_import(monkeypatch: pytest.MonkeyPatch, collects: bool) -> None:
    seen: list[bool] = []

    def imported(name: str) -> object:
        seen.append(gc.isenabled())
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", imported)
    (gc.enable if collects else gc.disable)()
    try:
        with pytest.raises(ImportError):
            first_use.loaded("stoker.datasets", "columns", {"columns": "stoker.datasets.columnar"})
        assert gc.isenabled() is collects and seen == [False]
    finally:
        gc.enable()
