"""The library of the compiled collation: where it cannot be used, that is known and said. What it copies is tested in
`tests/collate/_compiled/test_column_copy.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stoker._core.native import collation

COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
needs_a_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


def said_by(library: Path, before: str = "", **environment: str) -> str:
    """What a program finds out about this library, and that its batches are the same."""
    program = f"""
import pathlib
real = pathlib.Path.with_name
pathlib.Path.with_name = lambda self, name: (
    pathlib.Path({str(library)!r}) if name == "collation.bin" else real(self, name))
{before}
from stoker._core.native import collation
from stoker import collate
compiled = collate.compiling(collate.numpy_collate)
assert [compiled([1, 2]).tolist() for _ in range(3)] == [[1, 2]] * 3
print(collation.functions is not None, collation.why)
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "STOKER_NATIVE": "", **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return run.stdout


def test_library_is_there_where_it_can_be_built() -> None:
    """Otherwise its tests would run without it, unnoticed."""
    refused = os.environ.get("STOKER_NATIVE") == "0"
    assert (collation.functions is not None) == (COMPILER is not None and not refused), collation.why


def test_switched_off_or_missing(tmp_path: Path) -> None:
    assert said_by(Path("any"), STOKER_NATIVE="0") == "False STOKER_NATIVE=0\n"
    assert said_by(tmp_path / "none.bin").startswith("False there was no C compiler when Stoker was installed")


@needs_a_compiler
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("int stoker_collation_version(void) { return 99; }", "version 99, not"),
        ("int other;", "it cannot be loaded: "),
        (None, "it cannot be loaded: "),
    ],
)
def test_library_of_another_source(tmp_path: Path, source: str | None, said: str) -> None:
    if source is None:
        (tmp_path / "it.bin").write_bytes(b"no library")
    else:
        (tmp_path / "it.c").write_text(source)
        subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", "it.bin", "it.c"], cwd=tmp_path, check=True)
    answer = said_by(tmp_path / "it.bin")
    assert answer.startswith("False ") and said in answer


@pytest.mark.skipif(collation.functions is None, reason=f"not here: {collation.why}")
def test_arrays_of_another_layout_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    words = collation._words

    def moved(at: int, count: int) -> list[int | None]:
        return [*words(at, count)[1:], 0]

    assert collation._are_arrays_known()
    monkeypatch.setattr(collation, "_words", moved)
    assert not collation._are_arrays_known()
    monkeypatch.setattr(collation, "_HEAD", np.ndarray.__basicsize__)
    assert not collation._are_arrays_known()


@needs_a_compiler
def test_source_has_no_warning(tmp_path: Path) -> None:
    flags = ["-std=c11", "-O3", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-shared", "-fPIC"]
    source = Path(collation.__file__).with_name("collation.c")
    subprocess.run([str(COMPILER), *flags, "-o", str(tmp_path / "it.so"), str(source)], check=True)
