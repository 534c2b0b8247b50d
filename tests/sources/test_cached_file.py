from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import Dataset
from stoker.datasets.combining import absolute
from stoker.sources.cached_storage import CachedStorage, without_secrets
from stoker.sources.per_process import OpenFiles
from stoker.sources.storage import LocalStorage
from stoker.testing.datasets import DatasetSuite


def test_other_parameters_tell_files_apart() -> None:
    urls = [f"https://host/a.tar{query}" for query in ("", "?versionId=1", "?versionId=2", "?file=b", "?st=1", "?se=1")]
    assert len({without_secrets(url) for url in urls}) == len(urls)
    assert without_secrets("a.tar") == os.path.abspath("a.tar")


class Rows(Dataset[bytes]):
    """Rows of 100 bytes of a file."""

    stoker_protocol = True

    def __init__(self, storage: CachedStorage, path: str) -> None:
        self.path = path
        self._files = OpenFiles(storage)
        self._length = os.path.getsize(path) // 100

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> bytes:
        return self._files.get(self.path).read(100 * absolute(index, len(self)), 100)


class TestCachedRows(DatasetSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        path = tmp_path / "rows"
        path.write_bytes(np.random.default_rng(0).bytes(1400))
        return lambda: Rows(CachedStorage(LocalStorage(), tmp_path / "cache", 1 << 20, block_size=1000), str(path))

    def delete(self, dataset: Rows) -> str:
        os.unlink(dataset.path)
        return dataset.path
