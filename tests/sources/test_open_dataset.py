"""The class of a dataset follows from the names of the files, and errors list what lies there instead."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import ChainDataset, ConcatDataset, open_dataset
from stoker.errors import EmptyFolderError, QueryError, TargetError
from stoker.sources.open_dataset import contents_of
from tests.pinned import sample_files
from tests.sources.hub_server import Hub
from tests.sources.object_servers import Bucket

FILES = json.loads(Path(sample_files.__file__).with_name("pickles.json").read_text())["files"]

BY_INDEX = [
    ("rows-*.tar", "TarDataset", None, {}),
    ("rows-{0,1}.parquet", "ParquetDataset", "pyarrow", {"columns": ["value"]}),
    ("rows.csv", "CSVDataset", None, {"types": {"value": int}}),
    ("rows.jsonl", "JSONLinesDataset", None, {}),
    ("rows.txt", "TextLineDataset", None, {}),
    ("rows.tfrecord", "TFRecordDataset", "google_crc32c", {}),
    ("rows.h5", "HDF5Dataset", "h5py", {}),
    ("rows.npy", "ArrayDataset", None, {}),
    ("rows.lmdb", "LMDBDataset", "lmdb", {}),
    ("rows.sqlite", "SQLDataset", None, {}),
    ("mds", "MDSDataset", None, {}),
    ("photos", "ImageFolder", "PIL", {}),
    ("photos/*/*.png", "ImageFiles", "PIL", {}),
    ("sound.wav", "AudioClips", "soundfile", {"seconds": 0.01}),
    ("film.mp4", "VideoClips", "av", {"frames": 2}),
]
STREAMS = [
    ("rows-*.tar", "TarStream", None),
    ("rows-*.parquet", "ParquetStream", "pyarrow"),
    ("rows.csv", "CSVStream", None),
    ("rows.jsonl", "JSONLinesStream", None),
    ("rows.txt", "TextLineStream", None),
    ("rows.tfrecord", "TFRecordStream", "google_crc32c"),
    ("rows.sqlite", "SQLStream", None),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with real files of each kind."""
    sample_files.unpack_files(FILES, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def need(package: str | None) -> None:
    if package is not None:
        pytest.importorskip(package, exc_type=ImportError)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("place", "name", "package", "options"), BY_INDEX)
def test_files_open_by_index(place: str, name: str, package: str | None, options: dict[str, Any]) -> None:
    need(package)
    dataset = open_dataset(place, **options)
    assert type(dataset) is getattr(stoker, name)
    assert len(dataset) > 0
    dataset[len(dataset) - 1]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("place", "name", "package"), STREAMS)
def test_files_open_as_streams(place: str, name: str, package: str | None) -> None:
    need(package)
    stream = open_dataset(place, stream=True)
    assert type(stream) is getattr(stoker, name)
    assert list(stream)


def test_folders_and_lists_of_files(here: Path) -> None:
    for number in range(2):
        (here / "part").mkdir(exist_ok=True)
        np.save(here / "part" / f"{number}.npy", np.arange(3) + 3 * number)
    for name in ("README.md", "_SUCCESS", ".hidden", "0.npy.index"):
        (here / "part" / name).touch()
    assert [int(row) for row in open_dataset(here / "part")] == list(range(6))
    assert len(open_dataset([here / "part" / "0.npy"])) == 3


def test_tabs_are_found_by_the_extension(here: Path) -> None:
    (here / "rows.tsv").write_text("a\tb\n1\t2\n")
    assert open_dataset("rows.tsv")[0] == {"a": "1", "b": "2"}


def test_commas_and_tabs_are_not_mixed(here: Path) -> None:
    (here / "rows.tsv").write_text("value\n1\n")
    with pytest.raises(TargetError, match=r"1 of 2 files have tabs by their names, such as rows\.tsv.*delimiter="):
        open_dataset(["rows.csv", "rows.tsv"], stream=True)
    (here / "more.csv").write_text("a,b\n1,2\n")
    (here / "more.tsv").write_text("a,b\n3,4\n")
    assert [row["b"] for row in open_dataset(["more.csv", "more.tsv"], delimiter=",")] == ["2", "4"]


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("files", "listed"),
    [
        (["a.jpg", "thumbs/b.jpg"], r"the folder thumbs, a\.jpg: .* such as top/\*\.jpg"),
        (["train/a.csv", "test/b.csv"], "the folder test, the folder train"),
        (["train/cat/a.jpg", "test/cat/b.jpg"], "the folder test, the folder train"),
        (["a.lmdb/data.mdb", "b.lmdb/data.mdb"], r"the folder a\.lmdb, the folder b\.lmdb"),
        (["year=2024/a.parquet", "year=2025/a.csv"], "the folder year=2024, the folder year=2025"),
        (["year=2024/a.parquet", "year=2025/b/a.parquet"], "the folder year=2024, the folder year=2025"),
        (["README.md", "_SUCCESS", ".git/config"], r"the folder \.git, README\.md, _SUCCESS"),
    ],
)
def test_mixed_folders_are_no_image_folder(files: list[str], listed: str) -> None:
    touch(*(f"top/{name}" for name in files))
    with pytest.raises(TargetError, match=f"It holds {listed}"):
        open_dataset("top")


def test_hive_partitions_are_columns(here: Path) -> None:
    need("pyarrow")
    for year in (2024, 2025):
        (here / f"table/year={year}").mkdir(parents=True)
        (here / f"table/year={year}/x.parquet").write_bytes((here / "rows-0.parquet").read_bytes())
    touch("table/_SUCCESS", "table/_temporary/year=1/x.parquet", "table/year=2024/.x.crc")
    dataset = open_dataset("table")
    assert type(dataset) is stoker.ParquetDataset and len(dataset) == 2 * len(open_dataset("rows-0.parquet"))
    assert [dataset[index]["year"] for index in (0, len(dataset) - 1)] == [2024, 2025]


def test_other_names_of_a_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    (here / "a part").mkdir()
    np.save(here / "a part" / "0.npy", np.arange(3))
    for place in ((here / "a part").as_uri(), ["a part"], "~/a part", "~/a part/*.npy", ["~/a part/0.npy"]):
        assert len(open_dataset(place)) == 3


@pytest.mark.usefixtures("here")
def test_companions_of_files_are_passed_over() -> None:
    for file, ends in (("x.lmdb", ["-lock"]), ("y.db", ["-wal", "-shm", "-journal"])):
        touch(file, *(file + end for end in ends))
        assert contents_of(f"{file}*").places == [file]


def test_sqlite_needs_a_local_file() -> None:
    with pytest.raises(ValueError, match=r"s3://b/x\.db is a URL, and SQLite databases take local paths only"):
        open_dataset("s3://b/x.db")


def test_names_of_shards_and_compressed_files(here: Path) -> None:
    need("google_crc32c")
    (here / "rows.tfrecord").rename(here / "rows.tfrecord-00000-of-00001")
    assert type(open_dataset("rows.tfrecord-*")) is stoker.TFRecordDataset
    (here / "rows.csv.gz").write_bytes(gzip.compress((here / "rows.csv").read_bytes()))
    assert len(list(open_dataset("rows.csv.gz", stream=True))) == 6


def test_several_files_of_one_each_are_joined(here: Path) -> None:
    (here / "more.sqlite").write_bytes((here / "rows.sqlite").read_bytes())
    joined, one = open_dataset("*.sqlite"), open_dataset("rows.sqlite")
    assert type(joined) is ConcatDataset and len(joined) == 2 * len(one)
    chain = open_dataset("*.sqlite", stream=True)
    assert type(chain) is ChainDataset and len(list(chain)) == 2 * len(one)


@pytest.mark.usefixtures("here")
def test_a_query_selects_rows_of_a_database() -> None:
    database = sqlite3.connect("rows.db")
    database.executescript("CREATE TABLE a (x); INSERT INTO a VALUES (1), (2); CREATE TABLE b (y)")
    database.close()
    with pytest.raises(TargetError, match="holds a, b: name the rows by a query"):
        open_dataset("rows.db")
    assert open_dataset("rows.db", query="SELECT x FROM a WHERE x > 1")[0] == {"x": 2}
    with pytest.raises(QueryError):
        open_dataset("rows.db", query="SELECT z FROM a")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("rows.*", r"several kinds: .*1 of CSV \(rows\.csv\).*1 of text \(rows\.txt\)"),
        (".", r"It holds the folder empty, the folder mds, the folder photos, film\.mp4"),
        ("empty", "It holds nothing"),
        ("text.*", r"nothing is known to open \.bin \(2 of an unknown kind \(text\.bin, text\.idx\)\).*\.parquet"),
    ],
)
def test_what_does_not_fit_is_listed(place: str, message: str) -> None:
    Path("empty").mkdir()
    with pytest.raises(TargetError, match=message):
        open_dataset(place)


@pytest.mark.usefixtures("here")
def test_what_is_not_there_is_named_beside_what_is() -> None:
    with pytest.raises(FileNotFoundError, match=r"mds/\*\.tar \(looked in .*mds, which holds index\.json, shard"):
        open_dataset("mds/*.tar")
    Path("classes/cat").mkdir(parents=True)
    with pytest.raises(EmptyFolderError):
        open_dataset("classes")


@pytest.mark.usefixtures("here")
def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TargetError, match="ArrayDataset reads by index alone: leave out stream=True"):
        open_dataset("rows.npy", stream=True)
    with pytest.raises(TypeError, match="colums"):
        open_dataset("rows.csv", colums=["value"])


def test_places_in_a_store(bucket: Bucket, here: Path) -> None:
    for name in ("rows-0.tar", "rows-1.tar", "rows.csv"):
        bucket.put(f"data/{name}", (here / name).read_bytes())
    bucket.put("shards/rows-0.tar", (here / "rows-0.tar").read_bytes())
    bucket.put("shards/_SUCCESS", b"")
    local = len(open_dataset("rows-*.tar"))
    assert len(open_dataset(bucket.url("data/*.tar"))) == local
    folder = open_dataset(bucket.url("shards"), stream=True)
    assert type(folder) is stoker.TarStream and len(list(folder)) == len(open_dataset("rows-0.tar"))
    kinds = r"several kinds: 2 of tar \(rows-0\.tar, rows-1\.tar\); 1 of CSV .* such as \*\.tar"
    with pytest.raises(TargetError, match=kinds):
        open_dataset(bucket.url("data/"))
    with pytest.raises(TargetError, match="It holds the folder data, the folder shards"):
        open_dataset(bucket.url())
    with pytest.raises(FileNotFoundError, match=r"data holds rows-0\.tar"):
        open_dataset(bucket.url("data/*.parquet"))


def test_folders_in_a_store_may_have_extensions(bucket: Bucket, here: Path) -> None:
    for name in ("v1.0/0.csv", "table.csv/part-0.csv", "table.csv/_SUCCESS", "year/year=1/x.parquet"):
        bucket.put(name, (here / "rows.csv").read_bytes())
    for name in ("v1.0/", "year/", "year/year=1/"):  # what consoles make for folders
        bucket.put(name, b"")
    rows = len(open_dataset("rows.csv"))
    assert len(open_dataset(bucket.url("v1.0"))) == len(open_dataset(bucket.url("table.csv/"))) == rows
    assert contents_of(bucket.url("x.zarr/")).places == [bucket.url("x.zarr")]
    assert contents_of(bucket.url("year")).place == bucket.url("year/*=*/*.parquet")
    with pytest.raises(TargetError, match=r"nothing is known to open \.bin"):
        open_dataset(bucket.url("rows.bin"))


def test_places_on_the_hub(hub: Hub, here: Path) -> None:
    hub.put({"data/rows.csv": (here / "rows.csv").read_bytes(), "README.md": b""})
    rows = open_dataset("hf://datasets/we/data/data", storage_options=hub.options)
    assert len(rows) == len(open_dataset("rows.csv"))
