"""Backends are told apart by what they can do: only their registry compares their names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker
from stoker._engine import backends
from stoker._engine.fork.trainer import ProcessBackend
from stoker._engine.serial import SerialBackend
from stoker._engine.spawn.trainer import SpawnBackend
from stoker._engine.thread import ThreadBackend

ROOT = Path(stoker.__file__).parent
NAMES = {name for kind in backends.KINDS.values() for name in kind[:2]}
FILES = [file for file in sorted(ROOT.rglob("*.py")) if file != Path(backends.__file__)]


def compared(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name of a backend that a comparison or a pattern looks for, and its line."""
    for node in ast.walk(tree):
        found: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            found = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            found = [node.value]
        for value in found:
            for part in ast.walk(value):
                if isinstance(part, ast.Constant) and part.value in NAMES:
                    yield node.lineno, part.value  # type: ignore[attr-defined]


def test_name_of_a_backend_is_compared_in_the_registry_alone() -> None:
    compares = {str(file.relative_to(ROOT)): list(compared(ast.parse(file.read_text()))) for file in FILES}
    assert {file: lines for file, lines in compares.items() if lines} == {}


def test_comparison_of_a_name_is_found() -> None:
    assert list(compared(ast.parse('if method in ("thread", "process"):\n    pass')))


@pytest.mark.parametrize(
    ("backend", "kind"),
    [(SerialBackend, "serial"), (ThreadBackend, "thread"), (ProcessBackend, "process"), (SpawnBackend, "process")],
)
def test_backend_can_do_what_its_kind_promises(backend: type, kind: str) -> None:
    """What differs by platform is asked of the backend itself."""
    own: backends.Capabilities = backend.capabilities  # type: ignore[attr-defined]
    promised = backends.KINDS[kind].capabilities
    assert own._replace(shares_heap=False, has_stacks=False) == promised._replace(shares_heap=False, has_stacks=False)


def test_worker_method_without_workers_is_serial() -> None:
    assert backends.kind_of("thread", 0).name == "serial"
    assert backends.kind_of("thread", 2).capabilities.are_threads
