"""Files that are missing, empty, truncated, damaged, swapped or changed, and arguments that do not fit them."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import (
    ArrayFileError,
    FileChangedError,
    MissingExtraError,
    MissingKeyError,
    SchemaMismatchError,
    StokerWarning,
)
from stoker.loader.dataloader import DataLoader
from stoker.sources.arrays.dataset import ArrayDataset

ROWS = np.arange(140, dtype=np.float32).reshape(14, 10)


def tensors(path: Path, header: dict[str, Any] | bytes, data: bytes) -> Path:
    """Writes a safetensors file by the format's description."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.safetensors", "a.bin"])
def test_empty_files_are_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    raw = {"dtype": np.float32} if name == "a.bin" else {}
    with pytest.raises(ArrayFileError, match=rf"{name} is empty: it has 0 bytes"):
        ArrayDataset(tmp_path / name, **raw)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.safetensors"])
@pytest.mark.parametrize("content", [b"\x93NUMPY", b"text and no array" * 20, bytes(300), b"PK\x03\x04" + bytes(90)])
def test_files_of_another_kind_are_named(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArrayFileError, match=rf"{name} \([\d,]+ bytes\)"):
        ArrayDataset(tmp_path / name)


def test_truncated_files_are_named_at_every_length(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    np.savez(tmp_path / "a.npz", x=ROWS, y=ROWS)
    tensors(tmp_path / "a.safetensors", {"x": entry("F32", [14, 10], 0, 560)}, ROWS.tobytes())
    for name in ("a.npy", "a.npz", "a.safetensors"):
        whole = (tmp_path / name).read_bytes()
        for length in range(1, len(whole), 37):
            (tmp_path / name).write_bytes(whole[:length])
            with pytest.raises(ArrayFileError, match=name):
                ArrayDataset(tmp_path / name)


def test_raw_files_need_whole_rows(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(43))
    with pytest.raises(ArrayFileError, match=r"a\.bin has 43 bytes; 0 before the first row and 40 for each row"):
        ArrayDataset(tmp_path / "a.bin", dtype=np.float32, shape=10)
    assert len(ArrayDataset(tmp_path / "a.bin", dtype=np.float32, shape=10, offset=3)) == 1
    with pytest.raises(ArrayFileError, match=r"50 before the first row"):
        ArrayDataset(tmp_path / "a.bin", dtype=np.float32, offset=50)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}, 1], object), allow_pickle=True)
    with pytest.raises(ArrayFileError, match=r"a\.npy holds pickled Python objects"):
        ArrayDataset(tmp_path / "a.npy")
    np.savez(tmp_path / "b.npz", bad=np.array([{}, 1], object), good=ROWS, allow_pickle=True)
    with pytest.raises(ArrayFileError, match=r"the array 'bad' of .*b\.npz holds pickled"):
        ArrayDataset(tmp_path / "b.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_chosen_keys_of_an_archive_alone_are_checked(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "a.npz"
    names = np.array([(1, 2)], [("\N{GREEK SMALL LETTER ALPHA}", "i4"), ("b", "i4")])  # a header of version 3
    beside = {"format": b"csr", "objects": np.array([{}], object), "names": names}
    with pytest.warns(UserWarning, match=r"format 3\.0"):
        save(path, **beside, x=ROWS, y=np.arange(14))
    with np.load(path) as expected:
        dataset = ArrayDataset(path, keys=["y", "x"])
        for index in (0, 13):
            sample = dataset[index]
            assert list(sample) == ["y", "x"] and sample["y"] == expected["y"][index]
            np.testing.assert_array_equal(sample["x"], expected["x"][index])
    for keys, why in (
        (None, r"the array 'format' of .*a\.npz has no dimension.*\n.*read without it: keys=\['x', 'y'\]"),
        (["x", "objects"], "the array 'objects' of .* holds pickled Python objects"),
        (["names"], r"the array 'names' of .* cannot be read: version \(3, 0\)"),
    ):
        with pytest.raises(ArrayFileError, match=why):
            ArrayDataset(path, keys=keys)


def test_damaged_compressed_member_is_named(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).random((500, 10)))
    with open(tmp_path / "a.npz", "r+b") as file:
        file.seek(2000)
        file.write(bytes(200))
    with pytest.raises(ArrayFileError, match=r"the member x\.npy of .*a\.npz cannot be decompressed"):
        ArrayDataset(tmp_path / "a.npz")


def test_other_members_of_an_archive_are_left_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("notes.txt", "no array")
        np.save(content := io.BytesIO(), ROWS)
        archive.writestr("x.npy", content.getvalue())
    assert ArrayDataset(tmp_path / "a.npz").keys == ["x"]


def test_single_numbers_have_no_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.float32(3))
    with pytest.raises(ArrayFileError, match=r"a\.npy has no dimension"):
        ArrayDataset(tmp_path / "a.npy")


def test_headers_of_safetensors_are_checked(tmp_path: Path) -> None:
    path, data = tmp_path / "a.safetensors", ROWS.tobytes()
    good = {"__metadata__": {"a": "b"}, "x": entry("F32", [14, 10], 0, 560), "one": entry("F32", [], 560, 564)}
    assert ArrayDataset(tensors(path, good, data + b"1234")).keys == ["x"]
    for header, why in [
        ({"x": entry("F32", [14, 11], 0, 560)}, "the bytes 0 to 560 of 'x' do not fit its shape"),
        ({"x": entry("F32", [-14, -10], 0, 560)}, "do not fit its shape"),
        ({"x": entry("F32", [14, 10], -8, 552)}, "do not fit its shape"),
        ({"x": {"dtype": "F32"}}, "its header cannot be read: KeyError"),
        ({"x": 3}, "its header cannot be read: TypeError"),
        ([1, 2], "its header cannot be read: AttributeError"),
        (b"{no json", "its header cannot be read: JSONDecodeError"),
        ({"x": entry("F6_E2M3", [14, 10], 0, 560)}, "is of dtype 'F6_E2M3', which is not known here"),
    ]:
        with pytest.raises(ArrayFileError, match=why):
            ArrayDataset(tensors(path, header, data))  # type: ignore[arg-type]


def test_chosen_tensors_alone_are_checked(tmp_path: Path) -> None:
    header = {"f6": entry("F6_E2M3", [14, 10], 0, 105), "x": entry("F32", [14, 10], 105, 665)}
    path = tensors(tmp_path / "a.safetensors", header, bytes(105) + ROWS.tobytes())
    np.testing.assert_array_equal(ArrayDataset(path, keys=["x"])[3]["x"], ROWS[3])
    with pytest.raises(ArrayFileError, match=r"'f6' of .* is of dtype 'F6_E2M3'.*\n.*keys=\['x'\]"):
        ArrayDataset(path)
    header["f6"] = entry("F6_E2M3", [14, 10], 665, 1000)
    with pytest.raises(ArrayFileError, match="its tensors end at byte"):
        ArrayDataset(tensors(path, header, bytes(105) + ROWS.tobytes()), keys=["x"])


def test_tensors_without_torch_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tensors(tmp_path / "a.safetensors", {"x": entry("BF16", [4], 0, 8), "y": entry("I8", [4], 8, 12)}, bytes(12))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"'x' of .* is bfloat16, .* install the extra stoker\[torch\]"):
        ArrayDataset(path)
    assert len(ArrayDataset(path, keys=["y"])) == 4


def test_zarr_metadata_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArrayFileError, match="is no Zarr array or group"):
        ArrayDataset(tmp_path)
    file = tmp_path / "zarr.json"
    for text, why in [
        ("{", "Expecting property name"),
        ("[]", "list"),
        ('{"node_type": "array", "shape": [3]}', "data_type"),
        ('{"node_type": "array", "shape": [3], "data_type": "string", "chunk_grid": {}}', "its dtype is 'string'"),
    ]:
        file.write_text(text)
        with pytest.raises(ArrayFileError, match=rf"zarr\.json does not describe a Zarr array.*{why}"):
            ArrayDataset(tmp_path)
    file.write_text('{"node_type": "group"}')
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "zarr.json").write_text('{"node_type": "array", "shape": [3], "data_type": "string"}')
    with pytest.raises(ArrayFileError, match="its dtype is 'string'"):
        ArrayDataset(tmp_path)
    (tmp_path / "texts" / "zarr.json").unlink()
    with pytest.raises(ArrayFileError, match="holds no array with rows"):
        ArrayDataset(tmp_path)
    file.unlink()
    (tmp_path / ".zarray").write_text('{"shape": [3, 2], "chunks": [2, 2], "dtype": "<f4", "zarr_format": 2}')
    dataset = ArrayDataset(tmp_path)
    monkeypatch.setitem(sys.modules, "zarr.api.asynchronous", None)
    with pytest.raises(MissingExtraError, match=r"install the extra stoker\[zarr\]"):
        dataset[0]


@pytest.mark.parametrize("kind", ["array", "group"])
def test_damaged_zarr_chunk_is_an_error_of_its_rows(kind: str, zarrs: Path) -> None:
    path = zarrs / ("a.zarr" if kind == "array" else "group3.zarr")
    dataset = ArrayDataset(path)
    chunk = next(file for file in sorted(path.rglob("c/1*")) if "x" in file.parts or kind == "array")
    chunk = chunk if chunk.is_file() else next(file for file in chunk.rglob("*") if file.is_file())
    os.truncate(chunk, 7)
    dataset[0]
    with pytest.raises(ArrayFileError, match=r"rows 4 to 7 of .*zarr.* cannot be read: .*damaged or truncated"):
        dataset[5]
    with (
        DataLoader(dataset, 2, on_error="skip", num_workers=1, output="numpy") as loader,
        pytest.warns(StokerWarning, match=r"sample 4 \(sample 4: row 4.* in .*zarr\) of batch 2 failed"),
    ):
        assert len(list(loader)) == 5


def test_changed_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    np.save(tmp_path / "b.npy", ROWS + 1)
    dataset = ArrayDataset([tmp_path / "a.npy", tmp_path / "b.npy"])
    os.rename(tmp_path / "a.npy", tmp_path / "c.npy")
    os.rename(tmp_path / "b.npy", tmp_path / "a.npy")
    os.rename(tmp_path / "c.npy", tmp_path / "b.npy")
    with pytest.raises(FileChangedError, match=r"a\.npy was changed since the dataset was made"):
        dataset[0]


def test_file_cut_while_it_is_mapped_is_an_error(tmp_path: Path) -> None:
    """It would be a signal that kills the process."""
    np.save(tmp_path / "a.npy", np.zeros((10_000, 100)))
    dataset = ArrayDataset(tmp_path / "a.npy")
    assert dataset[9_999].sum() == 0
    os.truncate(tmp_path / "a.npy", 5000)
    with pytest.raises(FileChangedError, match=r"it has 5,000 bytes, and had 8,000,128"):
        dataset[9_999]
    assert dataset.gather(np.array([9_999]), np.empty((1, 100))) is NotImplemented


def test_changed_zarr_is_refused(zarrs: Path) -> None:
    dataset = ArrayDataset(zarrs / "a.zarr")
    dataset[0]
    os.utime(zarrs / "a.zarr" / "zarr.json", (1, 1))
    with pytest.raises(FileChangedError, match=r"zarr\.json was changed"):
        dataset[13]
    with pytest.raises(FileChangedError, match=r"zarr\.json was changed"):
        list(DataLoader(dataset, 4, num_workers=1, output="numpy"))


def test_files_that_differ_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    np.save(tmp_path / "b.npy", ROWS[:, :4])
    with pytest.raises(SchemaMismatchError, match=r"a\.npy are float32 of shape \(10,\).*b\.npy are .* \(4,"):
        ArrayDataset(f"{tmp_path}/*.npy")
    np.save(tmp_path / "b.npy", ROWS.astype(np.float64))
    with pytest.raises(SchemaMismatchError, match="float64"):
        ArrayDataset(f"{tmp_path}/*.npy")
    np.save(tmp_path / "b.npy", ROWS.astype(">f4"))
    assert len(ArrayDataset(f"{tmp_path}/*.npy")) == 28
    np.savez(tmp_path / "a.npz", x=ROWS, y=ROWS)
    np.savez(tmp_path / "b.npz", x=ROWS)
    with pytest.raises(SchemaMismatchError, match=r"holds 'x', 'y' and .* holds 'x': choose arrays that both have"):
        ArrayDataset(f"{tmp_path}/*.npz")
    assert len(ArrayDataset(f"{tmp_path}/*.npz", keys=["x"])) == 28


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=ROWS, labels=ROWS[:3], none=ROWS[:0])
    np.save(tmp_path / "a.npy", ROWS)
    path = tmp_path / "a.npz"
    (tmp_path / "a.dat").write_bytes(bytes(8))
    with pytest.raises(FileNotFoundError, match=r"nothing\.npy"):
        ArrayDataset(tmp_path / "nothing.npy")
    with pytest.raises(ValueError, match=r"different numbers of rows \('images' 14, 'labels' 3, 'none' 0\)"):
        ArrayDataset(path)
    with pytest.raises(MissingKeyError, match="has no array 'image': did you mean 'images'"):
        ArrayDataset(path, keys=["image"])
    with pytest.raises(TypeError, match="keys is a text"):
        ArrayDataset(path, keys="images")
    with pytest.raises(ValueError, match="keys is an empty list"):
        ArrayDataset(path, keys=[])
    with pytest.raises(ValueError, match="holds one array without a name"):
        ArrayDataset(tmp_path / "a.npy", keys=["x"])
    with pytest.raises(ValueError, match="there is no row in"):
        ArrayDataset(path, keys=["none"])
    with pytest.raises(TypeError, match="transform is a int"):
        ArrayDataset(path, transform=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a\.npy says itself what it holds"):
        ArrayDataset(tmp_path / "a.npy", dtype=np.float32)
    with pytest.raises(ArrayFileError, match=r"the format of .*a\.dat is unknown.*pass dtype="):
        ArrayDataset(tmp_path / "a.dat")
    with pytest.raises(ValueError, match="need dtype="):
        ArrayDataset(tmp_path / "a.dat", shape=3)
    with pytest.raises(ValueError, match="a row needs at least one byte"):
        ArrayDataset(tmp_path / "a.dat", dtype="u1", shape=(0, 3))
    with pytest.raises(TypeError, match="no raw form"):
        ArrayDataset(tmp_path / "a.dat", dtype=object)


def test_error_of_a_sample_names_its_file_and_row(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)

    def refuse(row: Any) -> Any:
        if row[0] == 50:
            raise ValueError("not this one")
        return row

    dataset = ArrayDataset(tmp_path / "a.npy", transform=refuse)
    with (
        DataLoader(dataset, 7, num_workers=2, output="numpy", on_error="skip") as loader,
        pytest.warns(StokerWarning, match=r"sample 5: row 5 in .*a\.npy"),
    ):
        assert sum(map(len, loader)) == 13
