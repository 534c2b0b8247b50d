"""A run takes the tests of its tier, imports no file without one, and runs what is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import tiers

ROOT = Path(__file__).parents[1]
RECORD: tiers.Record = {
    "test_dear.py": "all",
    "test_mixed.py": ["test_dear", "TestAll", "TestIt::test_dear"],
}


@pytest.mark.parametrize(
    ("test", "thorough"),
    [
        ("test_mixed.py::test_cheap", False),
        ("test_mixed.py::test_dear", True),
        ("test_mixed.py::test_dear[fork]", True),
        ("test_mixed.py::test_dearer", False),
        ("test_mixed.py::TestIt::test_dear[1]", True),
        ("test_mixed.py::TestIt::test_cheap", False),
        ("test_mixed.py::TestAll::test_cheap", True),
        ("test_new.py::TestRows::test_workers_of_each_birth_give_all_samples[rows]", True),
        ("test_dear.py::test_any", True),
        ("test_new.py::test_any", False),
        ("test_new.py::test_any[fork-2]", False),
        ("test_new.py::test_any[2-spawn]", True),
        ("test_new.py::test_any[forkserver]", True),
        ("test_new.py::test_any[programs]", False),
        ("test_new.py::test_spawn", False),
        ("tests/faults/test_endings.py::test_ctrl_c[fork-1]", False),
        ("tests/faults/test_endings.py::test_ctrl_c[forkserver-1]", True),
    ],
)
def test_cases_are_thorough_by_record_and_parameters(test: str, thorough: bool) -> None:
    assert tiers.is_thorough(test, {**RECORD, "tests/faults/test_endings.py": "all"}) == thorough


@pytest.mark.parametrize(
    ("name", "text", "without"),
    [
        ("test_dear.py", "", {"quick"}),
        ("test_mixed.py", "", set()),
        ("test_new.py", "", {"slow"}),
        ("test_new.py", "@pytest.mark.slow", set()),
        ("test_new.py", "parametrize('birth', ['spawn'])", set()),
        ("test_new.py", "pytestmark = [pytest.mark.slow]", {"quick"}),
        ("conftest.py", "", set()),
    ],
)
def test_files_without_a_test_of_the_tier(tmp_path: Path, name: str, text: str, without: set[str]) -> None:
    path = tmp_path / name
    path.write_text(text)
    left_out = {tier for tier in ("quick", "slow", "all") if tiers.is_left_out(path, name, tier, RECORD)}
    assert left_out == without


@pytest.mark.parametrize(("folder", "least", "most"), [("faults", 1, 3), ("pinned", 2, 7)])
def test_each_value_occurs_once_or_twice(folder: str, least: int, most: int) -> None:
    cases: list[Any] = [
        SimpleNamespace(nodeid=f"tests/{folder}/test_a.py::test_x[{pair}]", callspec=SimpleNamespace(_idlist=[*pair]))
        for pair in ("ad", "ae", "af", "bd", "be", "bf", "cd", "ce", "cf")
    ]
    left_out = [*tiers.beyond_each_value(cases)]
    kept = [case.callspec._idlist for case in cases if case not in left_out]
    assert len(kept) <= most
    assert {min(Counter(values).values()) for values in zip(*kept, strict=True)} == {least}


FILES = {
    "conftest.py": """
        from pathlib import Path
        from tests import tiers
        tiers.RECORD = Path(__file__).with_name("record.json")
        pytest_plugins = ["tests.tiers"]
        """,
    "record.json": json.dumps({"test_dear.py": "all", "test_mixed.py": ["test_dear"]}),
    "pytest.ini": "[pytest]\nmarkers =\n  slow: slow\n  long: long\n",
    "test_dear.py": "import pathlib\npathlib.Path('is_imported').touch()\ndef test_a(): pass",
    "test_mixed.py": """
        import pytest
        def test_cheap(): pass
        def test_dear(): pass
        @pytest.mark.slow
        def test_slow(): pass
        @pytest.mark.slow
        @pytest.mark.parametrize("x", "ab")
        @pytest.mark.parametrize("y", "cd")
        def test_two(x, y): pass
        @pytest.mark.long
        def test_long(): pass
        """,
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text("\n".join(line.removeprefix(" " * 8) for line in text.splitlines()))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "ran"),
    [
        ([], "cheap"),
        (["--tier=slow"], "dear slow a two[c-a] two[d-b]"),
        (["-m", "long"], "long two[c-b] two[d-a]"),
        (["test_mixed.py::test_two[c-b]"], "two[c-b]"),
        (["test_dear.py"], "a"),
        (["test_mixed.py::test_long", "."], "long cheap"),
        (["-n", "1", "--tier=slow"], "dear slow a two[c-a] two[d-b]"),
        (["-n", "1", "test_mixed.py::test_dear"], "dear"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_run_takes_its_tier_and_what_is_named(project: Path, arguments: list[str], ran: str) -> None:
    if "-n" in arguments:
        pytest.importorskip("xdist")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments]
    run = subprocess.run(
        command, cwd=project, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    passed = {line.partition("::test_")[2] for line in run.stdout.splitlines() if line.startswith("PASSED")}
    assert passed == set(ran.split())
    assert (project / "is_imported").exists() == ("a" in passed or "-m" in arguments)


def test_recorded_costs_become_a_record(tmp_path: Path) -> None:
    cases = [
        ("test_a.py::test_x[1]", 0.1, tiers.COSTLY * 1.5, {}),
        ("test_a.py::test_x[2]", 0.1, tiers.COSTLY * 0.6, {}),
        ("test_a.py::test_y[spawn]", 9.0, 5.0, {}),
        ("test_b.py::TestIt::test_x", 9.0, 5.0, {}),
        ("test_b.py::test_y[fork]", 0.1, 0.0, {}),
        ("test_b.py::test_waits", 9.0, 0.0, {}),
        ("test_b.py::test_y[spawn]", 9.0, 5.0, {}),
    ]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    assert tiers.record_of(tiers.costs_of(tmp_path)) == {
        "test_a.py": "all",
        "test_b.py": ["TestIt::test_x", "test_waits"],
    }


def test_run_of_some_files_leaves_the_others_in_the_record() -> None:
    record: tiers.Record = {
        "tests/test_tiers.py": "all",
        "tests/test_residue.py": ["test_old"],
        "gone": "all",
    }
    costs = {("tests/test_residue.py", "test_a"): [9.0], ("tests/test_residue.py", "test_b"): [0.0]}
    assert tiers.recorded_anew(record, costs) == {"tests/test_residue.py": ["test_a"], "tests/test_tiers.py": "all"}


def test_record_names_what_exists() -> None:
    gone = []
    record: tiers.Record = json.loads(tiers.RECORD.read_text())
    assert all(record.get(name.partition("::")[0]) != tiers.WHOLE for name in tiers.QUICK_ANYWAY)
    for file, names in record.items():
        text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
        for name in [] if names == tiers.WHOLE else names:
            first = name.partition("::")[0]  # a class may inherit its tests
            gone += [] if any(f"{begin}{first}" in text for begin in ("class ", "def ", "\n")) else [f"{file}::{name}"]
        gone += [] if text else [file]
    assert not gone, f"take these out of {tiers.RECORD.name}: {gone}"
