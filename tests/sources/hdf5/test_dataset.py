from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import FileChangedError, HDF5Error, HDF5ValueError, MissingKeyError
from stoker.loader.dataloader import DataLoader
from stoker.samplers.row_groups import RowGroupSampler
from stoker.sources.hdf5.dataset import HDF5Dataset
from stoker.sources.hdf5.rows import BlockRows, SharedMapRows
from stoker.testing.datasets import DatasetSuite
from stoker.testing.gather import GatherSuite

h5py = pytest.importorskip("h5py")

IMAGES = np.arange(14 * 3 * 4, dtype=np.uint8).reshape(14, 3, 4)


def written(path: Path, **settings: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=IMAGES, **settings)
        file.create_dataset("labels/fine", data=np.arange(14) * 10)
        file.create_dataset("names", data=[f"é{number}" for number in range(14)], dtype=h5py.string_dtype())
        file.attrs["license"] = "none"
    return path


def damage(path: Path, number: int) -> None:
    """Overwrites a chunk of the images."""
    with h5py.File(path) as file:
        chunk = file["images"].id.get_chunk_info(number)
    with open(path, "r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"\xff" * chunk.size)


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
    rows = [dataset._process.get()._rows[0] for dataset in (whole, chunks)]
    assert [type(each) for each in rows] == [SharedMapRows, BlockRows]


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
        program = (
            "import stoker, sys\ntry: stoker.HDF5Dataset(sys.argv[1])\nexcept stoker.errors.HDF5Error as e: print(e)"
        )
        command = [sys.executable, "-c", program, str(path)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "A program has it open for writing" in said and "HDF5_USE_FILE_LOCKING" in said


def test_damaged_chunk_is_an_error_of_its_row(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", chunks=(7, 3, 4), compression="gzip")
    damage(path, 1)
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
    with pytest.raises(ValueError, match="threads is 0, expected at least 1"):
        HDF5Dataset(path, threads=0)
    with pytest.raises(TypeError, match="threads is '2', expected an integer"):
        HDF5Dataset(path, threads="2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"keys is \[1\], expected names"):
        HDF5Dataset(path, keys=[1])  # type: ignore[list-item]
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


class TestGathered(GatherSuite):
    @pytest.fixture(params=["in one piece", "gzip", "lzf", "virtual"])
    def dataset(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HDF5Dataset]:
        stored = {"gzip": "gzip", "lzf": "lzf"}.get(request.param)
        path = written(tmp_path / "a.h5", **({"chunks": (4, 2, 4), "compression": stored} if stored else {}))
        keys = ["images", "labels/fine"]
        if request.param == "virtual":
            layout = h5py.VirtualLayout(IMAGES.shape, IMAGES.dtype)
            layout[:] = h5py.VirtualSource(path, "images", IMAGES.shape)
            with h5py.File(tmp_path / "b.h5", "w") as file:
                file.create_virtual_dataset("images", layout)
            path, keys = tmp_path / "b.h5", keys[:1]
        dataset = HDF5Dataset(path, keys=keys)
        yield dataset
        dataset._process.close()  # pytest keeps it longer


def test_batches_of_numbers_alone_are_gathered(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5")
    assert HDF5Dataset(path).gather_layout() is None  # it has names
    assert HDF5Dataset(path, keys=["images"], transform=len).gather_layout() is None
    assert list(HDF5Dataset(path, keys=["images"]).gather_layout()) == ["images"]


def test_a_row_that_cannot_be_read_is_not_gathered(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", chunks=(7, 3, 4), compression="gzip")
    damage(path, 1)
    with (
        pytest.warns(stoker.StokerWarning, match=r"row \d+ of 'images' in .*a\.h5 cannot be read"),
        DataLoader(HDF5Dataset(path, keys=["images"]), batch_size=14, on_error="skip", output="numpy") as loader,
    ):
        (batch,) = loader
    assert (batch["images"] == IMAGES[:7]).all()


@pytest.mark.parametrize("birth", ["fork", "spawn"])
def test_threads_of_workers_decompress_the_same_chunks(birth: str, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    data = np.random.default_rng(0).integers(0, 4, (64, 30_000), np.uint8)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=data, chunks=(4, 30_000), compression="gzip")
    dataset = HDF5Dataset(path, threads=3)
    with DataLoader(
        dataset, batch_size=64, shuffle=True, seed=1, num_workers=1, multiprocessing_context=birth, output="numpy"
    ) as loader:
        for _ in range(2):
            (batch,) = loader
            assert sorted(map(bytes, batch["x"])) == sorted(map(bytes, data))


def test_threads_run_in_worker_processes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, used = written(tmp_path / "a.h5", chunks=(4, 3, 4), compression="gzip"), []
    monkeypatch.setattr("stoker.sources.hdf5.rows._WORTH_THREADS", 0)
    monkeypatch.setattr("stoker.sources.hdf5.rows.ThreadPoolExecutor", lambda *_: used.append(1))
    dataset = HDF5Dataset(path, keys=["images"], threads=4)
    (batch,) = DataLoader(dataset, batch_size=14, output="numpy")
    assert (batch["images"] == IMAGES).all() and not used


def test_references_are_replaced_by_what_they_lead_to(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        parts = [file.create_dataset(f"parts/{number}", data=np.arange(number)) for number in range(3)]
        cells = file.create_dataset("cells", (4,), h5py.ref_dtype)
        pairs = file.create_dataset("pairs", (4, 2), h5py.ref_dtype)
        regions = file.create_dataset("regions", (4,), h5py.regionref_dtype)
        for row in range(3):
            cells[row], pairs[row, 1] = parts[row].ref, parts[row].ref
            regions[row] = parts[2].regionref[:row]
        pairs[3, 0] = file["parts"].ref
    dataset = HDF5Dataset(tmp_path / "a.h5", keys=["cells", "regions"])
    with DataLoader(dataset, batch_size=None, num_workers=1, output="numpy") as loader:
        samples = list(loader)
    assert [sample["cells"] if sample["cells"] is None else sample["cells"].tolist() for sample in samples] == [
        [],
        [0],
        [0, 1],
        None,
    ]
    assert [list(sample["regions"]) for sample in samples[1:3]] == [[0], [0, 1]]
    pairs = HDF5Dataset(tmp_path / "a.h5", keys=["pairs"])
    assert pairs[2]["pairs"][0] is None and pairs[2]["pairs"][1].tolist() == [0, 1]
    with pytest.raises(HDF5ValueError, match=r"row 3 of 'pairs' in .*a\.h5 .* a reference leads to the group '/parts'"):
        pairs[3]


def test_references_are_followed_to_the_last(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        leaf = file.create_dataset("leaf", data=np.arange(3))
        cell, loop = (file.create_dataset(name, (2,), h5py.ref_dtype) for name in ("cell", "loop"))
        cell[0], loop[1] = leaf.ref, loop.ref
        outer = file.create_dataset("outer", (3,), h5py.ref_dtype)
        outer[0], outer[1], outer[2] = cell.ref, loop.ref, leaf.ref
        lists = file.create_dataset("lists", (3,), h5py.vlen_dtype(h5py.ref_dtype))
        lists[0] = np.array([leaf.ref, cell.ref], h5py.ref_dtype)
        pairs = file.create_dataset("pairs", (3,), np.dtype([("number", "i4"), ("part", h5py.ref_dtype)]))
        pairs[0] = (1, leaf.ref)
        file["x"] = np.arange(3)
    dataset = HDF5Dataset(tmp_path / "a.h5", keys=["outer", "lists"])
    loader = DataLoader(dataset, sampler=[0, 2], batch_size=None, num_workers=1, output="numpy")
    first, last = loader
    assert first["outer"][0].tolist() == [0, 1, 2] and first["outer"][1] is None and last["outer"].tolist() == [0, 1, 2]
    assert first["lists"][1][0].tolist() == [0, 1, 2] and last["lists"] == []
    with pytest.raises(HDF5ValueError, match=r"row 1 of 'outer' in .*a\.h5 .* leads back to itself"):
        dataset[1]
    with pytest.raises(HDF5ValueError, match=r"row 0 of 'pairs' in .*a\.h5 .* a compound type that holds references"):
        HDF5Dataset(tmp_path / "a.h5", keys=["x", "pairs"])[0]


def test_text_that_is_no_utf_8_is_an_error_of_its_row(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, kind in [("long", h5py.string_dtype()), ("fixed", h5py.string_dtype("utf-8", 8))]:
            file.create_dataset(name, (3,), kind)[1] = b"caf\xe9"
        file["x"] = np.arange(3)
    for key in ("long", "fixed"):
        dataset = HDF5Dataset(tmp_path / "a.h5", keys=["x", key])
        assert dataset[0] == {"x": 0, key: ""}
        for error in (HDF5Error, ValueError):
            with pytest.raises(error, match=rf'row 1 of .{key}. in .*a\.h5 .* byte 0xe9 .* errors="replace"'):
                dataset[1]
        for errors in ("replace", "surrogateescape", "ignore"):
            dataset = HDF5Dataset(tmp_path / "a.h5", keys=[key], errors=errors)
            with DataLoader(dataset, batch_size=None, num_workers=1) as loader:
                assert [sample[key] for sample in loader] == ["", b"caf\xe9".decode("utf-8", errors), ""]
    with pytest.raises(ValueError, match="errors is 'strikt'"):
        HDF5Dataset(tmp_path / "a.h5", errors="strikt")


def test_types_that_numpy_lacks_are_errors_of_their_key(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        tagged = h5py.h5t.create(h5py.h5t.OPAQUE, 5)
        tagged.set_tag(b"other")
        for name, kind in [(b"time", h5py.h5t.UNIX_D32LE), (b"tagged", tagged)]:
            h5py.h5d.create(file.id, name, kind, h5py.h5s.create_simple((3,)))
    assert HDF5Dataset(tmp_path / "a.h5", keys=["x"])[2] == {"x": 2}
    for key in ("time", "tagged"):
        dataset = HDF5Dataset(tmp_path / "a.h5", keys=["x", key])
        assert len(dataset) == 3 and dataset.gather_layout() is None
        for error in (HDF5Error, TypeError):
            with pytest.raises(error, match=rf"row 2 of '{key}' in .*a\.h5 cannot be read: .* keys="):
                dataset[2]


def test_file_that_grows_is_refused(tmp_path: Path) -> None:
    writer = (
        "import h5py, sys\n"
        "file = h5py.File(sys.argv[1], 'w', libver='latest')\n"
        "file.create_dataset('x', (4,), maxshape=(None,), chunks=(2,))\n"
        "file.swmr_mode = True\n"
        "print('writes', flush=True)\n"
        "sys.stdin.read()"
    )
    path = tmp_path / "a.h5"
    command = [sys.executable, "-c", writer, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "writes\n"
        with pytest.raises(HDF5Error, match=r"a\.h5 cannot be opened: .*A program writes to it \(SWMR\)"):
            HDF5Dataset(path)
        process.kill()
    with pytest.raises(HDF5Error, match="h5clear -s"):
        HDF5Dataset(path)
