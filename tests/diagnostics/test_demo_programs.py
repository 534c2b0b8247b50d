"""The demo's programs: batches of the same kind, and pixels that are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.diagnostics import demo
from stoker.diagnostics.demo import make_pictures

pytest.importorskip("torch")
pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    make_pictures(tmp_path, 5, lambda done, count: None)
    return str(tmp_path)


@pytest.mark.parametrize("program", ["torch", "stoker"])
def test_batches_are_crops_with_their_classes(program: str, folder: str) -> None:
    loader, _ = demo.loader_of(program, folder, 0)
    ((images, labels),) = list(loader)
    assert sorted(labels.tolist()) == [0, 0, 1, 2, 3] and images.numel() == 5 * 3 * demo.SIDE**2


def test_equal_pixels(folder: str) -> None:
    assert demo.equal_pixels(folder)


def test_other_pixels_are_noticed(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    crop, number = demo.random_crop, iter(range(99))

    def other(path: str) -> Any:
        return crop(path).rotate(next(number) > 6)

    monkeypatch.setattr(demo, "random_crop", other)
    assert not demo.equal_pixels(folder)
