from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.loader.dataloader import DataLoader
from stoker.samplers.row_groups import RowGroupSampler
from stoker.sources.arrays import open_arrays
from stoker.sources.arrays.dataset import ArrayDataset
from stoker.testing.datasets import DatasetSuite
from stoker.testing.gather import GatherSuite

ROWS = np.random.default_rng(0).random((14, 3, 4), np.float32)
LABELS = np.arange(14) * 10


def npy(folder: Path) -> Callable[[], Any]:
    np.save(folder / "a.npy", ROWS)
    return lambda: ArrayDataset(folder / "a.npy")


def npys(folder: Path) -> Callable[[], Any]:
    for number, (begin, end) in enumerate([(0, 5), (5, 5), (5, 6), (6, 14)]):
        np.save(folder / f"{number}.npy", ROWS[begin:end])
    return lambda: ArrayDataset(f"{folder}/*.npy")


def npz(folder: Path) -> Callable[[], Any]:
    np.savez(folder / "a.npz", x=ROWS, y=LABELS)
    return lambda: ArrayDataset(folder / "a.npz")


def packed(folder: Path) -> Callable[[], Any]:
    np.savez_compressed(folder / "a.npz", x=ROWS, y=LABELS)
    return lambda: ArrayDataset(folder / "a.npz", keys=["y", "x"])


def raw(folder: Path) -> Callable[[], Any]:
    (folder / "a.bin").write_bytes(b"header" + ROWS.tobytes())
    return lambda: ArrayDataset(folder / "a.bin", dtype=np.float32, shape=(3, 4), offset=6)


def safetensors(folder: Path) -> Callable[[], Any]:
    writer = pytest.importorskip("safetensors.numpy")
    for number, part in enumerate([slice(0, 9), slice(9, 14)]):
        writer.save_file({"x": ROWS[part], "y": LABELS[part]}, folder / f"{number}.safetensors")
    return lambda: ArrayDataset(f"{folder}/*.safetensors")


FORMATS = [npys, packed, raw, safetensors]


class TestArrayDataset(DatasetSuite):
    @pytest.fixture(params=FORMATS, ids=lambda write: write.__name__)
    def make(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        return request.param(tmp_path)

    def delete(self, dataset: ArrayDataset) -> str:
        os.unlink(dataset.paths[0])
        return dataset.paths[0]


class TestZarr(DatasetSuite):
    @pytest.fixture(params=["a", "group3"])
    def make(self, request: pytest.FixtureRequest, zarrs: Path) -> Any:
        return lambda: ArrayDataset(zarrs / f"{request.param}.zarr")

    def delete(self, dataset: ArrayDataset) -> str:
        shutil.rmtree(dataset.paths[0])
        return dataset.paths[0]


def opened(dataset: ArrayDataset) -> Iterator[ArrayDataset]:
    """Yields a dataset whose files are closed after the test: pytest keeps it longer."""
    yield dataset
    dataset._process.close()


@pytest.mark.parametrize("write", [npy, npys, npz, packed, raw, safetensors], ids=lambda write: write.__name__)
class TestGathered(GatherSuite):
    @pytest.fixture
    def dataset(self, write: Callable[[Path], Callable[[], Any]], tmp_path: Path) -> Any:
        yield from opened(write(tmp_path)())


@pytest.mark.parametrize("name", ["a", "v2", "shards", "group2", "group3"])
class TestGatheredZarr(GatherSuite):
    @pytest.fixture
    def dataset(self, name: str, written_by_zarr: Path) -> Any:
        yield from opened(ArrayDataset(written_by_zarr / f"{name}.zarr"))


@pytest.mark.parametrize("write", [npy, npys, raw], ids=lambda write: write.__name__)
def test_sample_is_a_row_in_memory_of_its_own(write: Any, tmp_path: Path) -> None:
    dataset = write(tmp_path)()
    assert len(dataset) == 14 and dataset.keys is None
    sample = dataset[-1]
    assert type(sample) is np.ndarray and sample.dtype == np.float32 and (sample == ROWS[-1]).all()
    sample[:] = 0
    assert (dataset[13] == ROWS[13]).all()


@pytest.mark.parametrize("write", [npz, packed, safetensors], ids=lambda write: write.__name__)
def test_sample_of_named_arrays_is_a_dict_of_rows(write: Any, tmp_path: Path) -> None:
    sample = write(tmp_path)()[12]
    assert sorted(sample) == ["x", "y"] and (sample["x"] == ROWS[12]).all()
    assert sample["y"] == 120 and isinstance(sample["y"], np.int64)


def test_keys_are_chosen_and_ordered(tmp_path: Path) -> None:
    npz(tmp_path)
    assert ArrayDataset(tmp_path / "a.npz").keys == ["x", "y"]
    assert list(ArrayDataset(tmp_path / "a.npz", keys=["y", "x"])[0]) == ["y", "x"]
    assert ArrayDataset(tmp_path / "a.npz", keys=["y"])[3] == {"y": 30}


def test_batches_are_gathered_across_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = npys(tmp_path)()
    order = [13, 0, 5, 4, 6, 0, 13, 9, 2, 11]
    out = np.empty((10, 3, 4), np.float32)
    dataset.gather(np.array(order), out)
    assert (out == ROWS[order]).all()
    dataset.gather(np.empty(0, np.int64), np.empty((0, 3, 4), np.float32))
    monkeypatch.setattr(ArrayDataset, "__getitem__", None)  # no sample is fetched alone, but to compare
    dataset.gather(np.arange(14), out := np.empty((14, 3, 4), np.float32))
    assert (out == ROWS).all()


@pytest.mark.parametrize("birth", ["fork", "spawn"])
def test_loader_resumes_a_shuffled_epoch_in_the_middle(birth: str, tmp_path: Path) -> None:
    dataset = npz(tmp_path)()

    def loader() -> DataLoader[Any]:
        return DataLoader(
            dataset, 4, shuffle=True, seed=3, num_workers=2, multiprocessing_context=birth, output="numpy"
        )

    with loader() as first:
        batches = iter(first)
        seen = [next(batches)["y"].tolist() for _ in range(2)]
        state = first.state_dict()
    with loader() as second:
        second.load_state_dict(state)
        seen += [batch["y"].tolist() for batch in second]
    assert sorted(label for batch in seen for label in batch) == LABELS.tolist() and list(map(len, seen)) == [
        4,
        4,
        4,
        2,
    ]


def test_transform_takes_the_place_of_the_sample(tmp_path: Path) -> None:
    npz(tmp_path)
    dataset = ArrayDataset(tmp_path / "a.npz", transform=lambda row: int(row["y"]) + 1)
    assert dataset[3] == 31 and dataset.gather_layout() is None
    assert next(iter(DataLoader(dataset, 3, output="numpy"))).tolist() == [1, 11, 21]


def test_pickle_holds_paths_and_no_rows(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "big.npz", x=np.zeros((10_000, 100)))
    dataset = ArrayDataset(tmp_path / "big.npz")
    dataset[0]
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 3000
    assert pickle.loads(pickled)[-1]["x"].sum() == 0


@pytest.mark.parametrize(
    "array",
    [ROWS.astype(">f4"), np.asfortranarray(ROWS), ROWS[0], ROWS[:, 0, 0], LABELS > 30, np.zeros((5, 0), np.int8)],
    ids=["big-endian", "fortran", "two dimensions", "one", "bools", "no columns"],
)
def test_npy_files_of_any_layout(array: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    dataset = ArrayDataset(tmp_path / "a.npy")
    out = np.empty(array.shape, array.dtype.newbyteorder("="))
    dataset.gather(np.arange(len(array))[::-1], out[::-1])
    assert (out == array).all()
    assert np.array_equal([dataset[index] for index in range(len(array))], array)
    assert dataset[0].dtype.isnative


def test_records_and_texts_are_samples_too(tmp_path: Path) -> None:
    records = np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")])
    np.savez(tmp_path / "a.npz", records=records, texts=np.array(["é", "abc"]))
    dataset = ArrayDataset(tmp_path / "a.npz")
    assert dataset.gather_layout() is None
    assert dataset[1]["records"].tolist() == (3, 4.5) and dataset[1]["texts"] == "abc"
    del dataset
    batch = next(iter(DataLoader(ArrayDataset(tmp_path / "a.npz", keys=["texts"]), 2, output="numpy")))
    assert batch == {"texts": ["é", "abc"]}


def test_dtypes_that_numpy_lacks_are_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    save = pytest.importorskip("safetensors.torch").save_file
    rows = torch.arange(24.0).reshape(6, 4)
    held = {"b": rows.to(torch.bfloat16), "e": rows.to(torch.float8_e5m2), "n": torch.arange(6).to(torch.bfloat16)}
    save(held, tmp_path / "a.safetensors")
    dataset = ArrayDataset(tmp_path / "a.safetensors")
    assert {key: value.dtype for key, value in dataset[2].items()} == {key: value.dtype for key, value in held.items()}
    assert dataset[2]["b"].tolist() == [8, 9, 10, 11] and dataset[2]["n"].item() == 2
    with DataLoader(dataset, 3, num_workers=1) as loader:
        for number, batch in enumerate(loader):
            rows = slice(3 * number, 3 * number + 3)
            assert all((batch[key].float() == held[key][rows].float()).all() for key in held)
    with pytest.raises(TypeError, match='choose output="torch"'):
        next(iter(DataLoader(dataset, 3, output="numpy")))


class TestGatheredTensors(GatherSuite):
    @pytest.fixture
    def dataset(self, tmp_path: Path) -> Any:
        torch = pytest.importorskip("torch")
        save = pytest.importorskip("safetensors.torch").save_file
        rows = torch.arange(24.0).reshape(6, 4)
        save({"b": rows.to(torch.bfloat16), "f": rows}, tmp_path / "a.safetensors")
        yield from opened(ArrayDataset(tmp_path / "a.safetensors"))


def test_files_beyond_the_bound_are_unmapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_arrays, "MOST_MAPPED", 2)
    for number in range(6):
        np.save(tmp_path / f"{number}.npy", np.full((3, 2), number))
    dataset = ArrayDataset(f"{tmp_path}/[0-5].npy")
    before = len(os.listdir("/proc/self/fd"))
    out = np.empty((18, 2), int)
    dataset.gather(np.arange(18), out)
    assert out[:, 0].tolist() == [number for number in range(6) for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) == before + 2


def test_zarr_is_read_without_threads(written_by_zarr: Path) -> None:
    dataset = ArrayDataset(written_by_zarr / "group3.zarr")
    assert dataset.keys == ["deep/y", "x"] and dataset.chunk_sizes == [6, 6, 2]
    before = len(os.listdir("/proc/self/task"))
    sample = dataset[13]
    assert (sample["x"] == ROWS[13]).all() and sample["deep/y"] == 130
    assert len(os.listdir("/proc/self/task")) == before


def test_zarr_chunks_are_shuffled_as_row_groups(written_by_zarr: Path) -> None:
    dataset = ArrayDataset(written_by_zarr / "shards.zarr")
    assert dataset.chunk_sizes == [2] * 7
    loader = DataLoader(
        dataset, 2, sampler=RowGroupSampler(dataset.chunk_sizes, 1), seed=1, num_workers=1, output="numpy"
    )
    with loader:
        found = np.concatenate(list(loader))
    assert sorted(found[:, 0, 0].tolist()) == sorted(ROWS[:, 0, 0].tolist())


def test_zarr_chunks_are_decompressed_once(written_by_zarr: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ArrayDataset(written_by_zarr / "v2.zarr")
    (rows,) = dataset._process.get().get(0)
    reads: list[int] = []
    read = type(rows)._read
    monkeypatch.setattr(type(rows), "_read", lambda self, *at: reads.append(at[0]) or read(self, *at))
    order = np.array([13, 0, 6, 1, 13, 12])
    out = np.empty((6, 3, 4), np.float32)
    dataset.gather(order, out)
    assert (out == ROWS[order]).all() and sorted(reads) == [0, 5, 10]
    assert (dataset[3] == ROWS[3]).all() and len(reads) == 3


def test_large_zarr_chunks_are_not_kept(written_by_zarr: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.sources.arrays.zarr_rows.CACHE", 100)
    dataset = ArrayDataset(written_by_zarr / "v2.zarr")
    out = np.empty((14, 3, 4), np.float32)
    dataset.gather(np.arange(14), out)
    assert (out == ROWS).all()


def test_describe_names_file_and_row(tmp_path: Path) -> None:
    assert npys(tmp_path)().describe(6) == f"sample 6: row 0 in {tmp_path}/3.npy"
    assert npz(tmp_path)().describe(-1) == f"sample 13: row 13 of x, y in {tmp_path}/a.npz"
