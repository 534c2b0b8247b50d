"""What is read past the library equals what the library reads, and what is not known goes through it."""

from __future__ import annotations

import itertools
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.sources.hdf5.dataset import HDF5Dataset
from stoker.sources.hdf5.rows import BlockRows, LibraryRows, SharedMapRows

h5py = pytest.importorskip("h5py")

DTYPES = ["u1", "<i2", ">i2", "<u4", ">f4", "<f8", "f2", "<c8", "?", "<i8", "S5", "V3", "<f4,>u2,S3", "g"]
SHAPES = {
    "one dimension": ((23,), (5,)),
    "one chunk": ((6,), (6,)),
    "whole rows": ((23, 3, 4), (5, 3, 4)),
    "cut rows": ((23, 5, 7), (4, 2, 3)),
    "single rows": ((7, 5), (1, 5)),
    "single numbers": ((4, 3), (1, 1)),
}


def numbers(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng(0)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return draw.random(shape) < 0.5
    if kind.kind in "SV":
        items = draw.integers(65, 91, (*shape, kind.itemsize), np.uint8)
        return items.view(kind).reshape(shape)
    if kind.names:
        found = np.zeros(shape, kind)
        for name in kind.names:
            found[name] = numbers(kind[name].str, shape)
        return found
    return draw.integers(-100, 100, shape).astype(kind)


def raw_of(dataset: HDF5Dataset) -> Any:
    """Returns the reader of raw chunks of the only key, or None."""
    rows = dataset._process.get()._rows[0]
    return rows._raw if isinstance(rows, BlockRows) else None


def check(path: Path) -> HDF5Dataset:
    """Compares each row of a file, by index and gathered, with the library's; returns the dataset."""
    dataset = HDF5Dataset(path)
    with h5py.File(path) as file:
        (key,) = dataset.keys
        expected = file[key][()]
    for index, row in enumerate(expected):
        found = dataset[index][key]
        assert found.dtype == expected.dtype.newbyteorder("=") and found.shape == row.shape
        assert np.array_equal(found, row)
    layout = dataset.gather_layout()
    if layout is not None:
        order = np.random.default_rng(1).integers(0, len(expected), 40)
        out = {key: np.empty((40, *layout[key].shape[1:]), layout[key].dtype)}
        for again in (dataset, HDF5Dataset(path)):
            assert again.gather(order, out) is None
            assert out[key].tobytes() == expected[order].astype(out[key].dtype).tobytes()
    return dataset


@pytest.mark.parametrize("library", ["isal", "zlib"])
@pytest.mark.parametrize(
    ("dtype", "shape"), [*itertools.product(DTYPES, ["cut rows"]), *itertools.product(["u1", ">f4"], SHAPES)]
)
def test_gzip_chunks_equal_the_librarys(
    dtype: str, shape: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library == "isal":
        pytest.importorskip("isal")
    else:
        monkeypatch.setitem(sys.modules, "isal", None)
    size, chunks = SHAPES[shape]
    data = numbers(dtype, size)
    for shuffle in (False, True):
        path = tmp_path / f"{shuffle}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=data, chunks=chunks, compression="gzip", shuffle=shuffle)
        dataset = check(path)
        raw = raw_of(dataset)
        if dtype != "S5":  # texts go through the library
            assert raw is not None
            assert np.array_equal(
                raw.block(0, min(chunks[0], size[0])), dataset._process.get()._rows[0]._table[: chunks[0]]
            )


@pytest.mark.parametrize(
    "stored",
    [
        {"compression": "gzip", "fletcher32": True},
        {"compression": "gzip", "scaleoffset": 0},
        {"compression": "lzf"},
        {"compression": "lzf", "shuffle": True},
        {"shuffle": True},
        {"fletcher32": True},
        {"scaleoffset": 0},
        {},
    ],
    ids=str,
)
def test_other_filters_go_through_the_library(stored: dict[str, Any], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=numbers("<i4", (23, 5)), chunks=(4, 3), **stored)
    assert raw_of(check(tmp_path / "a.h5")) is None


@pytest.mark.parametrize("name", ["Blosc", "Zstd", "LZ4"])
def test_plugins_go_through_the_library(name: str, tmp_path: Path) -> None:
    plugins = pytest.importorskip("hdf5plugin")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=numbers("<i4", (23, 5)), chunks=(4, 3), **getattr(plugins, name)())
    assert raw_of(check(tmp_path / "a.h5")) is None


def test_chunks_that_were_never_written_have_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        table = file.create_dataset("x", (40, 6), "<i4", chunks=(8, 4), compression="gzip", fillvalue=7)
        table[8:16] = 1
        table[20, 1] = 2
    dataset = check(tmp_path / "a.h5")
    assert raw_of(dataset) is not None and dataset[0]["x"].tolist() == [7] * 6


def test_filters_that_a_chunk_leaves_out_are_not_undone(tmp_path: Path) -> None:
    data = np.arange(32, dtype="<u4").reshape(16, 2)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        table = file.create_dataset("x", data=data, chunks=(4, 2), compression="gzip", shuffle=True)
        table.id.write_direct_chunk((4, 0), (data[4:8] + 100).tobytes(), filter_mask=0b11)
        shuffled = np.frombuffer((data[8:12] + 100).tobytes(), np.uint8).reshape(-1, 4).T.tobytes()
        table.id.write_direct_chunk((8, 0), shuffled, filter_mask=0b10)
    dataset = check(tmp_path / "a.h5")
    raw = raw_of(dataset)
    assert [raw.block(first, first + 4).tolist() for first in (0, 4, 8)] == [
        [[int(number) for number in row] for row in data[first : first + 4] + (100 if first else 0)]
        for first in (0, 4, 8)
    ]


def test_numbers_stored_in_another_form_go_through_the_library(tmp_path: Path) -> None:
    """Integers of 12 bits, in the upper part of 2 bytes: the library shifts them."""
    kind = h5py.h5t.STD_I16LE.copy()
    kind.set_precision(12)
    kind.set_offset(4)
    for name, settings in {"whole": None, "chunks": (3,)}.items():
        path = tmp_path / f"{name}.h5"
        with h5py.File(path, "w") as file:
            create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            if settings:
                create.set_chunk(settings)
                create.set_deflate(4)
            space = h5py.h5s.create_simple((8,))
            table = h5py.Dataset(h5py.h5d.create(file.id, b"x", kind, space, create))
            table[...] = np.arange(-4, 4)
        dataset = check(path)
        assert [dataset[index]["x"] for index in range(8)] == [*range(-4, 4)]
        assert not isinstance(dataset._process.get()._rows[0], SharedMapRows) and raw_of(dataset) is None


def test_virtual_and_external_data_go_through_the_library(tmp_path: Path) -> None:
    parts = [tmp_path / f"{number}.h5" for number in range(2)]
    layout = h5py.VirtualLayout((10, 3), "<i4")
    for number, part in enumerate(parts):
        with h5py.File(part, "w") as file:
            file.create_dataset("x", data=numbers("<i4", (5, 3)) + number, chunks=(2, 3), compression="gzip")
        layout[number * 5 : number * 5 + 5] = h5py.VirtualSource(part, "x", (5, 3))
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    with h5py.File(tmp_path / "external.h5", "w") as file:
        data = numbers("<i4", (9, 2))
        file.create_dataset("x", data=data, external=[(tmp_path / "raw.bin", 0, data.nbytes)])
    for name in ("virtual.h5", "external.h5"):
        assert isinstance(check(tmp_path / name)._process.get()._rows[0], LibraryRows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_data_in_one_piece_equals_the_librarys(dtype: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=numbers(dtype, (9, 5)))
    rows = check(tmp_path / "a.h5")._process.get()._rows[0]
    assert isinstance(rows, LibraryRows if dtype == "S5" else SharedMapRows)


def test_a_file_with_a_block_of_the_users_in_front(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=1024) as file:
        file.create_dataset("x", data=numbers("<i4", (9, 5)), chunks=(2, 5), compression="gzip")
    assert raw_of(check(tmp_path / "a.h5")) is not None
    with h5py.File(tmp_path / "b.h5", "w", userblock_size=1024) as file:
        file.create_dataset("x", data=numbers("<i4", (9, 5)))
    check(tmp_path / "b.h5")


def test_partial_chunks_that_are_stored_without_filters(tmp_path: Path) -> None:
    """A form of HDF5 1.10 on: the last chunks need not be filtered."""
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.create_dataset("x", data=numbers("<i4", (9, 5)), chunks=(4, 2), maxshape=(None, None), compression="gzip")
    check(tmp_path / "a.h5")


def test_large_chunks_are_left_to_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=numbers("<i4", (50, 5)), chunks=(20, 5), compression="gzip")
    monkeypatch.setattr("stoker.sources.hdf5.rows.CACHE", 300)
    assert isinstance(check(tmp_path / "a.h5")._process.get()._rows[0], LibraryRows)


def test_external_links_lead_to_the_other_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["y"] = np.arange(400.0).reshape(100, 4)
        file.create_dataset("z", data=np.arange(400.0).reshape(100, 4), chunks=(10, 4), compression="gzip")
    with h5py.File(tmp_path / "main.h5", "w") as file:
        file["front"] = np.full((100, 8), -5.0)
        file["y"] = h5py.ExternalLink("other.h5", "/y")
        file["z"] = h5py.ExternalLink("other.h5", "/z")
        file["front again"] = h5py.SoftLink("/front")
    row = HDF5Dataset(tmp_path / "main.h5", keys=["y", "z", "front again"])[3]
    assert row["y"].tolist() == row["z"].tolist() == [12, 13, 14, 15] and row["front again"].tolist() == [-5] * 8


def test_data_of_which_nothing_was_written_are_fill_values(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (8, 4), "f4", chunks=(4, 4), compression="gzip", fillvalue=3)
    check(tmp_path / "a.h5")


def test_chunk_of_another_size_is_left_to_the_library(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        table = file.create_dataset("x", (8, 4), "f4", chunks=(4, 4), compression="gzip")
        table[...] = 1
        table.id.write_direct_chunk((0, 0), zlib.compress(bytes(12)))
    raw = raw_of(HDF5Dataset(tmp_path / "a.h5"))
    assert raw.block(0, 4) is None and raw.block(4, 8).tolist() == [[1] * 4] * 4
