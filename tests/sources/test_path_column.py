from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.datasets.columnar import of_columns
from stoker.sources.path_column import Paths, encoded

names = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=8) | st.just("\udcff.jpg")
folders = st.lists(st.tuples(names, st.lists(names, max_size=5)), max_size=6)


def column(tree: list[tuple[str, list[str]]]) -> tuple[Paths, list[str]]:
    blob = encoded("".join(f"{name}\0" for _, files in tree for name in files))
    counts = np.array([len(files) for _, files in tree], np.int64)
    paths = [f"{folder}/{name}" for folder, files in tree for name in files]
    return Paths.of([f"{folder}/" for folder, _ in tree], counts, blob), paths


@given(tree=folders, cut=st.slices(12))
def test_rows_are_the_joined_paths(tree: list[tuple[str, list[str]]], cut: slice) -> None:
    made, paths = column(tree)
    assert len(made) == len(paths)
    read = made.reader()
    assert [read(row) for row in range(len(paths))] == paths
    rows = of_columns(made)
    assert rows == paths and rows[cut] == paths[cut]
    assert rows.__getitems__(list(range(len(paths)))[::-1]) == paths[::-1]


@given(tree=folders, ends=st.tuples(st.integers(0, 30), st.integers(0, 30)))
def test_a_part_holds_its_own_rows(tree: list[tuple[str, list[str]]], ends: tuple[int, int]) -> None:
    made, paths = column(tree)
    start, stop = sorted(min(end, len(paths)) for end in ends)
    part = made.part(start, stop)
    assert of_columns(part) == paths[start:stop]
    assert part.take(np.arange(stop - start)) == paths[start:stop]


@pytest.mark.parametrize("per_folder", [1, 1000])
def test_a_path_takes_little_more_than_its_name(per_folder: int) -> None:
    tree = [(f"folder {number}", [f"{name:08d}.jpg" for name in range(per_folder)]) for number in range(10)]
    made, paths = column(tree)
    assert made.nbytes < len(paths) * (len("00000000.jpg\0") + 4) + len(tree) * 100
