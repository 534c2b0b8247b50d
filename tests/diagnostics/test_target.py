"""`module:object` names a dataset, a loader, or what makes one; a typo is answered by what is there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stoker.diagnostics.target import find
from stoker.errors import TargetError

MODULE = """
from stoker import DataLoader
rows = list(range(10))
def make_loader():
    return DataLoader(rows, batch_size=4)
class Squares:
    def __len__(self): return 3
    def __getitem__(self, index): return index * index
class Holder:
    rows = rows
number = 3
"""


@pytest.fixture(autouse=True)
def training_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "training_of_a_test.py").write_text(MODULE)
    (tmp_path / "broken_of_a_test.py").write_text("import no_such_package_of_a_test\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "training_of_a_test", raising=False)


@pytest.mark.parametrize(
    ("path", "samples", "is_loader"),
    [("rows", 10, False), ("make_loader", 10, True), ("Squares", 3, False), ("Holder.rows", 10, False)],
)
@pytest.mark.parametrize("module", ["training_of_a_test", "training_of_a_test.py"])
def test_target_is_found_or_made(module: str, path: str, samples: int, is_loader: bool) -> None:
    target = find(f"{module}:{path}")
    assert (len(target.dataset), target.loader is not None) == (samples, is_loader)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("training_of_a_test", "write module:object"),
        (":rows", "write module:object"),
        ("trainig_of_a_test:rows", "there is no module trainig_of_a_test: did you mean training_of_a_test?"),
        ("trainig_of_a_test.py:rows", "did you mean training_of_a_test.py?"),
        ("training_of_a_test:row", "training_of_a_test has no row: did you mean rows?"),
        ("training_of_a_test:number", "is a int, and neither a dataset nor a loader"),
    ],
)
def test_wrong_name_is_answered_by_what_is_there(name: str, said: str) -> None:
    with pytest.raises(TargetError) as error:
        find(name)
    assert said in str(error.value)


def test_error_inside_the_module_is_its_own() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package_of_a_test"):
        find("broken_of_a_test:rows")
