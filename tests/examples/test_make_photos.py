"""make_photos.py: what the data set consists of, that it is always the same, and what a second run does."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

IMAGES = 40
COLUMNS = ["sample_id", "file_path", "label_id", "split_tag", "is_verified"]


@pytest.fixture
def rows(photos: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(photos / "samples.sqlite")) as database:
        return [dict(zip(COLUMNS, row, strict=True)) for row in database.execute("SELECT * FROM samples")]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_table_has_the_columns_that_it_should(photos: Path) -> None:
    with closing(sqlite3.connect(photos / "samples.sqlite")) as database:
        assert [name for _, name, *_ in database.execute("PRAGMA table_info(samples)")] == COLUMNS


def test_every_row_has_its_file_and_every_file_its_row(photos: Path, rows: list[dict[str, Any]]) -> None:
    assert [row["sample_id"] for row in rows] == list(range(IMAGES))
    assert {row["file_path"] for row in rows} | {"samples.sqlite"} == set(contents(photos))


def test_a_class_is_a_folder(rows: list[dict[str, Any]]) -> None:
    folders = {(row["label_id"], Path(row["file_path"]).parent.name) for row in rows}
    assert len(folders) == len({label for label, _ in folders}) == len({folder for _, folder in folders}) == 16
    assert max(Counter(row["label_id"] for row in rows).values()) == 3  # 40 images in 16 classes


def test_the_split_and_the_share_of_truncated_files(rows: list[dict[str, Any]]) -> None:
    assert Counter(row["split_tag"] for row in rows) == {"train": 34, "val": 6}
    assert Counter(row["is_verified"] for row in rows) == {1: 39, 0: 1}  # 1 % of 40 would be none


def test_verified_photos_decode_and_others_are_truncated(photos: Path, rows: list[dict[str, Any]]) -> None:
    from PIL import Image

    for row in rows:
        with Image.open(photos / row["file_path"]) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert 460 <= image.width <= 540
            assert 345 <= image.height <= 405
            if row["is_verified"]:
                image.load()
            else:
                with pytest.raises(OSError, match="truncated"):
                    image.load()


def test_no_two_images_are_alike(photos: Path) -> None:
    assert len(set(contents(photos).values())) == IMAGES + 1


def test_photos_are_the_same_each_time(photos: Path, tmp_path: Path, program: Callable[..., Any]) -> None:
    with program("make_photos.py", "--data", tmp_path / "again", "--images", IMAGES) as making:
        assert making.end() == 0, making.output
    assert contents(tmp_path / "again") == contents(photos)
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


def test_photos_of_a_stopped_run_are_kept(photos: Path, tmp_path: Path, program: Callable[..., Any]) -> None:
    unfinished = tmp_path / f".photos.{IMAGES}.unfinished"
    (unfinished / "brick").mkdir(parents=True)
    (unfinished / "brick" / "00001.jpg").write_bytes(b"made before")
    (unfinished / "brick" / "00017.part").write_bytes(b"half a file")
    (unfinished / "samples.sqlite").write_bytes(b"half a table")
    with program("make_photos.py", "--data", tmp_path / "photos", "--images", IMAGES) as making:
        assert making.end() == 0, making.output
    found, whole = contents(tmp_path / "photos"), contents(photos)
    assert found.pop("brick/00001.jpg") == b"made before"
    assert whole.pop("brick/00001.jpg") != b"made before"
    assert found == whole


def test_second_run_makes_no_photo_again(photos: Path, program: Callable[..., Any]) -> None:
    with program("make_photos.py", "--data", photos, "--images", IMAGES) as making:
        assert making.end() == 0, making.output
    assert "is there already" in making.output


@pytest.mark.parametrize("what", ["another number of images", "a folder of the user's"])
def test_folder_with_other_files_is_left_alone(
    photos: Path, tmp_path: Path, what: str, program: Callable[..., Any]
) -> None:
    folder = tmp_path / "photos"
    if what == "another number of images":
        shutil.copytree(photos, folder)
    else:
        folder.mkdir()
        (folder / "letter.txt").write_text("dear")
    before = contents(folder)
    with program("make_photos.py", "--data", folder, "--images", IMAGES + 1) as making:
        assert making.end() == 1
    assert "exists and is not this data set: remove it, or name another folder" in making.output
    assert contents(folder) == before
