"""Lines, JSON Lines, CSV and TFRecord files of object stores, by their URLs."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import FileChangedError, ObjectStoreError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.sources.lines.csv_rows import CSVDataset, CSVStream
from stoker.sources.lines.json_lines import JSONLinesDataset, JSONLinesStream
from stoker.sources.lines.text_lines import TextLineDataset, TextLineStream
from stoker.sources.tfrecord.dataset import TFRecordDataset
from stoker.sources.tfrecord.stream import TFRecordStream
from stoker.testing.datasets import DatasetSuite
from tests.sources.hub_server import Hub
from tests.sources.object_servers import Bucket, Faults
from tests.sources.tfrecord.records import framed

LINES = [f"line {number} " + "x" * (number % 90) for number in range(3000)]


def text_of(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.fixture
def texts(bucket: Bucket) -> str:
    """Three files of 1,000 lines, one of them compressed, as a pattern."""
    bucket.put("t/a.txt", text_of(LINES[:1000]))
    bucket.put("t/b.txt.gz", gzip.compress(text_of(LINES[1000:2000])))
    bucket.put("t/c.txt", text_of(LINES[2000:]))
    return bucket.url("t/*")


@pytest.mark.long
class TestRemoteLines(DatasetSuite):
    bucket: Bucket

    @pytest.fixture
    def make(self, bucket: Bucket) -> Any:
        self.bucket = bucket
        urls = [bucket.put(name, text_of(LINES[:count])) for name, count in (("a.txt", 5), ("b.txt", 9))]
        return lambda: TextLineDataset(urls)

    def delete(self, dataset: Any) -> str:
        for url in dataset.files:
            self.bucket.delete(url.rpartition("/")[2])
        return self.bucket.url()


def test_lines_are_streamed_and_resumed(texts: str) -> None:
    stream = TextLineStream(texts)
    assert [name.rpartition("/")[2] for name in stream.files] == ["a.txt", "b.txt.gz", "c.txt"]
    for count in (10, 1500, 2500):
        reader = iter(stream)
        first = [next(reader) for _ in range(count)]
        rest = TextLineStream(texts)
        rest.load_state_dict(json.loads(json.dumps(reader.state_dict())))
        assert first + list(rest) == LINES


@pytest.mark.parametrize("birth", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_loader_reads_lines_by_index_and_in_sequence(birth: str, texts: str, own_cache: Path, bucket: Bucket) -> None:
    options: dict[str, Any] = {"batch_size": 50, "num_workers": 2, "multiprocessing_context": birth}
    with DataLoader(TextLineStream(texts), **options) as loader:
        assert sorted(line for batch in loader for line in batch) == sorted(LINES)
    dataset = TextLineDataset(bucket.url("t/a.txt"))
    with DataLoader(dataset, shuffle=True, seed=1, threads_per_worker=2, **options) as loader:
        lines = [line for batch in loader for line in batch]
    assert sorted(lines) == sorted(LINES[:1000]) and lines != LINES[:1000]
    assert dataset.describe(7) == f"sample 7: line 8 of {bucket.url('t/a.txt')}, byte {len(text_of(LINES[:7]))}"
    (index,) = own_cache.rglob("*.index")
    assert index.name.startswith("a.txt.") and index.name.endswith(".lines.index")


def test_index_is_used_again(bucket: Bucket, faults: Faults) -> None:
    url = bucket.put("a.txt", text_of(LINES))
    for expected in (5, 2):
        dataset = TextLineDataset(url, storage_options=faults.options)
        requests = faults.requests()
        assert len(requests) <= expected, requests
        assert [dataset[index] for index in (0, 999, -1)] == [LINES[0], LINES[999], LINES[-1]]
        faults.plan()
    bucket.put("a.txt", text_of(LINES[:50]))
    with pytest.raises(FileChangedError, match="was changed since"):
        dataset[0]
    assert len(TextLineDataset(url)) == 50


def test_stream_is_read_in_few_requests(bucket: Bucket, faults: Faults) -> None:
    size = 6 << 20
    text = random.Random(1).randbytes(size // 2).hex().encode()
    url = bucket.put("a.txt", b"\n".join(text[begin : begin + 4000] for begin in range(0, size, 4000)))
    stream = TextLineStream(url, storage_options=faults.options)
    faults.plan("", "500", "cut", "", "short")
    assert sum(map(len, stream)) == size
    assert len(faults.requests()) < 30


def test_rows_and_values(bucket: Bucket, tmp_path: Path) -> None:
    rows = [{"a": str(number), "b": f"x{number}"} for number in range(40)]
    csv = bucket.put("a.csv", text_of(["a,b", *(f"{row['a']},{row['b']}" for row in rows)]))
    jsonl = bucket.put("a.jsonl.gz", gzip.compress(text_of([json.dumps(row) for row in rows])))
    plain = bucket.put("b.jsonl", text_of([json.dumps(row) for row in rows]))
    cache: dict[str, Any] = {"cache": tmp_path / "cache", "cache_size": 1 << 30}
    assert list(CSVStream(csv, **cache)) == rows == list(JSONLinesStream(jsonl, **cache))
    by_index = [CSVDataset(csv, **cache), JSONLinesDataset(plain, **cache)]
    assert [[dataset[index] for index in range(40)] for dataset in by_index] == [rows, rows]
    bucket.delete("a.csv")
    assert [dataset[3] for dataset in by_index] == [rows[3]] * 2, "from the cache"


def test_records_of_tensorflow(bucket: Bucket) -> None:
    pytest.importorskip("google_crc32c")
    data = [bytes([number]) * number for number in range(1, 60)]
    url = bucket.put("a.tfrecord", b"".join(map(framed, data)))
    zipped = bucket.put("b.tfrecord.gz", gzip.compress(b"".join(map(framed, data))))
    dataset = TFRecordDataset(url, decode=False)
    assert [dataset[index] for index in range(len(dataset))] == data
    reader = iter(TFRecordStream([url, zipped], decode=False))
    first = [next(reader) for _ in range(70)]
    rest = TFRecordStream([url, zipped], decode=False)
    rest.load_state_dict(reader.state_dict())
    assert first + list(rest) == data + data


def test_failure_names_the_file_and_goes_on_with_the_next(bucket: Bucket, faults: Faults) -> None:
    urls = [bucket.put(f"{name}.txt", text_of(LINES[:3])) for name in "ab"]
    signed = f"http://127.0.0.1:{faults.port}/{bucket.name}/a.txt?X-Signature=secret"
    lines = iter(TextLineStream([signed, urls[1]], storage_options=faults.options))
    faults.plan(*["500"] * 12)
    with pytest.raises(ObjectStoreError, match=r"a\.txt cannot be read beyond byte 0 of its text: .*tried") as caught:
        next(lines)
    assert "secret" not in str(caught.value)
    faults.plan()
    assert list(lines) == LINES[:3]
    bucket.delete("a.txt")
    loader = DataLoader(TextLineStream(urls), batch_size=2, num_workers=1, on_error="skip", max_errors=2)
    with pytest.warns(StokerWarning), loader:
        assert [line for batch in loader for line in batch] == LINES[:3]
    with pytest.raises(FileNotFoundError, match="no such bucket or object"):
        list(TextLineStream(urls[0]))


def test_lines_of_the_hub(hub: Hub) -> None:
    root = hub.put({"a.txt": text_of(LINES[:9]), "b.txt": text_of(LINES[9:2000])})
    stream = TextLineStream("hf://datasets/we/data/*.txt")
    assert list(stream) == LINES[:2000] and stream.fingerprint == root
