"""What does a shuffled epoch over S3 take, beside s3torchconnector, MosaicML Streaming and LitData?

The same 5,000 samples of 100 kB with a label, each rival in the format that it is made for: objects, tar shards with
an index, MDS shards, LitData's chunks; shards of about 64 MB. The store is nginx on this machine, else moto's server
(whose own work is then part of the figure): there is no distance, so what is measured is the work of the clients. Two
workers, batches of 64, given as lists of (bytes, number); Stoker's have eight threads each, where samples are read by
index. Each rival is used as its guide does it, with its defaults: `S3MapDataset` under torch's `DataLoader`, MosaicML's
`StreamingDataset` under the same, LitData's `StreamingDataset` with its `StreamingDataLoader`. LitData refuses a store
without TLS; a constant of its module is changed to allow it.

They do not shuffle alike. "Global": each order of all samples is possible. "Blocks": MosaicML's default spreads the
samples of a shard over 4 million others, so of these 5,000 everywhere. "Chunks": LitData gives the chunks in random
order, one after the other in each worker, and shuffles within 256 samples of a chunk. "Buffer": Stoker's stream gives
the shards in random order, and shuffles with a buffer of 1,000 samples.

Nothing is kept on the disk when the first epoch begins, except that the modules are imported: it has the making of
dataset and loader in it, indexes, listings and the start of workers. MosaicML and LitData keep what they read on the
local disk, and read that in the second epoch, as Stoker does with a cache; the others read the store again. Processor
time is that of the first epoch and of all processes, without the server's. Memory is the largest of ten looks in a run
of its own. Bytes and requests are what nginx sent in the first epoch, headers included. Samples missing or twice are
counted by their numbers, over both epochs: a rate with such samples is not that of an epoch.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import method
import numpy as np
import object_storage
import rivals
from method import Case, Figures, Goal

RATE, AGAIN, FIRST = "samples/s, first epoch", "samples/s, second epoch", "seconds to the first batch"
CPU, MEMORY, DISK = "CPU-s for 10,000", "MB, all processes, peak", "MB kept on disk"
WIRE, REQUESTS, WRONG = "MB from the store", "requests", "samples missing or twice"
Sample = tuple[bytes, int]
FIGURES = (RATE, AGAIN, FIRST, CPU, MEMORY, DISK, WIRE, REQUESTS, WRONG)
SIZE, BATCH, WORKERS, THREADS, SHARD, LOOKS = 100_000, 64, 2, 8, 640, 10
REGION = "us-east-1"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": REGION}
KEYS |= {"AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}
OURS = {
    "stoker, tar with index": "global",
    "stoker, tar with index, cached": "global",
    "stoker, MDS": "global",
    "stoker, objects": "global",
    "stoker, tar in sequence": "buffer",
}
OTHERS = {
    "s3torchconnector, objects": ("global", "s3torchconnector"),
    "MosaicML, MDS": ("blocks", "streaming"),
    "LitData, chunks": ("chunks", "litdata"),
}


def cases(options: argparse.Namespace) -> list[Case]:
    os.environ |= KEYS  # moto's server is filled by boto3
    count = options.samples or (640 if options.quick else 5000)
    folder = options.data / f"{count}" / "bucket"
    for name, write in WRITERS.items():
        if name != "litdata" or (not options.quick and importlib.util.find_spec("litdata")):
            written(folder / name, write, count)
    log = folder.parent / "sizes.log"
    log.write_bytes(b"")
    how = {"folder": str(folder), "count": count, "port": object_storage.served(options, folder, log)}
    how |= {"log": str(log) if options.nginx else "", "memory": "no" if options.quick else "too"}
    shuffles = OURS if options.quick else OURS | {rival: shuffle for rival, (shuffle, _) in OTHERS.items()}
    runs = {f"{rival}: {shuffle}": {"rival": rival, **how} for rival, shuffle in shuffles.items()}
    goals = [Goal(RATE, against=name, at_least=1) for name in runs if not name.startswith("stoker")]
    return [Case("a shuffled epoch over S3", runs, goals)]


def measure(rival: str, folder: str, count: int, port: int, log: str, memory: str) -> Figures:
    """The figures of a rival: with memory, found by another process ("too"), without it ("no"), or that ("only")."""
    again = {"rival": rival, "folder": folder, "count": count, "port": port, "log": log, "memory": "only"}
    endpoint = f"http://127.0.0.1:{port}"
    home = Path(tempfile.mkdtemp(dir=Path(folder).parent))
    os.environ |= {"AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint, "XDG_CACHE_HOME": str(home), **KEYS}
    try:
        importlib.import_module(OTHERS[rival][1] if rival in OTHERS else "stoker")
        importlib.import_module("torch.utils.data")
        make = functools.partial(loader_of, rival, Path(folder), count, endpoint, home)
        if memory == "only":
            return {MEMORY: peak(make, count)}
        figures = timed(make, count, Path(log) if log else None, home)
    except ImportError:
        return dict.fromkeys(FIGURES, rivals.NOT_INSTALLED)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if memory == "no":
        return figures
    look = [sys.executable, sys.argv[0], "--measure", json.dumps(again)]
    told = subprocess.run(look, stdout=subprocess.PIPE, text=True, check=True).stdout
    figures |= json.loads(told.splitlines()[-1])
    return {name: figures[name] for name in FIGURES if name in figures}


def timed(make: Callable[[], Iterable[list[Sample]]], count: int, log: Path | None, home: Path) -> Figures:
    """The figures of two epochs, of which the first begins with nothing."""
    sent = log.stat().st_size if log else 0
    began, used, first = time.perf_counter(), method.cpu_seconds(), 0.0
    loader, epochs = make(), np.zeros((2, count), int)
    for batch in loader:
        first = first or time.perf_counter() - began
        note(batch, epochs[0])
    took, used = time.perf_counter() - began, method.cpu_seconds() - used
    figures = {RATE: count / took, FIRST: first, CPU: used / count * 10_000, DISK: megabytes(home)}
    if log:
        time.sleep(0.5)  # nginx writes its log after 100 ms
        sizes = [int(line) for line in log.read_bytes()[sent:].split()]
        figures |= {WIRE: sum(sizes) / 1e6, REQUESTS: len(sizes)}
    began = time.perf_counter()
    for batch in loader:
        note(batch, epochs[1])
    return {**figures, AGAIN: count / (time.perf_counter() - began), WRONG: int(np.abs(epochs - 1).sum())}


def peak(make: Callable[[], Iterable[list[Sample]]], count: int) -> float:
    """The most memory of all processes, looked at in a first epoch: a look takes a tenth of a second."""
    seen, most = np.zeros(count, int), 0
    for number, batch in enumerate(make(), 1):
        note(batch, seen)
        if number % max(1, count // BATCH // LOOKS) == 0:
            most = max(most, method.memory_of_all())
    return most / 1e6


def note(batch: list[Sample], seen: np.ndarray) -> None:
    for data, number in batch:
        assert len(data) == SIZE and data[:8] == number.to_bytes(8, "little"), f"sample {number} is not what it was"
        seen[number] += 1


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_blocks for path in folder.rglob("*")) * 512 / 1e6


# The rivals


def loader_of(rival: str, folder: Path, count: int, endpoint: str, home: Path) -> Any:
    """Returns a loader whose batches are lists of pairs of bytes and a number."""
    root = f"s3://{folder.name}"
    objects = [f"{root}/objects/{number:06}.bin" for number in range(count)]
    if rival not in OTHERS:
        return ours(rival, root, objects, sorted(path.name for path in (folder / "tar").glob("*.tar")), home)
    from torch.utils.data import DataLoader

    how: dict[str, Any] = {"batch_size": BATCH, "num_workers": WORKERS, "persistent_workers": True}
    if rival == "s3torchconnector, objects":
        from s3torchconnector import S3ClientConfig, S3MapDataset

        config = S3ClientConfig(force_path_style=True)
        dataset: Any = S3MapDataset.from_objects(
            objects, region=REGION, endpoint=endpoint, transform=of_reader, s3client_config=config
        )
        return DataLoader(dataset, shuffle=True, collate_fn=list, **how)
    if rival == "MosaicML, MDS":
        from streaming import StreamingDataset as OfMosaic

        dataset = OfMosaic(remote=f"{root}/mds", local=str(home / "mds"), shuffle=True, batch_size=BATCH)
        return DataLoader(dataset, collate_fn=of_dicts, **how)
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    getattr(downloader, "_OBSTORE_CLIENT_OPTIONS", {})["allow_http"] = True
    options = {"endpoint_url": endpoint, "region_name": REGION}
    options |= {"aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"]}
    dataset = StreamingDataset(
        f"{root}/litdata", cache_dir=str(home / "litdata"), shuffle=True, storage_options=options
    )
    return StreamingDataLoader(dataset, collate_fn=of_dicts, **how)


def ours(rival: str, root: str, objects: list[str], shards: list[str], home: Path) -> Any:
    import stoker

    how: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True, "collate_fn": list}
    places, dataset = [f"{root}/tar/{name}" for name in shards], None
    if rival == "stoker, tar in sequence":
        dataset = stoker.TarStream(places, shuffle=True, buffer_size=1000, seed=1, transform=of_dict)
        return stoker.DataLoader(dataset, BATCH, **how)
    if rival.startswith("stoker, tar with index"):
        kept = {"cache": home / "cache", "cache_size": 4 << 30} if rival.endswith("cached") else {}
        dataset = stoker.TarDataset(places, transform=of_dict, **kept)
    elif rival == "stoker, MDS":
        dataset = stoker.MDSDataset(f"{root}/mds", transform=of_dict)
    else:
        dataset = stoker.ImageFiles(objects, range(len(objects)), loader=bytes)
    return stoker.DataLoader(dataset, BATCH, shuffle=True, seed=1, threads_per_worker=THREADS, **how)


def of_dict(sample: dict[str, Any]) -> Sample:
    return bytes(sample["bin"]), int(sample["cls"])  # LitData's are memoryviews, which no queue takes


def of_dicts(samples: list[dict[str, Any]]) -> list[Sample]:
    return [of_dict(sample) for sample in samples]


def of_reader(reader: Any) -> Sample:
    return reader.read(), int(Path(reader.key).stem)


# The data


def written(home: Path, write: Callable[[Path, int], None], count: int) -> None:
    if not home.exists():
        partial = home.with_name(f".{home.name}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial, count)
        partial.rename(home)


def sample(number: int) -> dict[str, Any]:
    data = number.to_bytes(8, "little") + np.random.default_rng(number).bytes(SIZE - 8)
    return {"bin": data, "cls": number}


def shard_size(count: int) -> int:
    return max(1, min(SHARD, count // 4))


def write_objects(home: Path, count: int) -> None:
    for number in range(count):
        (home / f"{number:06}.bin").write_bytes(sample(number)["bin"])


def write_tar(home: Path, count: int) -> None:
    import stoker

    with stoker.TarWriter(home / "%06d.tar", max_count=shard_size(count)) as writer:
        for number in range(count):
            writer.write({"__key__": f"{number:06}", **sample(number)})


def write_mds(home: Path, count: int) -> None:
    columns = {"column_names": ["bin", "cls"], "column_encodings": ["bytes", "int"], "column_sizes": [None, 8]}
    shards = []
    for begin in range(0, count, shard_size(count)):
        numbers = range(begin, min(begin + shard_size(count), count))
        rows = [struct.pack("<I", SIZE) + sample(number)["bin"] + struct.pack("<q", number) for number in numbers]
        header = json.dumps({**columns, "compression": None, "format": "mds", "hashes": [], "version": 2}).encode()
        places = np.cumsum([4 * (len(rows) + 2) + len(header), *map(len, rows)]).astype("<u4")
        name = f"shard.{len(shards):05}.mds"
        (home / name).write_bytes(struct.pack("<I", len(rows)) + places.tobytes() + header + b"".join(rows))
        raw = {"basename": name, "bytes": int(places[-1]), "hashes": {}}
        shard = {"version": 2, "format": "mds", "samples": len(rows), "raw_data": raw, "zip_data": None}
        shards.append({**shard, "compression": None, "hashes": [], "size_limit": None, **columns})
    (home / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def write_litdata(home: Path, count: int) -> None:
    import litdata

    litdata.optimize(sample, list(range(count)), str(home), chunk_size=shard_size(count), num_workers=1, verbose=False)


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "objects": write_objects,
    "tar": write_tar,
    "mds": write_mds,
    "litdata": write_litdata,
}


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/shuffled-epochs"), help="folder of the data")
    arguments.add_argument("--samples", type=int, help="of 100 kB; without it 5,000, quick 640")
    arguments.add_argument("--nginx", default=shutil.which("nginx"), help="the program; moto's server without it")
    method.main(arguments, cases, measure)
