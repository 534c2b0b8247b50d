"""The compiled part: it does what it says, and where it is not there, that is known and said."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker._core import native
from stoker.samplers.permutation import TABLE_UP_TO, Permutation

ROOT = Path(__file__).parents[2]
COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)

needs_it = pytest.mark.skipif(native.functions is None, reason=f"not here: {native.why}")
needs_a_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


def functions() -> native.Functions:
    assert native.functions is not None
    return native.functions


def test_compiled_part_is_there_where_it_can_be_built() -> None:
    """Otherwise its tests would run without it, unnoticed."""
    refused = os.environ.get("STOKER_NATIVE") == "0"
    assert (native.functions is not None) == (COMPILER is not None and not refused), native.why


@needs_it
@given(
    size=st.integers(0, 700),
    sources=st.lists(st.integers(0, 130), max_size=5),
    at=st.integers(0, 130),
)
def test_stack_copies_every_byte_and_touches_no_other(size: int, sources: list[int], at: int) -> None:
    rng = np.random.default_rng(size)
    pool = rng.integers(0, 256, 1000, np.uint8)
    target = rng.integers(0, 256, at + size * len(sources) + 200, np.uint8)
    expected = target.copy()
    for number, source in enumerate(sources):
        expected[at + number * size : at + (number + 1) * size] = pool[source : source + size]
    functions().stack(target.ctypes.data + at, [pool.ctypes.data + source for source in sources], size)
    assert np.array_equal(target, expected)


@needs_it
def test_stack_copies_what_is_much_larger_than_a_cache() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (3, (5 << 20) + 13), np.uint8)
    out = np.empty_like(rows)
    functions().stack(out.ctypes.data, [row.ctypes.data for row in rows], rows.shape[1])
    assert np.array_equal(out, rows)


@needs_it
@given(points=st.integers(0, 300), source=st.integers(0, 40), at=st.integers(0, 40))
def test_planes_takes_channels_apart_and_touches_nothing_else(points: int, source: int, at: int) -> None:
    rng = np.random.default_rng(points)
    pool = rng.integers(0, 256, 1000, np.uint8)
    target = rng.integers(0, 256, at + 3 * points + 100, np.uint8)
    expected = target.copy()
    expected[at : at + 3 * points] = pool[source : source + 3 * points].reshape(points, 3).T.reshape(-1)
    functions().planes(target.ctypes.data + at, pool.ctypes.data + source, points)
    assert np.array_equal(target, expected)


@needs_it
@given(
    n=st.one_of(st.integers(1, 300), st.integers(1, 2**62)), key=st.integers(0, 2**64 - 1), count=st.integers(9, 200)
)
def test_walk_is_the_permutation(n: int, key: int, count: int) -> None:
    """In NumPy and in C, also for sizes that are tables otherwise, whose rectangles are the oddest."""
    order = Permutation(n, key)
    positions = np.random.default_rng(count).integers(0, n, count)
    in_c, in_numpy = positions.astype(np.uint64), positions.astype(np.uint64)
    order._walk_compiled(in_c, functions())
    order._walk(in_numpy, np.empty((3, count), np.uint64))
    assert in_c.tolist() == in_numpy.tolist() == [order._walk_one(position) for position in positions.tolist()]


@needs_it
@pytest.mark.parametrize("n", [TABLE_UP_TO + 1, 1_000_003, 2**62 - 1, 2**62])
def test_compiled_permutation_agrees_at_both_ends(n: int) -> None:
    order = Permutation(n, 5)
    points = np.array([*range(100), *range(n - 100, n)], np.uint64)
    expected = [order._walk_one(point) for point in points.tolist()]
    order._walk_compiled(points, functions())
    assert points.tolist() == expected


# Where it is not there


def said_by(library: Path, **environment: str) -> str:
    """What a program finds out about this library."""
    program = f"""
import pathlib
pathlib.Path.with_name = lambda self, name: pathlib.Path({str(library)!r})
from stoker._core import native
print(native.functions is not None, native.why)
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "STOKER_NATIVE": "", **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return run.stdout


def test_compiled_part_can_be_switched_off() -> None:
    assert said_by(Path("any"), STOKER_NATIVE="0") == "False STOKER_NATIVE=0\n"


def test_compiled_part_that_cannot_be_loaded_is_not_used(tmp_path: Path) -> None:
    assert said_by(tmp_path / "native.bin").startswith("False there was no C compiler when Stoker was installed")


def test_a_library_that_is_none(tmp_path: Path) -> None:
    library = tmp_path / "native.bin"
    library.write_bytes(b"no library")
    assert said_by(library).startswith("False it cannot be loaded: ")


@needs_a_compiler
@pytest.mark.parametrize(
    ("source", "said"),
    [("int stoker_native_version(void) { return 99; }", "version 99, not"), ("int other;", "it cannot be loaded: ")],
)
def test_a_library_of_another_source(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "other.c").write_text(source)
    command = [str(COMPILER), "-shared", "-fPIC", "-o", "native.bin", "other.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    answer = said_by(tmp_path / "native.bin")
    assert answer.startswith("False ")
    assert said in answer


@needs_a_compiler
def test_compiled_source_has_no_warning(tmp_path: Path) -> None:
    source = Path(native.__file__).with_name("native.c")
    flags = ["-std=c11", "-O3", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-shared", "-fPIC"]
    subprocess.run([str(COMPILER), *flags, "-o", str(tmp_path / "it.so"), str(source)], check=True)
    assert ctypes.CDLL(str(tmp_path / "it.so")).stoker_native_version() == native.VERSION
