"""`stoker peek` shows what a source holds, in words, as JSON, and as a contact sheet."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.diagnostics.cli import main

MODULE = """
class Rows:
    stoker_protocol = True
    classes = ["cat", "dog"]
    targets = [0] * 7 + [1] * 3
    def __len__(self): return 10
    def __getitem__(self, index):
        if index == 8: raise OSError("disk full of sand")
        return {"text": "word " * index, "label": self.targets[index]}
    def describe(self, index): return f"row-{index}"
empty = []
wide = [{f"f{number}": number for number in range(9)}]
many = [(index, index % 30) for index in range(60)]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "peeked_by_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "peeked_by_a_test", raising=False)
    monkeypatch.setenv("COLUMNS", "120")


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peek", "peeked_by_a_test:Rows"]) == 1  # a sample cannot be read
    text = capsys.readouterr().out
    for part in (
        "peeked_by_a_test:Rows: Rows; 10 samples",
        "['text']",
        "2 classes (dataset.targets, of all)",
        "cat         7   70.0%",
        "0  row-0",
        "1 of 10 samples cannot be read:",
        "8: OSError: disk full of sand",
    ):
        assert part in text


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peek", "peeked_by_a_test:Rows", "--samples", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["count"], found["looked"], found["failed"]) == (10, 4, [])
    assert found["classes"]["counts"] == {"cat": 7, "dog": 3} and found["classes"]["is_whole"]
    assert [field["path"] for field in found["fields"]] == ["['text']", "['label']"]
    assert found["first"][0] == {"index": 0, "description": "row-0", "fields": {"['text']": "", "['label']": "0"}}


@pytest.mark.parametrize("columns", ["40", "120"])
@pytest.mark.parametrize("name", ["empty", "wide", "many"])
def test_odd_sources(
    name: str, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["peek", f"peeked_by_a_test:{name}"]) == 0
    text = capsys.readouterr().out
    assert {"empty": "no sample to look at", "wide": "['f8'] 8", "many": "20 others"}[name] in " ".join(text.split())


def test_sources_that_cannot_be_opened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peek", "rows.parqet"]) == 1
    assert "no file, no folder and no module:object 'rows.parqet'" in capsys.readouterr().err
    Path("broken.npy").write_bytes(b"nothing")
    assert main(["peek", "broken.npy"]) == 1
    assert capsys.readouterr().err.startswith("stoker: broken.npy (7 bytes) has no header of a .npy file: ")
    assert main(["peek", "broken.npy", "--sheet", "nowhere/sheet.png"]) == 1
    assert "the folder" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="preview() forks")
@pytest.mark.parametrize("kind", ["folder", "encoded", "arrays", "stream"])
def test_contact_sheet(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    source = "images"
    if kind == "folder":
        for number in range(3):
            path = Path(f"images/{'ab'[number % 2]}/{number}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            image.new("RGB", (20 + number, 30), (0, 80 * number, 9)).save(path)
    elif kind == "encoded":
        lmdb = pytest.importorskip("lmdb")
        image.new("RGB", (20, 30), (0, 200, 9)).save("one.png")
        with lmdb.open("images") as environment, environment.begin(write=True) as transaction:
            transaction.put(b"k", Path("one.png").read_bytes())
    elif kind == "arrays":
        source = "images_of_a_test:rows"
        Path("images_of_a_test.py").write_text("import numpy as np\nrows = np.ones((5, 3, 8, 8), np.uint8)\n")
    else:
        source = "stream_of_a_test:stream"
        Path("stream_of_a_test.py").write_text(
            "import numpy as np\nfrom stoker import from_iterable\n"
            "def stream(): return from_iterable(lambda: iter([{'image': np.ones((8, 8, 3), np.uint8)}] * 3))\n"
        )
    assert main(["peek", source, "--sheet", "sheet.png", "--images", "4"]) == 0
    assert "The contact sheet is sheet.png" in capsys.readouterr().out
    with image.open("sheet.png") as sheet:
        assert sheet.width > 20


@pytest.mark.skipif(sys.platform != "linux", reason="preview() forks")
def test_no_images_for_a_sheet(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("PIL.Image")
    assert main(["peek", "peeked_by_a_test:many", "--sheet", "sheet.png"]) == 1
    assert "the batch holds no images" in capsys.readouterr().err and not Path("sheet.png").exists()
