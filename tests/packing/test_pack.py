"""`pack` writes each sample once, in order, in each format, and goes on after a kill."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import HDF5Dataset, TarDataset, TarStream, TarWriter, pack, sample_rng
from stoker.errors import PackError
from stoker.packing.manifest import NAME, only_one

FORMATS = ["tar", "parquet", "lmdb", "npy", "hdf5"]
COUNT = 50


class Rows:
    """Numbers and arrays, which each format but LMDB holds."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.full((3, 2), index, np.float32), "y": index, "drawn": sample_rng().numpy_generator.random()}


class Texts(Rows):
    def __getitem__(self, index: int) -> Any:
        return f"line {index}"


def dataset_for(format: str) -> Any:
    for package in {"parquet": ["pyarrow"], "lmdb": ["lmdb"], "hdf5": ["h5py"]}.get(format, []):
        pytest.importorskip(package)
    return Texts() if format == "lmdb" else Rows()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("workers", [0, 2])
def test_all_samples_are_read_back(format: Any, workers: int, tmp_path: Path) -> None:
    done = pack(dataset_for(format), tmp_path / "to", format=format, num_workers=workers, max_count=20, verify=True)
    assert (done.samples, done.began_at, done.verified) == (COUNT, 0, True)
    assert done.bytes == sum(map(os.path.getsize, done.files)) > 0
    assert len(done.files) == {"tar": 3, "parquet": 3, "lmdb": 1, "npy": 3, "hdf5": 1}[format]
    if format == "hdf5":
        assert HDF5Dataset(done.files[0])[7]["y"] == 7 and HDF5Dataset(done.files[0])[7]["x"].shape == (3, 2)


@pytest.mark.parametrize("format", ["tar", "npy"])
def test_workers_do_not_change_a_byte(format: Any, tmp_path: Path) -> None:
    for workers in (0, 2):
        pack(Rows(), tmp_path / str(workers), format=format, num_workers=workers, max_count=20)
    found = [contents(tmp_path / str(workers)) for workers in (0, 2)]
    if format == "tar":  # an index holds the time at which its shard was written
        found = [{name: data for name, data in each.items() if not name.endswith(".index")} for each in found]
    assert found[0] == found[1]


def test_tar_shards_of_an_image_folder_hold_its_files(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from stoker import ImageFolder

    for number in range(12):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (20, 10), (number, 0, 0)).save(path)
    folder = ImageFolder(tmp_path / "photos", transform=lambda image: pytest.fail("a transform was called"))
    done = pack(folder, tmp_path / "to", max_count=5, verify=True)
    found = [(sample["jpg"], sample["cls"]) for sample in TarDataset(done.files, decode=False)]
    assert found == [(Path(path).read_bytes(), str(label).encode()) for path, label in folder.samples]
    assert [sample["cls"] for sample in TarStream(done.files)] == list(folder.targets)


@pytest.mark.parametrize("format", FORMATS)
def test_killed_pack_goes_on(format: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = dataset_for(format)
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_pack
from stoker.packing import packers
from stoker import pack
packers.LMDB_COMMIT = packers.ARRAYS_COMMIT = 20

def killed(done, of):
    if done >= 40:
        os.kill(os.getpid(), signal.SIGKILL)

pack(test_pack.{type(dataset).__name__}(), "to", format={format!r}, num_workers=0, max_count=20, on_progress=killed)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    again = pack(dataset, tmp_path / "to", format=format, num_workers=2, max_count=20, verify=True)
    assert again.began_at in (20, 40) and again.samples == COUNT
    whole = pack(dataset, tmp_path / "whole", format=format, num_workers=0, max_count=20)
    assert [Path(file).name for file in again.files] == [Path(file).name for file in whole.files]
    if format in ("tar", "npy"):
        assert [Path(file).read_bytes() for file in again.files] == [Path(file).read_bytes() for file in whole.files]
    left = {path.name for path in (tmp_path / "to").iterdir()} - {path.name for path in (tmp_path / "whole").iterdir()}
    assert not left


class Large(Rows):
    """Samples of 8 KiB."""

    def __init__(self, format: str) -> None:
        self.format = format

    def __getitem__(self, index: int) -> Any:
        array = np.random.default_rng(index).integers(0, 256, 8192, np.uint8)
        return array.tobytes() if self.format == "lmdb" else {"x": array}


@pytest.mark.parametrize("format", FORMATS)
def test_full_disk_is_an_error_and_pack_goes_on(format: Any, tmp_path: Path) -> None:
    dataset_for(format)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))  # of an array, all is reserved before the first row
    try:
        with pytest.raises(OSError, match=r"stoker\.pack has kept \d+ of 50 samples. Free space on the disk") as error:
            pack(Large(format), tmp_path / "to", format=format, num_workers=0, max_count=30)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert error.value.filename == str(tmp_path / "to")
    done = pack(Large(format), tmp_path / "to", format=format, num_workers=0, max_count=30, verify=True)
    assert done.samples == COUNT and not [*(tmp_path / "to").glob("*.partial")]


def test_end_while_arrays_are_renamed(tmp_path: Path) -> None:
    done = pack(Rows(), tmp_path / "to", format="npy", num_workers=0)
    manifest = tmp_path / "to" / NAME
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"complete": False, "files": []}))
    (tmp_path / "to" / "x.npy").rename(tmp_path / "to" / "x.npy.partial")
    again = pack(Rows(), tmp_path / "to", format="npy", num_workers=0, verify=True)
    assert again.files == done.files and again.began_at == COUNT


def test_complete_pack_writes_nothing(tmp_path: Path) -> None:
    first = pack(Rows(), tmp_path, num_workers=0)
    before = [os.stat(file).st_mtime_ns for file in first.files]
    again = pack(Rows(), tmp_path, num_workers=0, verify=True)
    assert again.began_at == COUNT and [os.stat(file).st_mtime_ns for file in again.files] == before


class Changed(Rows):
    def __getitem__(self, index: int) -> dict[str, Any]:
        row = super().__getitem__(index)
        return row | {"y": -1} if index == 33 else row


@pytest.mark.parametrize("format", ["tar", "parquet", "npy"])
def test_verification_names_the_sample_that_differs(format: Any, tmp_path: Path) -> None:
    dataset_for(format)
    pack(Rows(), tmp_path, format=format, num_workers=0)
    with pytest.raises(PackError, match=r"'y[^']*' of sample 33 differs"):
        pack(Changed(), tmp_path, format=format, num_workers=0, verify=True)


class ChangedTexts(Texts):
    def __getitem__(self, index: int) -> Any:
        return "another" if index == 33 else super().__getitem__(index)


def test_verification_of_single_values_names_the_sample(tmp_path: Path) -> None:
    dataset_for("lmdb")
    pack(Texts(), tmp_path, format="lmdb", num_workers=0)
    with pytest.raises(PackError, match="sample 33 differs"):
        pack(ChangedTexts(), tmp_path, format="lmdb", num_workers=0, verify=True)


def test_verification_counts_the_samples(tmp_path: Path) -> None:
    pack(Rows(), tmp_path, num_workers=0, max_count=20)
    for path in tmp_path.glob("*shard-000002*"):
        path.unlink()
    with TarWriter(tmp_path / "shard-000002.tar") as writer:
        writer.write({"__key__": "000000040", "y.cls": 40})
    with pytest.raises(PackError, match="41 samples were read back, and the dataset has 50"):
        pack(Rows(), tmp_path, num_workers=0, max_count=20, verify=True)


def test_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(PackError, match=r"mine\.txt"):
        pack(Rows(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_other_settings_are_refused(tmp_path: Path) -> None:
    pack(Rows(), tmp_path, num_workers=0)
    with pytest.raises(PackError, match="begun with max_count 10000, now it is 7"):
        pack(Rows(), tmp_path, num_workers=0, max_count=7)
    with pytest.raises(PackError, match="begun with of 50, now it is 3"):
        pack([1, 2, 3], tmp_path, num_workers=0)


def test_two_packs_at_once_are_refused(tmp_path: Path) -> None:
    with only_one(str(tmp_path)), pytest.raises(PackError, match="another process packs"):
        pack(Rows(), tmp_path)


@pytest.mark.parametrize(
    ("dataset", "format", "said"),
    [
        ([], "tar", "no samples"),
        (iter([1]), "tar", "has no length"),
        ([1, 2], "zip", "none of tar"),
        ([{1: 2}], "tar", "named 1, expected a text"),
        ([object()], "tar", "is a object, which no format holds"),
        ([np.zeros(2), np.zeros(3)], "npy", r"shape \(3,\), earlier ones are float64 of shape \(2,\)"),
        (["text"], "npy", "is a str; arrays hold numbers"),
        ([{"a": b"", "b": b""}], "lmdb", "has the fields a, b"),
        ([{"a": 1}, {"b": 2}], "parquet", "the same fields"),
        ([1, "text"], "parquet", "cannot be written as Parquet"),
        ([np.zeros((2, 1)), np.zeros((3, 1))], "parquet", "differing shapes"),
    ],
)
def test_what_cannot_be_packed(dataset: Any, format: Any, said: str, tmp_path: Path) -> None:
    pytest.importorskip("lmdb" if format == "lmdb" else "pyarrow")
    with pytest.raises(PackError, match=said):
        pack(dataset, tmp_path, format=format, num_workers=0)


@pytest.mark.parametrize("row", [{"text": np.array(["ab"])}, {".": np.zeros(2)}])
def test_what_hdf5_does_not_hold_is_refused(row: Any, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    with pytest.raises(PackError, match="HDF5 holds no field"):
        pack([row] * 3, tmp_path, format="hdf5", num_workers=0)


class Awaited(Rows):
    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(0)
        return super().__getitem__(index)


def test_awaited_samples_are_written(tmp_path: Path) -> None:
    for name, dataset in {"plain": Rows(), "awaited": Awaited()}.items():
        pack(dataset, tmp_path / name, format="npy", num_workers=1, verify=True)
    assert contents(tmp_path / "plain") == contents(tmp_path / "awaited")
