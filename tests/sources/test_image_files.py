from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader, ImageFiles, columns
from stoker.errors import LabelCountError, MissingExtraError

NAMES = ["a.jpg", "b.png", "c.png", "a.jpg"]
VALUES = [10, 20, 30, 10]


def value(image: Any) -> int:
    return round(float(np.asarray(image).mean()))


@pytest.fixture
def root(tmp_path: Path, write: Callable[[Path, int], None]) -> Path:
    for name, number in zip(NAMES, VALUES, strict=True):
        write(tmp_path / name, number)
    return tmp_path


def read(dataset: Any) -> list[Any]:
    return [dataset[index] for index in range(len(dataset))]


def test_images_alone_in_their_order(root: Path) -> None:
    dataset = ImageFiles([root / name for name in NAMES], transform=value)
    assert read(dataset) == VALUES and dataset[-1] == 10 and len(dataset) == 4
    assert dataset.images == [str(root / name) for name in NAMES]
    assert dataset.targets is None and dataset.samples is None and dataset.classes == []
    assert read(ImageFiles(NAMES, transform=value, root=root)) == VALUES
    with pytest.raises(IndexError):
        dataset[4]


def test_contents_instead_of_paths(root: Path) -> None:
    dataset = ImageFiles([(root / name).read_bytes() for name in NAMES], VALUES, transform=value, root="elsewhere")
    assert read(dataset) == list(zip(VALUES, VALUES, strict=True))
    assert dataset.describe(0) == f"{(root / NAMES[0]).stat().st_size:,} bytes"


def test_names_of_classes_become_indices() -> None:
    dataset = ImageFiles(NAMES, ["dog", "cat", "dog", "bee"], loader=len)
    assert dataset.classes == ["bee", "cat", "dog"] and dataset.class_to_idx["dog"] == 2
    assert dataset.targets == [2, 1, 2, 0] and type(dataset[0][1]) is int
    assert dataset.samples == list(zip(NAMES, [2, 1, 2, 0], strict=True))
    chosen = ImageFiles(NAMES, ("dog", "cat", "dog", "bee"), classes=["dog", "bee", "cat", "cow"])
    assert chosen.targets == [0, 2, 0, 1] and len(chosen.classes) == 4


@pytest.mark.parametrize(
    ("labels", "first"),
    [
        ([4, 3, 2, 1], 4),
        ([0.5, 1.0, 2.0, 3.5], 0.5),
        (iter([4, 3, 2, 1]), 4),
        (np.array([4, 3, 2, 1], np.uint8), np.uint8(4)),
        (np.array([4, 3, 2, 1], np.float32), np.float32(4)),
        (columns([4, 3, 2, 1]), 4),
        (columns([5, 4, 3, 2, 1, 0])[1:5], 4),
        (range(4, 0, -1), 4),
    ],
    ids=["integers", "floats", "iterator", "bytes", "float32", "columns", "part of columns", "range"],
)
def test_numbers_stay_what_they_are(labels: Any, first: Any) -> None:
    dataset = ImageFiles(NAMES, labels, loader=len)
    assert type(dataset[0][1]) is type(first) and dataset[0][1] == first and dataset.classes == []
    assert dataset.samples is None or list(dataset.samples) == list(zip(NAMES, dataset.targets, strict=True))


def test_key_points_are_an_array(root: Path) -> None:
    points = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    dataset = ImageFiles(NAMES, points, root=root, transform=value)
    points[:] = -1
    batch, target = next(iter(DataLoader(dataset, 4, output="numpy")))
    assert batch.tolist() == VALUES and target.dtype == np.float32 and target[1, 0].tolist() == [6, 7]


def test_targets_of_several_parts() -> None:
    dataset = ImageFiles(NAMES, [{"x": 1, "y": 0.5}] * 4, loader=len)
    assert dataset[2] == (5, {"x": 1, "y": 0.5})


def test_an_object_of_ones_own_gives_the_labels() -> None:
    class Boxes:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return [[0, 0, index, index]] * index

    assert ImageFiles(NAMES, Boxes(), loader=len)[2] == (5, [[0, 0, 2, 2]] * 2)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_read_the_same_images(root: Path, start: str) -> None:
    dataset = ImageFiles(NAMES * 3, [0, 1, 2, 3] * 3, root=root, transform=value)
    with DataLoader(dataset, 4, num_workers=2, multiprocessing_context=start, output="numpy") as loader:
        batches = [(values.tolist(), labels.tolist()) for values, labels in loader]
    assert batches == [(VALUES, [0, 1, 2, 3])] * 3
    assert read(pickle.loads(pickle.dumps(dataset))) == read(dataset)


# Tables


def test_a_csv_file(root: Path) -> None:
    table = root / "train.csv"
    table.write_text('id,"file name",kind,score\r\n1,a.jpg,dog,1\n2,b.png,"cat, grey",2.5\n\n3,c.png,dog,-3\n')
    dataset = ImageFiles.from_csv(table, image="file name", label="kind", transform=value)
    assert read(dataset) == [(10, 1), (20, 0), (30, 1)] and dataset.classes == ["cat, grey", "dog"]
    assert ImageFiles.from_csv(str(table), image="file name", label="score").targets == [1.0, 2.5, -3.0]
    assert ImageFiles.from_csv(table, image="file name", label="id", root="/else").targets == [1, 2, 3]
    assert ImageFiles.from_csv(table, image="file name", root="/else").describe(0) == "/else/a.jpg"
    table.write_text("file,kind\na.jpg,1_2\nb.png,1_1\n")  # which Python reads as numbers
    assert ImageFiles.from_csv(table, image="file", label="kind").classes == ["1_1", "1_2"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column 'file'"),
        ("name,kind\na.jpg,dog\n", "no column 'file'; its columns are 'name', 'kind'"),
        ("file,kind\na.jpg,dog\nb.jpg\n", "line 4: the row .* has 1 fields, and the header 2"),
    ],
)
def test_a_csv_file_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=said):
        ImageFiles.from_csv(tmp_path / "t.csv", image="file", label="kind")


def test_a_csv_file_without_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("file,kind\n")
    assert len(ImageFiles.from_csv(tmp_path / "t.csv", image="file", label="kind")) == 0


def parquet(path: Path, row_group_size: int = 2, **columns: Any) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table(columns), path, row_group_size=row_group_size)
    return path


def test_a_parquet_file(root: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    kinds = arrow.array(["x", "y", "x", "z"]).dictionary_encode()
    contents = [(root / name).read_bytes() for name in NAMES]
    table = parquet(
        root / "train.parquet",
        file=NAMES,
        label=arrow.array([3, 2, 1, 0], arrow.int16()),
        kind=kinds,
        score=[0.5, 1.5, 2.5, 3.5],
        jpeg=contents,
        image=[{"bytes": each, "path": "x"} for each in contents],
        ok=[True, False, True, True],
    )
    assert read(ImageFiles.from_parquet(table, image="file", label="label", transform=value)) == [
        (10, 3),
        (20, 2),
        (30, 1),
        (10, 0),
    ]
    named = ImageFiles.from_parquet(table, image="jpeg", label="kind", transform=value)
    assert read(named) == [(10, 0), (20, 1), (30, 0), (10, 2)] and named.classes == ["x", "y", "z"]
    assert read(ImageFiles.from_parquet(table, image="image", transform=value)) == VALUES
    assert ImageFiles.from_parquet(table, image="file", label="score").targets == [0.5, 1.5, 2.5, 3.5]
    assert ImageFiles.from_parquet(table, image="file", label="ok").targets == [True, False, True, True]


def test_a_parquet_file_that_is_wrong(root: Path) -> None:
    table = parquet(root / "t.parquet", file=["a", None], number=[1, None], nested=[[1], [2]])
    for image, label, said in (
        ("name", None, "no column 'name'"),
        ("file", None, r"'file' of .*t\.parquet has 1 null values of 2"),
        ("number", None, "1 null values"),
        ("nested", None, "is of type list"),
    ):
        with pytest.raises(ValueError, match=said):
            ImageFiles.from_parquet(table, image=image, label=label)
    good = parquet(root / "good.parquet", file=["a", "b"], number=[1, None], nested=[[1], [2]])
    for label, said in (("number", "null"), ("nested", "expected numbers or texts")):
        with pytest.raises(ValueError, match=said):
            ImageFiles.from_parquet(good, image="file", label=label)


def test_parquet_without_pyarrow_names_the_extra(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"stoker\[parquet\]"):
        ImageFiles.from_parquet(root / "t.parquet", image="file")


@pytest.fixture
def database(root: Path) -> Path:
    path = root / "samples.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE samples (id INTEGER, file_path TEXT, label_id INTEGER, split TEXT, jpeg BLOB)")
        rows = [
            (n, name, n % 2, "val" if n == 1 else "train", (root / name).read_bytes()) for n, name in enumerate(NAMES)
        ]
        connection.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", rows)
    return path


def test_a_table_of_sqlite(database: Path) -> None:
    query = "SELECT file_path, label_id FROM samples WHERE split = 'train' ORDER BY id"
    assert read(ImageFiles.from_sqlite(database, query, transform=value)) == [(10, 0), (30, 0), (10, 1)]
    contents = ImageFiles.from_sqlite(database, "SELECT jpeg, split FROM samples ORDER BY id DESC", transform=value)
    assert read(contents) == [(10, 0), (30, 0), (20, 1), (10, 0)] and contents.classes == ["train", "val"]
    assert len(ImageFiles.from_sqlite(database, "SELECT file_path FROM samples WHERE id > 9")) == 0


def test_a_query_that_is_wrong(database: Path, tmp_path: Path) -> None:
    for query, said in (
        ("SELECT * FROM samples", "selects 5 columns"),
        ("SELECT file_path, NULL FROM samples", "is NULL in row"),
    ):
        with pytest.raises(ValueError, match=said):
            ImageFiles.from_sqlite(database, query)
    with pytest.raises(TypeError, match="holds ints, expected paths"):
        ImageFiles.from_sqlite(database, "SELECT id FROM samples")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        ImageFiles.from_sqlite(database, "DELETE FROM samples")
    with pytest.raises(FileNotFoundError, match="leads to no file"):
        ImageFiles.from_sqlite(tmp_path / "gone.sqlite", "SELECT 1")
    assert not (tmp_path / "gone.sqlite").exists()


# Bad input


@pytest.mark.parametrize("labels", [[1, 2, 3], [1] * 5, np.zeros(3), ["x"], range(7)], ids=str)
def test_labels_of_another_number(labels: Any) -> None:
    with pytest.raises(LabelCountError, match=f"4 images and {len(labels)} labels") as caught:
        ImageFiles(NAMES, labels)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (("photos",), TypeError, "expected a list of paths.*ImageFolder"),
        (([1, 2],), TypeError, "images hold 1, expected paths"),
        ((["a.jpg", None],), TypeError, "expected paths"),
        ((["a.jpg", b"x"],), ValueError, "found bytes"),
        ((["a.jpg"], ["cow"], None, None, None), None, ""),
        ((["a.jpg"], [object()]), TypeError, "cannot be kept in an array"),
        ((["a.jpg"], np.array(["x"])), TypeError, "give names as a list"),
    ],
    ids=["a folder", "numbers", "a gap", "mixed", "fine", "objects", "an array of texts"],
)
def test_images_and_labels_that_are_none(arguments: Any, kind: Any, said: str) -> None:
    if kind is None:
        assert len(ImageFiles(*arguments)) == 1
        return
    with pytest.raises(kind, match=said):
        ImageFiles(*arguments)


def test_a_label_that_is_no_class() -> None:
    with pytest.raises(ValueError, match="'cow' is not one of the 2 classes 'ant', 'bee'"):
        ImageFiles(["a", "b"], ["ant", "cow"], classes=["ant", "bee"])
    with pytest.raises(ValueError, match="labels from 0 to 2, and 2 classes"):
        ImageFiles(["a", "b"], [0, 2], classes=["ant", "bee"])
    with pytest.raises(ValueError, match="there are no labels"):
        ImageFiles(["a", "b"], classes=["ant", "bee"])


def test_a_path_that_is_a_folder(root: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        ImageFiles([root])[0]
    assert str(root) in str(caught.value)
    assert any("this is a folder" in note for note in caught.value.__notes__)


def test_pillow_that_is_missing_names_the_extra(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.sources import read_image

    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"stoker\[images\]"):
        read_image.pillow()
