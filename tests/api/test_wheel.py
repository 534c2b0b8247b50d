"""What is installed: the package, its type marker, its licence and its compiled part, and nothing beside them."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stoker._core import native

ROOT = Path(__file__).parents[2]


def built(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)


def names_in(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_wheel_holds_package_type_marker_and_licence(tmp_path: Path) -> None:
    assert built(tmp_path, STOKER_NATIVE="0").returncode == 0
    (wheel,) = tmp_path.glob("stoker-*-py3-none-any.whl")
    names = names_in(wheel)
    assert {"stoker/py.typed", "stoker/__init__.pyi", "stoker/extend.pyi"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    sources = {f"stoker/{path.relative_to(ROOT / 'src/stoker')}" for path in (ROOT / "src/stoker").rglob("*.py")}
    assert sources <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"stoker"}
    assert not any(name.endswith(".bin") for name in names)


@pytest.mark.skipif(native.functions is None, reason=f"not here: {native.why}")
def test_compiled_wheel_serves_each_python_of_its_platform(tmp_path: Path) -> None:
    assert built(tmp_path, STOKER_NATIVE="1").returncode == 0
    (wheel,) = tmp_path.glob("stoker-*-py3-none-*.whl")
    assert not wheel.stem.endswith("any")
    assert {f"stoker/_core/native/{name}.bin" for name in ("native", "collation", "seeding", "jpeg")} <= set(
        names_in(wheel)
    )


def test_wheel_without_a_compiler_is_for_all_platforms(tmp_path: Path) -> None:
    """In a copy: what is built is put beside its source."""
    copy = tmp_path / "copy"
    native = copy / "src/stoker/_core/native"
    native.mkdir(parents=True)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "src/stoker/_core/native/native.c"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    (native / "native.bin").write_bytes(b"of another source")
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    no_compiler = {**os.environ, "CC": "there-is-no-such-compiler"}

    def run(wanted: str) -> subprocess.CompletedProcess[str]:
        environment = {**no_compiler, "STOKER_NATIVE": wanted}
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)

    refused = run("1")
    assert refused.returncode != 0
    assert "the compiled part of Stoker cannot be built" in refused.stderr
    assert "there-is-no-such-compiler" in refused.stderr
    without = run("")
    assert without.returncode == 0
    assert "goes without its compiled part" in without.stdout + without.stderr
    (wheel,) = tmp_path.glob("stoker-*-py3-none-any.whl")
    assert not any(name.endswith(".bin") for name in names_in(wheel))
