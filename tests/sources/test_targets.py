"""Targets beyond classes: the parts of the guide that need torchvision, and what the others promise."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "image-folders.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


def block_with(text: str) -> str:
    (found,) = (block for block in BLOCKS if text in block)
    return found


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torchvision: Any) -> Iterator[dict[str, Any]]:
    """The names of the guide, up to its boxes."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "guide"}
    for text in ('ImageFolder("photos", transform=small)', "alone = ImageFiles(paths", "class Boxes:"):
        exec(block_with(text), names)
    yield names
    names.clear()  # batches, whose memory workers have written


def test_boxes_are_flipped_with_their_image(page: dict[str, Any]) -> None:
    exec(block_with("tv_tensors.BoundingBoxes"), page)
    images, targets = page["images"], page["targets"]
    assert tuple(images.shape) == (4, 3, 120, 160)
    assert [len(target["boxes"]) for target in targets] == [1, 2, 3, 1]
    seen = {tuple(box) for target in targets for box in target["boxes"].tolist()}
    assert seen <= {(20, 10, 60, 50), (100, 10, 140, 50)}  # twice as large, mirrored or not
    assert os.path.exists("photos/cat/000.jpg")


def test_each_sample_draws_its_own_flip(page: dict[str, Any]) -> None:
    exec(block_with("tv_tensors.BoundingBoxes"), page)
    import stoker

    def lefts(workers: int) -> list[float]:
        loader = stoker.DataLoader(
            page["detection"], batch_size=4, collate_fn=page["lists"], num_workers=workers, seed=3
        )
        return [float(target["boxes"][0, 0]) for _, targets in loader for target in targets]

    assert set(lefts(0)) == {20.0, 100.0} and lefts(0) == lefts(2)


def test_masks_are_torchvisions_too(page: dict[str, Any]) -> None:
    exec(block_with("segmentation = MapDataset"), page)
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    augment = v2.Compose([v2.ToImage(), v2.RandomCrop(32), v2.RandomHorizontalFlip(1)])

    def transformed(sample: Any) -> Any:
        image, mask = sample
        return augment(image, tv_tensors.Mask(mask))

    from stoker import DataLoader, ImageFiles, MapDataset, StackDataset

    files = StackDataset(ImageFiles(page["paths"]), ImageFiles(page["masks"], loader=page["open_mask"]))
    image, mask = next(iter(DataLoader(MapDataset(files, transformed), batch_size=4, seed=1)))
    assert tuple(image.shape) == (4, 3, 32, 32) and tuple(mask.shape)[-2:] == (32, 32)
    assert set(torch.unique(mask).tolist()) <= {0, 7}
