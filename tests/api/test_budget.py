"""The source stays within its budget: `house.json`, written by `python scripts/house.py --record`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", FOLDER.parents[1] / "scripts" / "house.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["house"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    del sys.modules["house"]
    return module


def test_no_house_is_above_its_budget(house: ModuleType) -> None:
    budget = json.loads((FOLDER / "house.json").read_text())
    figures = house.House().figures()
    assert {name: row.keys() for name, row in figures.items()} == {name: row.keys() for name, row in budget.items()}
    above = [
        f"{name}: {figure} {row[figure]}, of {most}"
        for name, row in figures.items()
        for figure, most in budget[name].items()
        if row[figure] > most
    ]
    assert not above, (
        f"{above}: remove as much elsewhere, or raise the budget in the same commit, with the reason in its message"
    )


def test_map_of_the_houses_is_up_to_date(house: ModuleType) -> None:
    source = house.House()
    (shown,) = house.MAP.findall(house.GUIDE.read_text())
    assert shown == house.house_map(source), "run: python scripts/house.py --map"
    assert [one.folder for one in source.modules.values() if one.is_package and not one.summary] == []


def test_figures_of_a_small_package(house: ModuleType, tmp_path: Path) -> None:
    root = tmp_path / "small"
    (root / "loader").mkdir(parents=True)
    (root / "sources").mkdir()
    (root / "__init__.py").touch()
    (root / "loader" / "_inner.py").write_text('"""Two\nlines."""\n\n# a comment\n_HIDDEN = (\n    1,\n)\n')
    (root / "loader" / "outer.py").write_text("import small.loader.ring\nfrom small.loader import _inner\n")
    (root / "loader" / "ring.py").write_text("import small.loader.outer\n")
    (root / "sources" / "one.py").write_text("from small.loader._inner import _HIDDEN\n")
    (root / "sources" / "two.py").write_text("def late():\n    from small.loader import outer\n    return outer\n")
    read = house.House(root)
    figures = read.figures()
    assert read.modules["loader._inner"].code == 3
    assert read.cycles == [["loader.outer", "loader.ring"]]
    assert read.walls["sources.one"] == ["loader._inner"] and read.walls["sources.two"] == []
    assert figures["readers"] == {
        **{"files": 2, "lines": 4, "code": 4, "single importer": 0, "through walls": 1, "private reads": 1}
    }
    assert [name for name, module in read.modules.items() if read.is_single(module)] == ["loader.ring"]
