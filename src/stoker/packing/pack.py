"""`pack`: writes a dataset as tar shards, Parquet, LMDB, arrays or HDF5, in parallel, and goes on after a kill."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from stoker._core.machine.cpus import cpus
from stoker._core.write_errors import explained
from stoker.errors import PackError
from stoker.loader.dataloader import DataLoader
from stoker.packing.manifest import Manifest, only_one
from stoker.packing.packers import ArrayPacker, HDF5Packer, LMDBPacker, Packer, ParquetPacker, TarPacker
from stoker.packing.rows import FileRowDataset, Row, RowDataset, equal
from stoker.sources.urls import scheme_of, shown

Format = Literal["tar", "parquet", "lmdb", "npy", "hdf5"]
COUNT = 10_000
"""Samples of a tar shard or Parquet file."""
SIZE = 1 << 30
"""Bytes of a tar shard."""
_BATCH = 16


@dataclass(frozen=True)
class PackResult:
    """The result of `pack`.

    Attributes:
        samples: of the dataset.
        began_at: the sample at which it began: above 0 if an earlier pack had been interrupted.
        files: paths of the files, in order.
        bytes: size of all files.
        seconds: of the pack, without verification.
        verified: whether all samples were read back and compared.
    """

    samples: int
    began_at: int
    files: list[str]
    bytes: int
    seconds: float
    verified: bool


def _check_destination(destination: str) -> None:
    if scheme_of(destination):
        raise PackError(
            f"{shown(destination)} is a URL, and packing writes to local folders: pack into one, and copy its files "
            "and indexes to the store"
        )


def pack(
    dataset: Any,
    destination: str | os.PathLike[str],
    *,
    format: Format = "tar",
    num_workers: int | None = None,
    max_count: int = COUNT,
    max_size: int = SIZE,
    verify: bool = False,
    on_progress: Callable[[int, int], object] | None = None,
) -> PackResult:
    """Writes all samples of a dataset, in order, into a folder.

    The samples are made and encoded by workers, and written by this process. The same dataset gives the same files,
    byte for byte with `tar` and `npy`; random numbers that samples draw are seeded with 0. Files appear under their
    names when they are complete. If the process ends before all is written, the same call goes on where the last
    complete file, or the last thousands of samples, ended.

    An image folder (`stoker.ImageFolder`, torchvision's, or another with `samples` and `root`) is packed as it is on
    disk: contents of the files, not decoded, and the class indices; its transforms are not used. Of another dataset, a
    sample is a row: a dict by its keys, a pair of a Pillow image and a number as `image` and `label`, another tuple as
    `0`, `1`, ..., anything else as `value`.

    Args:
        dataset: by index, with a length.
        destination: a folder that is empty or does not exist, or that of an interrupted pack.
        format: `tar`: shards for `TarDataset` and `TarStream`, with indexes. Members are named by field and type:
            `jpg` and `cls` of an image folder, `tokens.npy`, `title.txt`. `parquet`: files for `ParquetDataset`, which
            need the same columns and types in all samples. `lmdb`: for `LMDBDataset`, samples of one value of bytes or
            text, or files, whose keys end with their paths. `npy`: a file for each field, numbers and arrays of one
            shape. `hdf5`: `data.h5` for `HDF5Dataset`, of the same fields.
        num_workers: None takes one for each CPU; 0 makes samples in this process.
        max_count: samples of a tar shard or Parquet file.
        max_size: bytes of a tar shard.
        verify: whether to read all back and compare it with the dataset, which is read once more.
        on_progress: is called with the number of samples done and of all.

    Raises:
        PackError: the dataset has no length or no samples, the folder holds something else, a sample does not fit the
            format, or verification found a difference.
        MissingExtraError: the format's package is not installed.
        OSError: a file cannot be written. Complete files stay, and the same call goes on.
    """
    if format not in get_args(Format):
        raise PackError(f"the format {format!r} is none of {', '.join(get_args(Format))}")
    _check_destination(os.fspath(destination))
    rows = _rows_of(dataset)
    count = _length_of(rows)
    folder = os.path.abspath(os.fspath(destination))
    settings = {"format": format, "of": count, "max_count": max_count, "max_size": max_size}
    began = time.perf_counter()
    with only_one(folder):
        manifest = Manifest.open(folder, settings)
        began_at = count if manifest.is_complete else manifest.samples
        workers = min(cpus().number, count) if num_workers is None else num_workers
        if not manifest.is_complete:
            packer = _packer(manifest, format, count, max_count, max_size)
            try:
                _write(rows, manifest, packer, workers, count, on_progress)
                with explained(folder, manifest.kept):
                    packer.finish(count)
                    manifest.complete(manifest.files)
            finally:
                packer.close()
        seconds = time.perf_counter() - began
        if verify:
            _verify(rows, _packer(manifest, format, count, max_count, max_size), workers, count, on_progress)
        paths = [os.path.join(folder, name) for name in manifest.files]
    return PackResult(count, began_at, paths, sum(map(os.path.getsize, paths)), seconds, verify)


def _rows_of(dataset: Any) -> FileRowDataset | RowDataset:
    is_folder = hasattr(dataset, "samples") and hasattr(dataset, "root") and hasattr(dataset, "class_to_idx")
    return FileRowDataset(dataset) if is_folder else RowDataset(dataset)


def _length_of(rows: FileRowDataset | RowDataset) -> int:
    try:
        count = len(rows)
    except TypeError as error:
        raise PackError(
            f"a {type(rows.dataset).__name__} has no length: streams cannot be packed; write them with stoker.TarWriter"
        ) from error
    if not count:
        raise PackError("the dataset has no samples, so there is nothing to pack")
    return count


def _packer(manifest: Manifest, format: Format, count: int, max_count: int, max_size: int) -> Packer:
    if format == "tar":
        return TarPacker(manifest, max_count, max_size)
    if format == "parquet":
        return ParquetPacker(manifest, max_count)
    if format == "lmdb":
        return LMDBPacker(manifest)
    return HDF5Packer(manifest, count) if format == "hdf5" else ArrayPacker(manifest, count)


def _loader(rows: Any, workers: int) -> DataLoader[Any]:
    return DataLoader(rows, batch_size=_BATCH, num_workers=workers, collate_fn=_as_it_is, seed=0, output="numpy")


def _as_it_is(samples: list[Row]) -> list[Row]:
    return samples


def _write(
    rows: Any,
    manifest: Manifest,
    packer: Packer,
    workers: int,
    count: int,
    on_progress: Callable[[int, int], object] | None,
) -> None:
    loader, index = _loader(rows, workers), 0
    if manifest.state is not None:
        state, index = manifest.state
        loader.load_state_dict(state)
    begin = manifest.samples
    with contextlib.closing(cast("Any", iter(loader))) as batches:
        for batch in batches:
            for row in batch:
                if index >= begin:
                    with explained(manifest.folder, manifest.kept):
                        packer.write(index, row)
                index += 1
            manifest.latest = loader.state_dict(), index
            if on_progress is not None:
                on_progress(index, count)


def _verify(
    rows: Any, packer: Packer, workers: int, count: int, on_progress: Callable[[int, int], object] | None
) -> None:
    try:
        written, index = packer.read(count), 0
        if len(written) != count:
            raise PackError(f"{len(written):,} samples were read back, and the dataset has {count:,}")
        with contextlib.closing(cast("Any", iter(_loader(rows, workers)))) as batches:
            for batch in batches:
                for row in batch:
                    _compare(index, packer.expected(index, row), written[index])
                    index += 1
                if on_progress is not None:
                    on_progress(index, count)
    finally:
        packer.close()


def _compare(index: int, expected: Any, found: Any) -> None:
    if isinstance(expected, dict):
        differ = sorted(name for name in {*expected, *found} if not _is_same(expected, found, name))
        if differ:
            raise PackError(
                f"the field {differ[0]!r} of sample {index} differs from what was written: the dataset has changed, "
                "draws numbers of its own, or the format does not keep this type"
            )
    elif not equal(expected, found):
        raise PackError(f"sample {index} differs from what was written: the dataset has changed")


def _is_same(expected: dict[str, Any], found: dict[str, Any], name: str) -> bool:
    return name in expected and name in found and equal(expected[name], found[name])
