from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import (
    ArrayFileError,
    FileChangedError,
    MissingKeyError,
    SchemaMismatchError,
)
from stoker.loader.dataloader import DataLoader
from stoker.samplers.row_groups import RowGroupSampler
from stoker.sources.arrays import dataset as module
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


def zarr(folder: Path) -> Callable[[], Any]:
    library = pytest.importorskip("zarr")
    library.create_array(folder / "a.zarr", data=ROWS, chunks=(4, 2, 4))
    return lambda: ArrayDataset(folder / "a.zarr")


FORMATS = [npy, npys, npz, packed, raw, safetensors]


class TestArrayDataset(DatasetSuite):
    @pytest.fixture(params=FORMATS, ids=lambda write: write.__name__)
    def make(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        return request.param(tmp_path)

    def delete(self, dataset: ArrayDataset) -> str:
        os.unlink(dataset.paths[0])
        return dataset.paths[0]


class TestZarr(DatasetSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        return zarr(tmp_path)

    def delete(self, dataset: ArrayDataset) -> str:
        shutil.rmtree(dataset.paths[0])
        return dataset.paths[0]
