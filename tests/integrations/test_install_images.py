"""Workers of an installed loader read JPEG files by `stoker.images`, with Pillow's pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stoker

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
pytest.importorskip("stoker.images")
np = pytest.importorskip("numpy")


class Pictures(torch.utils.data.Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        with Image.open(self.path) as image:
            pixels = np.asarray(image.convert("RGB"))
        return pixels.copy(), int(Image.OPEN["JPEG"][0].__module__.startswith("stoker."))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    from PIL import Image

    path = tmp_path / "picture.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 48, 3), np.uint8)).save(path)
    return path


def read(path: Path, workers: int) -> tuple[Any, set[int]]:
    """Returns the pixels of an epoch, and who read them: 1 for Stoker's reader."""
    batches = list(torch.utils.data.DataLoader(Pictures(path), 2, num_workers=workers))
    return torch.cat([pixels for pixels, _ in batches]), {int(reader) for _, readers in batches for reader in readers}


@pytest.mark.parametrize("workers", [0, 1])
def test_reader_is_stokers_and_pixels_are_pillows(workers: int, picture: Path) -> None:
    torchs, readers = read(picture, workers)
    assert readers == {0}
    with stoker.install():
        ours, readers = read(picture, workers)
    assert readers == {1} and torch.equal(ours, torchs)
    with stoker.install(images=False):
        assert read(picture, workers)[1] == {0}
