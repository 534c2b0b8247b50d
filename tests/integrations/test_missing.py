"""Each integration names its extra where its framework is missing, and where it is damaged."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

from stoker.errors import MissingExtraError

pytest.importorskip("torch")

FRAMEWORKS = {
    "accelerate": "accelerate",
    "lightning": "lightning",
    "titan": "torchtitan",
    "transformers": "transformers",
}
"""Files of `stoker.integrations`, and their packages."""


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_missing_framework_names_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = [module for module in sys.modules if module.partition(".")[0] == FRAMEWORKS[name]]
    for module in loaded:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, FRAMEWORKS[name], None)
    monkeypatch.delitem(sys.modules, f"stoker.integrations.{name}", raising=False)
    if name == "transformers":  # whose file needs Accelerate's too
        pytest.importorskip("accelerate")
    with pytest.raises(MissingExtraError, match=rf"install the extra stoker\[{name}\]"):
        importlib.import_module(f"stoker.integrations.{name}")


def test_each_file_has_an_extra() -> None:
    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    files = {path.stem for path in (root / "src" / "stoker" / "integrations").glob("[a-z]*.py")}
    assert files - {"install", "first_loader"} == set(FRAMEWORKS)  # install() needs torch alone
    for name, package in FRAMEWORKS.items():
        assert any(requirement.startswith(package) for requirement in extras[name])
