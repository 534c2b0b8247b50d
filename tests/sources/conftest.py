"""Folders of small images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sources.cloud_emulators import (  # noqa: F401
    azure_port,
    container,
    emulator,
    google_bucket,
    google_port,
    no_store_named,
)
from tests.sources.hub_server import hub, hub_port  # noqa: F401
from tests.sources.object_servers import bucket, faults, proxy_port, s3_port  # noqa: F401

Image = pytest.importorskip("PIL.Image")

CLASSES = ("ant", "bee", "cat x", "Dog")
FILES = ("b.jpg", "a.PNG", "C.jpeg", "größe.webp", "notes.txt", "deep/a.jpg", "deep/er/z.bmp", "deep er/y.tif")
"""In each class folder. 7 of them are images."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder is the test's own."""
    path = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    return path


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of class folders: each image is uniform, 8 x 6, and of its own colour."""
    root = tmp_path_factory.mktemp("photos")
    number = 0
    for name in CLASSES:
        for file in FILES:
            path = root / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".txt":
                path.write_text("no image")
                continue
            number += 1
            save(path, number)
    save(root / "beside.jpg", 0)  # in no class
    return root


def save(path: Path, value: int) -> None:
    """Writes a grey image of this value."""
    kind = {".jpg": "JPEG", ".jpeg": "JPEG"}.get(path.suffix.lower(), path.suffix[1:].upper())
    options = {"lossless": True} if kind == "WEBP" else {}
    Image.fromarray(np.full((6, 8, 3), value, np.uint8)).save(path, "TIFF" if kind == "TIF" else kind, **options)


@pytest.fixture
def write() -> Callable[[Path, int], None]:
    return save


@pytest.fixture(scope="session")
def torchvision() -> Any:
    pytest.importorskip("torch")
    from tests.images import tv

    return tv.torchvision
