"""`stoker index` writes the indexes of tar shards, and goes on behind one that is damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.diagnostics.cli import main
from stoker.sources.tar.dataset import TarDataset
from stoker.sources.tar.index import loaded
from tests.sources.tar.shards import numbered, write_shard


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three shards of four samples, in the working folder."""
    monkeypatch.chdir(tmp_path)
    names = [f"train-{number}.tar" for number in range(3)]
    for number, name in enumerate(names):
        write_shard(tmp_path / name, numbered(range(4 * number, 4 * number + 4)))
    return names


def test_indexes_are_written_once(shards: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "train-{0..2}.tar"]) == 0
    assert capsys.readouterr().out == "3 shards, 12 samples: 3 indexes written, 0 kept, 0 failed\n"
    assert all(len(loaded(f"{name}.index")) == 4 for name in shards)
    times = [os.stat(f"{name}.index").st_mtime_ns for name in shards]
    assert main(["index", *shards]) == 0
    assert capsys.readouterr().out == "3 shards, 12 samples: 0 indexes written, 3 kept, 0 failed\n"
    assert times == [os.stat(f"{name}.index").st_mtime_ns for name in shards]
    assert len(TarDataset("train-*.tar")) == 12


def test_json_names_each_shard(shards: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "train-*.tar", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["samples"], result["written"], result["failed"]) == (12, 3, 0)
    assert result["shards"][1] == {
        "shard": "train-1.tar",
        "index": "train-1.tar.index",
        "samples": 4,
        "is_new": True,
        "error": None,
    }


def test_a_damaged_shard_does_not_stop_the_others(shards: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    os.truncate(shards[1], 700)
    assert main(["index", *shards]) == 1
    printed = capsys.readouterr()
    assert printed.out == "3 shards, 8 samples: 2 indexes written, 0 kept, 1 failed\n"
    assert printed.err.startswith("stoker: train-1.tar: ") and printed.err.count("\n") == 1
    assert not os.path.exists("train-1.tar.index")


def test_an_index_that_does_not_belong_is_made_anew_if_told(
    shards: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", *shards]) == 0
    write_shard(tmp_path / shards[0], numbered(range(9)))
    assert main(["index", *shards]) == 1
    assert "does not belong" in capsys.readouterr().err
    assert main(["index", "--overwrite", *shards, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 17


def test_wrong_names_are_one_sentence(shards: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "missing-*.tar"]) == 1
    assert capsys.readouterr().err.startswith("stoker: no file matches missing-*.tar (looked in ")
    assert main(["index"]) == 2
