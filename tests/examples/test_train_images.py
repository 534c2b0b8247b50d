"""train_images.py: it trains with each backend and in each way to load, and on folders of the user's own."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
FIGURES = ["name", "loading_rate", "rate", "wait_share", "first_batch", "cpu_seconds", "accuracy", "peak_memory"]


@pytest.mark.parametrize(
    ("loader", "backend"),
    [
        ("stoker", "serial"),
        pytest.param("stoker", "thread", marks=pytest.mark.long),
        ("stoker", "process"),
        ("images", "thread"),
        pytest.param("images", "process", marks=pytest.mark.long),  # `make demo`
    ],
)
def test_a_run_with_each_backend(
    photos: Path, tmp_path: Path, loader: str, backend: str, program: Callable[..., Any]
) -> None:
    file = tmp_path / "figures.json"
    arguments = ["--loader", loader, "--backend", backend, "--epochs", 2, "--batch-size", 8, "--json", file]
    with program("train_images.py", "--data", photos, *arguments) as training:
        assert training.end() == 0, training.output
    name = f"{loader}, serial" if backend == "serial" else f"{loader}, 2 x {backend}"
    counts, alone, *epochs = training.lines
    assert re.match(rf"{name}: loading alone: [\d,]+ images/s$", alone)
    assert counts == f"{name}: 33 photographs to train, 6 to validate"  # 40, of which one is truncated
    assert [line.partition(": ")[2][:12] for line in epochs] == ["epoch 1 of 2", "epoch 2 of 2"]
    figures = json.loads(file.read_text())
    assert list(figures) == FIGURES
    assert figures["rate"] > 0 and figures["loading_rate"] > 0
    assert 0 < figures["wait_share"] < 1
    assert figures["first_batch"] > 0
    assert figures["cpu_seconds"] > 0


@pytest.mark.long  # `make demo` is the same, which CI runs
def test_train_images_compares_three_ways_to_load(photos: Path, program: Callable[..., Any]) -> None:
    with program("train_images.py", "--data", photos, "--epochs", 1, "--batch-size", 8) as training:
        assert training.end() == 0, training.output
    cells = [re.split(" *[│┃] *", line)[1:-1] for line in training.lines if re.match("[│┃]", line)]
    assert cells[:2] == [["", "images", "stoker", "torch"], ["", *["2 x process"] * 3]]
    assert [row[0] for row in cells[2:]] == [
        "loading, images/s",
        "training, images/s",
        "time waited",
        "first batch after",
        "CPU-seconds",
        "peak memory of all",
    ]
    figure = r"[\d.,]+( s| MB|%)?"
    assert all(re.fullmatch(rf"{figure} \([\d.]+ x\)", cell) for row in cells[2:] for cell in row[1:3])
    assert all(re.fullmatch(figure, row[3]) for row in cells[2:])


@pytest.mark.long
def test_torch_gets_processes_for_want_of_threads(photos: Path, program: Callable[..., Any]) -> None:
    arguments = ["--data", photos, "--loader", "torch", "--backend", "thread", "--epochs", 1]
    with program("train_images.py", *arguments) as training:
        assert training.end() == 0, training.output
    assert "torch, 2 x process: epoch 1 of 1" in training.output


def test_folders_of_the_users_own(photos: Path, tmp_path: Path, program: Callable[..., Any]) -> None:
    shutil.copytree(photos, tmp_path / "own", ignore=shutil.ignore_patterns("*.sqlite", *truncated(photos)))
    (tmp_path / "own" / "notes.txt").write_text("not a class")
    (tmp_path / "own" / "moon" / "notes.txt").write_text("not an image")
    with program("train_images.py", "--data", tmp_path / "own", "--loader", "stoker", "--epochs", 1) as training:
        assert training.end() == 0, training.output
    assert "33 photographs to train, 6 to validate" in training.output


def test_a_broken_photograph_is_named(photos: Path, tmp_path: Path, program: Callable[..., Any]) -> None:
    shutil.copytree(photos, tmp_path / "own", ignore=shutil.ignore_patterns("*.sqlite"))
    with program("train_images.py", "--data", tmp_path / "own", "--loader", "stoker", "--epochs", 1) as training:
        assert training.end() == 1
    (name,) = truncated(photos)
    assert re.search(rf"OSError: .*{name}: image file is truncated", training.output)


def test_a_folder_that_does_not_exist(tmp_path: Path, program: Callable[..., Any]) -> None:
    with program("train_images.py", "--data", tmp_path / "none") as training:
        assert training.end() == 1
    assert (
        training.output
        == f"{tmp_path}/none is no folder: `python examples/make_photos.py --data {tmp_path}/none` makes one."
    )


def test_a_folder_without_photographs(tmp_path: Path, program: Callable[..., Any]) -> None:
    with program("train_images.py", "--data", tmp_path, "--loader", "stoker") as training:
        assert training.end() == 1
    assert training.output == f"{tmp_path} has too few photographs: it takes some 10, in one folder for each class."


def test_the_data_set(photos: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import torch
from pathlib import Path
from train_images import Photos, walk_folders
folder = Path({str(photos)!r})
train, val = Photos(folder, "train"), Photos(folder, "val")
image, label = train[0]
assert (image.shape, image.dtype) == ((3, 128, 128), torch.uint8)
assert train.paths[0].parent.name == sorted(p.name for p in folder.iterdir() if p.is_dir())[label]
assert not set(train.paths) & set(val.paths)
assert len({{train[0][0].numpy().tobytes() for _ in range(5)}}) == 5, "training augments"
assert len({{val[0][0].numpy().tobytes() for _ in range(5)}}) == 1, "validation does not"
split = [walk_folders(folder, name) for name in ("train", "val")]
assert split == [walk_folders(folder, name) for name in ("train", "val")]
assert set(split[0][0]) | set(split[1][0]) == set(folder.glob("*/*.jpg"))
assert not set(split[0][0]) & set(split[1][0])
(folder / ".thumbnails").mkdir()
(folder / ".thumbnails" / "1.jpg").touch()
(train.paths[0].parent / "._1.jpg").touch()
assert split == [walk_folders(folder, name) for name in ("train", "val")], "hidden ones are no photographs"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def truncated(photos: Path) -> list[str]:
    with closing(sqlite3.connect(photos / "samples.sqlite")) as database:
        return [Path(path).name for (path,) in database.execute("SELECT file_path FROM samples WHERE NOT is_verified")]
