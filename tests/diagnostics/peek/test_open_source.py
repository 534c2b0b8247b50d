"""Sources are opened by what they are called, and errors say what was there instead."""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from stoker.diagnostics.peek.open_source import OpenedSource, open_source, spread
from stoker.errors import ArrayFileError, QueryError, TargetError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def samples(source: OpenedSource, most: int = 64) -> list[object]:
    return [sample for _, sample in source.look(2, most)]


def test_csv() -> None:
    Path("rows.csv").write_text("file,label,score\na.jpg,3,0.5\nb.jpg,x,\n")
    opened = open_source("rows.csv")
    assert (opened.count, opened.kind) == (2, "a CSV file")
    assert samples(opened) == [
        {"file": "a.jpg", "label": 3, "score": 0.5},
        {"file": "b.jpg", "label": "x", "score": ""},
    ]
    Path("rows.tsv").write_text("a\tb\n1\t2\n")
    assert samples(open_source("rows.tsv")) == [{"a": 1, "b": 2}]


def test_text_and_json_lines() -> None:
    Path("lines.txt").write_text("one\ntwo\n")
    Path("more.txt").write_text("three\n")
    opened = open_source("*.txt")
    assert (opened.count, opened.kind, samples(opened)) == (3, "2 text files", ["one", "two", "three"])
    with gzip.open("rows.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"id": number}) + "\n" for number in range(3))
    opened = open_source("rows.jsonl.gz")
    assert (opened.count, samples(opened, 2)) == (3, [{"id": 0}, {"id": 1}])


def test_a_stream_that_breaks_ends_with_its_error() -> None:
    Path("rows.jsonl").write_text('{"id": 1}\nnothing\n{"id": 2}\n')
    first, second = samples(open_source("rows.jsonl"))
    assert first == {"id": 1} and isinstance(second, ValueError)


def test_numpy() -> None:
    np.save("rows.npy", np.arange(12).reshape(6, 2))
    opened = open_source("rows.npy")
    assert opened.count == 6 and [row.tolist() for row in samples(opened, 3)] == [[0, 1], [2, 3], [10, 11]]
    np.save("one.npy", np.float32(1))
    with pytest.raises(ArrayFileError, match="a single number"):
        open_source("one.npy")


def test_sqlite() -> None:
    with closing(sqlite3.connect("rows.db")) as database:
        database.execute('CREATE TABLE "odd name" (a INT, b TEXT)')
        database.executemany('INSERT INTO "odd name" VALUES (?, ?)', [(1, "x"), (2, "y")])
        database.commit()
        opened = open_source("rows.db")
        assert opened.count == 2 and samples(opened) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
        database.execute("CREATE TABLE other (c INT)")
        database.commit()
    with pytest.raises(TargetError, match="odd name, other: name the rows by a query"):
        open_source("rows.db")
    assert samples(open_source("rows.db", 'SELECT a FROM "odd name" WHERE a > 1;')) == [{"a": 2}]
    with pytest.raises(QueryError, match="no such table"):
        open_source("rows.db", "SELECT a FROM absent")


def test_parquet_and_tar() -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    from stoker import TarWriter

    pyarrow.parquet.write_table(arrow.table({"id": [1, 2, 3]}), "rows.parquet")
    assert samples(open_source("rows.parquet")) == [{"id": 1}, {"id": 2}, {"id": 3}]
    with TarWriter("train-%06d.tar") as writer:
        writer.write({"__key__": "k", "cls": 4})
    opened = open_source("train-{000000..000000}.tar")
    assert opened.count == 1 and samples(opened)[0]["cls"] == 4  # type: ignore[index]


def test_databases_of_arrays() -> None:
    h5py, lmdb = pytest.importorskip("h5py"), pytest.importorskip("lmdb")
    with h5py.File("rows.h5", "w") as file:
        file["x"] = np.arange(4)
    assert open_source("rows.h5").count == 4
    with lmdb.open("rows") as environment, environment.begin(write=True) as transaction:
        transaction.put(b"k", b"v")
    assert (open_source("rows").kind, samples(open_source("rows"))) == ("an LMDB database", [b"v"])


def test_folders() -> None:
    image = pytest.importorskip("PIL.Image")
    for path in ("classes/cat/1.png", "classes/dog/2.png", "flat/3.png"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (4, 3)).save(path)
    opened = open_source("classes")
    assert (opened.count, opened.kind) == (2, "a folder of images of 2 classes")
    assert (open_source("flat").kind, open_source("flat/*.png").kind) == (
        "a folder of images without classes",
        "an image file",
    )
    Path("shards").mkdir()
    Path("shards/a.txt").write_text("one\n")
    assert open_source("shards").count == 1
    Path("shards/a.txt").unlink()
    with pytest.raises(TargetError, match="It holds nothing"):
        open_source("shards")


def test_objects() -> None:
    Path("peeked_of_a_test.py").write_text(
        "from stoker import DataLoader, from_iterable\n"
        "rows = [5, 6]\n"
        "def loader(): return DataLoader(rows)\n"
        "def stream(): return from_iterable(lambda: iter([7]))\n"
    )
    assert samples(open_source("peeked_of_a_test:rows")) == samples(open_source("peeked_of_a_test.py:loader")) == [5, 6]
    opened = open_source("peeked_of_a_test:stream")
    assert opened.count is None and samples(opened) == [7]
    del sys.modules["peeked_of_a_test"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rows.cvs", r"did you mean rows\.csv\?"),
        ("rows", "there is no file, no folder and no module:object 'rows'"),
        ("notes.odt", r"nothing is known to open \.odt .*\.parquet"),
        ("train.py", r"is a program: .* as .*train\.py:object"),
        ("README", "nothing is known to open a file without an extension"),
        ("nowhere:rows", "there is no module nowhere"),
    ],
)
def test_what_cannot_be_opened(name: str, message: str) -> None:
    for path in ("rows.csv", "notes.odt", "README", "train.py"):
        Path(path).write_text("a\n")
    with pytest.raises(TargetError, match=message):
        open_source(name)


def test_a_sample_that_raises_takes_its_place() -> None:
    class Breaks:
        def __getitem__(self, index: int) -> int:
            if index == 1:
                raise OSError("broken")
            return index

    found = samples(OpenedSource("x", "y", 3, Breaks()))
    assert [found[0], found[2]] == [0, 2] and isinstance(found[1], OSError)


@pytest.mark.parametrize(("count", "first", "most"), [(0, 5, 64), (3, 5, 64), (100, 5, 10), (10**9, 5, 64), (9, 5, 2)])
def test_spread(count: int, first: int, most: int) -> None:
    found = spread(count, first, most)
    assert found == sorted(set(found)) and len(found) <= most
    assert all(0 <= index < count for index in found)
    if count > most:
        assert found[-1] == count - 1


class Awaited:
    def __len__(self) -> int:
        return 3

    async def __getitem__(self, index: int) -> int:
        await asyncio.sleep(0)
        return 10 // index


def test_awaited_samples_are_shown() -> None:
    first, *others = samples(OpenedSource("train:dataset", "Awaited", 3, Awaited()))
    assert isinstance(first, ZeroDivisionError) and others == [10, 5]
