"""`preview()` shows the next batch, and changes nothing."""

from __future__ import annotations

import io
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import BatchSampler, DataLoader, Dataset, IterableDataset, MapDataset, Subset, WorkerTraceback, sample_rng
from stoker.errors import MissingExtraError, PreviewError

Image = pytest.importorskip("PIL.Image")

COUNT, SIDE = 24, 100


class Tiles(Dataset[Any]):
    """Uniform images, with random numbers from a generator of the process and from the sample's own."""

    classes = ("even", "odd")

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        self.seen.append(index)
        drawn = random.random(), float(sample_rng().numpy_generator.random())
        return {"image": np.full((3, SIDE, SIDE), index * 10, np.uint8), "kind": index % 2, "drawn": drawn}


class Endless(IterableDataset[Any]):
    """A stream that goes on where it was left."""

    shards_itself = True

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[Any]:
        while self.next < COUNT:
            self.next += 1
            yield np.full((SIDE, SIDE, 3), self.next, np.uint8), self.next
        self.next = 0


class Drawing:
    """A sampler with a generator of its own, which goes on from epoch to epoch."""

    def __init__(self) -> None:
        self.generator = random.Random(5)
        self.epochs = 0

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        random.random()
        return iter(self.generator.sample(range(COUNT), COUNT))


def plain(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    return [plain(each) for each in batch] if isinstance(batch, (list, tuple)) else np.asarray(batch).tolist()


def tiles(image: Any, columns: int) -> list[int]:
    """The values of the tiles of a sheet without captions below them, row by row."""
    array = np.asarray(image.convert("RGB"))
    return [int(value) for value in array[6 + SIDE // 2 :: SIDE + 6 + 16, 6 + SIDE // 2 :: SIDE + 6, 0].ravel()]


KINDS: dict[str, Any] = {
    "shuffled": lambda: DataLoader(Tiles(), 4, shuffle=True, output="numpy"),
    "seed": lambda: DataLoader(Tiles(), 4, shuffle=True, seed=3, output="numpy"),
    "workers": lambda: DataLoader(Tiles(), 4, shuffle=True, num_workers=2, output="numpy", timeout=60),
    "persistent": lambda: DataLoader(
        Tiles(), 4, shuffle=True, num_workers=2, persistent_workers=True, output="numpy", prefetch_factor=1
    ),
    "own sampler": lambda: DataLoader(Tiles(), 4, sampler=Drawing(), output="numpy"),
    "own batches": lambda: DataLoader(Tiles(), batch_sampler=BatchSampler(Drawing(), 4, False), output="numpy"),
    "stream": lambda: DataLoader(Endless(), 4, output="numpy"),
    "subset": lambda: DataLoader(Subset(Tiles(), range(3, 20)), 4, shuffle=True, output="numpy"),
    "auto": lambda: DataLoader(Tiles(), 4, shuffle=True, num_workers="auto", seed=3, output="numpy"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_preview_changes_nothing(kind: str) -> None:
    def epochs(looks: bool) -> Any:
        random.seed(1)
        np.random.seed(1)
        torch = pytest.importorskip("torch")
        torch.manual_seed(1)
        result = []
        with KINDS[kind]() as loader:
            for _ in range(2):
                if looks:
                    before = random.getstate(), torch.get_rng_state().tolist(), loader.state_dict()
                    loader.preview(None)
                    assert (random.getstate(), torch.get_rng_state().tolist(), loader.state_dict()) == before
                batches = []
                for number, batch in enumerate(loader):
                    batches.append(plain(batch))
                    if looks and number == 2:  # in the middle of an epoch
                        loader.preview(None)
                result.append((batches, loader.state_dict()))
        return result, random.random(), float(torch.rand(1))

    assert epochs(looks=True) == epochs(looks=False)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_batch_is_shown(workers: int) -> None:
    with DataLoader(Tiles(), 4, shuffle=True, num_workers=workers, output="numpy") as loader:
        for _ in range(2):
            image = loader.preview(None)
            batches = iter(loader)
            batch = next(batches)
            assert tiles(image, 2) == batch["image"][:, 0, 0, 0].tolist()
            del batches


def test_a_loaded_state_decides_about_the_next_batch() -> None:
    loader = DataLoader(Tiles(), 4, shuffle=True, seed=2, output="numpy")
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    again = DataLoader(Tiles(), 4, shuffle=True, seed=2, output="numpy")
    again.load_state_dict(loader.state_dict())
    image = again.preview(None)
    assert tiles(image, 2) == next(batches)["image"][:, 0, 0, 0].tolist()


def test_the_file_is_written_and_its_path_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loader = DataLoader(Tiles(), 6)
    assert loader.preview() == "preview.png"
    with Image.open("preview.png") as image:
        assert image.format == "PNG" and image.mode == "RGB"
        size = image.size
    assert loader.preview(tmp_path / "few.png", images=2) == str(tmp_path / "few.png")
    with Image.open(tmp_path / "few.png") as image:
        assert image.size != size
    assert loader.dataset.seen == []


def test_class_names_come_from_the_dataset_below() -> None:
    named = DataLoader(MapDataset(Subset(Tiles(), [0, 1]), dict), 2).preview(None)
    assert named.tobytes() == DataLoader(Tiles(), 2).preview(None, classes=["even", "odd"]).tobytes()
    assert named.tobytes() != DataLoader(Tiles(), 2).preview(None, classes=["x", "y"]).tobytes()


class Broken(Tiles):
    """A sample that fails, in one of many ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def __getitem__(self, index: int) -> Any:
        if self.how == "dies":
            os._exit(7)
        if self.how == "hangs":
            time.sleep(1000)
        if self.how == "cannot be sent":
            raise type("Local", (Exception,), {})(lambda: None)
        if self.how == "leaves":
            raise SystemExit(3)
        raise KeyError("no such sample")


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("raises", KeyError, "no such sample"),
        ("dies", PreviewError, "exit code 7, and no batch came of it"),
        ("hangs", PreviewError, "no batch within 0.2 s"),
        ("cannot be sent", PreviewError, "could not be made:\nTraceback[^$]*Local"),
        ("leaves", SystemExit, "3"),
    ],
)
def test_a_batch_that_cannot_be_made(how: str, kind: Any, said: str) -> None:
    loader = DataLoader(Broken(how), 4, num_workers=1)
    with pytest.raises(kind, match=said) as caught:
        loader.preview(None, seconds=0.2 if how == "hangs" else 60)
    if how == "raises":
        assert isinstance(caught.value.__cause__, WorkerTraceback) and "__getitem__" in str(caught.value.__cause__)


def test_batches_without_images_and_empty_epochs() -> None:
    with pytest.raises(PreviewError, match=r"holds no images.*\(4,\)"):
        DataLoader(range(10), 4, output="numpy").preview(None)
    with pytest.raises(PreviewError, match="has no batch"):
        DataLoader(Tiles(), 50, drop_last=True).preview(None)
    with pytest.raises(ValueError, match="at least 1"):
        DataLoader(Tiles()).preview(None, images=0)


def test_pillow_that_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"stoker\[images\]"):
        DataLoader(Tiles()).preview()


def test_what_the_dataset_prints_appears_once(capfd: pytest.CaptureFixture[str]) -> None:
    print("before", end=" ")
    DataLoader(MapDataset(Tiles(), lambda sample: print("sample", end=" ") or sample), 2).preview(None)
    print("after")
    assert capfd.readouterr().out == "before sample sample after\n"


def test_the_image_is_a_png() -> None:
    file = io.BytesIO()
    DataLoader(Tiles(), 2).preview(None).save(file, "PNG")
    assert file.getvalue().startswith(b"\x89PNG")
