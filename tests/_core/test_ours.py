"""Stoker's own classes and functions are known without `__module__`, all of them, and no others."""

from __future__ import annotations

import ast
import collections
import functools
import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._core.protocol import definer, is_ours, is_ours_or_torchs
from stoker.datasets import nesting
from stoker.datasets.map import MapDataset
from stoker.datasets.subset import Subset
from stoker.loader._epoch.sampler_epochs import _COUNTED
from tests.ownership import ELSEWHERE, moved, named_like

SOURCE = Path(stoker.__file__).parent
LOCAL = {"ByValue", "Config"}
"""Classes in functions and classes: a pickler, settings of torchtitan. Nobody asks whose they are."""
ASKED = {*nesting._HANDING_ON, *nesting._PLAIN, *_COUNTED, "Columns", "GivenBatch", "Padded", "RunTexts", "TensorLeaf"}
"""Names by which the source asks for a class of Stoker's."""


def classes_in(tree: ast.AST) -> Iterator[str]:
    return (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def outermost(tree: ast.AST) -> Iterator[str]:
    """The classes that stand in no function and no other class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from outermost(node)


def test_every_class_stands_in_its_module_under_its_name() -> None:
    """A class in a function, or under another name, would be taken for a user's."""
    for name in stoker.__all__:
        getattr(stoker, name)
    importlib.import_module("stoker.testing.streams")
    local, asked = set(), 0
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        local |= {*classes_in(tree)} - {*outermost(tree)}
        home = ".".join(["stoker", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
        if home in sys.modules:
            for name in outermost(tree):
                kind = vars(sys.modules[home])[name]
                assert is_ours(kind) and is_ours(kind, "other", name), f"{home}.{name}"
                asked += 1
    assert local == LOCAL and asked > 300


def test_each_name_that_is_asked_for_is_of_one_class() -> None:
    found = collections.Counter(
        name for path in SOURCE.rglob("*.py") for name in classes_in(ast.parse(path.read_text())) if name in ASKED
    )
    assert found == dict.fromkeys(ASKED, 1)


def test_a_class_that_moves_stays_ours() -> None:
    assert is_ours(Subset) and is_ours(Subset, "Subset", "Other") and not is_ours(Subset, "Other")
    with moved(Subset):
        assert Subset.__module__ == ELSEWHERE and is_ours(Subset) and not is_ours(Subset, "Other")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Subset, "__module__", "stoker")  # as the name is imported
        assert is_ours(Subset)
        module: Any = types.ModuleType("stoker._core.moved")
        module.Subset = Subset
        patch.setitem(sys.modules, "stoker._core.moved", module)
        patch.delattr("stoker.datasets.subset.Subset")
        patch.setattr(Subset, "__module__", "stoker._core.moved")
        assert is_ours(Subset)


@pytest.mark.parametrize(
    "kind",
    [
        type("Subset", (Subset,), {}),
        named_like(Subset),
        named_like(Subset, object),
        type("Subset", (Subset,), {"__module__": f"{Subset.__module__}_of_mine"}),
        type("Made", (Subset,), {"__module__": None}),
        type("Other", (), {"__module__": "stoker_extras.datasets"}),
        *(object, list, Path, np.ndarray, functools.partial, Any),  # some of which our modules import
    ],
    ids=lambda kind: f"{kind.__module__}.{kind.__name__}",
)
def test_a_class_of_another_is_foreign(kind: Any) -> None:
    assert not is_ours(kind) and not is_ours_or_torchs(kind, kind.__name__)


def test_functions_are_where_their_code_is() -> None:
    assert all(map(is_ours, (stoker.default_collate, is_ours, Subset.__getitem__, nesting.held_by)))
    with moved(Subset):
        assert is_ours(Subset.__getitem__)

    @functools.wraps(stoker.default_collate)
    def users(samples: Any) -> Any:
        return samples

    assert users.__module__ == stoker.default_collate.__module__ and not is_ours(users)
    spelled = types.FunctionType(users.__code__, {"__name__": "stoker.datasets.subset"}, closure=users.__closure__)
    assert spelled.__module__ == "stoker.datasets.subset" and not is_ours(spelled)


def test_torchs_classes_are_known_apart() -> None:
    data = pytest.importorskip("torch.utils.data")
    assert is_ours_or_torchs(data.Subset) and is_ours_or_torchs(data.Subset, "Subset") and not is_ours(data.Subset)
    assert not is_ours_or_torchs(data.Subset, "Other")
    assert not is_ours_or_torchs(type("Subset", (data.Subset,), {}))
    assert is_ours_or_torchs(Subset, "Subset") and not is_ours_or_torchs(Subset, "Other")


def test_definer_is_the_class_whose_method_is_used() -> None:
    class Own(MapDataset[Any]):
        def set_epoch(self, epoch: int) -> None: ...

    class Under(Own):
        pass

    assert definer(Under, "set_epoch") is Own and definer(Under, "describe") is MapDataset
    assert definer(Under, "unknown") is object
