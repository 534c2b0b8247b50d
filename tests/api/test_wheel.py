"""What is installed: the package, its type marker and its licence, and nothing beside them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_the_package_its_type_marker_and_its_licence(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("stoker-*-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "stoker/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    sources = {f"stoker/{path.relative_to(ROOT / 'src/stoker')}" for path in (ROOT / "src/stoker").rglob("*.py")}
    assert sources <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"stoker"}
