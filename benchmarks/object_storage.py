"""How fast are objects and tar shards read from an object store, beside boto3 and s3fs?

The store is a server on this machine, nginx if there is one, else moto's: there is no distance, so what is measured is
the work of the clients; a server far away rewards requests that are under way together. Objects of 100 kB, shuffled,
each once in an epoch: ours are `ImageFiles` without decoding, with two workers of 8 threads. boto3 has a pool of 16
threads in one process; under torch's loader, two workers have a pool of 8 threads each and fetch a batch at once, as
s3fs does with its own concurrency. Samples of tar shards by ranges, shuffled: `TarDataset`, the others with the same
places. Rows of 100 kB of a .npy file, shuffled: `ArrayDataset`, the others with the places of the rows. Shards in
sequence: `TarStream` with two workers; boto3's body, or s3fs's file with its read-ahead, read by the standard library's
tarfile in two workers of torch's loader.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import method
import numpy as np
import rivals
import tar
from method import Case, Figures, Goal

RATE, SPEED, CPU = "samples/s", "MB/s", "CPU-s per GB, clients"
SIZE, BATCH, WORKERS, THREADS = 100_000, 32, 2, 8
NAMES = ("stoker", "boto3, pool", "torch, boto3", "torch, s3fs")


def cases(options: argparse.Namespace) -> list[Case]:
    count = 1_000 if options.quick else 10_000
    folder = options.data / "bucket"
    (folder / "objects").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / "objects" / f"{number:06}.bin"
        if not path.exists():
            path.write_bytes(os.urandom(SIZE))
    paths = tar.shards(folder, SIZE, count * SIZE // 2)
    shards = [os.path.relpath(path, folder) for path in paths]
    rows = folder / f"rows-{count // 2}.npy"
    if not rows.exists():
        np.save(rows, np.random.default_rng(0).integers(0, 256, (count // 2, SIZE), np.uint8))
    how = {"port": served(options, folder), "seconds": 1.0 if options.quick else 5.0}
    goals = [Goal(RATE, against=rival, at_least=2) for rival in NAMES[1:]]
    found = []
    for name, kind, keys, some in (
        (f"{count:,} objects of 100 kB, shuffled", "objects", count, NAMES),
        ("samples of tar shards by ranges, shuffled", "ranges", shards, NAMES),
        ("rows of a .npy file, shuffled", "rows", [rows.name], NAMES),
        ("tar shards in sequence", "sequence", shards, ("stoker", "torch, boto3", "torch, s3fs")),
    ):
        runs = {rival: {"rival": rival, "kind": kind, "keys": keys, **how} for rival in some}
        found.append(Case(name, runs, [goal for goal in goals if goal.against in some]))
    return found


def served(options: argparse.Namespace, folder: Path, log: Path | None = None) -> int:
    """Starts a server of the folder as a bucket, which ends with this program; returns its port.

    nginx writes the bytes of each answer to a log, if one is named.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    if options.nginx:
        place = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        access = f"{log.resolve()} sizes buffer=16k flush=100ms" if log else "off"
        root = folder.resolve().parent
        (place / "nginx.conf").write_text(NGINX.format(port=port, root=root, place=place, access=access))
        command = [options.nginx, "-p", str(place), "-e", str(place / "errors"), "-c", str(place / "nginx.conf")]
    else:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(server.wait)
    atexit.register(server.terminate)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            if server.poll() is not None:
                raise SystemExit(f"the server does not start: {' '.join(command)}") from None
            time.sleep(0.05)
    if not options.nginx:
        client = boto3_client(port)
        client.create_bucket(Bucket="bucket")
        for path in folder.rglob("*"):
            if path.is_file():
                client.upload_file(str(path), "bucket", str(path.relative_to(folder)))
    return port


NGINX = """
daemon off; user root; worker_processes 1; pid {place}/pid;
events {{ worker_connections 512; }}
http {{
  log_format sizes '$bytes_sent'; access_log {access};
  sendfile on; tcp_nopush off; keepalive_requests 1000000; default_type application/octet-stream;
  client_body_temp_path {place}/a; proxy_temp_path {place}/b; fastcgi_temp_path {place}/c;
  uwsgi_temp_path {place}/d; scgi_temp_path {place}/e;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


def measure(rival: str, kind: str, keys: list[str] | int, port: int, seconds: float) -> Figures:
    if isinstance(keys, int):  # the number of objects: their names are too long for an argument
        keys = [f"objects/{number:06}.bin" for number in range(keys)]
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "XDG_CACHE_HOME": tempfile.mkdtemp(),
    }
    try:
        epoch = epochs_of(rival, kind, keys, port)
        read, samples = first = counted(epoch)  # starts workers, fills the page cache
    except ImportError:
        if rival == "stoker":
            raise
        return dict.fromkeys((RATE, SPEED, CPU), rivals.NOT_INSTALLED)
    finally:
        shutil.rmtree(os.environ["XDG_CACHE_HOME"])
    read = samples = 0
    began, used = time.perf_counter(), method.cpu_seconds()
    while time.perf_counter() - began < seconds:
        found = counted(epoch)
        assert found == first, f"{found} bytes and samples in this epoch, {first} in the first"
        read, samples = read + found[0], samples + found[1]
    took, used = time.perf_counter() - began, method.cpu_seconds() - used
    return {RATE: samples / took, SPEED: read / 1e6 / took, CPU: used / (read / 1e9)}


def counted(epoch: Callable[[], Iterable[int]]) -> tuple[int, int]:
    sizes = list(epoch())
    return sum(sizes), len(sizes)


def epochs_of(rival: str, kind: str, keys: list[str], port: int) -> Callable[[], Iterable[int]]:
    """Returns a function that reads all samples once, and gives the bytes of each."""
    urls = [f"s3://bucket/{key}" for key in keys]
    if rival == "stoker":
        return ours(kind, urls)
    if kind == "sequence":
        files: Any = Members(keys, rival.removeprefix("torch, "), port)
        return functools.partial(of_torch, files)
    if kind == "objects":
        ranges = [(key, 0, SIZE) for key in keys]
    else:
        ranges = places(urls, keys) if kind == "ranges" else places_of_rows(keys[0])
    if rival == "boto3, pool":
        client, pool = boto3_client(port), ThreadPoolExecutor(WORKERS * THREADS)
        draw = np.random.default_rng(0)
        return lambda: (
            len(data)
            for data in pool.map(lambda place: body(client, *ranges[place]), draw.permutation(len(ranges)).tolist())
        )
    dataset: Any = (OfBoto3 if rival == "torch, boto3" else OfS3fs)(ranges, port)
    return functools.partial(of_torch, dataset, shuffle=True)


def ours(kind: str, urls: list[str]) -> Callable[[], Iterable[int]]:
    import stoker

    how: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True, "collate_fn": list}
    if kind == "sequence":
        loader: Any = stoker.DataLoader(stoker.TarStream(urls, decode=False), BATCH, **how)
        return lambda: (tar.bytes_in(sample) for batch in loader for sample in batch)
    how |= {"threads_per_worker": THREADS, "shuffle": True}
    if kind == "objects":
        loader = stoker.DataLoader(stoker.ImageFiles(urls, loader=bytes), BATCH, **how)
        return lambda: (len(sample) for batch in loader for sample in batch)
    if kind == "rows":
        del how["collate_fn"]
        loader = stoker.DataLoader(stoker.ArrayDataset(urls), BATCH, **how)
        return lambda: (len(row) for batch in loader for row in batch)
    loader = stoker.DataLoader(stoker.TarDataset(urls, decode=False), BATCH, **how)
    return lambda: (tar.bytes_in(sample) - 3 for batch in loader for sample in batch)


def places(urls: list[str], keys: list[str]) -> list[tuple[str, int, int]]:
    """Returns the key, first byte and length of the data of each sample."""
    import stoker

    dataset = stoker.TarDataset(urls, decode=False)
    return [(keys[shard], begin + 512, SIZE) for shard, begin, _ in map(dataset._place, range(len(dataset)))]


def places_of_rows(key: str) -> list[tuple[str, int, int]]:
    """Returns the key, first byte and length of each row of the file."""
    rows = int(key.removesuffix(".npy").rpartition("-")[2])
    return [(key, 128 + row * SIZE, SIZE) for row in range(rows)]


def of_torch(dataset: Any, shuffle: bool | None = None) -> Iterator[int]:
    loader = LOADERS.get(id(dataset))
    if loader is None:
        from torch.utils.data import DataLoader

        how: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True, "collate_fn": list}
        loader = LOADERS[id(dataset)] = DataLoader(dataset, BATCH, shuffle=shuffle, **how)
    return (len(data) for batch in loader for data in batch)


LOADERS: dict[int, Any] = {}


def boto3_client(port: int) -> Any:
    import boto3
    import botocore.config

    config = botocore.config.Config(max_pool_connections=WORKERS * THREADS, s3={"addressing_style": "path"})
    return boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", config=config)


def s3fs_files(port: int) -> Any:
    import s3fs

    return s3fs.S3FileSystem(key="key", secret="secret", client_kwargs={"endpoint_url": f"http://127.0.0.1:{port}"})


def body(client: Any, key: str, begin: int, length: int) -> bytes:
    data: bytes = client.get_object(Bucket="bucket", Key=key, Range=f"bytes={begin}-{begin + length - 1}")[
        "Body"
    ].read()
    return data


class OfBoto3:
    """Ranges of objects, a batch at once by threads. The client is made in the worker."""

    def __init__(self, ranges: list[tuple[str, int, int]], port: int) -> None:
        import boto3  # noqa: F401

        self.ranges, self.port, self.client, self.pool = ranges, port, None, None

    def __len__(self) -> int:
        return len(self.ranges)

    def __getitems__(self, indices: list[int]) -> list[bytes]:
        if self.client is None or self.pool is None:
            self.client, self.pool = boto3_client(self.port), ThreadPoolExecutor(THREADS)  # type: ignore[assignment]
        return list(self.pool.map(lambda index: body(self.client, *self.ranges[index]), indices))  # type: ignore[union-attr]


class OfS3fs(OfBoto3):
    """Ranges of objects, a batch at once by s3fs's own concurrency."""

    def __getitems__(self, indices: list[int]) -> list[bytes]:
        if self.client is None:
            self.client = s3fs_files(self.port)
        ranges = [self.ranges[index] for index in indices]
        names, begins = [f"bucket/{key}" for key, _, _ in ranges], [begin for _, begin, _ in ranges]
        found: list[bytes] = self.client.cat_ranges(
            names, begins, [begin + length for _, begin, length in ranges], on_error="raise"
        )
        return found


def Members(keys: list[str], client: str, port: int) -> Any:
    """Returns a stream of the samples of every n-th shard, for torch's loader."""
    import tarfile

    from torch.utils.data import IterableDataset, get_worker_info

    class Shards(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[bytes]:
            info = get_worker_info()
            opened = boto3_client(port) if client == "boto3" else s3fs_files(port)
            for key in keys[info.id :: info.num_workers]:
                if client == "boto3":
                    file, mode = opened.get_object(Bucket="bucket", Key=key)["Body"], "r|"
                else:
                    file, mode = opened.open(f"bucket/{key}", block_size=8 << 20), "r"
                with tarfile.open(fileobj=file, mode=mode) as shard:  # type: ignore[call-overload]
                    parts = [b"", b""]
                    for number, member in enumerate(shard):
                        parts[number % 2] = shard.extractfile(member).read()
                        if number % 2:
                            yield b"".join(parts)

    if client == "s3fs":
        import s3fs  # noqa: F401
    return Shards()


if __name__ == "__main__":
    arguments = method.parser(__doc__, rounds=5)
    arguments.add_argument("--data", type=Path, default=Path("build/benchmark-objects"), help="folder for the data")
    arguments.add_argument("--nginx", default=shutil.which("nginx"), help="the program; without it moto's server")
    method.main(arguments, cases, measure)
