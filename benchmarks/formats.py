"""In which format should photographs lie?

The same photographs as files, tar shards, tar shards with an index, LMDB, HDF5, Parquet and SQLite rows, TFRecord
files, MDS shards (raw) and lines of base64, on the local disk, and for the formats that are read by URL in an S3 bucket
too: nginx on this machine if there is one, else moto's server, whose own work is then part of the figure. A few hundred
JPEG photographs are repeated under new names.

Each epoch gives the bytes of all photographs, not decoded: decoding takes the same time in every format, and more than
reading does; nor is base64, a third larger, which stays `str`. Two workers, batches of 64; over S3 eight threads in
each. Shuffled is a complete shuffle, except for tar without an index (shuffled shards, a buffer of 1,000), and Parquet
(groups of rows in random order, the rows of eight groups shuffled together). In sequence, MDS is read by index in
order, and SQLite is `SQLStream`; shuffled it is `SQLDataset`, which holds the result in memory. The page cache is warm.
Processor time and memory are those of all processes of the loader, at the end of the epoch; the server of S3 is none of
them.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import sqlite3
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import method
import object_storage
import rivals
from method import Case, Figures

RATE, CPU, MEMORY, DISK = "samples/s", "CPU-s per 10,000", "MB, all processes", "MB on disk"
DISTINCT, BATCH, WORKERS, THREADS = 300, 64, 2, 8
LOCAL = ("files", "tar", "tar, index", "LMDB", "HDF5", "Parquet", "SQLite", "TFRecord", "MDS", "lines")
BY_URL = ("files", "tar", "tar, index", "HDF5", "Parquet", "TFRecord", "MDS", "lines")
FOLDERS = {"tar, index": "tar"}
SUFFIXES = {".tar", ".parquet", ".tfrecord", ".txt"}
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


def cases(options: argparse.Namespace) -> list[Case]:
    os.environ |= KEYS  # moto's server is filled by boto3
    count = options.images or (2_000 if options.quick else 50_000)
    folder = options.data / f"{count}" / "bucket"  # the name that moto's server gives it
    sizes = {name: written(name, folder, count) for name in LOCAL}
    found = []
    for place, names in (("local", LOCAL), ("S3", BY_URL)):
        if options.case and not any(options.case in f"{place}, {order}" for order in ("shuffled", "in sequence")):
            continue
        port = object_storage.served(options, folder) if place == "S3" else 0
        for order in ("shuffled", "in sequence"):
            how = {"folder": str(folder), "count": count, "port": port, "order": order}
            runs = {name: {"form": name, "megabytes": sizes[name], **how} for name in names}
            found.append(Case(f"{place}, {order}", runs))
    return found


def measure(form: str, folder: str, count: int, port: int, order: str, megabytes: float) -> Figures:
    os.environ |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", **KEYS}
    os.environ["XDG_CACHE_HOME"] = str(Path(folder).parent / "indexes")
    try:
        loader = loader_of(form, Path(folder), count, order, is_remote=port > 0)
    except ImportError:
        return dict.fromkeys((RATE, CPU, MEMORY, DISK), rivals.NOT_INSTALLED)
    first = counted(loader)  # starts workers, fills the page cache
    assert first[0] == count, f"{first[0]:,} samples of {count:,}"
    began, used = time.perf_counter(), method.cpu_seconds()
    found = counted(loader)
    took, used = time.perf_counter() - began, method.cpu_seconds() - used
    assert found == first, f"{found} samples and bytes in this epoch, {first} in the first"
    memory = method.memory_of_all() / 1e6
    return {RATE: count / took, CPU: used / count * 10_000, MEMORY: memory, DISK: megabytes}


def counted(loader: Any) -> tuple[int, int]:
    """Returns the number of samples of an epoch, and their bytes."""
    sizes = [len(sample) for batch in loader for sample in batch]
    return len(sizes), sum(sizes)


def loader_of(form: str, folder: Path, count: int, order: str, is_remote: bool) -> Any:
    import stoker

    root = f"s3://{folder.name}" if is_remote else str(folder)
    is_shuffled = order == "shuffled"
    how: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True, "collate_fn": list}
    home = FOLDERS.get(form, form)  # nginx cannot list
    files = [f"{root}/{home}/{path.name}" for path in sorted((folder / home).glob("*")) if path.suffix in SUFFIXES]
    dataset: Any
    if form == "files":
        images = [f"{root}/files/{name_of(number)}" for number in range(count)]
        dataset = stoker.ImageFiles(images, loader=bytes if is_remote else contents)
    elif form == "tar":
        buffer = {"shuffle": True, "buffer_size": 1000, "seed": 1} if is_shuffled else {}
        dataset = stoker.TarStream(files, decode=False, transform=jpg, **buffer)
    elif form == "tar, index":
        dataset = stoker.TarDataset(files, decode=False, transform=jpg)
    elif form == "LMDB":
        dataset = stoker.LMDBDataset(folder / "LMDB")
    elif form == "HDF5":
        dataset = stoker.HDF5Dataset(f"{root}/HDF5/photographs.h5", transform=jpg)
    elif form == "Parquet":
        dataset = (stoker.ParquetDataset if is_shuffled else stoker.ParquetStream)(files, transform=jpg)
    elif form == "TFRecord":
        dataset = (stoker.TFRecordDataset if is_shuffled else stoker.TFRecordStream)(
            files, scalars=["jpg"], transform=jpg
        )
    elif form == "MDS":
        dataset = stoker.MDSDataset(f"{root}/MDS", transform=jpg)
    elif form == "lines":
        dataset = (stoker.TextLineDataset if is_shuffled else stoker.TextLineStream)(files)
    else:
        url = f"sqlite:///{folder / 'SQLite' / 'photographs.sqlite'}"
        if is_shuffled:
            dataset = stoker.SQLDataset("SELECT jpg FROM photographs", url, transform=jpg)
        else:
            dataset = stoker.SQLStream("SELECT number, jpg FROM photographs", url, key="number", transform=jpg)
    if is_remote:
        how["threads_per_worker"] = 1 if isinstance(dataset, stoker.Stream) else THREADS
    if is_shuffled and form == "Parquet":
        how["sampler"] = stoker.RowGroupSampler(dataset.row_group_sizes, groups_at_once=8)
    elif is_shuffled and form != "tar":
        how |= {"shuffle": True, "seed": 1}
    return stoker.DataLoader(dataset, BATCH, **how)


def jpg(sample: dict[str, Any]) -> bytes:
    return bytes(sample["jpg"])


def contents(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def name_of(number: int) -> str:
    return f"{number // 1000:03}/{number:06}.jpg"


class Photographs:
    """The photographs as rows, for `stoker.pack`."""

    def __init__(self, distinct: list[bytes], count: int) -> None:
        self.distinct, self.count = distinct, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, bytes]:
        return {"jpg": self.distinct[index % len(self.distinct)]}


def written(form: str, folder: Path, count: int) -> float:
    """Writes photographs in a format, unless that is done; returns the megabytes that they take on the disk."""
    home = folder / FOLDERS.get(form, form)
    if not home.exists():
        partial = folder / f".{home.name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        WRITERS[home.name](partial, Photographs(distinct(folder.parent.parent), count))
        partial.rename(home)
    return sum(path.stat().st_blocks for path in home.rglob("*")) * 512 / 1e6


def distinct(folder: Path) -> list[bytes]:
    """Returns JPEG photographs of 500 x 375: crops of those that scikit-image ships."""
    import numpy as np
    from PIL import Image
    from skimage import data

    kept = folder / "distinct"
    if not kept.exists():
        kept.mkdir(parents=True)
        draw = np.random.default_rng(0)
        sources = [Image.fromarray(make()) for make in (data.astronaut, data.coffee, data.chelsea, data.rocket)]
        for number in range(DISTINCT):
            source = sources[number % len(sources)]
            width = int(draw.uniform(0.5, 1) * min(source.width, source.height * 4 / 3))
            left, top = (int(draw.uniform(0, rest)) for rest in (source.width - width, source.height - width * 3 // 4))
            crop = source.crop((left, top, left + width, top + width * 3 // 4)).resize((500, 375))
            crop.save(kept / f"{number:03}.jpg", quality=90)
    return [path.read_bytes() for path in sorted(kept.iterdir())]


def write_files(home: Path, photographs: Photographs) -> None:
    for number in range(len(photographs)):
        path = home / name_of(number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(photographs[number]["jpg"])


def write_tar(home: Path, photographs: Photographs) -> None:
    import stoker

    with stoker.TarWriter(str(home / "photographs-%06d.tar"), max_count=min(2000, len(photographs) // 4)) as writer:
        for number in range(len(photographs)):
            writer.write({"__key__": f"{number:06}", **photographs[number]})


def write_lmdb(home: Path, photographs: Photographs) -> None:
    import stoker

    stoker.pack(photographs, home, format="lmdb")


def write_hdf5(home: Path, photographs: Photographs) -> None:
    import h5py
    import numpy as np

    with h5py.File(home / "photographs.h5", "w") as file:
        rows = file.create_dataset("jpg", (len(photographs),), h5py.vlen_dtype(np.uint8))
        for number in range(len(photographs)):
            rows[number] = np.frombuffer(photographs[number]["jpg"], np.uint8)


def write_parquet(home: Path, photographs: Photographs) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for begin in range(0, len(photographs), 2000):
        some = [photographs[number]["jpg"] for number in range(begin, min(begin + 2000, len(photographs)))]
        table = pa.table({"jpg": pa.array(some, pa.binary())})
        pq.write_table(
            table, home / f"{begin:06}.parquet", row_group_size=100, compression="none", use_dictionary=False
        )


def parts(photographs: Photographs) -> list[range]:
    """Returns the numbers of the photographs in each file, of formats of several files."""
    count = len(photographs)
    size = max(1, min(2000, count // 4))
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)]


def write_tfrecord(home: Path, photographs: Photographs) -> None:
    import google_crc32c

    def masked(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    for some in parts(photographs):
        with open(home / f"{some.start:06}.tfrecord", "wb") as file:
            for number in some:
                values = field(1, photographs[number]["jpg"])
                record = field(1, field(1, field(1, b"jpg") + field(2, field(1, values))))
                length = struct.pack("<Q", len(record))
                file.write(length + masked(length) + record + masked(record))


def field(number: int, data: bytes) -> bytes:
    """Returns a field of a message of protobuf, of bytes or another message."""
    size, length = len(data), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def write_mds(home: Path, photographs: Photographs) -> None:
    columns = {"column_names": ["jpg"], "column_encodings": ["jpeg"], "column_sizes": [None]}
    shards = []
    for some in parts(photographs):
        samples = [struct.pack("<I", len(data)) + data for data in (photographs[number]["jpg"] for number in some)]
        places = [4 * (len(samples) + 2)]
        for sample in samples:
            places.append(places[-1] + len(sample))
        name = f"shard.{len(shards):05}.mds"
        (home / name).write_bytes(struct.pack(f"<{len(places) + 1}I", len(samples), *places) + b"".join(samples))
        raw = {"basename": name, "bytes": places[-1], "hashes": {}}
        shard = {"version": 2, "format": "mds", "samples": len(samples), "raw_data": raw, "zip_data": None}
        shards.append({**shard, "compression": None, **columns})
    (home / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def write_lines(home: Path, photographs: Photographs) -> None:
    for some in parts(photographs):
        with open(home / f"{some.start:06}.txt", "wb") as file:
            file.writelines(base64.b64encode(photographs[number]["jpg"]) + b"\n" for number in some)


def write_sqlite(home: Path, photographs: Photographs) -> None:
    with sqlite3.connect(home / "photographs.sqlite") as database:
        database.execute("CREATE TABLE photographs (number INTEGER PRIMARY KEY, jpg BLOB NOT NULL)")
        rows = ((number, photographs[number]["jpg"]) for number in range(len(photographs)))
        database.executemany("INSERT INTO photographs VALUES (?, ?)", rows)
    database.close()


WRITERS: dict[str, Callable[[Path, Photographs], None]] = {
    "files": write_files,
    "tar": write_tar,
    "LMDB": write_lmdb,
    "HDF5": write_hdf5,
    "Parquet": write_parquet,
    "SQLite": write_sqlite,
    "TFRecord": write_tfrecord,
    "MDS": write_mds,
    "lines": write_lines,
}


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=3)
    arguments.add_argument("--data", type=Path, default=Path("build/formats"), help="folder of the files, made once")
    arguments.add_argument("--images", type=int, help="photographs; without it 50,000, quick 2,000")
    arguments.add_argument("--nginx", default=shutil.which("nginx"), help="the program; moto's server without it")
    method.main(arguments, cases, measure)
