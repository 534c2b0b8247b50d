"""Sources that take no URLs say so, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import PackError
from stoker.packing.pack import pack
from stoker.sources.image_folder import ImageFolder
from stoker.sources.lmdb_dataset import LMDBDataset
from stoker.sources.mds.dataset import MDSDataset
from stoker.sources.sql.dataset import SQLDataset

URL = "s3://user:secret@bucket/data?sig=secret"


@pytest.mark.parametrize("kind", [LMDBDataset, ImageFolder])
def test_url_is_refused(kind: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match=r"^s3://bucket/data is a URL, .*local paths only: copy") as caught:
        kind(URL)
    assert "secret" not in str(caught.value)


def test_database_in_a_store_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^s3://bucket/data is a file of a store, .*: copy it") as caught:
        SQLDataset("SELECT 1", URL)
    assert "secret" not in str(caught.value)


def test_a_folder_whose_name_looks_so_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "bucket").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"index\.json"):
        MDSDataset("s3://bucket")


def test_packing_to_a_url_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PackError, match=r"^s3://bucket/data is a URL, and packing writes to local folders"):
        pack([b"a"], URL)
    assert not list(tmp_path.iterdir())
