"""A listing of many files: what it takes, and that workers share it."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from stoker import DataLoader, ImageFolder, get_worker_info
from stoker.datasets.columnar import stores_of
from stoker.sources import listing, read_image
from stoker.sources.listing import ListedFolder

FILES = 100_000


@pytest.fixture
def many(tmp_path: Path) -> tuple[Path, Path]:
    """An empty folder, and the cached listing that it would have with many files in it."""
    root = tmp_path / "root"
    (root / "class").mkdir(parents=True)
    status = (root / "class").stat()
    names = "".join(f"{number:08d}.jpg\0" for number in range(FILES)).encode()
    folder = ListedFolder("class", (status.st_ino, status.st_mtime_ns, status.st_ctime_ns), FILES, names)
    key = {"root": os.path.realpath(root), "extensions": list(read_image.EXTENSIONS)}
    listing.save(tmp_path / "listing", key, [folder])
    return root, tmp_path / "listing"


def test_a_sample_takes_no_python_object(many: tuple[Path, Path]) -> None:
    root, cache = many
    ImageFolder(root, cache=cache)  # modules and caches of the first use
    tracemalloc.start()
    dataset = ImageFolder(root, cache=cache)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(dataset) == FILES and dataset.samples[777] == (f"{root}/class/00000777.jpg", 0)
    assert size < FILES * (len("00000777.jpg\0") + 4 + 8) + 100_000  # name, its start, label; an object takes 40 more


def is_shared(path: str) -> int:
    """Whether the names of the dataset lie in a mapped file, in a worker."""
    info = get_worker_info()
    assert info is not None
    column: Any = stores_of(info.dataset.samples)[0]
    address = column.names.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, _, *name = line.split(maxsplit=5)
        start, end = (int(each, 16) for each in span.split("-"))
        if start <= address < end:
            return int("memfd" in "".join(name))
    return 0


def test_clean_workers_map_one_listing(many: tuple[Path, Path]) -> None:
    root, cache = many
    dataset = ImageFolder(root, loader=is_shared, cache=cache)
    with DataLoader(dataset, 2, num_workers=1, multiprocessing_context="spawn", output="numpy") as loader:
        batches = iter(loader)
        assert next(batches)[0].tolist() == [1, 1]
        del batches
