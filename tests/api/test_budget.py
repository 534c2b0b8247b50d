"""The source stays within its budget: `house.json`, written by `python scripts/house.py --record`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

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


@pytest.fixture(scope="module")
def source(house: ModuleType) -> Any:
    """What is known of the package, which takes seconds to read."""
    return house.House()


def test_no_house_is_above_its_budget(source: Any) -> None:
    budget = json.loads((FOLDER / "house.json").read_text())
    figures = source.figures()
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


def test_map_of_the_houses_is_up_to_date(house: ModuleType, source: Any) -> None:
    (shown,) = house.MAP.findall(house.GUIDE.read_text())
    assert shown == house.house_map(source), "run: python scripts/house.py --map"
    assert [one.folder for one in source.modules.values() if one.is_package and not one.summary] == []


def test_no_import_goes_through_a_wall(source: Any) -> None:
    through = {name: others for name, others in source.walls.items() if others}
    assert not through, (
        f"{through}: private modules of another house. Use a public module or a name of `stoker.extend`, or move the "
        "file into the house that uses it"
    )


@pytest.mark.parametrize(
    ("line", "through"),
    [
        ("from small.loader._inner import thing", True),
        ("from small.loader import _inner", True),
        ("import small.loader._inner", True),
        ("from ..loader._inner import thing", True),
        ("if TYPE_CHECKING:\n    from small.loader._inner import thing", True),
        ("def late():\n    from small.loader._inner import thing", True),
        ("import importlib\nimportlib.import_module('small.loader._inner')", True),
        ("from small.extend import thing", False),
        ("from small.loader import outer", False),
        ("from small._core import shared", False),
        ("from small.sources._own import thing", False),
        ("from elsewhere.loader._inner import thing", False),
    ],
)
def test_walls_let_only_the_door_through(house: ModuleType, tmp_path: Path, line: str, through: bool) -> None:
    root = tmp_path / "small"
    for name in ("loader._inner", "loader.outer", "_core.shared", "sources._own", "extend"):
        file = root.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (root / "extend.pyi").write_text("from small.loader._inner import thing as thing\n")
    (root / "sources" / "one.py").write_text(line + "\n")
    walls = {name: others for name, others in house.House(root).walls.items() if others}
    assert walls == ({"sources.one": ["loader._inner"]} if through else {})


def test_stub_of_the_door_can_close_a_circle(house: ModuleType, tmp_path: Path) -> None:
    root = tmp_path / "small"
    (root / "loader").mkdir(parents=True)
    (root / "loader" / "outer.py").write_text("from small.extend import thing\n")
    (root / "extend.py").touch()
    (root / "extend.pyi").write_text("from small.loader.outer import thing as thing\n")
    assert house.House(root).cycles == [["extend", "loader.outer"]]


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
