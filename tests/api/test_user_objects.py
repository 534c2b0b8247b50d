"""Objects of the user are never asked for their truth or equality, only compared by identity: read from the source.

A sampler whose `__len__` gives 0 is no missing sampler, and a `collate_fn` whose `__eq__` gives something truthy is
not Stoker's. Names by which the source calls such objects may stand in no test of truth (`if`, `not`, `and`, `or`, …),
on no side of `==` and `!=`, and not left of `in`. `tests/same_data/test_odd_objects.py` runs such objects.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker

ROOT = Path(stoker.__file__).parent
NAMES = {
    *("dataset", "sampler", "batch_sampler", "index_sampler", "own_sampler", "keeper", "generator"),
    *("collate_fn", "worker_init_fn", "init_fn", "on_error", "on_event", "policy", "fn", "of_tensors", "source"),
    *("transform", "target_transform", "predicate", "callback", "handler", "sample", "indices", "failure", "loader"),
}
OURS = {
    "loader/_job/error_policy.py": {"policy == word"},  # a text
    "loader/_job/stream_fetcher.py": {"not self._init_fn"},  # whether there is one
    "_core/machine/reserve.py": {"failure", "failure == errno.EINTR", "failure != errno.EFBIG"},  # numbers
    "diagnostics/cli/commands/run.py": {"loader in most"},  # a name
    "collate/_compiled/collate_plan.py": {  # a bound method
        f"fn == leaves.{name}" for name in ("floats", "ints", "strings", "scalars", "arrays", "tensors")
    },
    "collate/stacking.py": {"of_tensors == self.tensors"},  # a bound method
    "collate/registry.py": {"fn == method"},  # a bound method
    "collate/gathered.py": {"type(indices) is list and indices and (type(indices[0]) is int)"},
    "datasets/mix.py": {"source not in self._ended", "source not in gone"},  # numbers
    "diagnostics/composition/epoch_notes.py": {"indices and (not _is_plain(indices[0]))"},  # a list of Stoker
    "diagnostics/settings/engine_comparison.py": {"found.about['dataset'] != dataset"},  # names, as in the next files
    "diagnostics/loader_hooks.py": {"span[0] == record.loader"},
    "diagnostics/recorder.py": {"last[0] == record.loader"},
    "diagnostics/settings/batch_limit.py": {"self._limit.dataset not in (None, dataset)"},
    "diagnostics/settings/setting_trial.py": {
        "self._dataset in (None, type(getattr(loader, 'dataset', None)).__name__)"
    },
    "diagnostics/settings/tuning.py": {"trial.failure == TOO_LATE"},
    "sources/tar/foreign_index.py": {"sample != previous"},
    "testing/streams.py": {"comparable(next(iterator, _END)) == sample"},  # both made comparable
}
"""Expressions whose operands are none of the user's objects, or of a known type, by file."""


def questions(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields the operands whose truth or equality is asked, and the expression that asks."""
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
                yield test, test
            case ast.BoolOp(values=values):
                yield from ((value, node) for value in values[:-1])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield operand, node
            case ast.comprehension(ifs=ifs):
                yield from ((test, test) for test in ifs)
            case ast.Call(func=ast.Name("bool"), args=args):
                yield from ((argument, node) for argument in args)
            case ast.Compare(left=left, ops=ops, comparators=others):
                for op, one, other in zip(ops, [left, *others], others, strict=False):
                    if isinstance(op, (ast.Eq, ast.NotEq)):
                        yield one, node
                        yield other, node
                    elif isinstance(op, (ast.In, ast.NotIn)):
                        yield one, node


def is_the_users(asked: ast.expr) -> bool:
    match asked:
        case ast.Name(name) | ast.Attribute(attr=name) | ast.NamedExpr(target=ast.Name(name)):
            return name.lstrip("_") in NAMES
    return False


def test_the_users_objects_are_compared_by_identity_only() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        for asked, expression in questions(ast.parse(path.read_text())):
            text = ast.unparse(expression)
            if is_the_users(asked) and text not in OURS.get(file, ()):
                found.setdefault(file, set()).add(text)
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "self._owner = sampler or keeper(iterator)",
        "x = 1 if options.worker_init_fn else 2",
        "y = collate_fn in ours",
        "while not self._dataset: pass",
        "z = options.on_error != 'raise'",
        "w = [a for a in b if (transform := a)]",
    ],
)
def test_questions_are_found(line: str) -> None:
    assert any(is_the_users(asked) for asked, _ in questions(ast.parse(line)))


@pytest.mark.parametrize("line", ["x = sampler is not None or given", "y = index in sampler", "z = len(sampler) == 3"])
def test_identity_is_no_question(line: str) -> None:
    assert not any(is_the_users(asked) for asked, _ in questions(ast.parse(line)))
