"""Zarr arrays and groups."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

WRITE_ZARR = """
import shutil, sys, numpy as np, zarr
folder, rows = sys.argv[1], np.load(sys.argv[2])
zarr.create_array(folder + "/a.zarr", data=rows, chunks=(4, 2, 4))
zarr.create_array(folder + "/v2.zarr", data=rows.astype(">f4"), chunks=(5, 3, 4), zarr_format=2)
zarr.create_array(folder + "/shards.zarr", data=rows, chunks=(2, 3, 4), shards=(8, 3, 4))
for version in (2, 3):
    group = zarr.open_group(f"{folder}/group{version}.zarr", mode="w", zarr_format=version)
    group.create_array("x", data=rows, chunks=(4, 3, 4))
    group.create_array("deep/y", data=np.arange(14) * 10, chunks=(6,))
    group.create_array("one", data=np.array(3.0))
    shutil.copytree(f"{folder}/group{version}.zarr", f"{folder}/consolidated{version}.zarr")
    zarr.consolidate_metadata(f"{folder}/consolidated{version}.zarr", zarr_format=version)
    group = zarr.open_group(f"{folder}/texts{version}.zarr", mode="w", zarr_format=version)
    group.create_array("x", data=rows, chunks=(4, 3, 4))
    group.create_array("pairs", data=np.zeros(3, [("a", "i4"), ("b", "f4")]))
    group.create_array("texts", data=np.array(["a", "bcd"] * 7, dtype=np.dtypes.StringDType()))
    group.create_array("deep/fixed", data=np.array(["a", "bcd"] * 7))
    zarr.consolidate_metadata(f"{folder}/texts{version}.zarr", zarr_format=version)
"""


@pytest.fixture(scope="session")
def written_by_zarr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arrays and groups, written in another process: the library leaves threads behind."""
    pytest.importorskip("zarr")
    folder = tmp_path_factory.mktemp("zarr")
    np.save(folder / "rows.npy", np.random.default_rng(0).random((14, 3, 4), np.float32))
    subprocess.run([sys.executable, "-c", WRITE_ZARR, str(folder), str(folder / "rows.npy")], check=True)
    return folder


@pytest.fixture
def zarrs(written_by_zarr: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return Path(shutil.copytree(written_by_zarr, tmp_path / "zarr"))
