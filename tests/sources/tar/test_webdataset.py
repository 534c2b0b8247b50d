"""Shards written by the webdataset package are read by us, and the other way round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.sources.tar.dataset import TarDataset
from stoker.sources.tar.stream import TarStream
from stoker.sources.tar.writer import TarWriter

wds = pytest.importorskip("webdataset")
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # it leaves its files open


def samples() -> Iterator[dict[str, Any]]:
    for number in range(23):
        yield {
            "__key__": f"folder/{number:04}" + ("x" * 120 if number % 5 == 0 else ""),
            "cls": number,
            "txt": f"täxt {number}",
            "json": {"number": number},
            "npy": np.arange(number, dtype=np.float32),
            "seg.bin": bytes([number]) * 700 * number,
        }


def theirs(pattern: str, **options: Any) -> list[dict[str, Any]]:
    found = wds.WebDataset(pattern, shardshuffle=False, **options)
    return [
        {name: value for name, value in sample.items() if name not in ("__url__", "__local_path__")} for sample in found
    ]


def ours(dataset: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in dataset]


def test_shards_of_webdataset_are_read(tmp_path: Path) -> None:
    with wds.ShardWriter(f"{tmp_path}/s-%02d.tar", maxcount=10, verbose=0) as writer:
        for sample in samples():
            writer.write(sample)
    expected = theirs(f"{tmp_path}/s-{{00..02}}.tar")
    assert len(expected) == 23
    for dataset in (TarStream, TarDataset):
        assert ours(dataset(f"{tmp_path}/s-{{00..02}}.tar", decode=False)) == expected
        for found, sample in zip(ours(dataset(f"{tmp_path}/*.tar")), samples(), strict=True):
            assert found.pop("npy").tolist() == sample.pop("npy").tolist()
            assert found == sample


def test_our_shards_are_read_by_webdataset(tmp_path: Path) -> None:
    with TarWriter(f"{tmp_path}/s-%02d.tar", max_count=10) as writer:
        for sample in samples():
            writer.write(sample)
    pattern = f"{tmp_path}/s-{{00..02}}.tar"
    assert theirs(pattern) == ours(TarStream(pattern, decode=False))
    decoded = list(wds.WebDataset(pattern, shardshuffle=False).decode())
    assert [sample["cls"] for sample in decoded] == list(range(23))
    assert [sample["json"] for sample in decoded] == [{"number": number} for number in range(23)]


def test_members_of_no_sample_are_the_same(tmp_path: Path) -> None:
    from tests.sources.tar.shards import write_shard

    names = ["a/b.c.d", "a/b.E", "without", "__meta__/x.txt", "x.y/z.txt", "./q.txt", "_.txt"]
    path = write_shard(tmp_path / "a.tar", [(name, name.encode()) for name in names])
    assert ours(TarStream(path, decode=False)) == theirs(path)
