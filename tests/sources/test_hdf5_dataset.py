from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import FileChangedError, HDF5Error, MissingKeyError
from stoker.loader.dataloader import DataLoader
from stoker.samplers.row_groups import RowGroupSampler
from stoker.sources.hdf5_dataset import HDF5Dataset
from stoker.testing.datasets import DatasetSuite

h5py = pytest.importorskip("h5py")

IMAGES = np.arange(14 * 3 * 4, dtype=np.uint8).reshape(14, 3, 4)


def written(path: Path, **settings: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=IMAGES, **settings)
        file.create_dataset("labels/fine", data=np.arange(14) * 10)
        file.create_dataset("names", data=[f"é{number}" for number in range(14)], dtype=h5py.string_dtype())
        file.attrs["license"] = "none"
    return path


class TestHDF5Dataset(DatasetSuite):
    @pytest.fixture(params=["in one piece", "in chunks"])
    def make(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        settings = {"chunks": (4, 3, 4), "compression": "gzip"} if request.param == "in chunks" else {}
        path = written(tmp_path / "a.h5", **settings)
        return lambda: HDF5Dataset(path, keys=["images", "labels/fine"])

    def delete(self, dataset: HDF5Dataset) -> str:
        os.unlink(dataset.path)
        return dataset.path


@pytest.mark.parametrize("settings", [{}, {"chunks": (5, 3, 4), "compression": "gzip"}], ids=["whole", "chunks"])
def test_sample_is_a_row_of_all_keys(settings: dict[str, Any], tmp_path: Path) -> None:
    dataset = HDF5Dataset(written(tmp_path / "a.h5", **settings))
    assert dataset.keys == ["images", "labels/fine", "names"] and len(dataset) == 14
    sample = dataset[-1]
    assert (sample["images"] == IMAGES[-1]).all() and type(sample["images"]) is np.ndarray
    assert sample["labels/fine"] == 130 and sample["names"] == "é13"
    sample["images"][:] = 0
    assert (dataset[13]["images"] == IMAGES[13]).all()
    assert dataset.describe(2) == f"sample 2: row 2 of images, labels/fine, names in {tmp_path}/a.h5"


def test_data_in_one_piece_is_mapped(tmp_path: Path) -> None:
    whole = HDF5Dataset(written(tmp_path / "a.h5"), keys=["images"])
    chunks = HDF5Dataset(written(tmp_path / "b.h5", chunks=True), keys=["images"])
    tables = {dataset.path: dataset._process.get()._tables[0][1] for dataset in (whole, chunks)}
    assert [isinstance(table, np.memmap) for table in tables.values()] == [True, False]


def test_keys_and_transform_choose_what_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5")
    dataset = HDF5Dataset(path, keys=["labels/fine"], transform=lambda row: int(row["labels/fine"]) + 1)
    assert [dataset[index] for index in range(3)] == [1, 11, 21]


def test_batches_are_arrays_by_key(tmp_path: Path) -> None:
    loader = DataLoader(HDF5Dataset(written(tmp_path / "a.h5")), batch_size=7, num_workers=1, output="numpy")
    batches = list(loader)
    assert (np.concatenate([batch["images"] for batch in batches]) == IMAGES).all()
    assert batches[1]["names"] == [f"é{number}" for number in range(7, 14)]


def test_chunks_are_shuffled_as_row_groups(tmp_path: Path) -> None:
    dataset = HDF5Dataset(written(tmp_path / "a.h5", chunks=(4, 3, 4)))
    assert dataset.chunk_sizes == [4, 4, 4, 2]
    loader = DataLoader(dataset, sampler=RowGroupSampler(dataset.chunk_sizes, 1), batch_size=None, seed=1)
    order = [int(sample["labels/fine"]) // 10 for sample in loader]
    assert sorted(order) == [*range(14)]
    assert sum(one // 4 != other // 4 for one, other in itertools.pairwise(order)) == 3
    assert HDF5Dataset(written(tmp_path / "b.h5")).chunk_sizes == [14]


def test_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    dataset = HDF5Dataset(written(tmp_path / "a.h5"))
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.create_dataset("more", data=np.zeros(10_000))
    with pytest.raises(FileChangedError, match=r"a\.h5 was changed since the dataset was made"):
        dataset[0]


def test_files_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.h5"):
        HDF5Dataset(tmp_path / "nothing.h5")
    (tmp_path / "text.h5").write_text("no file of this kind")
    with pytest.raises(HDF5Error, match=r"text\.h5 \(20 bytes\) cannot be opened: .*Is it an HDF5 file"):
        HDF5Dataset(tmp_path / "text.h5")
    path = written(tmp_path / "cut.h5")
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(HDF5Error, match=r"cut\.h5 .* cannot be opened"):
        HDF5Dataset(path)


def test_file_that_is_being_written_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5")
    with h5py.File(path, "a"):
        program = "import stoker, sys\ntry: stoker.HDF5Dataset(sys.argv[1])\nexcept stoker.HDF5Error as e: print(e)"
        command = [sys.executable, "-c", program, str(path)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "A program has it open for writing" in said and "HDF5_USE_FILE_LOCKING" in said


def test_damaged_chunk_is_an_error_of_its_row(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", chunks=(7, 3, 4), compression="gzip")
    with h5py.File(path) as file:
        chunk = file["images"].id.get_chunk_info(1)
    with open(path, "r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"\xff" * chunk.size)
    dataset = HDF5Dataset(path)
    assert (dataset[0]["images"] == IMAGES[0]).all()
    with pytest.raises(HDF5Error, match=r"row 7 of 'images' in .*a\.h5 cannot be read"):
        dataset[7]


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5")
    with pytest.raises(MissingKeyError, match="has no dataset 'image': did you mean 'images'"):
        HDF5Dataset(path, keys=["image"])
    with pytest.raises(MissingKeyError, match="has no dataset 'labels': "):
        HDF5Dataset(path, keys=["labels"])
    with pytest.raises(TypeError, match="keys is a text"):
        HDF5Dataset(path, keys="images")
    with pytest.raises(ValueError, match="keys is an empty list"):
        HDF5Dataset(path, keys=[])
    with pytest.raises(TypeError, match="transform is a int"):
        HDF5Dataset(path, transform=3)  # type: ignore[arg-type]
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["a"], file["b"] = np.zeros(3), np.zeros(4)
        file["none"] = np.zeros((0, 2))
    with pytest.raises(ValueError, match=r"different numbers of rows \('a' 3, 'b' 4"):
        HDF5Dataset(tmp_path / "b.h5")
    with pytest.raises(ValueError, match="there is no row"):
        HDF5Dataset(tmp_path / "b.h5", keys=["none"])


def test_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"install the extra stoker\[hdf5\]"):
        HDF5Dataset(path)
