"""`stoker profile` measures a loader named by a module, and says where its time goes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.cli import main

MODULE = """
import time
from stoker import DataLoader, Dataset

class Chain:
    def __init__(self, *steps): self.transforms = list(steps)
    def __call__(self, value):
        for step in self.transforms: value = step(value)
        return value

def double(value):
    time.sleep(0.003)
    return 2 * value

class Photos(Dataset):
    stoker_protocol = True
    def __init__(self): self.transform = Chain(double)
    def __len__(self): return 80
    def __getitem__(self, index): return self.transform(index)
    def describe(self, index): return f"photo-{index}.jpg"

def make(): return DataLoader(Photos(), batch_size=4, seed=1, output="numpy")
photos = Photos()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiled_by_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "profiled_by_a_test", raising=False)
    monkeypatch.setenv("COLUMNS", "120")


def test_loader_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "profiled_by_a_test:make"]) == 0
    text = capsys.readouterr().out
    for part in (
        "20 batches, 80 samples of Photos, no workers",
        "The loader alone makes",
        "transform.0 double",
        "Slowest samples",
        ".jpg",
    ):
        assert part in text
    assert "held batch" not in text


@pytest.mark.parametrize("columns", ["40", "120"])
def test_with_a_step(columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["profile", "profiled_by_a_test:make", "--batches", "20", "--step-ms", "2"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Data-bound" in text and "steps on a held batch have shown" in text


def test_json_and_other_workers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", "profiled_by_a_test:make", "--batches", "6", "--step-ms", "0", "--workers", "1", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_workers"], found["batches"], found["held"]["count"]) == (1, 6, 5)
    assert found["slowest"][0]["description"].endswith(".jpg")
    assert {step["name"] for step in found["steps"]} == {"transform.0 double"}


def test_a_loader_of_torch(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    with open("profiled_by_a_test.py", "a") as file:
        file.write("import torch.utils.data\ndef torchs(): return torch.utils.data.DataLoader(photos, batch_size=4)\n")
    assert main(["profile", "profiled_by_a_test:torchs", "--batches", "5"]) == 0
    assert "5 batches, 20 samples of Photos" in capsys.readouterr().out


def test_a_dataset_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "profiled_by_a_test:photos"]) == 1
    assert "is a dataset: name the loader" in capsys.readouterr().err


def test_interrupt_shows_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with open("profiled_by_a_test.py", "a") as file:
        file.write(
            "class Interrupts(Photos):\n"
            "    def __getitem__(self, index):\n"
            "        if index == 42: raise KeyboardInterrupt\n"
            "        return index\n"
            "def interrupts(): return DataLoader(Interrupts(), batch_size=4, output='numpy')\n"
        )
    assert main(["profile", "profiled_by_a_test:interrupts"]) == 0
    said = capsys.readouterr()
    assert "interrupted; this was measured until then" in said.err and "10 batches" in said.out
