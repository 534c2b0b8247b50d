"""The demo's pictures: whole files, the same ones each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.diagnostics.demo import CLASSES, SIZE, make_pictures

PIL = pytest.importorskip("PIL.Image")


def test_pictures_are_the_same_each_time(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    size = make_pictures(tmp_path / "first", 6, lambda done, count: told.append((done, count)))
    assert told[-1] == (6, 6)
    make_pictures(tmp_path / "second", 6, lambda done, count: None)
    first, second = (
        {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.jpg")}
        for folder in (tmp_path / "first", tmp_path / "second")
    )
    assert first == second and len(first) == 6 and sum(map(len, first.values())) == size
    assert {name.partition("/")[0] for name in first} == set(CLASSES)
    for path in (tmp_path / "first").rglob("*.jpg"):
        with PIL.open(path) as image:
            image.load()
            assert image.size == SIZE and image.mode == "RGB"


def test_pictures_that_exist_are_kept(tmp_path: Path) -> None:
    make_pictures(tmp_path, 2, lambda done, count: None)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jpg")}
    make_pictures(tmp_path, 3, lambda done, count: None)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jpg")}
    assert len(after) == 3 and before.items() <= after.items()
